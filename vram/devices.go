package vram

// Devices returns the CPU and the CUDA devices that have been used or configured.
func Devices() []Name {
	var names []Name
	for _, a := range known() {
		names = append(names, nameOf(a.word))
	}
	return names
}
