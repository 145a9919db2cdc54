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

// buildSpace is enough for a build of the shim: its precompiled headers took 450 MB, the temporary files of two parallel
// compilers 3 MB, which a user's flags (-g) may multiply.
const buildSpace = 600 << 20

// gatherSpace returns the most space that the wheels need while they are downloaded, unpacked and, once their files are
// removed, the shim is built. pip copies each at the end. Their content is compressed; of PyTorch's own wheel only the
// CPU part is unpacked, which is about as large as the wheel.
func (in *installer) gatherSpace(wheels []Wheel) int64 {
	var unpacked, download, largest, build int64
	for _, w := range wheels {
		unpacked += w.Size
		if len(in.cfg.Wheels) == 0 && !isFile(filepath.Join(in.wheelDir(), w.File)) {
			download, largest = download+w.Size, max(largest, w.Size)
		}
	}
	if in.cfg.CUDA {
		unpacked *= 2
	}
	if !in.cfg.NoBuild {
		build = buildSpace
	}
	return max(download+largest, download+unpacked, unpacked+build)
}

// room returns an error if a directory's file system has less than need bytes free. The directory need not exist yet.
func (in *installer) room(dir string, need int64) error {
	free, known := in.free(dir)
	if !known || free >= need {
		return nil
	}
	return fmt.Errorf("not enough disk space: %s needs %s, but only %s is free; free some space, or choose a directory on another disk%s",
		dir, megabytes(need), megabytes(free), in.with(dir))
}

// with says how the user chooses another directory than dir, unless dir is an argument of the command.
func (in *installer) with(dir string) string {
	if rel, err := filepath.Rel(in.cfg.Cache, dir); in.cfg.Cache == "" || err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return " with " + locate.EnvCache
}

// full adds to the error of a step, if it was caused by a full disk, which directory has no space left and how much the
// step needs. It is called while the step's files still exist.
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
	return fmt.Errorf("%w\nthe disk is full: this step needs about %s in %s; free some space, or choose a directory on another disk%s",
		err, megabytes(need), dir, in.with(dir))
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
