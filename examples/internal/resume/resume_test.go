package resume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
)

type settings struct{ Batch int }

// TestContinues tests that a training continues only from a readable checkpoint of its settings.
func TestContinues(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	path, damaged := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "damaged.safetensors")
	if err := os.WriteFile(damaged, []byte("damaged"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.SaveValues(path, checkpoint.Value("settings", &settings{3})); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path  string
		fresh bool
		batch int
		there bool
		want  string // of the error
	}{
		{filepath.Join(dir, "none"), false, 3, false, ""},
		{path, false, 3, true, ""},
		{path, false, 4, false, "was trained with other settings: {Batch:3}, now {Batch:4}; -fresh"},
		{path, true, 4, false, ""},
		{damaged, false, 3, false, "trains anew"},
		{damaged, true, 3, false, ""},
	} {
		there, err := Continues(c.path, c.fresh, settings{c.batch})
		if there != c.there || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, %v", c, there, err)
		}
	}
}

// TestEnd tests that a training that has taken a step is saved, unless it has failed, and that an interrupt stays an error.
func TestEnd(t *testing.T) {
	leak.Check(t)
	failed, full, signal := errors.New("failed"), errors.New("the disk is full"), errors.New("interrupt signal received")
	going := t.Context()
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(signal)
	for _, c := range []struct {
		ctx         context.Context
		err         error
		first, done int
		save        error
		saves       bool
		want        string
	}{
		{going, nil, 0, 5, nil, true, "<nil>"},
		{going, nil, 5, 5, nil, false, "<nil>"},
		{going, nil, 0, 5, full, true, "the disk is full"},
		{going, failed, 0, 3, nil, false, "failed"},
		{going, context.Canceled, 0, 3, nil, false, "context canceled"},
		{ended, fmt.Errorf("the loader: %w", signal), 0, 3, nil, true, "interrupted after step 3 of 5; run it again, without -fresh, to continue"},
		{ended, context.Canceled, 0, 3, nil, true, "interrupted after step 3 of 5; run it again, without -fresh, to continue"},
		{ended, signal, 3, 3, nil, false, "interrupted without a new step; nothing was saved"},
		{ended, signal, 0, 3, full, true, "the disk is full"},
		{ended, failed, 0, 3, nil, false, "failed"},
		{ended, nil, 0, 5, nil, true, "<nil>"},
	} {
		saved := false
		err := End(c.ctx, c.err, "step", c.first, c.done, 5, func() error {
			saved = true
			return c.save
		})
		if fmt.Sprint(err) != c.want || saved != c.saves {
			t.Errorf("%+v: saved %v, %v", c, saved, err)
		}
	}
}
