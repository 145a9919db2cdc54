//go:build unix

package libtorch

import (
	"os/exec"
	"syscall"
)

// ownGroup puts the command and its children into a new process group, so that cancelling also stops the compilers that
// ninja starts.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}

// killGroup kills processes of the group that outlived its leader. An error means that there were none.
func killGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
}
