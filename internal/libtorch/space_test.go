package libtorch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/linstock-ml/linstock/internal/locate"
)

func TestNotEnoughSpaceIsReportedBeforeStarting(t *testing.T) {
	cfg := config(t)
	asked := ""
	cfg.Free = func(dir string) (int64, bool) { asked = dir; return 30 << 20, true }
	_, err := Setup(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), cfg.Cache) || !strings.Contains(err.Error(), "32 MB is free") || !strings.Contains(err.Error(), locate.EnvCache) {
		t.Errorf("got %v", err)
	}
	if asked != cfg.Cache {
		t.Errorf("asked for the space of %s", asked)
	}
	if isFile(locate.TorchDir(cfg.Cache, testVersion)) || len(leftovers(t, cfg.Cache)) > 0 {
		t.Error("something was unpacked all the same")
	}
	// For the real libtorch, half a gigabyte is downloaded and half a gigabyte unpacked; the download is removed before the
	// build of the shim, which takes more than half a gigabyte.
	in, err := newInstaller(Config{Cache: cfg.Cache, Platform: "linux/amd64"})
	if err != nil {
		t.Fatal(err)
	}
	real, err := in.lock.Wheels(locate.DefaultTorch, in.platform, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		wheels      []string
		noBuild     bool
		least, most int64 // MB
	}{
		{nil, false, 1100, 1300},
		{[]string{"wheels"}, false, 1100, 1300},
		{nil, true, 1000, 1200},
		{[]string{"wheels"}, true, 500, 600},
	} {
		in.cfg.Wheels, in.cfg.NoBuild = c.wheels, c.noBuild
		if need := in.gatherSpace(real); need < c.least*1e6 || need > c.most*1e6 {
			t.Errorf("%+v: %s", c, megabytes(need))
		}
	}

	dir := filepath.Join(t.TempDir(), "wheels")
	in.cfg.Free = cfg.Free
	in.cfg.Wheels = nil
	if _, err := Fetch(t.Context(), Config{Torch: locate.DefaultTorch, Platform: "linux/amd64", Free: cfg.Free}, dir); err == nil || !strings.Contains(err.Error(), dir+" needs 1") || strings.Contains(err.Error(), locate.EnvCache) {
		t.Errorf("fetch: %v", err)
	}
}

// TestDiskFull tests a disk that fills up during setup: the error names the directory and the required amount,
// whether this process or a program that it runs found the disk full.
func TestDiskFull(t *testing.T) {
	in := &installer{cfg: Config{Cache: "/cache", Free: func(string) (int64, bool) { return 5 << 20, true }}}
	for name, err := range map[string]error{
		"write":    &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC},
		"quota":    &fs.PathError{Op: "write", Path: "x", Err: syscall.EDQUOT},
		"compiler": &RunError{Command: "ninja", Err: errors.New("exit status 1"), Output: "as: error: No space left on device\n"},
	} {
		got := in.full(err, "/cache", 300e6)
		if !errors.Is(got, err) || !strings.Contains(got.Error(), "300 MB in /cache") || !strings.Contains(got.Error(), locate.EnvCache) {
			t.Errorf("%s: %v", name, got)
		}
	}
	// The directories of bundle and fetch are arguments.
	if got := in.full(syscall.ENOSPC, "/a/bundle", 300e6); !strings.HasSuffix(got.Error(), "choose a directory on another disk") {
		t.Errorf("of a bundle: %v", got)
	}
	other := errors.New("x")
	if got := in.full(other, "/cache", 1); got != other {
		t.Errorf("another error became %v", got)
	}
	in.cfg.Free = func(string) (int64, bool) { return 4096, true }
	if got := in.full(other, "/cache", 1e6); got == other {
		t.Error("an error on a full disk is not explained")
	}

	// Let the compiler of a build find the disk full.
	cfg := config(t)
	cfg.Sources = fstest.MapFS{"CMakeLists.txt": {Data: []byte("cmake_minimum_required(VERSION 3.18)\nproject(linstock C)\nmessage(FATAL_ERROR \"No space left on device\")\n")}}
	if _, err := Setup(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "the disk is full: this step needs about 630 MB in "+cfg.Cache) {
		t.Errorf("got %v", err)
	}
}

// TestSetupInAnOddDirectory tests a cache path that contains spaces and quotes.
func TestSetupInAnOddDirectory(t *testing.T) {
	cfg := config(t)
	for _, name := range []string{"Miriam Smith", "O'Brien's", "a & b (c) #1", "ünï $HOME ~x {y} `z` <!>", "a=b%c@d"} {
		t.Run(name, func(t *testing.T) {
			cfg.Cache = filepath.Join(t.TempDir(), name, "cache")
			t.Setenv(locate.EnvCache, cfg.Cache)
			result, err := Setup(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(result.Shim)
			if err != nil || strings.Contains(string(data), tempPrefix) || !strings.Contains(string(data), "linstock/cshim/src/shim.c") {
				t.Errorf("the shim holds the name of the directory it was built in (%v)", err)
			}
			if again, err := Setup(t.Context(), cfg); err != nil || again.Changed {
				t.Errorf("the second setup: %+v, %v", again, err)
			}
		})
	}
	// CMake or the linker cannot handle these characters.
	for _, name := range []string{`6" nails`, "a;b", `a\b`, "a|b", "C:", "Smith, Miriam", "[x]", "a*b", "a\nb"} {
		cfg.Cache = filepath.Join(t.TempDir(), name)
		t.Setenv(locate.EnvCache, cfg.Cache)
		if _, err := Setup(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "choose another directory with LINSTOCK_CACHE") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
