package checkpoint_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

type weights struct{ W *tensor.Tensor }

// line returns its caller's file and line in the form that errors use.
func line() string {
	_, file, n, _ := runtime.Caller(1)
	return fmt.Sprintf(" at %s:%d", file, n)
}

func TestErrorsNameTheCall(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "good")
	gone := &weights{}
	scoped(t, func() { gone.W = tensor.Ones([]int{2}).RequiresGrad_() })
	scoped(t, func() {
		two := &weights{tensor.Ones([]int{2}).RequiresGrad_()}
		three := &weights{tensor.Ones([]int{3}).RequiresGrad_()}
		opt, err := optim.NewAdamW(nn.Parameters(two), 1e-3)
		if err != nil {
			t.Fatal(err)
		}
		defer opt.Release()
		if err := checkpoint.SaveTraining(path, two, nil); err != nil {
			t.Fatal(err)
		}
		type result struct {
			call, at string
			kind     error
			err      error
		}
		all := []result{
			{"SaveTraining", line(), tensor.ErrReleased, checkpoint.SaveTraining(filepath.Join(dir, "x"), gone, nil)},
			{"SaveModel", line(), tensor.ErrReleased, checkpoint.SaveModel(filepath.Join(dir, "x"), gone)},
			{"Save", line(), tensor.ErrReleased, checkpoint.Save(filepath.Join(dir, "x"), map[string]*tensor.Tensor{"w": gone.W}, nil)},
			{"Save", line(), tensor.ErrNil, checkpoint.Save(filepath.Join(dir, "x"), map[string]*tensor.Tensor{"w": nil}, nil)},
			{"SavePyTorch", line(), tensor.ErrReleased, checkpoint.SavePyTorch(filepath.Join(dir, "x"), map[string]any{"a": []any{gone.W}})},
			{"SavePyTorch", line(), tensor.ErrReleased, checkpoint.SavePyTorch(filepath.Join(dir, "x"), nn.StateDict(gone))},
			{"SaveSharded", line(), tensor.ErrReleased, checkpoint.SaveSharded(dir, map[string]*tensor.Tensor{"w": gone.W}, nil, 1)},
			{"SaveNPY", line(), tensor.ErrNil, checkpoint.SaveNPY(filepath.Join(dir, "x"), nil)},
			{"SaveNPZ", line(), tensor.ErrReleased, checkpoint.SaveNPZ(filepath.Join(dir, "x"), map[string]*tensor.Tensor{"w": gone.W})},
			{"LoadModel", line(), tensor.ErrArgument, checkpoint.LoadModel(path, three)},
			{"LoadModel", line(), tensor.ErrNil, checkpoint.LoadModel(path, nil)},
			{"LoadTraining", line(), tensor.ErrArgument, checkpoint.LoadTraining(path, three, nil)},
			{"LoadTraining", line(), tensor.ErrArgument, checkpoint.LoadTraining(path, two, opt)},
		}
		for _, r := range all {
			if !errors.Is(r.err, r.kind) || !strings.Contains(r.err.Error(), r.call+": ") || !strings.HasSuffix(r.err.Error(), r.at) {
				t.Errorf("%s: %v\nwant an error of that call%s", r.call, r.err, r.at)
			}
			for _, internal := range []string{"Alias", "Check", "LoadStateDict"} {
				if strings.Contains(fmt.Sprint(r.err), internal) {
					t.Errorf("%s: %v\nnames %s, which the program did not call", r.call, r.err, internal)
				}
			}
		}
	})
}
