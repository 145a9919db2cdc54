package locate

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/linstock-ml/linstock/internal/intact"
)

const hash = "0123456789ab"

// cache makes an empty cache directory and clears the environment variables that affect the search.
func cache(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{EnvLib, EnvTorch, EnvLibtorch, EnvUsePyTorch} {
		t.Setenv(name, "")
	}
	t.Setenv(EnvCache, dir)
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// exeCandidates returns the two candidates beside the test's executable.
func exeCandidates(t *testing.T) []string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(exe)
	return []string{filepath.Join(dir, LibName()), filepath.Join(dir, "lib", LibName())}
}

func TestCandidatesOrder(t *testing.T) {
	dir := cache(t)
	for _, key := range []string{"2.11.0", "2.12.0-aaaaaaaa", "2.15.0", ".tmp-1"} {
		write(t, filepath.Join(ShimDir(dir, hash, key), LibName()), "")
	}
	at := func(keys ...string) []string {
		want := exeCandidates(t)
		for _, k := range keys {
			want = append(want, filepath.Join(ShimDir(dir, hash, k), LibName()))
		}
		return want
	}
	check := func(what string, want []string) {
		t.Helper()
		if got := ShimCandidates(hash); !slices.Equal(got, want) {
			t.Errorf("%s:\n got %q\nwant %q", what, got, want)
		}
	}
	check("no default", at("2.15.0", "2.11.0", "2.12.0-aaaaaaaa"))

	write(t, filepath.Join(HashDir(dir, hash), DefaultFile), "2.12.0-aaaaaaaa\n")
	check("default of the last setup", at("2.12.0-aaaaaaaa", "2.15.0", "2.11.0"))

	write(t, filepath.Join(HashDir(dir, hash), DefaultFile), "../../etc\n")
	check("a default that points elsewhere is ignored", at("2.15.0", "2.11.0", "2.12.0-aaaaaaaa"))

	t.Setenv(EnvTorch, "2.12.0")
	check("LINSTOCK_TORCH", at("2.12.0", "2.12.0-aaaaaaaa"))

	t.Setenv(EnvLib, "/x/liblinstock.so")
	check("LINSTOCK_LIB, a file", []string{"/x/liblinstock.so"})
	t.Setenv(EnvLib, dir)
	check("LINSTOCK_LIB, a directory", []string{filepath.Join(dir, LibName())})
}

func TestOtherHashIsNotUsed(t *testing.T) {
	dir := cache(t)
	write(t, filepath.Join(ShimDir(dir, "ffffffffffff", "2.15.0"), LibName()), "")
	if path, err := Find(hash); err == nil {
		t.Errorf("found %s, built from other sources", path)
	}
	want := ShimDir(dir, hash, "2.14.1")
	write(t, filepath.Join(want, LibName()), "")
	if path, err := Find(hash); err != nil || filepath.Dir(path) != want {
		t.Errorf("Find = %q, %v", path, err)
	}
}

func TestMissing(t *testing.T) {
	searched := cache(t)
	_, err := Find(hash)
	want := "linstock: libtorch is not set up on this machine (searched in " + searched + "); run: go run github.com/linstock-ml/linstock/cmd/linstock setup"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	t.Setenv(EnvTorch, "2.11.0")
	check := func(part string) {
		t.Helper()
		err := Missing(hash)
		if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: want one line with %q", err, part)
		}
	}
	check("is not set up in version 2.11.0 (LINSTOCK_TORCH; searched in " + searched + "); run: " + SetupCommand + " --torch 2.11.0")
	// After an update of the module, libtorch is there and only the shim is not.
	for version, command := range map[string]string{"2.11.0": SetupCommand + " --torch 2.11.0", "": SetupCommand} {
		t.Setenv(EnvTorch, version)
		root := TorchDir(searched, cmp.Or(version, DefaultTorch))
		write(t, filepath.Join(root, intact.ManifestFile), "{}")
		check("is not set up for this version of Linstock, whose shim is not built (libtorch is in " + root + "); run: " + command)
	}
	for _, version := range []string{"2.10.0", "2.16.0", "2.13.7", "nonsense"} {
		t.Setenv(EnvTorch, version)
		check("choose one of " + strings.Join(Versions, ", ") + ", or unset LINSTOCK_TORCH")
		if err := Missing(hash); strings.Contains(err.Error(), SetupCommand) {
			t.Errorf("%v: names a command that refuses %s", err, version)
		}
	}
	t.Setenv(EnvLib, "/nowhere/liblinstock.so")
	check("LINSTOCK_LIB=/nowhere/liblinstock.so does not exist; unset LINSTOCK_LIB")
	dir := t.TempDir()
	t.Setenv(EnvLib, dir)
	check("LINSTOCK_LIB=" + dir + " has no " + LibName() + " in it; unset LINSTOCK_LIB")
}

