"""The PyTorch twin of this example: python examples/finetune/twin.py writes twin.json, which the test reads."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "internal", "twin"))
import model as m
import torch
import twin

VOCAB, WIDTH, LAYERS, HEADS, CONTEXT, BATCH, STEPS, RANK, ALPHA = 11, 16, 2, 2, 8, 4, 20, 4, 8.0


def train(model, tokens, lr):
    """Trains on windows of the text from its beginning on."""
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, fused=True)
    losses = []
    for step in range(STEPS):
        at = range(step * BATCH, (step + 1) * BATCH)
        loss = model.loss(torch.stack([tokens[i : i + CONTEXT] for i in at]), torch.stack([tokens[i + 1 : i + 1 + CONTEXT] for i in at]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


twin.start()
model = m.GPT(VOCAB, WIDTH, LAYERS, HEADS, CONTEXT)
first, second = torch.tensor([i * i % VOCAB for i in range(100)]), torch.tensor([i * i * i % 7 for i in range(100)])
base = train(model, first, 1e-2)
m.insert(model, RANK, ALPHA)
adapted = train(model, second, 1e-2)
with torch.no_grad():
    before = model(second[:CONTEXT].view(1, -1))
    m.merge(model)
    after = model(second[:CONTEXT].view(1, -1))
twin.save(base=base, adapted=adapted, before=before.flatten().tolist(), after=after.flatten().tolist())
