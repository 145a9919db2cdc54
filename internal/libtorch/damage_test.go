package libtorch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/intact"
	"github.com/linstock-ml/linstock/internal/locate"
)

// flip changes one byte in the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 0x40
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()/2); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// TestSetupRepairsDamage tests that setup without --force detects, reports and repairs every damage that would
// make a program fail or crash.
func TestSetupRepairsDamage(t *testing.T) {
	cfg := config(t)
	result, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	shim, cpu := result.Shim, filepath.Join(result.Source.Lib, "libtorch_cpu.so")
	gomp := filepath.Join(result.Source.Lib, "libgomp.so.1")
	for _, c := range []struct {
		name, path, note string
		damage           func(*testing.T, string)
		verify           bool // detecting it takes --verify
	}{
		{"a truncated shim", shim, "building the shim again", truncate, false},
		{"a changed byte in the shim", shim, "its content has changed since it was installed: building the shim again", flip, false},
		{"a missing shim", shim, "", remove, false},
		{"a damaged manifest of the shim", filepath.Join(filepath.Dir(shim), intact.ManifestFile), "", truncate, false},
		{"a truncated libtorch", cpu, "libtorch_cpu.so is damaged: it has", truncate, false},
		{"a missing library", gomp, "libgomp.so.1 is missing", remove, false},
		{"a damaged manifest of libtorch", filepath.Join(result.Source.Root, intact.ManifestFile), "", truncate, false},
		{"a changed byte in libtorch", cpu, "libtorch_cpu.so is damaged: its content has changed since it was installed", flip, true},
	} {
		repair := func(t *testing.T) {
			c.damage(t, c.path)
			again := cfg
			if c.verify {
				if r, err := Setup(t.Context(), again); err != nil || r.Changed {
					t.Errorf("without --verify: %+v, %v", r, err)
				}
				again.Verify = true
			}
			var said notes
			again.Progress = &said
			r, err := Setup(t.Context(), again)
			if err != nil || !r.Changed {
				t.Fatalf("setup did not repair it: %+v, %v", r, err)
			}
			if all := strings.Join(said.said, "\n"); !strings.Contains(all, c.note) {
				t.Errorf("setup said %q, want %q in it", all, c.note)
			}
			if err := intact.Shim(shim); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			if err := Changed(t.Context(), r.Source); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			if r, err := Setup(t.Context(), again); err != nil || r.Changed || again.Verify && r.Verified == 0 {
				t.Errorf("the next setup: %+v, %v", r, err)
			}
		}
		t.Run(c.name, repair)
		t.Run(c.name+", LIBTORCH", func(t *testing.T) {
			t.Setenv(locate.EnvLibtorch, result.Source.Root) // as `linstock env` prints it
			repair(t)
		})
	}
}

// TestRepairKeepsCUDA tests that a setup without --cuda which repairs a libtorch, or installs it again, keeps the
// libraries that a GPU needs.
func TestRepairKeepsCUDA(t *testing.T) {
	cfg := config(t)
	cfg.NoBuild = true // there is no CUDA part in the sources of the fixture
	cfg.CUDA = true
	result, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.CUDA = false
	cpu := filepath.Join(result.Source.Lib, "libtorch_cpu.so")
	manifest := filepath.Join(result.Source.Root, intact.ManifestFile)
	for _, c := range []struct {
		name   string
		damage func()
		with   func(*Config)
	}{
		{"a truncated libtorch", func() { truncate(t, cpu) }, func(*Config) {}},
		{"a missing library of CUDA", func() { remove(t, filepath.Join(result.Source.Lib, libtorchCUDA())) }, func(*Config) {}},
		{"a damaged manifest", func() { truncate(t, manifest) }, func(*Config) {}},
		{"a changed byte", func() { flip(t, cpu) }, func(c *Config) { c.Verify = true }},
		{"no damage", func() {}, func(c *Config) { c.Force = true }},
	} {
		c.damage()
		again := cfg
		c.with(&again)
		var said notes
		again.Progress = &said
		r, err := Setup(t.Context(), again)
		if err != nil || !r.Changed || !r.Source.CUDA || !isFile(filepath.Join(r.Source.Lib, libtorchCUDA())) {
			t.Errorf("%s: %+v, %v", c.name, r, err)
		}
		if !strings.Contains(strings.Join(said.said, "\n"), "with --cuda") {
			t.Errorf("%s: setup said %q", c.name, said.said)
		}
	}
}

