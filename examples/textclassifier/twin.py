"""The PyTorch twin of this example: python examples/textclassifier/twin.py writes twin.json, which the test reads."""
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "internal", "twin"))
import torch
import torch.nn as nn
import torch.nn.functional as F
import twin

WORDS = "the film plot cast music ending was and good great superb moving bad dull awful weak not".split()
GOOD, BAD, NOT = range(9, 13), range(13, 17), 17  # their ids; 0 is padding
REVIEWS, LENGTH, BATCH, EPOCHS, LR, WIDTH, HIDDEN = 256, 12, 32, 4, 1e-2, 16, 32


def reviews(n):
    ids = torch.randint(1, len(WORDS) + 1, (n, LENGTH))
    lengths = torch.randint(4, LENGTH + 1, (n,))
    ids = ids * torch.arange(LENGTH).view(1, -1).lt(lengths.view(-1, 1)).long()
    labels = []
    for row in ids.tolist():
        score, sign = 0, 1
        for w in row:
            if w in GOOD:
                score += sign
            if w in BAD:
                score -= sign
            sign = -1 if w == NOT else 1
        labels.append(int(score > 0))
    return ids, torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS) + 1, WIDTH, padding_idx=0)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, ids):
        y, _ = self.lstm(self.embedding(ids))
        mask = ids.ne(0).unsqueeze(2)
        mean = y.mul(mask).sum(1).div(mask.sum(1))
        return self.head(self.drop(mean))


twin.start()
ids, labels = reviews(REVIEWS)
unseen, answers = reviews(REVIEWS // 2)
model = Classifier()
opt = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
losses = []
for epoch in range(EPOCHS):
    model.train()
    for i in range(0, REVIEWS, BATCH):
        loss = F.cross_entropy(model(ids[i : i + BATCH]), labels[i : i + BATCH])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
model.eval()
with torch.no_grad():
    accuracy = model(unseen).argmax(1).eq(answers).float().mean().item()
twin.save(losses=losses, accuracy=[accuracy])
