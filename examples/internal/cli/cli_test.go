package cli

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const envArgs = "LINSTOCK_TEST_ARGS"

// TestMain parses the arguments of the processes that TestParse starts.
func TestMain(m *testing.M) {
	if args := os.Getenv(envArgs); args != "" {
		flag.CommandLine = flag.NewFlagSet("command", flag.ExitOnError)
		steps := flag.Int("steps", 0, "")
		if os.Args = strings.Fields(args); os.Args[0] == "other" {
			f := flag.NewFlagSet("other", flag.ExitOnError)
			f.IntVar(steps, "steps", 0, "")
			ParseArgs(f, os.Args[1:])
		} else {
			Parse()
		}
		os.Exit(10 + *steps)
	}
	os.Exit(m.Run())
}

func TestParse(t *testing.T) {
	for args, want := range map[string]struct {
		code int
		out  string
	}{
		"command -steps 3":       {13, ""},
		"command extra -steps 3": {2, `unexpected arguments ["extra" "-steps" "3"]`},
		"command -step 3":        {2, "flag provided but not defined: -step\nUsage of command:\n  -steps int"},
		"other -steps 3":         {13, ""},
		"other extra -steps 3":   {2, `unexpected arguments ["extra" "-steps" "3"]`},
		"other -step 3":          {2, "flag provided but not defined: -step\nUsage of other:\n  -steps int"},
		"other -h":               {0, "Usage of other:\n  -steps int"},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), envArgs+"="+args)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != want.code || strings.TrimSpace(string(out)) != want.out {
			t.Errorf("%s: %v, %q", args, err, out)
		}
	}
}

func TestMakeDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs", "model")
	for range 2 {
		if err := MakeDir(dir); err != nil {
			t.Error(err)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("%v, %v", files, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := MakeDir(file); err == nil {
		t.Error("a file was taken for the directory")
	}
	// No user can make files there, not even root.
	if _, err := os.Stat("/proc/self"); err == nil && MakeDir("/proc") == nil {
		t.Error("a directory in which no files can be made was taken")
	}
}
