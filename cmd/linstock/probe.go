package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// A runtimeReport is what a program finds when it loads the shim and computes.
type runtimeReport struct {
	Shim    string   `json:"shim"`
	Torch   string   `json:"torch"`
	Devices []string `json:"devices"`
	CUDA    string   `json:"cuda"`    // names of the CUDA devices
	NoCUDA  string   `json:"no_cuda"` // why there are none, if the shim has a CUDA library
	Options string   `json:"options"` // settings of the CUDA devices' allocator
	OpenMP  string   `json:"openmp"`  // path of the OpenMP runtime
	LLVM    bool     `json:"llvm"`    // whether it is LLVM's
	Compute string   `json:"compute"` // result of the computation
	Error   string   `json:"error"`
}

// probeRuntime loads the shim and computes. It is nil in a build without cgo.
var probeRuntime func() runtimeReport

// newProbe returns the hidden command that doctor runs in another process, so that doctor can report a libtorch
// that crashes (an instruction that the processor lacks, a library of another build).
func newProbe() *cobra.Command {
	return &cobra.Command{
		Use:    "probe",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if probeRuntime == nil {
				return errors.New("this linstock was built without cgo")
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(probeRuntime())
		},
	}
}

// probe runs the hidden command.
func probe(ctx context.Context) (runtimeReport, error) {
	var report runtimeReport
	exe, err := os.Executable()
	if err != nil {
		return report, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "probe")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(errs.String()), "\n")
		return report, fmt.Errorf("opening the shim ended the process (%w): %s", err, first)
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return report, fmt.Errorf("probe: %w", err)
	}
	if report.Error != "" {
		return report, errors.New(report.Error)
	}
	return report, nil
}
