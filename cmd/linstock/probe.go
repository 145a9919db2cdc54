package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
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
	Remedy  string   `json:"remedy"` // of Error, if it is known; see locate.Fault
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

// probeLimit is how long doctor waits for a probe.
var probeLimit = time.Minute

var (
	// errDied is the error of a probe that did not end by itself.
	errDied = errors.New("opening the shim ended the process")
	// errSlow is the error of a probe that has not ended within probeLimit.
	errSlow = errors.New("opening the shim and computing did not end within")
)

// probe runs the hidden command, without some of the environment's variables.
func probe(ctx context.Context, without []string) (runtimeReport, error) {
	var report runtimeReport
	exe, err := os.Executable()
	if err != nil {
		return report, err
	}
	limited, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	cmd := exec.CommandContext(limited, exe, "probe")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(without, name)
	})
	if err := cmd.Run(); err != nil {
		switch {
		case ctx.Err() != nil:
			return report, context.Cause(ctx)
		case limited.Err() != nil:
			return report, fmt.Errorf("%w %v", errSlow, probeLimit)
		}
		err = fmt.Errorf("%w (%w)", errDied, err)
		if first, _, _ := strings.Cut(strings.TrimSpace(errs.String()), "\n"); first != "" {
			err = fmt.Errorf("%w: %s", err, first)
		}
		return report, err
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return report, fmt.Errorf("probe: %w", err)
	}
	if report.Error != "" {
		return report, errors.New(report.Error)
	}
	return report, nil
}

// culprits returns the variables of the environment without which the probe computes: one if possible; none if it does not.
func culprits(ctx context.Context) (names []string) {
	of := regexp.MustCompile(`^(LD_|DYLD_|GLIBC_|MALLOC_|OMP_|KMP_|LIBOMP_|GOMP_|MKL_|DNNL_|ONEDNN_|PYTORCH_|TORCH_|CUDA_)`)
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); of.MatchString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return nil
	}
	if _, err := probe(ctx, names); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // each of these may wait forever
	defer cancel()
	for _, name := range names {
		if _, err := probe(ctx, []string{name}); err == nil {
			return []string{name}
		}
	}
	return names
}
