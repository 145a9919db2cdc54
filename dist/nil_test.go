package dist_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// TestZeroValues tests that values that no constructor made return errors at once.
func TestZeroValues(t *testing.T) {
	leak.Check(t)
	for name, f := range map[string]func() error{
		"Work.Err":              func() error { return (&dist.Work{}).Err() },
		"Work.Wait":             func() error { return (&dist.Work{}).Wait(ctx) },
		"Group.Abort":           func() error { return (&dist.Group{}).Abort() },
		"Group.Barrier":         func() error { return (&dist.Group{}).Barrier(ctx) },
		"ZeRO.Step":             func() error { return (&dist.ZeroRedundancyOptimizer{}).Step() },
		"ZeRO.ConsolidateState": func() error { _, err := (&dist.ZeroRedundancyOptimizer{}).ConsolidateState(ctx, 0); return err },
		"ZeRO.LoadStateDict": func() error {
			return (&dist.ZeroRedundancyOptimizer{}).LoadStateDict(optim.State{ParamGroups: make([]map[string]any, 1)})
		},
		"nil ZeRO.Step": func() error { return (*dist.ZeroRedundancyOptimizer)(nil).Step() },
	} {
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("%s panics: %v", name, p)
				}
			}()
			if err := f(); !errors.Is(err, tensor.ErrNil) {
				t.Errorf("%s: %v", name, err)
			}
		}()
	}
	z := &dist.ZeroRedundancyOptimizer{}
	z.ZeroGrad()
	z.Release()
	if s := z.StateDict(); len(z.Part()) != 0 || s.State != nil || z.Local() != nil {
		t.Error("an optimizer that no constructor made has state")
	}
	if err := closeZeroValues(); err != nil {
		t.Error(err)
	}
	if e := (*dist.PeerError)(nil); e.Error() != "<nil>" || e.Unwrap() != nil {
		t.Error("a nil error has a text or a cause")
	}
}

func closeZeroValues() error {
	if _, err := dist.NewDDP(ctx, nil, &struct{}{}); !errors.Is(err, tensor.ErrNil) {
		return fmt.Errorf("NewDDP without a group: %w", err)
	}
	return errors.Join((&dist.DDP{}).Close(), (&dist.FSDPModule{}).Close(), (&dist.Group{}).Close(), (&dist.Store{}).Close())
}

// TestZeroValuesFirst tests that values that no constructor made can be closed by the first calls of a program.
func TestZeroValuesFirst(t *testing.T) {
	leak.Check(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), envRole+"=zero values")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
