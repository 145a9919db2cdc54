// Package tensor provides libtorch's tensors for Go: [Tensor] and its operators, dtypes, devices, indexing, and the
// scopes that manage native memory. This program fits a line to five points:
//
//	err := tensor.WithScope(func() error {
//		x := tensor.Linspace(-1, 1, 5).View(5, 1)
//		y := x.Mul(3).Add(0.5)
//		w := tensor.Zeros([]int{1, 1}).RequiresGrad_()
//		b := tensor.Zeros([]int{1}).RequiresGrad_()
//		for range 200 {
//			err := tensor.WithScope(func() error { // a step: what it makes is freed at its end
//				loss := x.MatMul(w).Add(b).MSELoss(y)
//				return loss.Backward()
//			})
//			if err != nil {
//				return err
//			}
//			...
//		}
//		fmt.Println(w.Item())
//		return nil
//	})
//
// The complete program is the package example. Package autograd computes gradients, package nn has layers, and package
// optim has optimizers; all are built on this package.
//
// # Names
//
// An operator has PyTorch's name in Go spelling: torch.log_softmax is [Tensor.LogSoftmax]. Its documentation ends with
// PyTorch's name and the schema. Overloads that PyTorch calls by one name have different names here: [Tensor.Max]
// returns one value, and [Tensor.MaxDim] returns values and indices. In an operator's documentation x is the receiver. A
// method whose name ends in an underscore writes into its receiver: [Tensor.Add_]. [Call] runs any operator by its full
// name, including operators that have no method here.
//
// Arguments without a default are positional, and so are a few with one, as the signatures show: the bounds of
// [Tensor.Clamp], the bins of [Tensor.HistC], the mean of [Tensor.Normal_], the bias of [Tensor.LayerNorm]. The others
// are options, which correspond to PyTorch's keyword arguments:
//
//	x.Sum(tensor.Dim(1), tensor.KeepDim(true))
//	tensor.Zeros([]int{2, 3}, tensor.Float64, tensor.CUDA(0))
//
// A [DType], a [Device] and a [Reduction] are options themselves. An operator returns an error for an option that it
// does not accept. If an option is given twice, the last one counts. Where PyTorch accepts a tensor or a number, the
// parameter has type any: x.Mul(y), x.Mul(0.5). Numbers take part in type promotion as in Python.
//
// # Lifetimes
//
// The memory of a tensor is not allocated by Go, and the garbage collector does not know its size. A tensor lives until
// its scope closes or until it becomes unreachable, whichever is first.
//
// A [Scope] owns the tensors that its goroutine makes while it is the innermost open scope. Scopes are dynamic, like
// Python's "with" statement: a scope also owns the tensors that called functions make, and no function needs a scope as
// an argument. [WithScope] runs a function in a scope. The loops of package data open a scope for each batch, so that
// the usual training loop needs no code for lifetimes. Closing a scope frees all its tensors at once, also after an
// error, a return or a panic. Using a tensor after that returns [ErrReleased]; it never crashes.
//
// A tensor that must outlive its scope is moved out of it:
//
//   - [Tensor.Keep] removes a tensor from all scopes. Constructors of structs that hold tensors, such as layers, do this for
//     their parameters.
//   - [Tensor.MoveOut] moves a tensor to the enclosing scope, for example to return it from a function that opens a scope.
//   - [Tidy] runs a function in a scope, frees its temporaries, and moves its result to the enclosing scope.
//   - [Scope.Adopt] moves tensors to a given scope, and [Tensor.Alias] makes a second handle with its own lifetime.
//   - [Replace] is for a tensor that is carried from step to step: it keeps the new tensor and releases the old one.
//   - [Tensor.Release] frees a tensor now, or as soon as operators on other goroutines no longer use it.
//
// Tensors outside all scopes are freed after the garbage collector finds them unreachable: by the next operator, within
// two seconds, or by [Flush]. This suits a few tensors; for many it is slower than a scope.
//
// A view shares the storage of its base, and the storage lives as long as any tensor that uses it. An autograd graph
// keeps alive what its backward pass needs, even if scopes close. The graph is freed with the last tensor computed from
// it, or by Backward.
//
// # Errors
//
// Operators can be chained: x.MatMul(w).Add(b). An operator that fails returns a failed tensor, which carries the
// error. An operator applied to a failed tensor returns the same error. Functions that return Go values return the
// error: [Tensor.Err], [Data], [Item], [Tensor.Backward], [Scope.Close]. One check at the end of an expression is
// therefore enough, and WithScope returns an error that the program has not read.
//
// An [*Error] names the operator, the dtypes and shapes of its operands, and the line that called it. Use errors.Is to
// test its kind: [ErrArgument], [ErrIndex], [ErrOutOfMemory] and so on. No argument to a function of this package
// but [CallUnchecked] causes a panic or ends the process. Arguments on which libtorch itself would crash are checked
// and return an error.
//
// [Tensor.Err] returns the error of a failed tensor, [ErrReleased] for a released one, and [ErrNil] for a nil one.
// Getters do not return an error. For a tensor that is failed, released or nil they return
//
//	Shape, Stride                                       nil
//	Dim, Size, Numel, StorageOffset, StorageBytes       0
//	DType                                               Invalid
//	Device                                              CPU
//	IsContiguous, IsLeaf, RequiresGrad, SharesStorage   false
//	Version                                             -1
//	GradFn                                              ""
//	String                                              the reason: tensor(<released>)
//	Grad                                                a failed tensor with the error
//
// # Goroutines
//
// A tensor may be used from any goroutine, and from several at once provided that none writes to it. What changes its
// shape, memory or history instead of its elements (Detach_, nn.To) writes to it, too, and can end the process where
// another goroutine uses the tensor. The race detector (go test -race) does not see elements, which libtorch reads and
// writes, and so reports no race between two goroutines that call Add_ on one tensor. Scopes and modes (autograd.NoGrad) belong to the goroutine that opened them, which is
// locked to its OS thread until they close. Goroutines that it starts have neither. Each goroutine with an open scope
// occupies a thread, so limit how many compute at once: [SetMaxScopedGoroutines] allows 1,000 by default.
// [SetNumThreads] sets the number of threads that one operator may use.
//
// # libtorch
//
// libtorch is loaded at the first call, not linked. A program builds and starts without it; if it is missing, the first
// call returns an error that names the command to install it. Versions 2.11 to 2.15 are supported.
package tensor
