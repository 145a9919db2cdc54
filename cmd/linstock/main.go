// Linstock sets up libtorch for Go programs that use package github.com/linstock-ml/linstock/tensor, and reports what
// is missing or damaged.
//
//	go run github.com/linstock-ml/linstock/cmd/linstock setup
//	go run github.com/linstock-ml/linstock/cmd/linstock doctor
//	go run github.com/linstock-ml/linstock/cmd/linstock bundle DIR
//
// Building a Go program does not need it: libtorch is loaded when the program runs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/linstock-ml/linstock/internal/lastuse"
	"github.com/linstock-ml/linstock/internal/libtorch"
	"github.com/linstock-ml/linstock/internal/locate"
)

// errInterrupted is the cause of the context's end when the user presses Ctrl-C.
var errInterrupted = errors.New("interrupted; incomplete files are not used; run the command again to continue")

func main() {
	// The go command starts this program for each compilation.
	if lastuse.IsTool(os.Args[1:]) {
		os.Exit(lastuse.RunTool(os.Args[1:]))
	}
	os.Exit(run())
}

func run() int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		cancel(errInterrupted)
		// A second signal ends the process in the default way.
		signal.Stop(signals)
	}()
	err := execute(ctx, newRoot(), os.Stdout)
	if err == nil {
		return 0
	}
	if !errors.Is(err, errReported) {
		fmt.Fprintln(os.Stderr, "linstock:", strings.TrimPrefix(err.Error(), "linstock: "))
	}
	if errors.Is(err, errInterrupted) {
		return 130 // the exit status of a shell after SIGINT
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	return 1
}

// notify is signal.Notify without the signals that this process has ignored since its start, as SIGHUP after nohup.
func notify(c chan<- os.Signal, signals ...os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}

// execute runs the command. It also fails if the output could not be written, because a script would take partial
// output for all of it.
func execute(ctx context.Context, root *cobra.Command, stdout io.Writer) error {
	out := &output{w: stdout}
	root.SetOut(out)
	err := root.ExecuteContext(ctx)
	if out.err != nil && (err == nil || errors.Is(err, errReported)) {
		return out.err
	}
	return err
}

// output writes to w until the first error, which it remembers.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (n int, err error) {
	if o.err == nil {
		n, o.err = o.w.Write(p)
	}
	return n, o.err
}

// errReported stands for a failure that has been printed already.
var errReported = errors.New("reported")

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "linstock",
		Short: "libtorch for Go programs: set it up, check it, ship it",
		Long: `linstock installs what a Go program needs to compute with package
github.com/linstock-ml/linstock/tensor: libtorch, and a small library over it
that is compiled on this machine. Programs open both when they run; building
them needs neither.

Everything is in one per-user directory: ` + "`linstock env`" + ` prints it, and
LINSTOCK_CACHE chooses another. Nothing is installed system-wide, and nothing is
written into the Go module cache.`,
		Example: `  # once on each machine
  linstock setup

  # something does not work
  linstock doctor

  # a directory that runs on a machine with nothing installed
  go build -o dist/server ./cmd/server && linstock bundle dist`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	// -help, which Go's commands accept, is -h and three unknown flags to this parser.
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if help, _ := cmd.Flags().GetBool("help"); help {
			return cmd.Help()
		}
		return err
	})
	root.AddCommand(newSetup(), newFetch(), newDoctor(), newEnv(), newBundle(), newVersion(), newGo(), newLastUse(), newLock(), newProbe(), newFlight())
	return root
}

// paths returns the cache directory and the hash of the shim's sources.
func paths() (cache, hash string, err error) {
	if shimSources == nil {
		return "", "", errNoCgo()
	}
	if hash, err = locate.SourceHash(shimSources); err != nil {
		return "", "", err
	}
	cache, err = locate.CacheDir()
	return cache, hash, err
}

// errNoCgo returns the error of a linstock that was built without cgo.
func errNoCgo() error {
	hint := cgoHint()
	if hint == "" {
		hint = "your system's package manager"
	}
	return fmt.Errorf("this command was built without cgo: Go found no C compiler, or CGO_ENABLED is 0; fix it with: %s", hint)
}

// cgoHint returns the command after which Go can build this command with cgo, or "".
func cgoHint() string {
	if os.Getenv("CGO_ENABLED") == "0" {
		return "unset CGO_ENABLED"
	}
	return libtorch.InstallHint(libtorch.Compiler)
}

// defaultTorch returns the version that is used without --torch.
func defaultTorch() string {
	if v := os.Getenv(locate.EnvTorch); v != "" {
		return v
	}
	return locate.DefaultTorch
}

// usedTorch returns the version that programs open: without LINSTOCK_TORCH that of the last setup, with LINSTOCK_LIB that of
// its shim.
func usedTorch(hash string) string {
	if shim, err := locate.Find(hash); err == nil {
		if version, _, ok := libtorch.ShimVersionOf(shim); ok && version != "" {
			return version
		}
	}
	return defaultTorch()
}

// inUse returns the libtorch whose shim programs open or, if there is none, the one that setup would use. A libtorch
// from elsewhere may have a version that setup does not install.
func inUse(ctx context.Context, cache, hash string) (libtorch.Source, error) {
	version := usedTorch(hash)
	if os.Getenv(locate.EnvLibtorch) == "" && locate.CheckPinned(version) != nil {
		if shim, err := locate.Find(hash); err == nil {
			return libtorch.SourceOf(cache, shim)
		}
	}
	return libtorch.Resolve(ctx, cache, version, false)
}

// resolveGiven is libtorch.Resolve for the version that --torch gives. It fails if the environment names another version.
func resolveGiven(ctx context.Context, cache, version string) (libtorch.Source, error) {
	s, err := libtorch.Resolve(ctx, cache, version, false)
	if (err == nil || errors.Is(err, libtorch.ErrNotInstalled)) && s.Version != version {
		name := locate.EnvLibtorch
		if os.Getenv(name) == "" {
			name = locate.EnvUsePyTorch
		}
		return s, fmt.Errorf("--torch %s: %s=%s has libtorch %s; unset %[2]s, or leave --torch out", version, name, os.Getenv(name), s.Version)
	}
	return s, err
}

// torchFlag adds the flag --torch with its completion.
func torchFlag(cmd *cobra.Command, value *string) {
	cmd.Flags().StringVar(value, "torch", defaultTorch(), "libtorch version, also $"+locate.EnvTorch)
	complete := cobra.FixedCompletions(toCompletions(locate.Versions), cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc("torch", complete); err != nil {
		// This happens only if the flag does not exist.
		fmt.Fprintln(os.Stderr, "linstock:", err)
	}
}

func toCompletions(values []string) []cobra.Completion {
	out := make([]cobra.Completion, len(values))
	copy(out, values)
	return out
}
