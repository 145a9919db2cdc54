// Package handle holds functions of packages tensor, nn and dist that the library's other packages use and programs do
// not. Each package sets its functions when it is initialized; those without a note are package tensor's. Functions with
// tensor parameters have type any, because this package cannot import tensor; the package that uses one asserts its type
// once, when it is initialized.
package handle

import (
	"runtime"
	"sync"
)

// Usable reports whether t, a *tensor.Tensor, was made by an operator that succeeded and has not been released.
var Usable func(t any) bool

// Failed reports whether t, a *tensor.Tensor, carries an error. It does not mark the error as read.
var Failed func(t any) bool

// Decided reports whether RequiresGrad_ was ever called on t, a *tensor.Tensor, with true or false.
var Decided func(t any) bool

// Same reports whether a and b, of type *tensor.Tensor, are usable handles of one tensor.
var Same func(a, b any) bool

// Storage names the storage of t, a *tensor.Tensor, and returns its size in bytes; zeros if t has none. On the meta device
// the name of a storage that a plan has recorded is never used again.
var Storage func(t any) (name uint64, bytes int64)

// DataSet returns how often set_data has replaced the data of a tensor, which does not change the tensor's version.
var DataSet func() int64

// Borrowing are the layers for which tensor.LastUseLayer was called: a reflect.Type, no pointer, to true.
var Borrowing sync.Map

// Functions for packages autograd and optim.
var (
	Backward   any // func(roots []*tensor.Tensor, opts ...tensor.BackwardOption) error
	Grad       any // func(outputs, inputs []*tensor.Tensor, opts ...tensor.BackwardOption) ([]*tensor.Tensor, error)
	Checkpoint any // func(inputs []*tensor.Tensor, f func(inputs []*tensor.Tensor) ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error)
	// RegisterMulti registers a hook of several tensors: for the first gradient, or for all once they are there.
	RegisterMulti any // func(op string, ts []*tensor.Tensor, first bool, f func(grads []*tensor.Tensor) error) (remove func(), err error)
	TieFunction   any // func(inputs, outputs, saved []*tensor.Tensor, f func(grads, saved []*tensor.Tensor, needs []bool) ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error)
	// RecordStream records that a stream uses t's memory: func(t *tensor.Tensor, device int32, id int64) error.
	RecordStream  any
	WithHandles   any // func(op string, ts []*tensor.Tensor, f func(h []cshim.Handle) error) error; h is valid during f
	WithAutocast  any // func(device tensor.DeviceType, dtype tensor.DType, f func() error) error
	AutocastDType any // func(device tensor.DeviceType) tensor.DType
	// WithRemade runs f; the graph keeps no storage of sources, and a backward pass takes it from again:
	// func(sources []*tensor.Tensor, again func(i int) (*tensor.Tensor, error), f func() error) error.
	WithRemade any
	// Rounds from, float32, to to, bfloat16, up or down at random.
	RoundStochastic any // func(to, from *tensor.Tensor) error
	// Returns the activation of x.Linear(weight, bias), in one native call.
	LinearActivation any // func(x, weight, bias *tensor.Tensor, a cshim.Activation) *tensor.Tensor
	// Makes v reachable for as long as t is, or until drop is called; v may refer to t.
	Hold any // func(t *tensor.Tensor, v any) (drop func())
	// Returns t's shape, for comparisons, and its dtype.
	ShapeOf  any // func(t *tensor.Tensor) (Shape, tensor.DType)
	AdamStep any // func(how Adam, params, avgs, sqs, maxs, steps []*tensor.Tensor) error
)

// Shape is the shape of a tensor, for comparisons with ==. Dims is -1 if the tensor is not usable.
type Shape struct {
	Dims  int
	First [8]int64 // the first sizes
	Rest  string   // the others
}

// Adam holds the settings of AdamStep.
type Adam struct {
	LR, Beta1, Beta2, WeightDecay, Eps float64
	AMSGrad, Maximize, Decoupled       bool
}

// WithStream runs f with a stream, named by its device's word and its number, and its device current on this goroutine,
// which is locked to its thread meanwhile. Errors of WithStream itself name op.
var WithStream func(op string, device int32, id int64, f func() error) error

// NativeError turns an error of the shim into a *tensor.Error of op.
var NativeError func(op string, err error) error

// AtPassEnd makes the backward pass that the calling hook is part of call f at its end. If the pass fails, Backward and
// Grad call failed before they return.
var AtPassEnd func(f func() error, failed func()) error

// EndFailed calls what AtPassEnd was given for passes that have failed, if Backward or Grad has returned before
// libtorch's thread of a CUDA device has left the pass.
var EndFailed func()

// WithAnomaly runs f; an error of a backward pass in it names the line of the operator whose backward failed.
var WithAnomaly func(checkNaN bool, f func() error) error

// WithAttention runs f with the given backends of attention, in order of priority.
var WithAttention func(op string, backends []int32, f func() error) error

// SavedPolicy is cshim.SavedPolicy.
type SavedPolicy struct {
	Kind     int32
	DType    int32
	Pinned   bool
	FD       int32
	MinBytes int64
	Keep     int64
}

// WithSaved runs f; what its operators save for the backward pass is kept as p says.
var WithSaved func(p SavedPolicy, f func() error) error

// KeepInCheckpoint is autograd.KeepInCheckpoint: a func(f func() *tensor.Tensor) *tensor.Tensor.
var KeepInCheckpoint any

// WithGrad and WithInference run f with the recording of gradients or inference mode on or off on this goroutine, which
// is locked to its thread meanwhile.
var WithGrad, WithInference func(on bool, f func() error) error

// WithForward is autograd.DualLevel, and ForwardEnabled reports whether this goroutine is in one.
var (
	WithForward    func(f func() error) error
	ForwardEnabled func() bool
)

// LockThread is runtime.LockOSThread, but leaves the main thread first if it can: scopes there are not closed when their
// goroutine ends.
var LockThread = runtime.LockOSThread

// InScope reports whether this goroutine is in s, a *tensor.Scope, or has joined it or a scope in it.
var InScope func(s any) bool

// WithThread runs f on this goroutine, which is locked to its thread meanwhile.
var WithThread func(f func() error) error

// ForgetCasts drops the casts of weights that regions of autocast keep, because weights were changed: if everywhere,
// and otherwise if this goroutine is in a region or a backward pass.
var ForgetCasts = func(everywhere bool) {}

// Package nn sets these.
var (
	// Places returns for each parameter of a model the fields that hold it; nil for a parameter that is held where it
	// cannot be replaced: func(model any) map[*tensor.Tensor][]**tensor.Tensor.
	Places any
	// SetBatchNorm makes the batch normalizations of a model normalize by f in training, and returns their number, or an
	// error if a lazy one is not made yet: func(op string, model any,
	// f func(x, weight, bias, runningMean, runningVar *tensor.Tensor, momentum, eps float64) *tensor.Tensor) (int, error).
	SetBatchNorm any
)

// ParamNumbers returns the numbers that a group of an optimizer's state gives to its parameters, and adds them to used, which
// must have none of them. Package optim sets it.
var ParamNumbers func(group map[string]any, used map[int]bool) ([]int, error)

// Package dist sets these. They are nil in programs without it.
var (
	// PeerFailure returns the error of a backward pass in which a connection to another process was lost, or nil.
	PeerFailure func(op string, err error) error
	// BeginBackward is called before each backward pass, and what it returns, unless it is nil, afterwards: with the
	// error of the pass, to return the one that counts.
	BeginBackward func() (end func(err error) error)
)
