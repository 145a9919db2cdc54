package libtorch

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/linstock-ml/linstock/internal/locate"
)

// A Wheel is one file of a release, named and hashed by lock.json.
type Wheel struct {
	Package string `json:"package"` // as pip spells it: nvidia-cuda-runtime
	Version string `json:"version"`
	File    string `json:"file"`
	SHA256  string `json:"sha256"`
	Size    int64  `json:"size"`
	// CUDA marks a wheel that only a GPU needs.
	CUDA bool `json:"cuda,omitempty"`
}

// A Lock lists the wheels of each version on each platform ("linux/amd64").
type Lock struct {
	Releases map[string]map[string][]Wheel `json:"releases"`
}

//go:embed lock.json
var lockJSON []byte

var embedded = sync.OnceValues(func() (*Lock, error) {
	lock := new(Lock)
	if err := json.Unmarshal(lockJSON, lock); err != nil {
		return nil, fmt.Errorf("lock.json: %w", err)
	}
	return lock, nil
})

// EmbeddedLock is the lock file that this module was released with.
func EmbeddedLock() (*Lock, error) { return embedded() }

// Platform is this machine's key in a Lock.
func Platform() string { return runtime.GOOS + "/" + runtime.GOARCH }

// Wheels are those that version needs on platform; with cuda also those that
// only a GPU needs. The first is torch itself.
func (l *Lock) Wheels(version, platform string, cuda bool) ([]Wheel, error) {
	if err := locate.CheckPinned(version); err != nil {
		return nil, err
	}
	all := l.Releases[version][platform]
	if len(all) == 0 {
		return nil, fmt.Errorf("libtorch %s is not pinned for %s: install PyTorch with pip and run setup with %s=1, or set %s to an unpacked libtorch",
			version, platform, locate.EnvUsePyTorch, locate.EnvLibtorch)
	}
	var wheels []Wheel
	for _, w := range all {
		if cuda || !w.CUDA {
			wheels = append(wheels, w)
		}
	}
	return wheels, nil
}

// checkWindow reports whether the shim supports a libtorch found elsewhere.
func checkWindow(version, where string) error {
	major, minor, ok := parseVersion(version)
	_, first, _ := parseVersion(locate.Versions[0])
	_, last, _ := parseVersion(locate.DefaultTorch)
	if ok && major == 2 && first <= minor && minor <= last {
		return nil
	}
	return fmt.Errorf("libtorch %s in %s is outside the supported versions, 2.%d to 2.%d", version, where, first, last)
}

func parseVersion(version string) (major, minor int, ok bool) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 3 {
		return 0, 0, false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return major, minor, err1 == nil && err2 == nil
}
