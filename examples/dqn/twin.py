"""The PyTorch twin of this example: python examples/dqn/twin.py writes twin.json, which the test reads."""
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "internal", "twin"))
import torch
import torch.nn as nn
import torch.nn.functional as F
import twin

WIDTH, HEIGHT, CAPACITY, BATCH, GAMMA, LR, EPISODES, SYNC = 5, 6, 500, 32, 0.9, 2e-3, 40, 20


class Catch:
    """A ball falls through a grid; the paddle at the bottom moves left, stays or moves right."""

    def reset(self):
        self.x, self.y, self.paddle = int(torch.randint(0, WIDTH, ())), 0, WIDTH // 2
        return self.state()

    def state(self):
        return [self.x / WIDTH, self.y / HEIGHT, self.paddle / WIDTH]

    def step(self, action):
        self.paddle = min(max(self.paddle + action - 1, 0), WIDTH - 1)
        self.y += 1
        done = self.y == HEIGHT - 1
        reward = 0.0 if not done else 1.0 if self.x == self.paddle else -1.0
        return self.state(), reward, done


class Replay:
    def __init__(self):
        self.states, self.nexts = torch.zeros(CAPACITY, 3), torch.zeros(CAPACITY, 3)
        self.actions = torch.zeros(CAPACITY, dtype=torch.int64)
        self.rewards, self.alive = torch.zeros(CAPACITY), torch.zeros(CAPACITY)
        self.n = 0

    def add(self, state, action, reward, after, done):
        i = self.n % CAPACITY
        self.states[i], self.nexts[i] = torch.tensor(state), torch.tensor(after)
        self.actions[i], self.rewards[i], self.alive[i] = action, reward, float(not done)
        self.n += 1

    def sample(self):
        i = torch.randint(0, min(self.n, CAPACITY), (BATCH,))
        return self.states[i], self.actions[i], self.rewards[i], self.nexts[i], self.alive[i]


def network():
    return nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


twin.start()
q, target = network(), network()
target.load_state_dict(q.state_dict())
opt = torch.optim.Adam(q.parameters(), lr=LR, fused=True)
game, replay = Catch(), Replay()
losses, rewards = [], []
steps = 0
for episode in range(EPISODES):
    epsilon = max(0.05, 1 - episode / (EPISODES / 2))
    state, done = game.reset(), False
    while not done:
        if torch.rand(()).item() < epsilon:
            action = int(torch.randint(0, 3, ()))
        else:
            with torch.no_grad():
                action = int(q(torch.tensor(state)).argmax())
        after, reward, done = game.step(action)
        replay.add(state, action, reward, after, done)
        state = after
        if replay.n < BATCH:
            continue
        s, a, r, n, alive = replay.sample()
        with torch.no_grad():
            want = r.add(target(n).amax(1).mul(alive).mul(GAMMA))
        loss = F.smooth_l1_loss(q(s).gather(1, a.unsqueeze(1)).squeeze(1), want)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        steps += 1
        if steps % SYNC == 0:
            target.load_state_dict(q.state_dict())
    rewards.append(reward)
twin.save(losses=losses, rewards=rewards)
