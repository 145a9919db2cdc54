// Package tensor is libtorch's tensors for Go: [Tensor], its operators, dtypes, devices, indexing, and the scopes
// that own native memory. A program that fits a line:
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
// (Example runs the whole of it.) Gradients are in package autograd, layers in nn, optimizers in optim; this
// package is what they are made of, and no more.
//
// # Names
//
// An operator is called what PyTorch calls it, in Go's spelling: torch.log_softmax is [Tensor.LogSoftmax]. Its
// documentation ends with PyTorch's name and the schema. Where PyTorch overloads a name, the variants have names of
// their own: [Tensor.Max] gives one value, [Tensor.MaxDim] values and indices. A trailing underscore writes into the
// receiver: [Tensor.Add_]. An operator that is not in the table is reached by its full name with [Call].
//
// Arguments without defaults are positional. The others are options, PyTorch's keyword arguments:
//
//	x.Sum(tensor.Dim(1), tensor.KeepDim(true))
//	tensor.Zeros([]int{2, 3}, tensor.Float64, tensor.CUDA(0))
//
// A [DType], a [Device] and a [Reduction] are options themselves. An operator refuses options that it does not have,
// and of an option given twice the last counts. Where PyTorch takes a tensor or a number, so does Go, in a parameter
// of type any: x.Mul(y), x.Mul(0.5). Numbers take part in type promotion as Python's do.
//
// # Lifetimes
//
// The memory of a tensor is not Go's, and Go's collector does not see how large it is. The rule is: a tensor lives
// until its scope closes, or until nobody can reach it, whichever is first.
//
// A [Scope] owns what its goroutine makes while it is the innermost one. It is dynamic, like Python's "with": what a
// called function makes is in it too, and no function has to be told about it. [WithScope] opens one around a
// function; so do the loops of package data around each batch, so that the usual training loop has no lifetime code
// at all. Closing frees everything at once, also after an error, a return or a panic. Using a tensor after that
// gives [ErrReleased]; it is never a crash.
//
// What is to live longer says so:
//
//   - [Tensor.Keep] takes a tensor out of all scopes. What a struct keeps, such as parameters, is kept by its
//     constructor.
//   - [Tensor.MoveOut] takes it one scope outward, the way to return a tensor from a scope.
//   - [Tidy] is both: it runs a function in a scope and moves its result out, freeing the temporaries.
//   - [Scope.Adopt] gives it to a given scope, and [Tensor.Alias] makes a second handle with a life of its own.
//   - [Replace] is for what is carried from step to step: it keeps the new tensor and releases the old one.
//   - [Tensor.Release] frees it now, or when the operators that use it on other goroutines are done.
//
// Outside all scopes the garbage collector frees what nobody can reach: at the next operator after it has noticed,
// or at [Flush]. That is right for a few tensors, and slower for many.
//
// A view shares its storage, and the storage lives as long as any of its tensors. A graph of gradients keeps alive
// what its backward pass needs, whatever scopes close; it ends with the last tensor that came out of it, or with
// Backward.
//
// # Errors
//
// Operators chain: x.MatMul(w).Add(b). One that fails returns a tensor that carries the error, every operator on it
// hands the error on, and what leaves the world of tensors returns it: [Tensor.Err], [Data], [Item],
// [Tensor.Backward], [Scope.Close]. So one check at the end of an expression is enough, and an error that nobody
// looked at comes out of WithScope.
//
// An [*Error] has the operator, dtype and shape of its operands, and the line that called it. errors.Is tells its
// kind: [ErrArgument], [ErrIndex], [ErrOutOfMemory] and so on. Nothing in this package panics or ends the process for
// an argument, whatever it is; for inputs on which libtorch itself would crash there are checks of our own.
//
// [Tensor.Err] returns the error of a failed tensor, [ErrReleased] for a released one, [ErrNil] for nil. Getters have no
// error to return; for a tensor that cannot be used they return
//
//	Shape, Stride                                       nil
//	Dim, Size, Numel, StorageOffset, StorageBytes       0
//	DType                                               Invalid
//	Device                                              CPU
//	IsContiguous, IsLeaf, RequiresGrad, SharesStorage   false
//	Version                                             -1
//	GradFn                                              ""
//	String                                              the reason: tensor(<released>)
//	Grad                                                a tensor that carries the error
//
// # Goroutines
//
// A tensor may be used from any goroutine, and by several at once as long as none writes to it. Scopes and modes
// (autograd.NoGrad) belong to the goroutine that opened them, which holds its OS thread meanwhile; goroutines that it
// starts have neither. So bound how many compute at once: [SetMaxScopedGoroutines] refuses more than 1,000 by
// default. [SetNumThreads] says how many threads one operator may use.
//
// # libtorch
//
// libtorch is opened at the first call, not linked: a program builds and starts without it, and a missing one is an
// error that says which command mends it. 2.11 to 2.15 are supported.
package tensor
