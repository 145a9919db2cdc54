package vram

import "syscall"

// kernelMemory returns the machine's memory; 0 if it is not known.
func kernelMemory() int64 {
	var s syscall.Sysinfo_t
	if syscall.Sysinfo(&s) != nil {
		return 0
	}
	return int64(uint64(s.Totalram) * uint64(s.Unit))
}
