package tensor

import "github.com/linstock-ml/linstock/vram"

// named gives what a native call without a result has sampled to the caller's line.
func named() {
	if vram.Sampled() {
		vram.AttachSite(0)
	}
}
