"""Generates text in PyTorch with a base that chargpt trained and the adapters that finetune saved.

    python examples/finetune/load.py runs/chargpt/model.safetensors runs/finetune/adapters.pt "The Light " 300

It takes the most probable character each time.
"""
import hashlib
import sys

import torch
from safetensors.torch import load_file

import model as m

base, adapters, prompt, n = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
saved = torch.load(adapters, weights_only=True)
model = m.GPT(**saved["config"])
prefix = "model."  # of the model's tensors in a training checkpoint
model.load_state_dict({k[len(prefix):]: v for k, v in load_file(base).items() if k.startswith(prefix)})
weights = hashlib.sha256(b"".join(w.numpy().tobytes() for w in model.state_dict().values())).hexdigest()
if weights != saved["base"]:
    sys.exit(f"{adapters} has the adapters of another base than {base}")
m.insert(model, saved["rank"], saved["alpha"])
missing, unexpected = model.load_state_dict(saved["adapters"], strict=False)
assert not unexpected and not any("lora" in k for k in missing), (missing, unexpected)
m.merge(model)
vocab = saved["vocab"]
ids = [vocab.index(c) for c in prompt]
with torch.no_grad():
    for _ in range(n):
        logits = model(torch.tensor([ids[-model.context:]]))[0, -1]
        ids.append(int(logits.argmax()))
print(prompt + "".join(vocab[i] for i in ids[len(prompt):]), end="")
