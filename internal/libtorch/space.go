package libtorch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/linstock-ml/linstock/internal/locate"
)

// buildSpace is enough for a build of the shim with the compiler's temporary files: two compilers at once took 3 MB,
// and a user's flags (-g) may multiply that.
const buildSpace = 64 << 20

// gatherSpace is the most that the wheels take while they are downloaded and unpacked: pip copies each at the end.
// What is in them is compressed; of PyTorch's own wheel only the part for the CPU is unpacked, which is about as large
// as the wheel.
func (in *installer) gatherSpace(wheels []Wheel) int64 {
	var unpacked, download, largest int64
	for _, w := range wheels {
		unpacked += w.Size
		if len(in.cfg.Wheels) == 0 && !isFile(filepath.Join(in.wheelDir(), w.File)) {
			download, largest = download+w.Size, max(largest, w.Size)
		}
	}
	if in.cfg.CUDA {
		unpacked *= 2
	}
	return download + max(largest, unpacked+buildSpace)
}

// room is an error where a directory's file system has less than need free. The directory need not exist yet.
func (in *installer) room(dir string, need int64) error {
	free, known := in.free(dir)
	if !known || free >= need {
		return nil
	}
	return fmt.Errorf("not enough space on the disk: %s takes %s, and %s is free there; free some, or choose a directory on another disk with %s",
		dir, megabytes(need), megabytes(free), locate.EnvCache)
}

// full adds to the error of a step which directory has run out of space, where that is the cause, and how much the
// step takes. It is called while the step's files are still there.
func (in *installer) full(err error, dir string, need int64) error {
	if err == nil {
		return nil
	}
	said := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	var failed *RunError
	if errors.As(err, &failed) {
		said = strings.Contains(strings.ToLower(failed.Output), syscall.ENOSPC.Error())
	}
	if free, known := in.free(dir); !said && (!known || free >= 1<<20) {
		return err
	}
	return fmt.Errorf("%w\nthe disk is full: this step takes about %s in %s; free some space, or choose a directory on another disk with %s",
		err, megabytes(need), dir, locate.EnvCache)
}

func (in *installer) free(dir string) (bytes int64, known bool) {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	if in.cfg.Free != nil {
		return in.cfg.Free(dir)
	}
	return freeSpace(dir)
}

func megabytes(n int64) string { return fmt.Sprintf("%d MB", (n+999_999)/1_000_000) }
