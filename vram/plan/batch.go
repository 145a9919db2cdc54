package plan

import (
	"errors"
	"fmt"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// FindBatchSize returns the largest batch from first to most with which step succeeds. It doubles the batch until step returns
// [vram.ErrOutOfMemory], and then bisects. step runs a whole training step and must leave no tensors behind that depend
// on the batch; FindBatchSize runs it twice with each batch, each time in a scope, because the optimizer's state is
// made in the first step. The steps train the model: save its state before, or use [Within], which runs on the meta
// device. Any other error of step is returned, wrapped, with the batch. If step does not fit with first, the error is
// vram.ErrOutOfMemory. PyTorch Lightning: scale_batch_size(mode="binsearch").
func FindBatchSize(first, most int, step func(batch int) error) (int, error) {
	if step == nil {
		return 0, refuse.Nil("FindBatchSize", "a step")
	}
	if first < 1 || most < first {
		return 0, refuse.Error("FindBatchSize", tensor.ErrArgument, "batches from %d to %d: want 1 <= first <= most", first, most)
	}
	try := func(batch int) error {
		for range 2 {
			if err := tensor.WithScope(func() error { return step(batch) }); err != nil {
				// What the failed step has allocated is garbage.
				return errors.Join(err, vram.Collect())
			}
		}
		return nil
	}
	fits, fails := 0, 0 // fails: none yet
	for batch := first; fits < most && fails-fits != 1; {
		switch err := try(batch); {
		case err == nil:
			fits = batch
		case !errors.Is(err, vram.ErrOutOfMemory):
			return 0, fmt.Errorf("linstock: FindBatchSize: batch %d: %w", batch, err)
		case fits == 0:
			return 0, fmt.Errorf("linstock: FindBatchSize: the first batch, %d, does not fit: %w", batch, err)
		default:
			fails = batch
		}
		switch {
		case fails > 0:
			batch = fits + (fails-fits)/2
		case fits <= most/2:
			batch = 2 * fits
		default:
			batch = most
		}
	}
	return fits, nil
}

// Within returns a step for [FindBatchSize] that runs step on the meta device, as [New] does, and returns an error that
// is [vram.ErrOutOfMemory] if its peak exceeds bytes.
func Within(bytes int64, model any, optimizer *optim.Optimizer, step func(batch int) error) func(batch int) error {
	return func(batch int) error {
		p, err := once("Within", model, optimizer, batch, step)
		if err == nil && p.Peak > bytes {
			err = fmt.Errorf("linstock: Within: batch %d needs %s of %s: %w", batch, size(p.Peak), size(bytes), vram.ErrOutOfMemory)
		}
		return err
	}
}
