package vram

// Devices returns the CPU and, once libtorch is loaded, the CUDA devices.
func Devices() []Name {
	var names []Name
	for _, a := range known() {
		names = append(names, nameOf(a.word))
	}
	return names
}