// TestDamagedExternalLibtorch tests that a truncated file is an error in a libtorch that setup did not install,
// which has no manifest and is not setup's to repair.
func TestDamagedExternalLibtorch(t *testing.T) {
	cfg := config(t)
	cfg.NoBuild = true
	made, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "site-packages")
	if err := os.CopyFS(dir, os.DirFS(made.Source.Root)); err != nil {
		t.Fatal(err)
	}
	remove(t, filepath.Join(dir, intact.ManifestFile))
	t.Setenv(locate.EnvLibtorch, dir)
	for _, name := range []string{"torch/lib/libtorch_cpu.so", "torch/lib/libgomp.so.1"} {
		path := filepath.Join(realPath(dir), filepath.FromSlash(name))
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		truncate(t, path)
		var damage *intact.Damage
		if _, err := Setup(t.Context(), cfg); !errors.As(err, &damage) || damage.Path != path || !strings.Contains(err.Error(), "install $LIBTORCH again") {
			t.Errorf("%s truncated: %v", name, err)
		}
		if err := os.WriteFile(path, whole, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Verify = true
	if r, err := Setup(t.Context(), cfg); err != nil || r.Verified != 0 {
		t.Errorf("--verify without a manifest: %+v, %v", r, err)
	}
}

// TestDamagedLibtorchOfAnotherCache tests that setup reports damage of a libtorch in another cache, which LIBTORCH
// names, and installs nothing in its place; and that this libtorch may lack LLVM's OpenMP runtime.
func TestDamagedLibtorchOfAnotherCache(t *testing.T) {
	cfg := config(t)
	cfg.NoBuild = true
	made, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Cache, cfg.Verify = t.TempDir(), true
	root, err := filepath.EvalSymlinks(made.Source.Root)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(locate.EnvLibtorch, root)
	if r, err := Setup(t.Context(), cfg); err != nil || r.Verified == 0 {
		t.Errorf("intact: %+v, %v", r, err)
	}
	for _, c := range []struct {
		library string
		damage  func(*testing.T, string)
	}{{"libtorch_cpu.so", truncate}, {"libc10.so", remove}, {"libtorch_cpu.so", flip}} {
		path := filepath.Join(root, "torch", "lib", c.library)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		c.damage(t, path)
		var damage *intact.Damage
		if r, err := Setup(t.Context(), cfg); !errors.As(err, &damage) || damage.Path != path || !strings.Contains(err.Error(), "install $LIBTORCH again") {
			t.Errorf("%+v, %v; want the damage of %s", r, err, path)
		}
		if err := os.WriteFile(path, whole, 0o755); err != nil {
			t.Fatal(err)
		}
	}

	var stamp torchStamp
	if err := intact.Read(root, &stamp); err != nil {
		t.Fatal(err)
	}
	delete(stamp.Sizes, openMPFile)
	delete(stamp.SHA256, openMPFile)
	if err := writeJSON(filepath.Join(root, intact.ManifestFile), stamp); err != nil {
		t.Fatal(err)
	}
	if r, err := Setup(t.Context(), cfg); err != nil || r.Source.Root != root {
		t.Errorf("without OpenMP: %+v, %v", r, err)
	}
	if dir := locate.TorchDir(cfg.Cache, testVersion); isFile(filepath.Join(dir, intact.ManifestFile)) {
		t.Errorf("setup installed another libtorch in %s", dir)
	}
}

// TestDamagedBundle tests that the manifest of a bundle lists all its libraries with the hashes they were installed
// with.
func TestDamagedBundle(t *testing.T) {
	cfg := config(t)
	result, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	source, err := SourceOf(cfg.Cache, result.Shim)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"liblinstock.so", "torch/lib/libtorch_cpu.so", "nvidia/cu13/lib/libcupti.so.13"} {
		dir := t.TempDir()
		if err := Bundle(t.Context(), result.Shim, source, dir, false, nil); err != nil {
			t.Fatal(err)
		}
		shim := filepath.Join(dir, locate.LibName())
		if err := intact.Shim(shim); err != nil {
			t.Errorf("as made: %v", err)
		}
		if version, root, ok := ShimVersionOf(shim); version != testVersion || root != dir || !ok {
			t.Errorf("its manifest: %s, %s, %v", version, root, ok)
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		truncate(t, path)
		var damage *intact.Damage
		if err := intact.Shim(shim); !errors.As(err, &damage) || damage.Path != path {
			t.Errorf("%s truncated: %v", name, err)
		}
	}
	// The remedy of each damage is what Bundle then does.
	for name, again := range map[string]bool{"liblinstock.so": true, intact.ManifestFile: false} {
		dir := t.TempDir()
		if err := Bundle(t.Context(), result.Shim, source, dir, false, nil); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		truncate(t, path)
		remedy, err := locate.Remedy(filepath.Join(dir, locate.LibName()), path), Bundle(t.Context(), result.Shim, source, dir, false, nil)
		if (err == nil) != again || strings.Contains(remedy, dir+" again") != again || strings.Contains(remedy, "another directory") == again {
			t.Errorf("%s truncated: %q, and Bundle says %v", name, remedy, err)
		}
	}
	// A library that changed before is in the bundle with its original hash.
	flip(t, filepath.Join(source.Lib, "libtorch_cpu.so"))
	dir := t.TempDir()
	if err := Bundle(t.Context(), result.Shim, source, dir, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := Changed(t.Context(), Source{Root: dir}); err == nil || !strings.Contains(err.Error(), "libtorch_cpu.so is damaged") {
		t.Errorf("a bundle of a changed library: %v", err)
	}
}
