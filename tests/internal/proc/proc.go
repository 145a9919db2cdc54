// Package proc reads the memory of a process from Linux's /proc.
package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Status returns a value of /proc/PID/status, such as VmRSS, in bytes. pid is a number or "self".
func Status(pid, name string) (int64, error) {
	path := "/proc/" + pid + "/status"
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == name+":" && f[2] == "kB" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no size %s", path, name)
}
