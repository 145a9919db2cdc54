// Package install tests a user's first steps: a module that requires Linstock, `go run …/cmd/linstock setup`, a
// program, a bundle; all with an empty home directory.
//
// With LINSTOCK_TEST_INSTALL=1, as in make test, setup finds the libtorch and the shim of this machine. With
// LINSTOCK_TEST_INSTALL=full, as in make verify, it finds an empty cache, downloads or unpacks libtorch and compiles the
// shim, which takes some minutes, and then repairs damaged files. Wheels are taken from LINSTOCK_TEST_WHEELS, a list of
// directories, or downloaded by pip.
package install

import (
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/locate"
)

const (
	module  = "github.com/linstock-ml/linstock"
	release = "v0.0.1-test" // the release under which the file-system proxy serves this tree
)

// setupCommand is what a program with this release tells the user to run, wherever it runs.
const setupCommand = "go run " + module + "/cmd/linstock@" + release + " setup"

const answer = "sum: 24\n" // the output of tests/hello

// A machine is a user's machine: an empty home directory without any part of Linstock.
type machine struct {
	t     *testing.T
	home  string
	cache string // LINSTOCK_CACHE
	proxy string // of Go modules
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	// Shells, CMake and compilers could split this name into two words, or treat it as the beginning of a string.
	home := filepath.Join(dir, "Miriam O'Brien")
	m := &machine{t: t, home: home, cache: filepath.Join(home, ".cache", "linstock"), proxy: filepath.Join(dir, "proxy")}
	if err := os.Mkdir(m.home, 0o755); err != nil {
		t.Fatal(err)
	}
	return m
}

