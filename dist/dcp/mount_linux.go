package dcp

import "golang.org/x/sys/unix"

// mounted reports whether a file system is mounted at dir, as far as the kernel says.
func mounted(dir string) bool {
	var s unix.Statx_t
	return unix.Statx(unix.AT_FDCWD, dir, 0, 0, &s) == nil && s.Attributes&s.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0
}
