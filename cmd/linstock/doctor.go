package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/linstock-ml/linstock/internal/intact"
	"github.com/linstock-ml/linstock/internal/libtorch"
	"github.com/linstock-ml/linstock/internal/locate"
)

// A finding is one line of doctor's table.
type finding struct {
	what   string
	state  state
	detail string
	fix    string // the command that fixes it
}

type state int

const (
	good state = iota
	note       // missing, and not needed here
	bad
)

func (s state) String() string { return [...]string{"ok", "-", "BROKEN"}[s] }

func newDoctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Report what is installed and how to fix what is missing",
		Long: `Doctor checks everything that is needed to build and run a program with package
tensor: the tools; libtorch's libraries and the shim, against their manifests; that
libtorch can be opened and computes; and its OpenMP runtime. If libtorch fails, doctor
compares the content of all libraries with what was installed; if the process that
opened it died or did not end, doctor makes a second attempt, and then looks for an
environment variable without which it computes.

It exits with status 1 if something needed is missing or does not work, and prints
the command that fixes it.`,
		Example: `  linstock doctor
  LINSTOCK_TORCH=2.11.0 linstock doctor`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			findings := examine(ctx)
			if ctx.Err() != nil { // what was interrupted looks broken
				return context.Cause(ctx)
			}
			if !report(cmd.OutOrStdout(), findings) {
				return errReported
			}
			return nil
		},
	}
}

// report prints the table and then the commands that fix what is bad. It reports whether nothing is bad.
func report(w io.Writer, findings []finding) bool {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	well := true
	for _, f := range findings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.what, f.state, f.detail)
		well = well && f.state != bad
	}
	_ = table.Flush() // the writer of execute remembers an error
	if well {
		fmt.Fprintln(w, "\nno problems found")
		return true
	}
	fmt.Fprintln(w, "\nto fix it:")
	said := map[string]bool{}
	for _, f := range findings {
		if f.state == bad && f.fix != "" && !said[f.fix] {
			said[f.fix] = true
			fmt.Fprintln(w, "  "+f.fix)
		}
	}
	return false
}

func examine(ctx context.Context) []finding {
	findings := []finding{goFinding(ctx), cFinding(ctx)}
	if shimSources == nil {
		return append(findings, finding{"linstock", bad, errNoCgo().Error(), cgoHint()})
	}
	cache, hash, err := paths()
	if err != nil {
		return append(findings, finding{"cache", bad, err.Error(), chooseCache})
	}
	shim, shimErr := locate.Find(hash)
	// The tools are needed to build the shim; once it is built they may be missing.
	need := note
	if shimErr != nil {
		need = bad
	}
	for _, tool := range []libtorch.Tool{libtorch.FindCompiler(ctx), libtorch.FindCMake(ctx), libtorch.FindNinja(ctx)} {
		findings = append(findings, toolFinding(tool, need))
	}
	source, err := inUse(ctx, cache, hash)
	pipNeed := note
	if errors.Is(err, libtorch.ErrNotInstalled) && shimErr != nil {
		pipNeed = bad
	}
	findings = append(findings, toolFinding(libtorch.FindPip(ctx), pipNeed), cacheFinding(cache))
	fix := torchFix(err)
	findings = append(findings, torchFinding(source, err, need, fix))
	if shimErr != nil {
		if os.Getenv(locate.EnvLib) != "" {
			fix = setupFix()
		}
		if !errors.Is(shimErr, locate.ErrMissing) && os.Getenv(locate.EnvLib) == "" { // setup could not read it either
			fix = chooseCache
		}
		return append(findings, finding{"shim", bad, shimErr.Error(), fix})
	}
	return append(findings, runtimeFindings(ctx, shim, source)...)
}

const chooseCache = "export " + locate.EnvCache + "=/a/directory/that/stays"

// setupFix returns the command that sets up the version in use.
func setupFix() string {
	if os.Getenv(locate.EnvLib) != "" {
		return "unset " + locate.EnvLib
	}
	return setupCommand()
}

