package libtorch

import "syscall"

// freeSpace returns how many bytes a user may still write to a directory's file system.
func freeSpace(dir string) (bytes int64, known bool) {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0, false
	}
	return int64(s.Bavail) * s.Bsize, true
}
