# A rank in Python beside ranks in Go: the collectives of the role "python" in processes_test.go.
import datetime
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
group = dist.new_group(list(range(world)))
# Where PyTorch compares collectives it counts sends and receives, of which each rank has its own number, and its DDP
# crashes.
compared = dist.get_debug_level() == dist.DebugLevel.DETAIL
for g in (None, group):
    x = torch.tensor([float(rank), 1.0])
    dist.all_reduce(x, group=g)
    assert x.tolist() == [world * (world - 1) / 2, world], x
    out = torch.zeros(2 * world)
    dist.all_gather_into_tensor(out, torch.tensor([float(rank), 7.0]), group=g)
    assert out.tolist() == [v for r in range(world) for v in (float(r), 7.0)], out
    part = torch.zeros(1)
    dist.reduce_scatter_tensor(part, torch.arange(world, dtype=torch.float32), group=g)
    assert part.item() == world * rank, part
    y = torch.tensor([float(rank)])
    dist.broadcast(y, world - 1, group=g)
    assert y.item() == world - 1, y
    if compared:
        pass
    elif rank == 0:
        dist.send(torch.tensor([5.0]), 1, group=g, tag=3)
    elif rank == 1:
        dist.recv(y, 0, group=g, tag=3)
        assert y.item() == 5, y
    if not compared:
        dist.monitored_barrier(group=g)
    dist.barrier(group=g)
# equalReplicas.
every_option = {}, {"find_unused_parameters": True}, {"find_unused_parameters": True, "bucket_cap_mb": 3}
for options in () if compared else every_option:
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 600), torch.nn.Tanh(), torch.nn.Linear(600, 600), torch.nn.Linear(600, 1)
    )
    ddp = torch.nn.parallel.DistributedDataParallel(net, **options)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        opt.zero_grad()
        ddp(torch.full((2, 3), rank + 1.0)).sum().backward()
        opt.step()
    mine = torch.cat([p.detach().flatten() for p in net.parameters()])
    every = torch.zeros(world * mine.numel())
    dist.all_gather_into_tensor(every, mine)
    assert (every.view(world, -1) == mine).all(), every
dist.destroy_process_group()
