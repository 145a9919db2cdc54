package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/intact"
	"github.com/linstock-ml/linstock/internal/libtorch"
	"github.com/linstock-ml/linstock/internal/locate"
)

// isolated gives the command an empty cache and a clean environment.
func isolated(t *testing.T) string {
	t.Helper()
	for _, name := range []string{locate.EnvLib, locate.EnvTorch, locate.EnvLibtorch, locate.EnvUsePyTorch} {
		t.Setenv(name, "")
	}
	dir := t.TempDir()
	t.Setenv(locate.EnvCache, dir)
	return dir
}

func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// full is a file on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestLostOutput tests that a command whose output cannot be written fails.
func TestLostOutput(t *testing.T) {
	isolated(t)
	const pkg = "../../examples/lastuse"
	for _, args := range [][]string{{"env"}, {"env", "--json"}, {"version"}, {"doctor"}, {"lastuse", pkg}, {"lastuse", "-source", pkg}, {"env", "--help"}} {
		root := newRoot()
		root.SetArgs(args)
		if err := execute(t.Context(), root, full{}); !errors.Is(err, syscall.ENOSPC) || errors.Is(err, errReported) {
			t.Errorf("%v: got %v, want %v", args, err, syscall.ENOSPC)
		}
	}
}

func TestHelp(t *testing.T) {
	isolated(t)
	for _, c := range newRoot().Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		out, err := command(t, c.Name(), "--help")
		if err != nil || c.Short == "" || !strings.Contains(out, "Usage:") {
			t.Errorf("%s --help: %v\n%s", c.Name(), err, out)
		}
		if short, err := command(t, c.Name(), "-help"); err != nil || short != out {
			t.Errorf("%s -help: %v\n%s", c.Name(), err, short)
		}
		if c.Name() != "version" && !strings.Contains(out, "Examples:") {
			t.Errorf("%s --help has no examples", c.Name())
		}
	}
	if out, err := command(t, "-help"); err != nil || !strings.Contains(out, "Usage:") {
		t.Errorf("-help: %v\n%s", err, out)
	}
	if _, err := command(t, "setup", "-x"); err == nil || !strings.Contains(err.Error(), "unknown shorthand flag") {
		t.Errorf("setup -x: %v", err)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, err := command(t, "completion", shell); err != nil || !strings.Contains(out, "linstock") {
			t.Errorf("completion %s: %v", shell, err)
		}
	}
	if out, err := command(t, "__complete", "setup", "--torch", ""); err != nil || !strings.Contains(out, locate.Versions[0]) {
		t.Errorf("--torch completes to %q (%v)", out, err)
	}
}

func TestEnvOfAnEmptyCache(t *testing.T) {
	dir := isolated(t)
	out, err := command(t, "env")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"export LINSTOCK_CACHE=" + quote(dir), "export LINSTOCK_TORCH=" + locate.DefaultTorch,
		"# LINSTOCK_LIB: not set up; run: " + locate.SetupCommand,
	} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("env lacks %q:\n%s", want, out)
		}
	}
	out, err = command(t, "env", "--json")
	got := map[string]string{}
	if jerr := json.Unmarshal([]byte(out), &got); err != nil || jerr != nil || got["LINSTOCK_CACHE"] != dir || got["LINSTOCK_LIB"] != "" {
		t.Errorf("env --json: %v, %v\n%s", err, jerr, out)
	}
	// A shim that is set is of one version: with --torch it is not printed beside another libtorch.
	shim := filepath.Join(dir, locate.LibName())
	if err := os.WriteFile(shim, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(locate.EnvLib, shim)
	run := "# LINSTOCK_LIB: not set up; run: " + locate.SetupCommand + " --torch 2.11.0\n"
	if out, err := command(t, "env", "--torch", "2.11.0"); err != nil || strings.Contains(out, shim) || !strings.Contains(out, run) {
		t.Errorf("env --torch: %v\n%s", err, out)
	}
	if out, err := command(t, "env"); err != nil || !strings.Contains(out, shim) {
		t.Errorf("env with a shim: %v\n%s", err, out)
	}
}

