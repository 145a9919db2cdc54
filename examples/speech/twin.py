"""The PyTorch twin of this example: python examples/speech/twin.py writes twin.json, which the test reads."""
import math
import os
import re
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "internal", "twin"))
import torch
import torch.nn as nn
import torch.nn.functional as F
import twin

RATE, HOP, BANDS, PHONES, SHORTEST, LONGEST = 8000, 128, 32, 3, 2, 4
FRAMES = LONGEST * PHONES * 7
BATCH, STEPS, HIDDEN, LR = 4, 12, 16, 5e-3


def table():
    """Returns the formants and noise of all phones from sounds.go."""
    with open(os.path.join(here, "sounds.go")) as f:
        rows = re.findall(r"\{([\d.]+), ([\d.]+), ([\d.]+)\}", f.read())
    return torch.tensor([[float(v) for v in row] for row in rows])


def tone(frequency):
    return frequency.div(RATE).cumsum(1).mul(2 * math.pi).sin()


def speak(n):
    total = LONGEST * PHONES
    count = torch.randint(SHORTEST, LONGEST + 1, (n, 1))
    said = torch.randint(0, 10, (n, LONGEST))
    durations = torch.randint(3, 8, (n, total))
    durations = durations * torch.arange(total).view(1, -1).lt(count * PHONES).long()
    ends = durations.cumsum(1)
    throat = torch.rand(n, 1).mul(0.3).add(0.85)
    pitch = torch.rand(n, 1).mul(120).add(90)
    at = torch.arange(FRAMES + 1).view(1, -1, 1).ge(ends.unsqueeze(1)).sum(2).clamp_max(total - 1)
    rows = said.mul(PHONES).unsqueeze(2).add(torch.arange(PHONES)).view(n, total).gather(1, at)
    track = table().index_select(0, rows.flatten()).view(n, FRAMES + 1, 3).repeat_interleave(HOP, 1)
    loud = torch.arange(FRAMES + 1).view(1, -1).lt(ends[:, -1:]).repeat_interleave(HOP, 1)
    hiss = track.select(2, 2)
    voice = tone(track.select(2, 0) * throat) + tone(track.select(2, 1) * throat) * 0.5
    voice = voice * (tone(pitch.expand(n, loud.shape[1])) * 0.4 + 0.6) * (hiss.neg() + 1)
    sound = (voice + torch.randn(hiss.shape) * hiss * 0.5) * loud + torch.randn(hiss.shape) * 0.05
    return sound, said + 1, ends[:, -1], count.flatten()


def features(sound):
    frames = sound.unfold(1, 2 * HOP, HOP) * torch.hann_window(2 * HOP)
    power = torch.fft.rfft(frames).abs().square().narrow(2, 0, HOP)
    mean = power.reshape(power.shape[0], power.shape[1], BANDS, HOP // BANDS).mean(3)
    return mean.add(0.1).log().sub(2).div(3)


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(BANDS, HIDDEN, bidirectional=True)
        self.head = nn.Linear(2 * HIDDEN, 11)

    def forward(self, x, frames):
        packed = nn.utils.rnn.pack_padded_sequence(x, frames, batch_first=True, enforce_sorted=False)
        y, _ = self.lstm(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(y)
        return self.head(padded).log_softmax(-1)


twin.start()
model = Recognizer()
opt = torch.optim.Adam(model.parameters(), lr=LR, fused=True)
losses = []
for step in range(STEPS):
    sound, targets, frames, digits = speak(BATCH)
    loss = F.ctc_loss(model(features(sound), frames), targets, frames, digits)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    losses.append(loss.item())
with torch.no_grad():
    sound, _, frames, _ = speak(2)
    x = features(sound)
    classes = model(x, frames)[:, 0].argmax(1)
twin.save(losses=losses, features=x[0].mean(1).tolist(), classes=classes.float().tolist())
