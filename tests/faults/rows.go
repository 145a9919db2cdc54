package main

import (
	"fmt"
	"os"
	"strconv"
)

// thousands formats 104211 as 104,211.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// perBatch is the number of cases of a sweep in one process.
const perBatch = 20

func devicesOf(row string) int {
	if row == "device-errors" {
		return lostDevices
	}
	return 2
}

// envOf returns the environment of a case's process.
func envOf(row string, number int) []string {
	switch row {
	case "oom-device":
		// cuDNN has no backward pass for a GRU that is not in training mode: run without cuDNN, or a CNN with it.
		// Without libtorch's cache, every tensor is an allocation of the device; with it, use a large model.
		env := []string{"LINSTOCK_CUDNN=" + strconv.Itoa(number/perBatch%2)}
		if number/perBatch%3 != 2 {
			env = append(env, "PYTORCH_NO_CUDA_MEMORY_CACHING=1")
		}
		return env
	case "device-errors":
		return lostEnv(number)
	}
	return nil
}

// sweepRow runs cases until there were enough faults.
func (h *harness) sweepRow(name string, full int64) (string, bool, error) {
	target, at := int64(float64(full)*h.share), 0
	t := tally{target: target, enough: h.enough()}
	defer os.Remove(h.enough())
	h.each(name, target, &t, func() (batch, bool) {
		if _, err := os.Stat(h.enough()); err == nil {
			return batch{}, false
		}
		b := batch{first: at, end: at + perBatch, env: envOf(name, at)}
		at += perBatch
		return b, true
	})
	figures := fmt.Sprintf("%s faults; %d crashes, %d failures", thousands(t.faults), t.crashes, t.bad)
	if t.bad == 0 { // a leak is a failure
		figures += ", 0 bytes leaked"
	}
	return figures, t.crashes+t.bad == 0 && t.faults >= target, nil
}

func runDeviceMemory(h *harness) (string, bool, error) { return h.sweepRow("oom-device", 100_000) }
func runHostMemory(h *harness) (string, bool, error)   { return h.sweepRow("oom-host", 50_000) }