// TestSetupCommand tests that the command has the version of a module that was downloaded, and of no other.
func TestSetupCommand(t *testing.T) {
	const plain, sum = "go run github.com/linstock-ml/linstock/cmd/linstock setup", "h1:abc="
	for _, c := range []struct {
		name, want string
		info       *debug.BuildInfo
	}{
		{"no information", plain, nil},
		{"a working tree", plain, &debug.BuildInfo{Main: debug.Module{Path: modulePath, Version: "v1.2.4-0.20260101000000-0123456789ab+dirty"}}},
		{"a workspace", plain, &debug.BuildInfo{Deps: []*debug.Module{{Path: modulePath, Version: "(devel)"}}}},
		{"a replaced module", plain, &debug.BuildInfo{Deps: []*debug.Module{{Path: modulePath, Version: "v1.2.3", Sum: sum, Replace: &debug.Module{Path: "../linstock"}}}}},
		{"another module", plain, &debug.BuildInfo{Deps: []*debug.Module{{Path: "example.com/a", Version: "v1.2.3", Sum: sum}}}},
		{"a dependency", "go run github.com/linstock-ml/linstock/cmd/linstock@v1.2.3 setup",
			&debug.BuildInfo{Main: debug.Module{Path: "example.com/a"}, Deps: []*debug.Module{{Path: modulePath, Version: "v1.2.3", Sum: sum}}}},
		{"linstock, installed", "go run github.com/linstock-ml/linstock/cmd/linstock@v1.2.3 setup",
			&debug.BuildInfo{Main: debug.Module{Path: modulePath, Version: "v1.2.3", Sum: sum}}},
	} {
		if got := setupCommand(c.info, c.info != nil); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestUnreadable tests that a library that exists is not reported as missing. A link to itself stands for a directory of
// another user, which root could read.
func TestUnreadable(t *testing.T) {
	dir := cache(t)
	loop := HashDir(dir, hash)
	if err := os.MkdirAll(filepath.Dir(loop), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	shim := filepath.Join(ShimDir(dir, hash, DefaultTorch), LibName())
	_, err := Find(hash)
	if errors.Is(err, ErrMissing) || !errors.Is(err, syscall.ELOOP) || !strings.Contains(err.Error(), "cannot be read: stat "+shim) || !strings.Contains(err.Error(), EnvCache) {
		t.Error(err)
	}
	t.Setenv(EnvLib, shim)
	_, err = Find(hash)
	if errors.Is(err, ErrMissing) || !errors.Is(err, syscall.ELOOP) || !strings.Contains(err.Error(), "LINSTOCK_LIB="+shim+" cannot be read: ") {
		t.Error(err)
	}
	// A file in a directory's place has nothing in it.
	file := filepath.Join(dir, "file")
	write(t, file, "")
	t.Setenv(EnvLib, filepath.Join(file, LibName()))
	if _, err := Find(hash); !errors.Is(err, ErrMissing) {
		t.Error(err)
	}
}

func TestRemedy(t *testing.T) {
	dir := cache(t)
	bundle, old := t.TempDir(), t.TempDir()
	write(t, filepath.Join(bundle, "linstock.json"), `{"root": "."}`)
	write(t, filepath.Join(old, "linstock.json"), "not JSON")
	for shim, want := range map[string]string{
		filepath.Join(ShimDir(dir, hash, DefaultTorch), LibName()):      "run: " + SetupCommand,
		filepath.Join(ShimDir(dir, hash, "2.11.0"), LibName()):          "run: " + SetupCommand + " --torch 2.11.0",
		filepath.Join(ShimDir(dir, hash, "2.12.0-aaaaaaaa"), LibName()): "run: " + SetupCommand,
		filepath.Join(bundle, LibName()):                                "make the bundle in " + bundle + " again: linstock bundle DIR",
		// linstock bundle refuses these.
		"/srv/app/" + LibName():       "make a bundle in another directory, in place of /srv/app: linstock bundle DIR",
		filepath.Join(old, LibName()): "make a bundle in another directory, in place of " + old + ": linstock bundle DIR",
	} {
		if got := Remedy(shim, shim); got != want {
			t.Errorf("Remedy(%s) = %q, want %q", shim, got, want)
		}
	}
	t.Setenv(EnvLib, "/etc/passwd")
	if got := Remedy("/etc/passwd", "/etc/passwd"); !strings.HasPrefix(got, "unset LINSTOCK_LIB") || strings.Contains(got, SetupCommand) {
		t.Errorf("Remedy = %q", got)
	}
}

func TestRemedyOfLibtorch(t *testing.T) {
	dir := cache(t)
	shim := filepath.Join(ShimDir(dir, hash, DefaultTorch), LibName())
	damaged := func(version string) string { return filepath.Join(TorchDir(dir, version), "torch/lib/libtorch_cpu.so") }
	for range 2 {
		if got, want := Remedy(shim, damaged(DefaultTorch)), "run: "+SetupCommand; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got, want := Remedy(shim, damaged("2.11.0")), "run: "+SetupCommand+" --torch 2.11.0"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := Remedy(shim, "/venv/torch/lib/libtorch_cpu.so"); !strings.HasPrefix(got, "install that libtorch again") {
			t.Errorf("got %q", got)
		}
		t.Setenv(EnvLib, shim) // setup repairs the same files
	}
}

func TestOpenRemedy(t *testing.T) {
	dir := cache(t)
	shim := filepath.Join(ShimDir(dir, hash, DefaultTorch), LibName())
	const absent = ": cannot open shared object file: No such file or directory"
	for _, c := range []struct{ path, reason, want string }{
		{"", "libstdc++.so.6" + absent, "install the system's package with libstdc++.so.6"},
		{"/other", "libstdc++.so.6" + absent, "install the system's package with libstdc++.so.6"},
		{"", "/venv/torch/lib/libtorch_cpu.so" + absent, "run: " + SetupCommand},
		{"/other", "liblinstock.so: undefined symbol: _ZTIN3c105ErrorE", "unset LD_LIBRARY_PATH, which may name another libtorch: /other"},
		{"", "liblinstock.so: undefined symbol: _ZTIN3c105ErrorE", "run: " + SetupCommand + " --force"},
		{"", "/lib/libstdc++.so.6: file too short", "install the system's package with libstdc++.so.6 again"},
		{"/other", "/lib/libstdc++.so.6: invalid ELF header", "install the system's package with libstdc++.so.6 again"},
		{"/other::/a", "/other/libstdc++.so.6: file too short", "unset LD_LIBRARY_PATH, which may name another libtorch: /other::/a"},
		{"/other", "/other/glibc-hwcaps/x86-64-v3/libc10.so: invalid ELF header", "unset LD_LIBRARY_PATH, which may name another libtorch: /other"},
		{"", "/venv/torch/lib/libtorch_cpu.so: file too short", "install that libtorch again, as it was installed"},
		{"", filepath.Join(TorchDir(dir, DefaultTorch), "torch/lib/libc10.so") + ": invalid ELF header", "run: " + SetupCommand + " --force"},
		{"", "/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by " + shim + ")",
			"this system's libstdc++.so.6 is older than that of the compiler that built the shim; " +
				"with this system's own compiler (unset CXX) run: " + SetupCommand + " --force"},
		{"/other", "/lib/libc.so.6: version `GLIBC_2.38' not found (required by /venv/torch/lib/libtorch_cpu.so)",
			"this system's libc.so.6 is older than that of the systems that this libtorch is for: use a newer system"},
		{"/other", "/other/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by " + shim + ")",
			"unset LD_LIBRARY_PATH, which may name another libtorch: /other"},
		{"", "liblinstock.so: failed to map segment from shared object", "move " + filepath.Dir(shim) + " to a file system that is not mounted with noexec (LINSTOCK_CACHE)"},
	} {
		t.Setenv("LD_LIBRARY_PATH", c.path)
		if got := OpenRemedy(shim, c.reason); got != c.want {
			t.Errorf("%s: %q, want %q", c.reason, got, c.want)
		}
	}
	t.Setenv("LD_LIBRARY_PATH", "/other")
	bundle := "/srv/app/" + LibName()
	if got, want := OpenRemedy(bundle, "/lib/libc.so.6: version `GLIBC_2.38' not found (required by "+bundle+")"), "this system's libc.so.6 is older than "+
		"that of the system on which the shim was built: set up and make the bundle on a system that is no newer than this one"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// Setup does not make a library of libtorch a shim.
	t.Setenv("LD_LIBRARY_PATH", "")
	other := filepath.Join(TorchDir(dir, DefaultTorch), "torch/lib/libc10.so")
	t.Setenv(EnvLib, other)
	if got := OpenRemedy(other, "it is not this program's shim"); !strings.HasPrefix(got, "unset LINSTOCK_LIB, or") {
		t.Errorf("got %q", got)
	}
}

func TestRelativeLib(t *testing.T) {
	dir := cache(t)
	write(t, filepath.Join(dir, LibName()), "")
	t.Chdir(dir)
	for _, lib := range []string{".", LibName(), "./" + LibName()} {
		t.Setenv(EnvLib, lib)
		if got, want := ShimCandidates(hash), []string{filepath.Join(dir, LibName())}; !slices.Equal(got, want) {
			t.Errorf("LINSTOCK_LIB=%s: %q, want %q", lib, got, want)
		}
	}
}

func TestNoHome(t *testing.T) {
	cache(t)
	for _, name := range []string{EnvCache, "HOME", "XDG_CACHE_HOME", "LocalAppData"} {
		t.Setenv(name, "")
	}
	if _, err := CacheDir(); err == nil || !strings.Contains(err.Error(), EnvCache) {
		t.Errorf("CacheDir = %v; want an error that names %s", err, EnvCache)
	}
	if got, want := ShimCandidates(hash), exeCandidates(t); !slices.Equal(got, want) {
		t.Errorf("candidates = %q, want %q", got, want)
	}
	if err := Missing(hash); !strings.Contains(err.Error(), EnvCache) {
		t.Errorf("Missing = %v; want it to name %s", err, EnvCache)
	}
	// Without a cache a shim is that of a bundle.
	for _, name := range []string{LibName(), "libtorch_cpu.so"} {
		want := "make a bundle in another directory, in place of /srv/app: linstock bundle DIR"
		if got := Remedy("/srv/app/"+LibName(), "/srv/app/"+name); got != want {
			t.Errorf("%s: Remedy = %q, want %q", name, got, want)
		}
	}
}

func TestSourceHash(t *testing.T) {
	of := func(files fstest.MapFS) string {
		t.Helper()
		h, err := SourceHash(files)
		if err != nil || len(h) != 12 {
			t.Fatalf("SourceHash = %q, %v", h, err)
		}
		return h
	}
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	base := of(fstest.MapFS{"a.cpp": file("x"), "src/b.h": file("y")})
	if again := of(fstest.MapFS{"src/b.h": file("y"), "a.cpp": file("x")}); again != base {
		t.Errorf("the order of the files changes the hash: %s, %s", base, again)
	}
	for name, other := range map[string]fstest.MapFS{
		"content": {"a.cpp": file("x"), "src/b.h": file("z")},
		"name":    {"a.cc": file("x"), "src/b.h": file("y")},
		"split":   {"a.cpp": file("xy"), "src/b.h": file("")},
	} {
		if of(other) == base {
			t.Errorf("another %s gives the same hash", name)
		}
	}
}

func TestKey(t *testing.T) {
	if k := Key("2.15.0", "/c/libtorch/2.15.0", true); k != "2.15.0" {
		t.Errorf("in the cache: %s", k)
	}
	a, b := Key("2.15.0", "/opt/a", false), Key("2.15.0", "/opt/b", false)
	if a == b || len(a) != len("2.15.0-")+8 {
		t.Errorf("elsewhere: %s, %s", a, b)
	}
}
