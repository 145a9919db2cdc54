// Package dist connects processes that train together. It corresponds to torch.distributed and is built on the same C++
// library, libtorch's c10d with its backends gloo and NCCL, so that ranks written in Go and in Python can be in one group.
//
//	g, err := dist.Init(ctx) // started by torchrun, a PyTorchJob, mpirun or srun
//	if err != nil {
//		return err
//	}
//	defer g.Close()
//	err = g.AllReduce(ctx, t, dist.Sum) // t is the sum of t over all ranks, on each of them
//
// # Groups
//
// A group is a set of processes that are connected to each other. Each of its members has a [Group], and a rank in it
// between 0 and Size()-1. Ranks in arguments and errors are ranks in the group of the call; in PyTorch they are ranks in
// the group of all processes.
//
//  1. A Group belongs to the caller of the function that made it ([Init], [Group.NewGroup]), who closes it. A group that
//     NewGroup makes has connections of its own and outlives the group it was made from. A [Store] given by [WithStore]
//     belongs to the caller; a group keeps what it needs of it, so that it may be closed first.
//  2. All ranks call the same collectives of a group in the same order, with tensors of the same sizes and dtypes, as in
//     PyTorch. Ranks that do not wait for each other until the timeout. gloo ends a process that receives more data than
//     it has room for; with [CheckCollectives] it is an error on all ranks. A group starts collectives in the order of
//     the calls; goroutines that share a group must agree on the order, or use a group each.
//  3. [Group.Close] waits until the other ranks have connected, for a second at most. It fails the collectives that this
//     rank has in flight with ErrClosed, closes the connections, and waits until the group's native threads have ended.
//     What completed collectives have sent still arrives. The other ranks get an error that names this rank if they use
//     the group again.
//  4. [Group.Abort] fails the collectives in flight and all later ones with ErrAborted, and those of the other ranks soon
//     after. The group can then only be closed.
//
// # Collectives
//
// Each collective has two forms: one that waits and one, whose name ends in Async, that returns a [Work].
//
//  5. A Work holds native references to its tensors until it is complete. Release, the end of a scope or a sweep may
//     free the Go tensors before; their memory stays until then. The program must not read outputs, or write to inputs
//     or outputs, before Wait has returned nil or an error.
//  6. A collective that was started cannot be taken back, since the other ranks take part in it. So if its context ends,
//     the form that waits aborts the group (rule 4) before it returns the context's error, and no tensor is in use
//     afterwards. The same holds for a call of several collectives whose first one was started. [Work.Wait] only stops
//     waiting, and the collective goes on.
//  7. Tensors must be dense, contiguous and on one device, for which the group has a backend. Those of dtypes int16, uint16,
//     uint32, uint64 and float8 gloo only sends and receives. Collectives are not recorded for the backward pass.
//  8. No goroutine runs between calls, and no native thread calls Go. A sweep does not wait for a collective, nor a
//     collective for a sweep.
//
// # CUDA devices
//
// A group has the backend gloo, for tensors on the CPU, NCCL, for those on CUDA devices, or both, "cpu:gloo,cuda:nccl",
// and the device of a collective's tensors selects the backend ([Backend]). Each rank of a machine uses a device of its
// own, and the libtorch must have CUDA ("linstock setup --cuda"). Objects, Report and MonitoredBarrier need gloo.
//
//  9. Wait returns when the device has completed the collective, or with its error. A backward pass of a DDP waits for its
//     collectives in the same way. A collective on a device, its Wait, and a pass of a DDP cannot be captured (package
//     cuda): they return tensor.ErrCapture before anything has started.
//  10. No failure of NCCL ends the process: libtorch's watchdog does not run (the environment variable
//     TORCH_NCCL_BLOCKING_WAIT is set). NCCL may not notice that a rank is gone. While a call waits, a goroutine checks
//     for this and aborts the group.
//  11. NCCL connects at the first collective. How long that takes is not limited by the timeout.
//
// # Data parallelism
//
// A [DDP] trains a model on all ranks of a group, each with inputs of its own, see data.NewDistributedSampler.
//
//	ddp, err := dist.NewDDP(ctx, g, model)
//	…
//	loss := nn.CrossEntropy(ddp.Forward(x), y)
//	err = loss.Backward()
//
// The backward pass averages the gradients in buckets, while those of earlier layers are still being computed.
//
//  12. All ranks run the same forward and backward passes in the same order.
//  13. A DDP holds native references to the parameters and to its buckets until Close, its own or that of its group. What
//     a backward pass uses stays until the pass has ended. A pass whose group is closed fails with ErrConnection.
//  14. The failure of another rank is an error of Backward, a *[PeerError].
//
// # Sharded data parallelism
//
// [Shard] divides the parameters of a module among the ranks by rows, and with them the gradients and the optimizer's state: a
// DDP for models that do not fit (ZeRO-2 and 3).
//
//  15. Each tensor of the module is this rank's rows of the parameter, outside of Forward and Run. That is what an optimizer,
//     a state dict and a checkpoint see; [FSDPModule.Parameters] tells which rows they are. nn.ClipGradNorm_ and
//     optim.GradScaler reduce over the ranks, also for the layers of tensor parallelism, so all ranks must call them.
//  16. Forward and Run gather the whole parameters for the time of the call, and the backward pass gathers them again for
//     the time it needs them. They are freed with their last reference. With ReshardAfterForward(false) the graph keeps them.
//     A gather that another module's pass has started ([FSDPModule.SetModulesToForwardPrefetch]) takes memory from its start.
//  17. The backward pass averages the gradients over the ranks and adds this rank's rows to Grad. A parameter that no rank
//     has used gets none.
//  18. A parameter must not be changed between a forward pass and its backward pass. Ranks run the same passes of the same
//     FSDPModules in the same order.
//  19. After Close of the FSDPModule or its group the parameters stay what they are, and nothing else is left.
//
// # Tensor parallelism
//
// [ColwiseParallel], [RowwiseParallel], [SequenceParallel] and [LossParallel] divide the layers of a Transformer among the ranks
// of a group, which all get the same batch. A tensor is the same on all ranks ([Replicate]), or each rank has a part of it along
// a dimension ([ShardDim]), and its gradient has the same layout; [Redistribute] changes the layout. What the ranks
// have, and where they communicate:
//
//	                           parameters      input     output     forward          backward
//	ColwiseParallel, Linear    rows            whole     last dim   -                all-reduce of x's gradient
//	  InputLayouts(ShardDim)   rows            dim       last dim   all-gather of x  reduce-scatter of x's gradient
//	ColwiseParallel, Embedding columns         whole     last dim   -                -
//	  OutputLayouts(Replicate) as without it             whole      all-gather of y  as without it
//	RowwiseParallel, Linear    columns         last dim  whole      all-reduce of y  -
//	RowwiseParallel, Embedding rows            whole     whole      all-reduce of y  -
//	  OutputLayouts(ShardDim)  as without it             dim        reduce-scatter   all-gather of y's gradient
//	SequenceParallel           all             dim       dim        -                all-reduce of the parameters' gradients
//	LossParallel               -               last dim  whole      all-reduce of a maximum and sums for each target
//	Redistribute               -               dim       whole      all-gather of x  -
//	                                           whole     dim        -                all-gather of y's gradient
//
// So a block whose sequences are divided outside of its attention and feed-forward network has one all-gather and one
// reduce-scatter for each of these, forward and backward:
//
//	sequence, out := dist.InputLayouts(dist.ShardDim(1)), dist.OutputLayouts(dist.ShardDim(1)) // x is (N, T, C)
//	norm := dist.NewSequenceParallel(g, nn.NewLayerNorm(512))
//	qkv := dist.NewColwiseParallel(g, nn.NewLinear(512, 3*512), dist.Fused(3), sequence)
//	proj := dist.NewRowwiseParallel(g, nn.NewLinear(512, 512), out)
//	…
//	x = x.Add(proj.Forward(nn.CausalAttention(qkv.Forward(norm.Forward(x)), 8/g.Size())))
//
// What divided layers require of the rest of a model:
//
//  20. A layer that is not divided must be the same on all ranks. Its gradients are then the same, too, if it computes
//     with whole tensors; a SequenceParallel is for one that computes with parts of sequences.
//  21. Dropout of whole tensors needs the same random numbers on all ranks; dropout of divided ones, different numbers
//     on each.
//  22. If two branches of a model have collectives in their backward passes, and neither depends on the other, libtorch's engine
//     runs the one that was recorded last first. All ranks must record them in the same order, so not in separate
//     goroutines. This applies to [ConvertSyncBatchNorm], too. Layers one after the other, even with
//     residual connections around them, are not such branches.
//
// # Models that do not fit
//
// [ZeroRedundancyOptimizer] divides the optimizer's state among the ranks, and a [Pipeline] gives each rank some layers.
// [NewDeviceMesh] makes the groups for combinations of them.
//
//  23. Their collectives, and those of divided layers, are parts of Step, Forward and Backward, which all ranks of the group call
//     in the same order. If one of them fails on a rank, the group can no longer be used.
//
// # Failures
//
// If a rank is killed, stops, or does not take part in time, the collectives of the others fail with a *[PeerError] that
// names it. The first rank that meets the failure finds out which ranks are gone: it closes its connections, so that the
// others notice at once, and tries to connect to a port that each process listens on for this purpose. A refused
// connection means that the process has ended. If all processes exist, those that do not report in the store within a
// second are named: they are stopped, cut off, or busy. The verdict is written to the store, so that all ranks name the
// same ones. After a failure a group can only be closed; a launcher such as torchrun starts the processes again.
//
// With [FlightRecorder] each rank records its last collectives in a file, from which "linstock flight" shows what the ranks
// wait for. [Group.Report] compares the throughput, waiting time and memory of the ranks.
//
// # Network
//
// The store and gloo use TCP without authentication or encryption: whoever can reach their ports can read and change what
// is sent, or end a process. Use them in a network that only the job's processes reach. With a [Token], a process that
// does not know it cannot become a rank; the store and the connections are as open as before. gloo listens on the address
// of the host's name, or on that of the interface named by the environment variable GLOO_SOCKET_IFNAME.
package dist
