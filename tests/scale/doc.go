// Scale simulates the time of a training step with data parallelism on 8 to 4,096 devices, and prints it with the
// bounds of ring and tree:
//
//	go run ./tests/scale                       a GPT of 124 M parameters on nodes of 8 devices
//	go run ./tests/scale -parameters 1e9 -backward 300ms
//	go run ./tests/scale -help
//
// It shows at which number of ranks a step stops scaling, and why, for a given network. It does not model NCCL's
// protocols; docs/distributed.md discusses its results.
//
// # Model
//
// A step is a forward pass, a backward pass, and the optimizer. A rank computes each in its mean time, multiplied by
// a random factor of 1 or more (jitter). The backward pass makes the gradients of one bucket after the other, in equal
// times. As in DDP, a bucket is reduced once its gradients exist on all ranks that a message depends on and the
// previous bucket is reduced; the optimizer begins when the last bucket is reduced.
//
// A message of n bytes over a link occupies the sender for n/bandwidth and arrives a latency after that. Latencies are
// random: the mean is the link's, and what is above the minimum, a part of the mean, is exponentially distributed. Ranks of
// one node are joined by one kind of link; ranks of two nodes by another, of which each rank has its own.
//
// A ring reduces a bucket of S bytes on N ranks in 2(N-1) turns. In each, a rank sends S/N bytes to the next, which it
// received from the rank before in the turn before. As NCCL does, there are as many rings as ranks in a node, each over
// another rank's link between the nodes, with S divided by their number; they are alike, and one is simulated.
//
// A tree sends chunks of a bucket from the leaves to the root, where they are summed, and back. As NCCL does, a node's ranks
// are a chain, and its first is a vertex of a binary tree of nodes. Two such trees, in which different nodes are leaves, each
// carry half of the bucket; they are alike, and one is simulated with the load of both.
//
// # Bounds
//
// The bounds are the times without noise. A ring takes 2(N-1) turns of the mean latency and transfer of its links, or of the
// transfer of its slowest link if that is more. A tree takes the latencies and transfers of a chunk from its deepest leaf to the
// root and back, and the transfers of the other chunks over its slowest link.
package main