// torchFix is setupFix unless setup would also fail with err, because the environment names a libtorch that cannot be
// used.
func torchFix(err error) string {
	switch {
	case err == nil || errors.Is(err, libtorch.ErrNotInstalled):
	case os.Getenv(locate.EnvLibtorch) != "":
		return "unset " + locate.EnvLibtorch + ", or set it to the directory of a libtorch"
	case locate.UsesPyTorch():
		return "unset " + locate.EnvUsePyTorch + ", or install a PyTorch that python3 finds"
	}
	return setupFix()
}

// setupCommand is setupFix where LINSTOCK_LIB is not the cause, for example because it is what linstock env prints.
func setupCommand() string {
	v := defaultTorch()
	if _, hash, err := paths(); err == nil && os.Getenv(locate.EnvLibtorch) == "" && !locate.UsesPyTorch() {
		if used := usedTorch(hash); locate.CheckPinned(used) == nil {
			v = used
		}
	}
	switch {
	case locate.CheckPinned(v) != nil && os.Getenv(locate.EnvLibtorch) == "":
		return "unset " + locate.EnvTorch
	case v != locate.DefaultTorch:
		return locate.SetupCommand + " --torch " + v
	}
	return locate.SetupCommand
}

// inCache reports whether setup made the shim.
func inCache(shim string) bool {
	cache, err := locate.CacheDir()
	if err != nil {
		return false
	}
	rel, err := filepath.Rel(cache, shim)
	return err == nil && filepath.IsLocal(rel)
}

func goFinding(ctx context.Context) finding {
	out, err := libtorch.Output(ctx, "go", "version")
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return finding{"Go", note, "not in PATH; needed to build programs, not to run them", ""}
	case err != nil:
		return finding{"Go", note, "does not run: " + err.Error(), ""}
	}
	return finding{"Go", good, strings.TrimSpace(strings.TrimPrefix(string(out), "go version ")), ""}
}

// cFinding reports the C compiler: package cshim uses cgo, so building a program requires one.
func cFinding(ctx context.Context) finding {
	const what = "C compiler (cgo)"
	out, err := libtorch.Output(ctx, "go", "env", "CGO_ENABLED", "CC")
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return finding{what, note, "unknown without go", ""}
	case err != nil:
		return finding{what, note, "unknown: " + err.Error(), ""}
	}
	enabled, cc, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if enabled != "1" {
		fix := "install a C compiler and: go env -w CGO_ENABLED=1"
		if os.Getenv("CGO_ENABLED") != "" { // it has precedence
			fix = "unset CGO_ENABLED"
		}
		return finding{what, bad, "CGO_ENABLED=" + enabled, fix}
	}
	path, err := exec.LookPath(strings.Fields(cc + " ")[0])
	if err != nil {
		fix := libtorch.InstallHint(libtorch.Compiler)
		if os.Getenv("CC") != "" {
			fix = "unset CC"
		}
		return finding{what, bad, cc + " is not in PATH", fix}
	}
	return finding{what, good, path, ""}
}

func cudaFindings(r runtimeReport) []finding {
	switch {
	case r.CUDA != "":
		return []finding{{"CUDA", good, r.CUDA, ""}, {"CUDA allocator", good, r.Options, ""}}
	case r.NoCUDA != "":
		return []finding{{"CUDA", note, r.NoCUDA, ""}}
	}
	return []finding{{"CUDA", note, "set up for the CPU; with a GPU: setup --cuda", ""}}
}

func toolFinding(tool libtorch.Tool, missing state) finding {
	if tool.Found() {
		return finding{tool.Name, good, tool.Version, ""}
	}
	detail := "not found; setup needs it"
	if tool.Old != "" {
		detail = fmt.Sprintf("%s; setup needs %s or newer", tool.Old, tool.Least)
	}
	return finding{tool.Name, missing, detail, libtorch.InstallHint(tool)}
}

func cacheFinding(cache string) finding {
	info, err := os.Stat(cache)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return finding{"cache", note, cache + " (empty)", ""}
	case err != nil:
		return finding{"cache", bad, err.Error(), chooseCache}
	case !info.IsDir():
		return finding{"cache", bad, cache + " is not a directory", chooseCache}
	}
	return finding{"cache", good, cache, ""}
}

