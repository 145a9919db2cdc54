// Package resume lets the training of an example continue from its checkpoint. It is meant to be copied with the example.
package resume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/linstock-ml/linstock/checkpoint"
)

// Continues reports whether a training continues from the checkpoint at path: if there is one and fresh is false. One whose
// value "settings" differs from the settings is an error.
func Continues[S comparable](path string, fresh bool, settings S) (bool, error) {
	if fresh {
		return false, nil
	}
	var saved S
	err := checkpoint.LoadValues(path, checkpoint.Value("settings", &saved))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil && saved != settings {
		err = fmt.Errorf("%s was trained with other settings: %+v, now %+v", path, saved, settings)
	}
	if err != nil {
		return false, fmt.Errorf("%w; -fresh, or the removal of the file, trains anew, and -out trains elsewhere", err)
	}
	return true, nil
}

// Left says that a training continues from the checkpoint at path, which has done of its total steps, or games. It says so,
// and returns false, if none is left.
func Left(path, what string, done, total int) bool {
	if done >= total {
		fmt.Printf("%s already has %d %ss; -fresh trains anew\n", path, done, what)
		return false
	}
	fmt.Printf("continuing after %s %d of %s\n", what, done, path)
	return true
}

// End saves a training that has ended with err after the steps, or games, from first to done of total. It saves after an
// interrupt, which has ended ctx, too, and returns an error then, because Kubernetes and Slurm take success for the end of
// the job.
func End(ctx context.Context, err error, what string, first, done, total int, save func() error) error {
	// The cause of a signal's context is context.Canceled only in later releases of Go 1.26.
	if err != nil && !errors.Is(err, ctx.Err()) && !errors.Is(err, context.Cause(ctx)) {
		return err
	}
	// Without a step there is nothing new, and with -fresh the model there is better.
	if done > first {
		if err := save(); err != nil {
			return err
		}
	}
	switch {
	case err == nil:
		return nil
	case done == first:
		return fmt.Errorf("interrupted without a new %s; nothing was saved", what)
	}
	return fmt.Errorf("interrupted after %s %d of %d; run it again, without -fresh, to continue", what, done, total)
}
