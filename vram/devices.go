package vram

// Devices are those whose memory is counted: the CPU, and what has been used or set since.
func Devices() []Name {
	var names []Name
	for _, a := range known() {
		names = append(names, nameOf(a.word))
	}
	return names
}
