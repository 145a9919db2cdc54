package cshim_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/intact"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/locate"
)

// place copies the shim, with its manifest if it has one, and the first bytes of libtorch_cpu into a directory
// laid out as a bundle. change then damages a file in it.
func place(t *testing.T, dir string, manifest bool, torchBytes int64, change func(shim string)) {
	t.Helper()
	hash, err := cshim.SourceHash()
	if err != nil {
		t.Fatal(err)
	}
	from, err := locate.Find(hash)
	if err != nil {
		t.Fatal(err)
	}
	m := intact.Manifest{Root: ".", Files: intact.NewFiles()}
	add := func(from, name string, limit int64) {
		in, err := os.Open(from)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		info, err := in.Stat()
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		out, err := os.Create(to)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if _, err := io.Copy(out, io.LimitReader(in, limit)); err != nil {
			t.Fatal(err)
		}
		m.Sizes[name] = info.Size()
		if !strings.Contains(name, "/") {
			if m.SHA256[name], err = intact.Hash(t.Context(), from, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(from, locate.LibName(), 1<<40)
	for _, lib := range intact.Closure(from) {
		if filepath.Base(lib) == "libtorch_cpu.so" && torchBytes > 0 {
			add(lib, "torch/lib/libtorch_cpu.so", torchBytes)
		}
	}
	if manifest {
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, intact.ManifestFile), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if change != nil {
		change(filepath.Join(dir, locate.LibName()))
	}
}

// A damaged library is an error that names it and says what to do. Without the check the process would end: by
// SIGBUS beyond the end of a file, by anything for changed code. Intact libraries can be loaded afterwards.
func TestDamagedLibrariesAreErrors(t *testing.T) {
	if elsewhere.Process(t) {
		half := func(shim string) {
			info, err := os.Stat(shim)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(shim, info.Size()/2); err != nil {
				t.Fatal(err)
			}
		}
		flip := func(shim string) {
			data, err := os.ReadFile(shim)
			if err != nil {
				t.Fatal(err)
			}
			for i := len(data) / 2; i < len(data)/2+4096; i++ {
				data[i] ^= 0xff
			}
			if err := os.WriteFile(shim, data, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		other := func(shim string) {
			var m intact.Manifest
			if err := intact.Read(filepath.Dir(shim), &m); err != nil {
				t.Fatal(err)
			}
			m.Sources = "000000000000"
			text, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(filepath.Dir(shim), intact.ManifestFile), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			name     string
			manifest bool
			torch    int64
			change   func(shim string)
			want     string
		}{
			{"a truncated shim", false, 0, half, "liblinstock.so is damaged: it has "},
			{"a truncated shim with a manifest", true, 0, half, "liblinstock.so is damaged: it has "},
			{"changed code in the shim", true, 0, flip, "liblinstock.so is damaged: its content has changed since it was installed; "},
			{"a shim of other sources", true, 0, other, "liblinstock.so was built from other sources than this program; "},
			{"a truncated libtorch", false, 1 << 20, nil, "torch/lib/libtorch_cpu.so is damaged: it has 1048576 bytes, and its header says "},
			{"a truncated libtorch with a manifest", true, 1 << 20, nil, "torch/lib/libtorch_cpu.so is damaged: it has 1048576 bytes instead of the "},
		} {
			dir := t.TempDir()
			place(t, dir, c.manifest, c.torch, c.change)
			unset := setenv(t, locate.EnvLib, dir)
			if err := cshim.Load(); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "unset LINSTOCK_LIB") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v; want one line with %q", c.name, err, c.want)
			}
			unset()
		}

		// In the cache: the error names the command that repairs it. An intact library of another version is not
		// loaded instead.
		cache := t.TempDir()
		hash, err := cshim.SourceHash()
		if err != nil {
			t.Fatal(err)
		}
		place(t, locate.ShimDir(cache, hash, locate.DefaultTorch), true, 0, half)
		place(t, locate.ShimDir(cache, hash, "2.14.1"), true, 0, nil)
		unset, unsetTorch, unsetLib := setenv(t, locate.EnvCache, cache), setenv(t, locate.EnvTorch, ""), setenv(t, locate.EnvLib, "")
		if err := cshim.Load(); err == nil || !strings.HasSuffix(err.Error(), "; run: "+locate.SetupCommand) {
			t.Errorf("in the cache: %v", err)
		}
		unset()
		unsetTorch()
		unsetLib()
		if err := cshim.Load(); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}
	leak.Check(t)
}

// setenv sets a variable of a process that continues to run; the returned function restores it.
func setenv(t *testing.T, name, value string) func() {
	t.Helper()
	before, was := os.LookupEnv(name)
	if err := os.Setenv(name, value); err != nil {
		t.Fatal(err)
	}
	return func() {
		if was {
			_ = os.Setenv(name, before)
		} else {
			_ = os.Unsetenv(name)
		}
	}
}

func TestLINSTOCK_LIBIsNotAShim(t *testing.T) {
	if elsewhere.Process(t) {
		libc := ""
		for _, lib := range []string{"/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6"} {
			if _, err := os.Stat(lib); err == nil {
				libc = lib
			}
		}
		for path, want := range map[string]string{
			"/etc/passwd": "/etc/passwd is not a shared library",
			libc:          "it is not this program's shim",
			"/nowhere":    "LINSTOCK_LIB=/nowhere does not exist",
			"/etc":        "LINSTOCK_LIB=/etc has no liblinstock.so in it",
		} {
			unset := setenv(t, locate.EnvLib, path)
			if err := cshim.Load(); path != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "unset LINSTOCK_LIB")) {
				t.Errorf("LINSTOCK_LIB=%s: %v; want %q", path, err, want)
			}
			unset()
		}
	}
	leak.Check(t)
}

// With too little address space, loading fails with an error that says so. Without that check the loader fails
// at some limits and ends the process at others. Go's runtime with cgo maps up to 1.4 GB before main runs: with a
// limit below that, it ends some runs itself ("fatal error: runtime: cannot allocate memory"), so the test starts
// above.
func TestTooLittleAddressSpace(t *testing.T) {
	program := filepath.Join(t.TempDir(), "hello")
	if out, err := exec.Command("go", "build", "-o", program, "../tests/hello").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	refusals := 0
	for kb := 1_500_000; kb <= 2_600_000; kb += 100_000 {
		out, err := exec.Command("sh", "-c", fmt.Sprintf(`ulimit -v %d && exec "$0" 2>&1`, kb), program).CombinedOutput()
		said := strings.TrimSpace(string(out))
		switch {
		case strings.Contains(said, fmt.Sprintf("(ulimit -v %d)", kb)) && strings.Contains(said, "raise the limit: ulimit -v unlimited"):
			refusals++
		case said == "sum: 24":
		default:
			t.Errorf("ulimit -v %d: %v\n%.500s", kb, err, said)
		}
	}
	if refusals == 0 {
		t.Error("no limit was refused")
	}
	leak.Check(t)
}

func BenchmarkIntact(b *testing.B) {
	hash, err := cshim.SourceHash()
	if err != nil {
		b.Fatal(err)
	}
	shim, err := locate.Find(hash)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := intact.Shim(shim); err != nil {
			b.Fatal(err)
		}
	}
}
