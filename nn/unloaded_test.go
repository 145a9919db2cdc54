package nn_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/locate"
	"github.com/linstock-ml/linstock/nn"
)

// TestCheckWithoutLibtorch tests that Check reports once why libtorch cannot be loaded, and not for each module. Runs in
// a process that has loaded nothing yet.
func TestCheckWithoutLibtorch(t *testing.T) {
	if elsewhere.Process(t) {
		old, set := os.LookupEnv(locate.EnvLib)
		damaged := filepath.Join(t.TempDir(), locate.LibName())
		if err := os.WriteFile(damaged, []byte("\x7fELF"), 0o755); err != nil {
			t.Fatal(err)
		}
		for lib, want := range map[string]string{"/nowhere": locate.ErrMissing.Error(), damaged: "is not a shared library"} {
			t.Setenv(locate.EnvLib, lib)
			model := nn.NewSequential(nn.NewLinear(3, 4), nn.NewLayerNorm(4), nn.NewLinear(4, 5))
			if err := nn.Check(model); err == nil || strings.Count(err.Error(), want) != 1 || strings.Contains(err.Error(), "\n") {
				t.Errorf("LINSTOCK_LIB=%s: %v; want one line with %q", lib, err, want)
			}
		}
		t.Setenv(locate.EnvLib, old)
		if !set {
			os.Unsetenv(locate.EnvLib)
		}
	}
	leak.Check(t)
}
