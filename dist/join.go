package dist

import (
	"context"
	"slices"

	"github.com/linstock-ml/linstock/cshim"
	optional "github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// joining is the state of a Join.
type joining struct{ divide bool }

// A JoinOption is an option of Join.
type JoinOption func(*joining)

// DivideByInitialWorldSize(false) averages gradients over the ranks that still have inputs, not over all ranks of the
// group; the default is true. PowerSGD does not support it. PyTorch: divide_by_initial_world_size.
func DivideByInitialWorldSize(on ...bool) JoinOption {
	return func(j *joining) { j.divide = optional.On(on) }
}

// Join calls loop, a training loop that may have fewer steps on some ranks than on others. Ranks whose loop has returned
// take part in the collectives of the others, with zeros for gradients, until the loops of all have returned; the model of
// a rank with the most steps then becomes that of all. All ranks must call it. If loop returns an error, Join returns it at
// once. Ranks whose loop has returned take part in the collectives of the DDP alone, so loop must have no others: the
// modules of ConvertSyncBatchNorm and Step of a ZeroRedundancyOptimizer return an error if their group is the DDP's. With
// StaticGraph, a rank without inputs in the others' first step cannot have any later.
// PyTorch: DistributedDataParallel.join.
func (d *DDP) Join(loop func() error, opts ...JoinOption) error {
	const op = "Join"
	if loop == nil {
		return refuse.Nil(op, "a function")
	}
	j := &joining{divide: true}
	for _, opt := range opts {
		if opt == nil {
			return refuse.NilOption(op)
		}
		opt(j)
	}
	if err := d.check(op); err != nil {
		return err
	}
	if d.sparse != "" {
		return refuse.Error(op, tensor.ErrNotImplemented, "the gradient of %s is sparse", d.sparse)
	}
	if !j.divide && d.o.Compression == cshim.CompressPowerSGD {
		return refuse.Error(op, tensor.ErrNotImplemented, "DivideByInitialWorldSize(false) and PowerSGD, which corrects its errors for averages over all ranks")
	}
	if d.join != nil {
		return refuse.Error(op, tensor.ErrArgument, "Join within Join")
	}
	d.join = j
	d.g.joins.Add(1)
	defer func() {
		d.join = nil
		d.g.joins.Add(-1)
	}()
	if err := loop(); err != nil {
		return err
	}
	last := true
	for ; ; last = false {
		others, err := d.agree(0, tensor.DefaultDType(), Sum)
		if err != nil {
			return err
		}
		if others == 0 {
			break
		}
		if err := d.follow(op); err != nil {
			return err
		}
	}
	src, err := d.commonRank(last)
	if err != nil {
		return err
	}
	state := d.parameters
	if !d.o.noForwardSync {
		state = slices.Concat(d.parameters, d.buffers())
	}
	return d.g.broadcastCoalesced(context.Background(), op, state, src)
}

// unjoined returns an error within a Join: ranks without inputs would not take part in the collectives of op.
func (g *Group) unjoined(op string) error {
	if g.joins.Load() != 0 {
		return refuse.Error(op, tensor.ErrArgument, "in DDP.Join, ranks whose loop has returned would not take part in its collectives")
	}
	return nil
}

// follow takes part in a step of the ranks that have inputs.
func (d *DDP) follow(op string) error {
	if err := d.use(op, cshim.Reducer.JoinForward); err != nil {
		return err
	}
	if err := d.syncBuffers(op, false); err != nil {
		return err
	}
	sync, err := d.anySyncs(false)
	d.buffersToSync = sync
	if err != nil || !sync {
		return err
	}
	d.beginPass()
	err = d.use(op, cshim.Reducer.JoinBackward)
	d.g.job.flight.End(d.pass.Load(), err)
	return err
}

// notify tells the ranks without inputs that this rank has some. The result counts the ranks that have.
func (d *DDP) notify() (w *Work, err error) {
	err = tensor.WithScope(func() error {
		w, err = d.g.AllReduceAsync(tensor.Ones([]int{1}, d.parameters[0].Device()), Sum)
		return err
	})
	return w, err
}

// anySyncs reports whether a rank averages gradients in this step.
func (d *DDP) anySyncs(mine bool) (bool, error) {
	one := 0
	if mine {
		one = 1
	}
	n, err := d.agree(one, tensor.DefaultDType(), Sum)
	return n != 0, err
}

// commonRank returns the highest rank for which mine is set.
func (d *DDP) commonRank(mine bool) (int, error) {
	rank := -1
	if mine {
		rank = d.g.rank
	}
	return d.agree(rank, tensor.Int64, Max)
}

// agree returns the reduction of n over all ranks. The dtypes are those of Python's ranks, and so is the device, that of the
// first parameter.
func (d *DDP) agree(n int, dtype tensor.DType, op ReduceOp) (agreed int, err error) {
	err = tensor.WithScope(func() error {
		t := tensor.Full([]int{1}, float64(n), dtype, d.parameters[0].Device())
		if err := d.g.AllReduce(context.Background(), t, op); err != nil {
			return err
		}
		v, err := t.Item()
		agreed = int(v)
		return err
	})
	return agreed, err
}
