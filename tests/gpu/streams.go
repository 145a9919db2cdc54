package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/linstock-ml/linstock/tensor"
)

func init() { programs["copies"] = copies }

var streamSteps = []step{
	{name: "copies", shows: "copies from pageable and pinned memory, and the host's waiting time", limit: 2 * time.Minute, argv: "{bin}/gpu copies"},
	{name: "python", shows: "the same by Python, and copies concurrent with kernels on two streams", limit: 2 * time.Minute, argv: "{python} tests/gpu/copies.py"},
	{name: "overlap", shows: "copies concurrent with kernels on two streams, also a loader's; tensors freed while another stream reads them", limit: 2 * time.Minute, argv: "{bin}/gpu overlap"},
	{name: "graphs", shows: "training steps as graphs and eager, with concurrent sweeps and frees", limit: 2 * time.Minute, argv: "{bin}/gpu graphs"},
}

// pinned returns a copy of x in page-locked memory. PyTorch: Tensor.pin_memory.
func pinned(x *tensor.Tensor) *tensor.Tensor {
	out, err := tensor.Call("aten::pin_memory", x)
	if err != nil {
		return tensor.Failed(err)
	}
	y, _ := out[0].(*tensor.Tensor)
	return y
}

// arrived reports whether to has the values of sent, on the host, and what to note if not.
func arrived(to, sent *tensor.Tensor) (same bool, note string, err error) {
	err = tensor.WithScope(func() (err error) {
		same, err = to.To(tensor.CPU).Equal(sent)
		return err
	})
	if !same {
		note = "what arrived is not what was sent"
	}
	return same, note, err
}

// copies measures copies of a block between the host and the device, on the default stream. A copy runs after earlier
// kernels on the device; only work on the host can overlap with it. The step overlap uses two streams.
func copies([]string) error {
	n, side, kernels := 256<<20, 8192, 20
	if dry() {
		n, side, kernels = 1<<20, 64, 2
	}
	return tensor.WithScope(func() error {
		type line struct {
			Row  string  `json:"row"`
			Rate float64 `json:"GB/s"`
			Call float64 `json:"ms until the call returns"`
			All  float64 `json:"ms until all is done"`
			OK   bool    `json:"ok"`
			Note string  `json:"note,omitempty"`
		}
		sent := tensor.Arange(0, n/4, tensor.Int32)
		pageable, locked := sent.Clone(), pinned(sent)
		there := tensor.Zeros([]int{n / 4}, tensor.Int32, gpu)
		x := tensor.Randn([]int{side, side}, gpu, tensor.BFloat16)
		if err := errors.Join(sent.Err(), pageable.Err(), locked.Err(), there.Err(), x.Err(), tensor.Synchronize(gpu)); err != nil {
			return err
		}
		// The median of nine runs after two warm-up runs. before is queued on the device each time. In the end to must have
		// what was sent.
		measure := func(what string, before func() error, to, from *tensor.Tensor, opts ...tensor.Option) error {
			if err := to.Zero_().Err(); err != nil {
				return err
			}
			var calls, totals []time.Duration
			for i := range 11 {
				if err := tensor.WithScope(before); err != nil {
					return err
				}
				start := time.Now()
				if err := tensor.WithScope(func() error { return to.Copy_(from, opts...).Err() }); err != nil {
					return err
				}
				call := time.Since(start)
				if err := tensor.Synchronize(gpu); err != nil {
					return err
				}
				if i >= 2 {
					calls, totals = append(calls, call), append(totals, time.Since(start))
				}
			}
			ms := func(d []time.Duration) float64 {
				slices.Sort(d)
				return float64(d[len(d)/2].Microseconds()) / 1000
			}
			l := line{Row: what, Call: ms(calls), All: ms(totals)}
			l.Rate = float64(n) / 1e6 / max(l.All, 1e-3)
			var err error
			l.OK, l.Note, err = arrived(to, sent)
			row(l)
			return err
		}
		nothing := func() error { return tensor.Synchronize(gpu) }
		busy := func() error {
			for range kernels {
				if err := tensor.WithScope(func() error { return x.MatMul(x).Err() }); err != nil {
					return err
				}
			}
			return nil
		}
		async := tensor.NonBlocking(true)
		return errors.Join(
			measure("to the device, pageable", nothing, there, pageable),
			measure("to the device, pinned", nothing, there, locked),
			measure("to the device, pinned, non-blocking", nothing, there, locked, async),
			measure("to the host, pageable", nothing, pageable, there),
			measure("to the host, pinned", nothing, locked, there),
			measure("to the host, pinned, non-blocking", nothing, locked, there, async),
			measure(fmt.Sprintf("%d products of %d×%d before it, pageable", kernels, side, side), busy, there, pageable),
			measure(fmt.Sprintf("%d products before it, pinned, non-blocking", kernels), busy, there, locked, async),
		)
	})
}
