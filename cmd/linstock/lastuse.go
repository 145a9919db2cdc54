package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/linstock-ml/linstock/internal/lastuse"
	"github.com/linstock-ml/linstock/internal/libtorch"
)

func newGo() *cobra.Command {
	return &cobra.Command{
		Use:   "go COMMAND [ARGUMENT…]",
		Short: "Run the go command, with each tensor released after its last use",
		Long: `Go runs the go command with the same arguments: build, run, test, install, vet and
the others. The packages that use tensors are compiled from rewritten source that
releases each tensor after its last use, as Python and Rust do; packages of Linstock
and those that use no tensors are compiled unchanged. Some tensors are left to scopes
and sweeps: ` + "`linstock lastuse`" + ` lists them with the reason.

Programs compute the same values, and lines in errors, panics and profiles are those of
the sources. The go command's build cache keeps both builds apart.

This command uses -toolexec, of which the go command runs only one: another one is an
error.

For a script or an editor that runs go itself:
  export GOFLAGS=-toolexec=$(which linstock)`,
		Example: `  linstock go build -o train ./cmd/train
  linstock go test -race ./...
  linstock go run .`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help") {
				return cmd.Help()
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			if self, err = filepath.EvalSymlinks(self); err != nil {
				return err
			}
			flags, err := libtorch.Output(cmd.Context(), "go", "env", "GOFLAGS") // also those of `go env -w`
			if err != nil {
				return fmt.Errorf("go env GOFLAGS: %w", err)
			}
			for _, words := range [][]string{splitFlags(string(flags)), flagsOf(args)} {
				if other := toolOf(words); other != "" && !ours(other, self) {
					return fmt.Errorf("go: the go command runs only one -toolexec, and linstock is one: remove -toolexec=%s, from GOFLAGS if it is there", other)
				}
			}
			tool, err := goFlag(self)
			if err != nil {
				return err
			}
			if tool, err = goFlag("-toolexec=" + tool); err != nil {
				return err
			}
			run := exec.Command("go", args...)
			run.Stdin, run.Stdout, run.Stderr = os.Stdin, os.Stdout, os.Stderr
			run.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(string(flags))+" "+tool)
			err = runWithSignals(run)
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
					return exitCode(128 + int(status.Signal())) // as a shell
				}
				return exitCode(exit.ExitCode())
			}
			return err
		},
	}
}

// runWithSignals runs a command and passes it the signals that ask this process to end. The command may receive that of the
// terminal's interrupt key twice, because the terminal sends it to both; the go command counts only the first. This process
// does not end before the command, which may ignore a signal: go run waits for its program.
func runWithSignals(run *exec.Cmd) error {
	signals := make(chan os.Signal, 1)
	notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := run.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case s := <-signals:
				_ = run.Process.Signal(s) // an error: it has ended
			case <-ended:
				return
			}
		}
	}()
	return run.Wait()
}

// exitCode is the exit code of a command that has already reported its failure.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit status %d", int(c)) }

func (exitCode) Is(err error) bool { return err == errReported }

// goFlag quotes a word for the go command's lists of flags, in which nothing escapes a quote.
func goFlag(word string) (string, error) {
	switch {
	case !strings.ContainsAny(word, " \t\n\r") && !strings.HasPrefix(word, "'") && !strings.HasPrefix(word, `"`):
		return word, nil
	case !strings.Contains(word, "'"):
		return "'" + word + "'", nil
	case !strings.Contains(word, `"`):
		return `"` + word + `"`, nil
	}
	return "", fmt.Errorf("the go command cannot run %s: the path has a space and both quotes", word)
}

// splitFlags splits one of the go command's lists of flags, the reverse of goFlag.
func splitFlags(list string) (words []string) {
	for list = strings.TrimSpace(list); list != ""; list = strings.TrimSpace(list) {
		end, from := strings.IndexAny(list, " \t\n\r"), 0
		if list[0] == '\'' || list[0] == '"' {
			from = 1
			end = strings.IndexByte(list[1:], list[0]) + 1
			if end == 0 {
				end = -1
			}
		}
		if end < 0 {
			return append(words, list[from:])
		}
		words = append(words, list[from:end])
		list = list[end+from:]
	}
	return words
}

// flagsOf returns the beginning of the go command's arguments, which has its flags: those of a program come after packages or
// files. Only go test also reads flags after packages, and leaves to the test what comes after -args.
func flagsOf(args []string) []string {
	if len(args) > 1 && (args[0] == "-C" || args[0] == "--C") {
		args = args[2:]
	} else if len(args) > 0 && (strings.HasPrefix(args[0], "-C=") || strings.HasPrefix(args[0], "--C=")) {
		args = args[1:]
	}
	for i, a := range args {
		// A word after a flag may be its value.
		if i > 0 && args[0] != "test" && !strings.HasPrefix(a, "-") && (i == 1 || !strings.HasPrefix(args[i-1], "-")) ||
			a == "-args" || a == "--args" || a == "--" {
			return args[:i]
		}
	}
	return args
}

// toolOf returns the value of -toolexec among flags of the go command, or "".
func toolOf(words []string) (tool string) {
	for i, w := range words {
		name, value, given := strings.Cut(w, "=")
		if name != "-toolexec" && name != "--toolexec" {
			continue
		}
		if tool = value; !given && i+1 < len(words) {
			tool = words[i+1]
		}
	}
	return strings.TrimSpace(tool)
}

// ours reports whether the value of a -toolexec is this program, or another build of it.
func ours(tool, self string) bool {
	words := splitFlags(tool)
	if len(words) != 1 {
		return false
	}
	return words[0] == self || strings.TrimSuffix(filepath.Base(words[0]), ".exe") == "linstock"
}

func newLastUse() *cobra.Command {
	var opts lastuse.ExplainOptions
	// The flags are written as those of the go command, with which this command is used.
	flags := flag.NewFlagSet("lastuse", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	explain := flags.Bool("explain", false, "print a line for each tensor; the default")
	flags.BoolVar(&opts.Source, "source", false, "print the rewritten source instead")
	flags.BoolVar(&opts.Left, "left", false, "explain only the tensors that are left to scopes")
	flags.BoolVar(&opts.Tests, "test", false, "also read test files")
	cmd := &cobra.Command{
		Use:   "lastuse [-explain | -source] [-left] [-test] [PACKAGE…]",
		Short: "Explain where `linstock go` releases each tensor, or why it does not",
		Long: `Lastuse prints the decisions of ` + "`linstock go`" + `, as go build -gcflags=-m prints those of the
compiler: a line for each tensor, as file:line:column: name: decision. This is -explain,
the default. With -source it prints the rewritten files. It compiles nothing. A tensor
that is left to scopes is freed as without the rewrite: when its scope closes, or by a
sweep.

The packages are patterns of the go command; the default is the package in this
directory. Flags come before them, with one dash or two.`,
		Example: `  linstock lastuse -explain ./...
  linstock lastuse -left ./model
  linstock lastuse -source ./model`,
		DisableFlagParsing:    true,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
				return cmd.Help()
			} else if err != nil {
				return err
			}
			if *explain && opts.Source {
				return errors.New("-explain and -source: choose one")
			}
			return lastuse.Explain(cmd.Context(), cmd.OutOrStdout(), flags.Args(), opts)
		},
	}
	cmd.Flags().AddGoFlagSet(flags)
	return cmd
}