func torchFinding(s libtorch.Source, err error, missing state, fix string) finding {
	var damage *intact.Damage
	switch {
	case errors.As(err, &damage):
		return finding{"libtorch", bad, damage.Error(), fix}
	case errors.Is(err, libtorch.ErrNotInstalled):
		return finding{"libtorch", missing, s.Version + " is not in the cache", fix}
	}
	if err != nil {
		return finding{"libtorch", bad, err.Error(), fix}
	}
	kind := "CPU"
	if s.CUDA {
		kind = "CUDA"
	}
	return finding{"libtorch", good, fmt.Sprintf("%s (%s; %s) %s", s.Version, kind, s.From, s.Root), ""}
}

// openMPFinding reports the runtime of the operators' threads. With another than LLVM's, programs compute, more slowly.
func openMPFinding(r runtimeReport) finding {
	switch {
	case r.LLVM:
		return finding{"OpenMP", good, "LLVM's, " + r.OpenMP, ""}
	case r.OpenMP == "":
		return finding{"OpenMP", note, "this libtorch uses none", ""}
	}
	return finding{"OpenMP", note, r.OpenMP + ": small operators become slower once goroutines have computed on several OS threads; " +
		"LLVM's runtime comes with the libtorch that setup downloads, or from pip's cmeel-libomp beside PyTorch", ""}
}

// runtimeFindings report what a program would find.
func runtimeFindings(ctx context.Context, shim string, source libtorch.Source) []finding {
	built := ""
	if version, _, ok := libtorch.ShimVersionOf(shim); ok {
		built = ", for libtorch " + version
		if other := os.Getenv(locate.EnvTorch); other != "" && other != version { // LINSTOCK_LIB, or a bundle
			built += fmt.Sprintf("; %s=%s is not used", locate.EnvTorch, other)
		}
	}
	if err := intact.Shim(shim); err != nil {
		// Programs do not open it either.
		return []finding{{"shim", bad, err.Error(), strings.TrimPrefix(locate.Remedy(shim, intact.DamagedFile(err, shim)), "run: ")}}
	}
	findings := []finding{{"shim", good, shim + built, ""}}
	if probeRuntime == nil {
		return append(findings, finding{"computing", bad, "this linstock was built without cgo", cgoHint()})
	}
	r, err := probe(ctx, nil)
	once := false
	if errors.Is(err, errDied) || errors.Is(err, errSlow) {
		// A second attempt tells a cause that stays from memory that was short or a machine that was busy.
		again, lasting := probe(ctx, nil)
		switch {
		case lasting != nil:
			if names := culprits(ctx); len(names) > 0 {
				list := strings.Join(names, " ")
				return append(findings, finding{"computing", bad, fmt.Sprintf("%v; it computes without %s", err, list), "unset " + list})
			}
		case errors.Is(err, errSlow):
			r, err = again, nil
		default:
			once, err = true, fmt.Errorf("%w; a second attempt computed", err)
		}
	}
	if err != nil {
		if r.Torch != "" { // it was opened
			findings = append(findings, cudaFindings(r)...)
		}
		// If setup is the remedy, another of its flags may be needed.
		if r.Remedy != "" && !strings.HasPrefix(r.Remedy, "run: ") {
			return append(findings, finding{"computing", bad, err.Error(), r.Remedy})
		}
		fix := setupCommand() + " --force"
		if os.Getenv(locate.EnvLib) != "" && !inCache(shim) {
			fix = setupFix()
		} else if changed := libtorch.Changed(ctx, source); changed != nil {
			return append(findings, finding{"computing", bad, err.Error(), ""}, finding{"libraries", bad, changed.Error(), setupCommand() + " --verify"})
		}
		if once {
			fix = "run doctor again, with more free memory: a system that is short of memory ends processes"
		}
		return append(findings, finding{"computing", bad, err.Error(), fix})
	}
	findings = append(findings,
		finding{"opened", good, "libtorch " + r.Torch, ""},
		openMPFinding(r),
		finding{"devices", good, strings.Join(r.Devices, ", "), ""})
	findings = append(findings, cudaFindings(r)...)
	return append(findings, finding{"computing", good, r.Compute, ""})
}
