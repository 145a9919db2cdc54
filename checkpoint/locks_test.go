package checkpoint

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/unordered"
)

// Each method holds the lock of what it reads and writes. The race detector would report one that does not.
func TestLocks(t *testing.T) {
	leak.Check(t)
	f, err := Load(write1(t, bytesOf(`{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4)))
	if err != nil {
		t.Fatal(err)
	}
	touch := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		mapping := f.mapping
		f.mapping = mapping
	}
	unordered.Go(func() { f.Tensor("x").Release() }, touch)
	unordered.Go(func() { _ = f.Close() }, touch)
}
