#!/usr/bin/env python3
"""Writes data.json: the indices that torch.utils.data's samplers, random_split and shuffling DataLoaders return, by case, epoch by
epoch.

    python3 tests/golden/data.py
"""
import json
import os

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, random_split

here = os.path.dirname(os.path.abspath(__file__))
WEIGHTS = [0.5, 0.0, 2.0, 1.0, 0.25, 4.0, 0.125]


def gen(seed):
    return torch.Generator().manual_seed(seed)


def epochs(make, seeds=(0, 7, 2**31 + 5, 2**40 + 3), n=3):
    out = {}
    for seed in seeds:
        sampler = make(gen(seed))
        out[str(seed)] = [list(sampler) for _ in range(n)]
    return out


class Long:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


def wide(n):
    return epochs(lambda g: RandomSampler(Long(n), replacement=True, num_samples=40, generator=g), n=2)


def distributed(n, replicas, rank, **kw):
    out = {}
    for seed in (0, 7):
        s = DistributedSampler(range(n), replicas, rank, seed=seed, **kw)
        out[str(seed)] = []
        for epoch in range(3):
            s.set_epoch(epoch)
            out[str(seed)].append(list(s))
    return out


def loader(n, **kw):
    by_workers = []
    for workers in (0, 2):
        out = {}
        for seed in (0, 7, 2**40 + 3):
            batches = DataLoader(range(n), shuffle=True, generator=gen(seed), num_workers=workers, **kw)
            out[str(seed)] = [[i for batch in batches for i in batch.tolist()] for _ in range(3)]
        by_workers.append(out)
    assert by_workers[0] == by_workers[1]
    return by_workers[0]


def main():
    data = {
        "random": epochs(lambda g: RandomSampler(range(10), generator=g)),
        "random_large": epochs(lambda g: RandomSampler(range(700), generator=g), n=1),
        "random_replacement": epochs(lambda g: RandomSampler(range(10), replacement=True, num_samples=70, generator=g)),
        "random_replacement_2^28-1": wide(2**28 - 1),
        "random_replacement_2^28": wide(2**28),
        "random_replacement_2^32": wide(2**32 + 5),
        "random_samples": epochs(lambda g: RandomSampler(range(10), num_samples=25, generator=g)),
        "subset": epochs(lambda g: SubsetRandomSampler([3, 1, 4, 15, 9], generator=g)),
        "weighted": epochs(lambda g: WeightedRandomSampler(WEIGHTS, 20, generator=g)),
        "weighted_one": epochs(lambda g: WeightedRandomSampler(WEIGHTS, 1, generator=g)),
        "weighted_without": epochs(lambda g: WeightedRandomSampler(WEIGHTS, 5, replacement=False, generator=g)),
        "batch": epochs(lambda g: BatchSampler(RandomSampler(range(10), generator=g), 4, False)),
        "batch_drop": epochs(lambda g: BatchSampler(RandomSampler(range(10), generator=g), 4, True)),
        "distributed": distributed(10, 3, 1),
        "distributed_last": distributed(10, 3, 2),
        "distributed_drop": distributed(10, 3, 2, drop_last=True),
        "distributed_order": distributed(10, 3, 2, shuffle=False),
        "distributed_many": distributed(3, 8, 7),
        "loader": loader(10, batch_size=3),
        "loader_even": loader(10, batch_size=5),
        "loader_drop": loader(10, batch_size=4, drop_last=True),
        "loader_large": loader(700, batch_size=64),
        "split": {str(s): [list(p.indices) for p in random_split(range(20), [3, 10, 7], generator=gen(s))] for s in (0, 7)},
        "split_fractions": {str(s): [list(p.indices) for p in random_split(range(23), [0.3, 0.3, 0.4], generator=gen(s))] for s in (0, 7)},
    }
    with open(os.path.join(here, "data.json"), "w") as out:
        json.dump(data, out, separators=(",", ":"), sort_keys=True)
        out.write("\n")


main()