// TestEnvOfTheLastSetup tests that the commands print the version that programs open: that of the last setup or of LINSTOCK_LIB.
func TestEnvOfTheLastSetup(t *testing.T) {
	dir := isolated(t)
	_, hash, err := paths()
	if err != nil {
		t.Fatal(err)
	}
	_, data := standIn(t, dir)
	shim := filepath.Join(locate.ShimDir(dir, hash, "2.11.0"), locate.LibName())
	for path, text := range map[string]string{
		shim: string(data), filepath.Join(locate.HashDir(dir, hash), locate.DefaultFile): "2.11.0\n",
		filepath.Join(filepath.Dir(shim), intact.ManifestFile): `{"torch": "2.11.0", "root": "/nowhere", "files": {}}`,
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	for want, args := range map[string][]string{"2.11.0": {"env"}, "2.12.1": {"env", "--torch", "2.12.1"}} {
		if out, err := command(t, args...); err != nil || !strings.Contains(out, "export LINSTOCK_TORCH="+want+"\n") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	if out, err := command(t, "version"); err != nil || !strings.Contains(out, "\nlibtorch 2.11.0; installs") {
		t.Errorf("version: %v\n%s", err, out)
	}
	// Setup without --torch would repair another.
	if out, _ := command(t, "doctor"); !strings.Contains(out, "to fix it:\n  "+locate.SetupCommand+" --torch 2.11.0 ") {
		t.Errorf("doctor:\n%s", out)
	}
	// LINSTOCK_LIB has precedence over LINSTOCK_TORCH.
	t.Setenv(locate.EnvLib, shim)
	t.Setenv(locate.EnvTorch, "2.12.1")
	for name, want := range map[string]string{
		"env": "export LINSTOCK_TORCH=2.11.0\n", "version": "\nlibtorch 2.11.0; installs", "doctor": "for libtorch 2.11.0; LINSTOCK_TORCH=2.12.1 is not used",
	} {
		if out, _ := command(t, name); !strings.Contains(out, want) {
			t.Errorf("%s does not print %q:\n%s", name, want, out)
		}
	}
}

func TestDoctorOfAnEmptyCache(t *testing.T) {
	isolated(t)
	out, err := command(t, "doctor")
	if !errors.Is(err, errReported) {
		t.Errorf("doctor: %v, want failure", err)
	}
	if !strings.Contains(out, "to fix it:\n") || !strings.Contains(out, "  "+locate.SetupCommand+"\n") {
		t.Errorf("doctor names no remedy:\n%s", out)
	}
	t.Setenv(locate.EnvTorch, "2.11.0")
	if out, _ := command(t, "doctor"); !strings.Contains(out, locate.SetupCommand+" --torch 2.11.0\n") {
		t.Errorf("doctor names no remedy for 2.11.0:\n%s", out)
	}
}

// TestDoctorOfABrokenShim tests that doctor reports a file that is not a library, and does not crash.
func TestDoctorOfABrokenShim(t *testing.T) {
	dir := isolated(t)
	shim := filepath.Join(dir, locate.LibName())
	if err := os.WriteFile(shim, []byte("not a library"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(locate.EnvLib, shim)
	out, err := command(t, "doctor")
	if !errors.Is(err, errReported) || !strings.Contains(out, "unset "+locate.EnvLib) {
		t.Errorf("doctor: %v\n%s", err, out)
	}
}

// standIn returns the path of the shim in the cache dir, and the content of a library of the system that can stand there.
func standIn(t *testing.T, dir string) (shim string, data []byte) {
	t.Helper()
	_, hash, err := paths()
	if err != nil {
		t.Fatal(err)
	}
	lib, err := filepath.Glob("/lib/*/libm.so.6")
	if err != nil || len(lib) == 0 {
		t.Skip("no library to stand for the shim")
	}
	if data, err = os.ReadFile(lib[0]); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(locate.ShimDir(dir, hash, locate.DefaultTorch), locate.LibName()), data
}

// TestInterrupted tests that no command takes for broken or missing what Ctrl-C has ended.
func TestInterrupted(t *testing.T) {
	isolated(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errInterrupted)
	for _, args := range [][]string{{"doctor"}, {"setup"}, {"fetch", t.TempDir()}, {"lastuse", "../../examples/lastuse"}, {"go", "version"}} {
		var out bytes.Buffer
		root := newRoot()
		root.SetOut(&out)
		root.SetArgs(args)
		if err := root.ExecuteContext(ctx); !errors.Is(err, errInterrupted) || out.Len() > 0 {
			t.Errorf("%v: got %v, want %v\n%s", args, err, errInterrupted, &out)
		}
	}
}

// TestDoctorOfADeath tests the remedies if the probe's process dies.
func TestDoctorOfADeath(t *testing.T) {
	dir := isolated(t)
	shim, data := standIn(t, dir)
	other := filepath.Join(t.TempDir(), locate.LibName())
	for _, path := range []string{shim, other} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ lib, dies, fix string }{
		{shim, "OMP_NUM_THREADS", "unset OMP_NUM_THREADS"},
		{"", "OMP_NUM_THREADS", "unset OMP_NUM_THREADS"},
		{other, "OMP_NUM_THREADS", "unset OMP_NUM_THREADS"},
		{shim, "PATH", locate.SetupCommand + " --force"}, // whatever the settings are
		{other, "PATH", "unset LINSTOCK_LIB"},
	} {
		t.Setenv(locate.EnvLib, c.lib)
		t.Setenv("OMP_NUM_THREADS", "many")
		t.Setenv("KMP_BLOCKTIME", "1")
		t.Setenv(dying, c.dies)
		out, err := command(t, "doctor")
		_, fixes, _ := strings.Cut(out, "to fix it:\n")
		if !errors.Is(err, errReported) || !strings.Contains(out, "ended the process") || !strings.Contains("\n"+fixes, "\n  "+c.fix+"\n") ||
			strings.Count(fixes, "unset") != strings.Count(c.fix, "unset") {
			t.Errorf("%v: %v, want %q\n%s", c, err, c.fix, out)
		}
	}
}

// TestDoctorOfOneFailure tests that doctor blames no variable of the environment if the probe fails once only, and that it
// tells a slow probe from one that dies.
func TestDoctorOfOneFailure(t *testing.T) {
	dir := isolated(t)
	shim, data := standIn(t, dir)
	if err := errors.Join(os.MkdirAll(filepath.Dir(shim), 0o755), os.WriteFile(shim, data, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Setenv(locate.EnvLib, shim)
	t.Setenv("OMP_NUM_THREADS", "many")
	limit := probeLimit
	defer func() { probeLimit = limit }()
	for _, c := range []struct {
		how   string
		times int
		limit time.Duration
		want  string
		fix   string
	}{
		{"dies", 1, time.Minute, "opening the shim ended the process (signal: killed); a second attempt computed\n", "run doctor again, with more free memory: "},
		{"waits", 1, 3 * time.Second, "it computes", ""},
		{"waits", 9, time.Second, "opening the shim and computing did not end within 1s\n", locate.SetupCommand + " --force\n"},
	} {
		probeLimit = c.limit
		left := filepath.Join(t.TempDir(), "left")
		if err := os.WriteFile(left, bytes.Repeat([]byte("."), c.times), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv(dying, c.how+":"+left)
		out, err := command(t, "doctor")
		_, fixes, _ := strings.Cut(out, "to fix it:\n")
		if !strings.Contains(out, c.want) || !strings.HasPrefix(fixes, "  "+c.fix) && c.fix != "" || strings.Count(fixes, "\n") > 1 || (c.fix != "") != errors.Is(err, errReported) {
			t.Errorf("%+v: %v\n%s", c, err, out)
		}
	}
}

// TestDoctorOfTheEnvironment tests that doctor advises against the variable of the environment that is at fault, and
// against nothing else, if setup would not help.
func TestDoctorOfTheEnvironment(t *testing.T) {
	dir := isolated(t)
	shim, data := standIn(t, dir)
	other := filepath.Join(locate.TorchDir(dir, locate.DefaultTorch), "torch", "lib", "libc10.so")
	file, bin, empty := filepath.Join(t.TempDir(), "file"), t.TempDir(), t.TempDir()
	for path, text := range map[string]string{shim: string(data), other: string(data), file: "", filepath.Join(bin, "python3"): "#!/bin/sh\n"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	for _, c := range []struct{ cache, name, value, fix string }{
		{dir, "LD_LIBRARY_PATH", empty, "unset LD_LIBRARY_PATH, which may name another libtorch: " + empty},
		{dir, locate.EnvLib, other, "unset LINSTOCK_LIB, or set it to a shim that setup made (linstock env prints its path)"},
		{empty, locate.EnvLibtorch, "/nonsense", "unset LIBTORCH, or set it to the directory of a libtorch"},
		{empty, locate.EnvUsePyTorch, "1", "unset LIBTORCH_USE_PYTORCH, or install a PyTorch that python3 finds"},
	} {
		t.Setenv(locate.EnvCache, c.cache)
		t.Setenv(c.name, c.value)
		out, err := command(t, "doctor")
		if _, fixes, _ := strings.Cut(out, "to fix it:\n"); !errors.Is(err, errReported) || fixes != "  "+c.fix+"\n" {
			t.Errorf("%s=%s: %v, want %q\n%s", c.name, c.value, err, c.fix, out)
		}
		t.Setenv(c.name, "")
	}
	for _, c := range []struct{ name, value, fix, not string }{
		{locate.EnvCache, file, chooseCache, "rm "},
		{"CC", "nonsense", "unset CC", " install "},
		{"CXX", "nonsense", "unset CXX", " install "},
		{"CGO_ENABLED", "0", "unset CGO_ENABLED", "go env -w"},
	} {
		t.Setenv(locate.EnvCache, empty)
		old, set := os.LookupEnv(c.name)
		t.Setenv(c.name, c.value)
		out, err := command(t, "doctor")
		_, fixes, _ := strings.Cut(out, "to fix it:\n")
		if !errors.Is(err, errReported) || !strings.Contains(fixes, "  "+c.fix+"\n") || strings.Contains(fixes, c.not) {
			t.Errorf("%s=%s: %v, want %q\n%s", c.name, c.value, err, c.fix, out)
		}
		t.Setenv(c.name, old)
		if !set {
			os.Unsetenv(c.name)
		}
	}
}

// dying names a variable of the environment with which the probe's process of a test dies. Or it is "dies:" or "waits:" and
// a file, which has a byte for each time that the process still does so.
const dying = "LINSTOCK_TEST_DYING"

// endProbe ends this process, or makes it wait, if dying says so.
func endProbe() {
	how, left, once := strings.Cut(os.Getenv(dying), ":")
	if !once {
		if os.Getenv(how) != "" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return
	}
	info, err := os.Stat(left)
	if err != nil || info.Size() == 0 {
		return
	}
	_ = os.Truncate(left, info.Size()-1)
	if how == "dies" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	time.Sleep(time.Hour)
}

// TestEnvInAShell tests that a shell reads the output of `linstock env` correctly, whatever the paths.
func TestEnvInAShell(t *testing.T) {
	isolated(t)
	for _, name := range []string{"Miriam Smith", "O'Brien's \"home\"", "$HOME `id` $(id) \\ * ;", "two\nlines"} {
		dir := filepath.Join(t.TempDir(), name)
		t.Setenv(locate.EnvCache, dir)
		out, err := command(t, "env")
		if err != nil {
			t.Fatal(err)
		}
		sh := exec.Command("sh", "-c", `eval "$1"; printf %s "$LINSTOCK_CACHE"`, "sh", out)
		sh.Env = []string{"PATH=" + os.Getenv("PATH")}
		if got, err := sh.CombinedOutput(); err != nil || string(got) != dir {
			t.Errorf("%q: the shell has %q (%v) of\n%s", dir, got, err, out)
		}
	}
}

// TestDoctorOfAVersionOutsideTheWindow tests that doctor does not suggest setting up a version that setup rejects.
func TestDoctorOfAVersionOutsideTheWindow(t *testing.T) {
	isolated(t)
	t.Setenv(locate.EnvTorch, "2.10.0")
	out, err := command(t, "doctor")
	if !errors.Is(err, errReported) || !strings.Contains(out, "choose one of 2.11.0") || !strings.Contains(out, "  unset LINSTOCK_TORCH\n") || strings.Contains(out, "--torch 2.10.0") {
		t.Errorf("doctor: %v\n%s", err, out)
	}
	if _, err := command(t, "setup"); err == nil || !strings.Contains(err.Error(), `"2.10.0" (LINSTOCK_TORCH)`) || !strings.Contains(err.Error(), "2.15.0") {
		t.Errorf("setup: %v", err)
	}
}

// TestTorchFlagAndEnvironment tests that --torch is not ignored if the environment names a libtorch of another version.
func TestTorchFlagAndEnvironment(t *testing.T) {
	isolated(t)
	elsewhere := t.TempDir()
	for name, text := range map[string]string{
		"torch/__init__.py": "", "torch/version.py": "__version__ = '2.12.1+cpu'\n", "torch/lib/libtorch_cpu.so": "", "torch/include/ATen/ATen.h": "",
	} {
		path := filepath.Join(elsewhere, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PYTHONPATH", elsewhere)
	for name, value := range map[string]string{locate.EnvLibtorch: elsewhere, locate.EnvUsePyTorch: "1"} {
		t.Setenv(name, value)
		for _, args := range [][]string{{"env"}, {"setup", "--no-build"}} {
			want := fmt.Sprintf("--torch 2.11.0: %s=%s has libtorch 2.12.1; unset %[1]s", name, value)
			if out, err := command(t, append(args, "--torch", "2.11.0")...); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v --torch 2.11.0: %v, want %q\n%s", args, err, want, out)
			}
		}
		for _, args := range [][]string{{"env"}, {"env", "--torch", "2.12.1"}} {
			if out, err := command(t, args...); err != nil || !strings.Contains(out, "export LINSTOCK_TORCH=2.12.1\n") {
				t.Errorf("%v: %v\n%s", args, err, out)
			}
		}
		t.Setenv(name, "")
	}
}

// TestDoctorOfADamagedInstallation tests that doctor reports what is damaged, without opening it, and the command that
// repairs it.
func TestDoctorOfADamagedInstallation(t *testing.T) {
	dir := isolated(t)
	_, hash, err := paths()
	if err != nil {
		t.Fatal(err)
	}
	shim := filepath.Join(locate.ShimDir(dir, hash, locate.DefaultTorch), locate.LibName())
	lib := filepath.Join(locate.TorchDir(dir, locate.DefaultTorch), "torch", "lib", "libtorch_cpu.so")
	for path, text := range map[string]string{
		shim: "\x7fELF, cut short", lib: "cut short",
		filepath.Join(filepath.Dir(shim), intact.ManifestFile):                        `{"files": {"liblinstock.so": 100000}}`,
		filepath.Join(locate.TorchDir(dir, locate.DefaultTorch), intact.ManifestFile): `{"files": {"torch/lib/libtorch_cpu.so": 400000000}}`,
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	out, err := command(t, "doctor")
	for _, want := range []string{
		"shim              BROKEN  " + shim + " is", "libtorch          BROKEN  " + lib + " is damaged: it has 9 bytes instead of the 400000000",
		"to fix it:\n  " + locate.SetupCommand + "\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not report %q (%v):\n%s", want, err, out)
		}
	}
	if strings.Contains(out, "ended the process") || !errors.Is(err, errReported) {
		t.Errorf("doctor opened it (%v):\n%s", err, out)
	}
}

func TestBundleWithoutSetup(t *testing.T) {
	isolated(t)
	if _, err := command(t, "bundle", t.TempDir()); !errors.Is(err, locate.ErrMissing) {
		t.Errorf("bundle: %v, want the error that names setup", err)
	}
}

// TestBundleOfAnotherShim tests that bundle copies no shim that programs of this module would not open.
func TestBundleOfAnotherShim(t *testing.T) {
	isolated(t)
	dir := t.TempDir()
	shim := filepath.Join(dir, locate.LibName())
	t.Setenv(locate.EnvLib, shim)
	for manifest, want := range map[string]string{
		`{"root": "/nowhere", "sources": "0123456789ab"}`: shim + " was built from other sources than this linstock; unset LINSTOCK_LIB",
		`{"root": "."}`: shim + " is part of a bundle; unset LINSTOCK_LIB",
	} {
		if err := errors.Join(os.WriteFile(shim, nil, 0o755), os.WriteFile(filepath.Join(dir, intact.ManifestFile), []byte(manifest), 0o644)); err != nil {
			t.Fatal(err)
		}
		if out, err := command(t, "bundle", t.TempDir()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q\n%s", manifest, err, want, out)
		}
	}
	// Beside a program that is in a bundle, linstock finds that bundle.
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(locate.EnvLib, "")
	lib := filepath.Join(filepath.Dir(exe), locate.LibName())
	manifest := filepath.Join(filepath.Dir(exe), intact.ManifestFile)
	t.Cleanup(func() { _ = errors.Join(os.Remove(lib), os.Remove(manifest)) })
	if err := errors.Join(os.WriteFile(lib, nil, 0o755), os.WriteFile(manifest, []byte(`{"root": "."}`), 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := command(t, "bundle", t.TempDir()); err == nil || !strings.Contains(err.Error(), "move linstock to another directory") {
		t.Errorf("beside a bundle: %v", err)
	}
}

func TestQuote(t *testing.T) {
	for s, want := range map[string]string{"/a/b-1.0": "/a/b-1.0", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$x": "'$x'"} {
		if got := quote(s); got != want {
			t.Errorf("quote(%q) = %s, want %s", s, got, want)
		}
	}
}

func TestLines(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := newProgress(w) // a pipe is not a terminal
	if l, ok := p.(*lines); ok {
		l.every = time.Nanosecond
	} else {
		t.Fatalf("newProgress of a pipe is a %T", p)
	}
	task := p.Start("download torch", 4e6, libtorch.Bytes)
	time.Sleep(time.Millisecond)
	task.Set(1e6)
	task.End(errors.New("x"))
	p.Note("a %s", "note")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := got.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	want := "download torch …\ndownload torch: 1 MB of 4 MB (25%)\ndownload torch: failed\na note\n"
	if got.String() != want {
		t.Errorf("got  %q\nwant %q", got.String(), want)
	}
}

// TestMain lets doctor run the test's executable as linstock for its probe.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "probe" {
		if os.Getenv(dying) != "" {
			endProbe()
			probeRuntime = func() runtimeReport { return runtimeReport{Compute: "it computes"} }
		}
		os.Exit(run())
	}
	os.Exit(m.Run())
}

// TestSignalsArePassed tests that what asks `linstock go` to end ends the go command.
func TestSignalsArePassed(t *testing.T) {
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	run := exec.Command("sh", "-c", "echo ready; exec sleep 60")
	run.Stdout = in
	go func() {
		var ready [1]byte
		if _, err := out.Read(ready[:]); err == nil {
			_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		}
	}()
	err = runWithSignals(run)
	_ = in.Close()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("got %v, want the end by SIGTERM", err)
	}
}

// TestInterrupts tests that Ctrl-C does not end this process before a go command that does not end.
func TestInterrupts(t *testing.T) {
	run := exec.Command("sh", "-c", `trap "" INT; for i in 1 2 3; do kill -INT $PPID; sleep 0.1; done; echo survived`)
	out := &bytes.Buffer{}
	run.Stdout = out
	if err := runWithSignals(run); err != nil || out.String() != "survived\n" {
		t.Errorf("got %v, %q", err, out)
	}
}

// TestNohup tests that signals which this process was started to ignore end neither it nor the go command.
func TestNohup(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	run := exec.Command("sh", "-c", `kill -HUP $PPID; kill -HUP $$; sleep 0.1; echo survived`)
	out := &bytes.Buffer{}
	run.Stdout = out
	if err := runWithSignals(run); err != nil || out.String() != "survived\n" {
		t.Errorf("got %v, %q", err, out)
	}
	signals := make(chan os.Signal, 1)
	defer signal.Stop(signals)
	notify(signals, syscall.SIGHUP)
	if !signal.Ignored(syscall.SIGHUP) {
		t.Error("SIGHUP is no longer ignored")
	}
}

func TestGoFlag(t *testing.T) {
	for word, want := range map[string]string{
		"/a/linstock": "/a/linstock", "/a b/linstock": "'/a b/linstock'", "/O'Brien/linstock": "/O'Brien/linstock",
		"/O'Brien b/linstock": `"/O'Brien b/linstock"`, `-toolexec='/a b/linstock'`: `"-toolexec='/a b/linstock'"`,
	} {
		if got, err := goFlag(word); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", word, got, err, want)
		}
	}
	if got, err := goFlag(`/O'Brien's "b"/linstock `); err == nil {
		t.Errorf("got %s", got)
	}
}

// TestOtherTool tests that "linstock go" refuses another -toolexec, of which the go command would run only one.
func TestOtherTool(t *testing.T) {
	isolated(t)
	for _, c := range []struct {
		goflags string
		args    []string
		other   string // "" if there is none
	}{
		{"-toolexec=/bin/other", []string{"version"}, "/bin/other"},
		{`-mod=mod "-toolexec='/a b/other' -x"`, []string{"version"}, "'/a b/other' -x"},
		{"", []string{"build", "-o", "x", "-toolexec", "other", "."}, "other"},
		{"", []string{"build", "--toolexec=nice linstock", "."}, "nice linstock"},
		{"", []string{"-C", "..", "build", "-toolexec=other", "./..."}, "other"},
		{"", []string{"-C=..", "build", "-toolexec", "other", "./..."}, "other"},
		{"", []string{"-C", "..", "env", "GOOS", "-toolexec=other"}, ""},
		{"", []string{"test", "./...", "-v", "-toolexec=other"}, "other"},
		{"-toolexec=/elsewhere/linstock", []string{"version"}, ""},
		{`"-toolexec='/a b/linstock'" -mod=mod`, []string{"version"}, ""},
		{"-toolexec=", []string{"version"}, ""},
		{"", []string{"env", "GOOS", "-toolexec=other"}, ""},
		{"", []string{"version", "-m", "-args", "-toolexec=other"}, ""},
	} {
		t.Setenv("GOFLAGS", c.goflags)
		_, err := command(t, append([]string{"go"}, c.args...)...)
		if refused := err != nil && strings.Contains(err.Error(), "remove -toolexec="+c.other+","); refused != (c.other != "") {
			t.Errorf("%q %q: %v", c.goflags, c.args, err)
		}
	}
	if other := toolOf(flagsOf([]string{"test", "./...", "-v", "-args", "-toolexec=other"})); other != "" {
		t.Errorf("-toolexec=%s of a test is taken for the go command's", other)
	}
}

// TestGoFails tests that the reason is printed if the go command does not run.
func TestGoFails(t *testing.T) {
	isolated(t)
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte("#!/bin/sh\necho 'go: no such toolchain' >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	const reason = "exit status 1: go: no such toolchain"
	if _, err := command(t, "go", "version"); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("go: %v", err)
	}
	if out, _ := command(t, "doctor"); strings.Count(out, reason) != 2 || strings.Contains(out, "without go") {
		t.Errorf("doctor:\n%s", out)
	}
}

// TestLastUse runs "linstock lastuse" with the flags of its help on a package of the repository.
func TestLastUse(t *testing.T) {
	isolated(t)
	const pkg = "../../examples/lastuse"
	explained, err := command(t, "lastuse", "-explain", pkg)
	if err != nil || !strings.Contains(explained, ": released ") || !strings.Contains(explained, "model.go:") {
		t.Fatalf("-explain: %v\n%s", err, explained)
	}
	if out, err := command(t, "lastuse", pkg); err != nil || out != explained {
		t.Errorf("the default differs from -explain: %v\n%s", err, out)
	}
	if out, err := command(t, "lastuse", "-source", pkg); err != nil || !strings.Contains(out, "model.go --\n") || strings.Contains(out, ": released ") {
		t.Errorf("-source: %v\n%s", err, out)
	}
	for _, args := range [][]string{{"-explain", "-source", pkg}, {"-explained", pkg}} {
		if out, err := command(t, append([]string{"lastuse"}, args...)...); err == nil || !strings.Contains(err.Error(), args[0]) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	help, err := command(t, "lastuse", "-h")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"-explain", "-source", "-left", "-test"} {
		if !strings.Contains(help, name) {
			t.Errorf("the help lacks %s:\n%s", name, help)
		}
	}
}
