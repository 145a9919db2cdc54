//go:build unix

package libtorch

import (
	"os/exec"
	"syscall"
)

// ownGroup puts the command and all it starts into a process group of its own,
// so that cancelling stops the compiler below ninja as well.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}

// killGroup ends whatever of the group outlived its leader. An error means that
// nothing did.
func killGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
}