// env returns the environment of this process without variables that refer to this machine's installation. Modules come
// from our module cache as a proxy, without a network. The build cache is ours; it holds only what the compiler would
// produce again.
func (m *machine) env() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return slices.ContainsFunc([]string{"HOME=", "XDG_", "LINSTOCK_", "LIBTORCH", "GO", "CGO_"}, func(p string) bool { return strings.HasPrefix(v, p) })
	})
	return append(env, "HOME="+m.home, "LINSTOCK_CACHE="+m.cache,
		"GOCACHE="+goEnv(m.t, "GOCACHE"), "GOTOOLCHAIN=local", "GOFLAGS=-modcacherw", "GONOSUMDB=*", "GONOSUMCHECK=1", "GOFLAGS=-modcacherw -buildvcs=false",
		// Dependencies that this machine has not downloaded come from where the user would get them.
		"GOPROXY=file://"+m.proxy+",file://"+filepath.Join(goEnv(m.t, "GOMODCACHE"), "cache", "download")+","+goEnv(m.t, "GOPROXY"))
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatalf("go env %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

// try runs a command and returns its output.
func (m *machine) try(dir, name string, args ...string) (string, error) {
	m.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, m.env()
	begun := time.Now()
	out, err := cmd.CombinedOutput()
	m.t.Logf("%s %s (%.1f s)\n%s", filepath.Base(name), strings.Join(args, " "), time.Since(begun).Seconds(), out)
	return string(out), err
}

func (m *machine) must(dir, name string, args ...string) string {
	m.t.Helper()
	out, err := m.try(dir, name, args...)
	if err != nil {
		m.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// one returns the only file in the cache that matches a pattern.
func (m *machine) one(pattern string) string {
	m.t.Helper()
	found, err := filepath.Glob(filepath.Join(m.cache, filepath.FromSlash(pattern)))
	if err != nil || len(found) != 1 {
		m.t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
}

// project makes a user's module without requirements.
func (m *machine) project() string {
	m.t.Helper()
	dir := m.t.TempDir()
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/scratch\n\ngo 1.26\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "main.go"), hello(m.t), 0o644))
	if err != nil {
		m.t.Fatal(err)
	}
	return dir
}

func root(t *testing.T) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// hello returns the program that a user would write.
func hello(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "tests", "hello", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// serve makes a file-system proxy that has this tree as a release.
func (m *machine) serve() {
	t := m.t
	t.Helper()
	top := root(t)
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = top
	out, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	dir := filepath.Join(m.proxy, filepath.FromSlash(module), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		// A directory with its own go.mod is another module, and not part of this release.
		if strings.HasPrefix(name, "internal/tools/") {
			continue
		}
		f, err := os.Open(filepath.Join(top, filepath.FromSlash(name)))
		if errors.Is(err, os.ErrNotExist) { // deleted, not yet committed
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		w, err := z.Create(module + "@" + release + "/" + name)
		if err == nil {
			_, err = io.Copy(w, f)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(top, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"list": []byte(release + "\n"), release + ".mod": mod, release + ".zip": buf.Bytes(),
		release + ".info": []byte(`{"Version":"` + release + `","Time":"2026-01-01T00:00:00Z"}`),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// thisMachine returns the cache of this machine. It skips the test unless setup has nothing to do there: it would
// otherwise install another libtorch than that which the tests use, and make it the default.
func thisMachine(t *testing.T) string {
	t.Helper()
	cache, err := locate.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	hash := filepath.Base(filepath.Dir(filepath.Dir(os.Getenv(locate.EnvLib)))) // tests/run.sh sets it
	if key := locate.DefaultKey(cache, hash); key != locate.DefaultTorch {
		t.Skipf("this machine's libtorch is %q, not %s, the default: set LINSTOCK_TEST_INSTALL=full", key, locate.DefaultTorch)
	}
	return cache
}

// setup returns the arguments of the go command that run setup, with the wheels of this machine if there are any.
func setup(t *testing.T) []string {
	args := []string{"run", module + "/cmd/linstock", "setup"}
	for _, dir := range filepath.SplitList(os.Getenv("LINSTOCK_TEST_WHEELS")) {
		abs, err := filepath.Abs(dir)
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, "--torch", locate.DefaultTorch, "--wheel", abs)
	}
	return args
}

func TestInstall(t *testing.T) {
	mode := os.Getenv("LINSTOCK_TEST_INSTALL")
	if mode == "" {
		t.Skip("needs libtorch and the shim: set LINSTOCK_TEST_INSTALL=1, as make test does")
	}
	full := mode == "full"
	m := newMachine(t)
	m.serve()

	// At first the module requires only package tensor, as README.md says.
	readme, err := os.ReadFile(filepath.Join(root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if command := "go get " + module + "/tensor\n"; !strings.Contains(string(readme), "\n"+command) {
		t.Errorf("README.md does not have %q", command)
	}
	dir := m.project()
	m.must(dir, "go", "get", module+"/tensor@"+release)
	m.must(dir, "go", "build", "-o", "program", ".")

	t.Log("without libtorch the program prints what to do")
	if out, err := m.try(dir, "./program"); err == nil || !strings.Contains(out, "run: "+setupCommand) {
		t.Fatalf("%v: %s; want the setup command", err, out)
	}
	if !full {
		m.cache = thisMachine(t)
	}
	t.Log("the commands of the README")
	m.must(dir, "go", "install", module+"/cmd/linstock")
	m.must(dir, filepath.Join(m.home, "go", "bin", "linstock"), setup(t)[2:]...)
	if out := m.must(dir, "./program"); out != answer {
		t.Fatalf("the program printed %q, want %q", out, answer)
	}
	if out := m.must(dir, "go", "run", module+"/cmd/linstock", "doctor"); !strings.Contains(out, "no problems found") {
		t.Errorf("doctor:\n%s", out)
	}

	t.Log("the program imports packages that need other modules than tensor")
	more := "package main\n\nimport (\n"
	for _, name := range []string{"checkpoint", "dist/dcp", "profiler"} {
		more += "\t_ \"" + module + "/" + name + "\"\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "more.go"), []byte(more+")\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.must(dir, "go", "build", "-o", "program", ".")
	if out := m.must(dir, "./program"); out != answer {
		t.Errorf("the program printed %q, want %q", out, answer)
	}

	t.Log("the second setup has nothing to do")
	begun := time.Now()
	m.must(dir, "go", "run", module+"/cmd/linstock", "version")
	start := time.Since(begun)
	begun = time.Now()
	out := m.must(dir, "go", setup(t)...)
	if d := time.Since(begun) - start; d > time.Second || !strings.Contains(out, "was set up before") {
		t.Errorf("it took %v beyond starting:\n%s", d, out)
	}

	t.Log("the command that the program printed works outside of a module, too")
	args := append(strings.Fields(setupCommand)[1:], setup(t)[3:]...)
	if out := m.must(t.TempDir(), "go", args...); !strings.Contains(out, "was set up before") {
		t.Errorf("%s:\n%s", setupCommand, out)
	}

	t.Log("a shell reads what env prints")
	m.must(dir, "sh", "-c", `eval "$(go run `+module+`/cmd/linstock env)" && test -f "$LINSTOCK_LIB" && test -d "$LIBTORCH/torch/include"`)

	t.Run("Damage", func(t *testing.T) {
		if !full {
			t.Skip("would damage this machine's files: set LINSTOCK_TEST_INSTALL=full, as make verify does")
		}
		m := &machine{t: t, home: m.home, cache: m.cache, proxy: m.proxy}
		shim := m.one("shim/*/" + locate.DefaultTorch + "/" + locate.LibName())
		cpu := m.one("libtorch/*/torch/lib/libtorch_cpu.so")
		whole, err := os.ReadFile(shim)
		if err != nil {
			t.Fatal(err)
		}
		refused := func(name string, err error) {
			t.Helper()
			t.Log(name)
			if err != nil {
				t.Fatal(err)
			}
			out, err := m.try(dir, "./program")
			if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out, "is damaged") || !strings.Contains(out, "run: "+setupCommand) {
				t.Errorf("%s: the program ended with %v and said:\n%s", name, err, out)
			}
			if out, err := m.try(dir, "go", "run", module+"/cmd/linstock", "doctor"); err == nil || !strings.Contains(out, "is damaged") {
				t.Errorf("%s: doctor ended with %v and said:\n%s", name, err, out)
			}
		}
		refused("a truncated shim", os.WriteFile(shim, whole[:len(whole)/2], 0o755))
		changed := slices.Clone(whole)
		changed[len(changed)/2] ^= 0xff
		refused("a changed byte in the shim", os.WriteFile(shim, changed, 0o755))
		// Setup would compile the shim again, which internal/libtorch tests in less time.
		if err := os.WriteFile(shim, whole, 0o755); err != nil {
			t.Fatal(err)
		}
		refused("a truncated libtorch", os.Truncate(cpu, 100_000_000))
		m.must(dir, "go", setup(t)...)
		if out := m.must(dir, "./program"); out != answer {
			t.Errorf("after setup the program printed %q, want %q", out, answer)
		}
		if out := m.must(dir, "go", append(setup(t), "--verify")...); !strings.Contains(out, "MB of libraries verified") {
			t.Errorf("setup --verify:\n%s", out)
		}
	})

	t.Run("Replace", func(t *testing.T) {
		// A checkout beside the user's module uses what the release set up, because the sources are the same.
		m := &machine{t: t, home: m.home, cache: m.cache, proxy: m.proxy}
		dir := m.project()
		m.must(dir, "go", "mod", "edit", "-require="+module+"@v0.0.0", "-replace="+module+"="+root(t))
		m.must(dir, "go", "get", module+"/tensor")
		if out := m.must(dir, "go", setup(t)...); !strings.Contains(out, "was set up before") {
			t.Errorf("setup of the same sources did it again:\n%s", out)
		}
		if out := m.must(dir, "go", "run", "."); out != answer {
			t.Errorf("the program printed %q, want %q", out, answer)
		}
	})

	t.Run("Bundle", func(t *testing.T) {
		dist := filepath.Join(t.TempDir(), "Miriam's dist")
		m.must(dir, "go", "run", module+"/cmd/linstock", "bundle", dist)
		m.must(dir, "go", "build", "-o", filepath.Join(dist, "program"), ".")
		// Use another home directory, and remove the cache.
		if full {
			if err := os.Rename(m.cache, m.cache+".away"); err != nil {
				t.Fatal(err)
			}
		}
		other := &machine{t: t, home: t.TempDir(), cache: filepath.Join(t.TempDir(), "none"), proxy: m.proxy}
		if out := other.must(t.TempDir(), filepath.Join(dist, "program")); out != answer {
			t.Errorf("the bundle printed %q, want %q", out, answer)
		}
		if err := os.Truncate(filepath.Join(dist, "torch", "lib", "libtorch_cpu.so"), 100_000_000); err != nil {
			t.Fatal(err)
		}
		if out, err := other.try(t.TempDir(), filepath.Join(dist, "program")); err == nil || !strings.Contains(out, "libtorch_cpu.so is damaged") || !strings.Contains(out, "linstock bundle") {
			t.Errorf("a damaged bundle ended with %v and said:\n%s", err, out)
		}
	})
}

// TestVendored tests that a module with a vendor directory can run the commands, of which it imports none.
func TestVendored(t *testing.T) {
	m := newMachine(t)
	dir := m.project()
	m.must(dir, "go", "mod", "edit", "-require="+module+"@v0.0.0", "-replace="+module+"="+root(t))
	m.must(dir, "go", "get", module+"/tensor")
	m.must(dir, "go", "mod", "vendor")
	commands := []string{module + "/cmd/linstock", module + "/cmd/linstockvet"}
	if out := m.must(dir, "go", append([]string{"list", "-mod=vendor", "-deps"}, commands...)...); !strings.Contains(out, "github.com/spf13/cobra\n") {
		t.Errorf("their packages:\n%s", out)
	}
}
