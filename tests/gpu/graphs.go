package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func init() {
	programs["overlap"] = overlap
	programs["graphs"] = graphs
}

// streamRow is a row of the steps overlap and graphs.
type streamRow struct {
	Row  string  `json:"row"`
	MS   float64 `json:"ms"`
	OK   bool    `json:"ok"`
	Note string  `json:"note,omitempty"`
}

// medianMS is the median time of nine calls, after two that warm up, until the device is done.
func medianMS(f func() error) (float64, error) {
	var all []float64
	for i := range 11 {
		if err := tensor.Synchronize(gpu); err != nil {
			return 0, err
		}
		start := time.Now()
		if err := errors.Join(tensor.WithScope(f), tensor.Synchronize(gpu)); err != nil {
			return 0, err
		}
		if i >= 2 {
			all = append(all, float64(time.Since(start).Microseconds())/1000)
		}
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}

// overlap measures kernels, a copy from pinned memory, both on one stream, and both on two streams; then checks that a
// tensor that is freed while another stream reads it keeps its values.
func overlap([]string) error {
	n, side, kernels := 256<<20, 8192, 10
	if dry() {
		n, side, kernels = 1<<20, 64, 2
	}
	return tensor.WithScope(func() error {
		copies, err := cuda.NewStream(gpu)
		if err != nil {
			return err
		}
		locked := pinned(tensor.Arange(0, n/4, tensor.Int32))
		there := tensor.Zeros([]int{n / 4}, tensor.Int32, gpu)
		x := tensor.Randn([]int{side, side}, gpu, tensor.BFloat16)
		compute := func() error {
			for range kernels {
				if err := tensor.WithScope(func() error { return x.MatMul(x).Err() }); err != nil {
					return err
				}
			}
			return nil
		}
		move := func() error { return there.Copy_(locked, tensor.NonBlocking(true)).Err() }
		aside := func() error { return cuda.WithStream(copies, move) }
		var ms [4]float64
		for i, m := range []struct {
			row string
			f   func() error
		}{
			{fmt.Sprintf("%d products of %d×%d", kernels, side, side), compute},
			{"a copy from pinned memory", move},
			{"both on one stream", func() error { return errors.Join(compute(), move()) }},
			{"both on two streams", func() error { return errors.Join(aside(), compute()) }},
		} {
			if err := there.Zero_().Err(); err != nil {
				return err
			}
			if ms[i], err = medianMS(m.f); err != nil {
				return err
			}
			r := streamRow{Row: m.row, MS: ms[i], OK: true}
			if i > 0 {
				if r.OK, r.Note, err = arrived(there, locked); err != nil {
					return err
				}
			}
			if i == 3 && r.OK {
				r.Note = fmt.Sprintf("%.0f %% of the shorter part is hidden", 100*(ms[2]-ms[3])/max(min(ms[0], ms[1]), 1e-3))
				r.OK = dry() || ms[3] < ms[2]
			}
			row(r)
		}
		return errors.Join(readAfterFree(), loaded())
	})
}

// loaded runs products beside the copies of a loader's pinned batches, and checks that kernels read each batch after its copy.
func loaded() error {
	batches, n, side, kernels := 16, 8<<20, 4096, 10
	if dry() {
		batches, n, side, kernels = 4, 1<<18, 64, 2
	}
	x := tensor.Arange(0, batches, tensor.Float32).Reshape(batches, 1).Expand(batches, n).Contiguous()
	w := tensor.Randn([]int{side, side}, gpu, tensor.BFloat16)
	dataset, err := data.NewTensorDataset(x)
	if err != nil {
		return err
	}
	defer x.Release()
	loader, err := data.NewLoader(dataset, data.Device(gpu), data.PinMemory(true), data.Workers(2))
	if err != nil {
		return err
	}
	// A product is freed at once: without that each takes new memory from the device until a sweep, which costs more time than
	// the copies.
	product := func() error { return tensor.WithScope(func() error { return w.MatMul(w).Err() }) }
	// epoch returns the least and the largest element of each batch.
	epoch := func(compute bool) (ends []*tensor.Tensor, err error) {
		for b, err := range loader.Batches(context.Background()) {
			if err != nil {
				return ends, err
			}
			ends = append(ends, b.Inputs.Min().Keep(), b.Inputs.Max().Keep())
			for range kernels {
				if !compute {
					break
				}
				if err := product(); err != nil {
					return ends, err
				}
			}
		}
		return ends, tensor.Synchronize(gpu)
	}
	wrong := 0
	var ms [2]float64
	for i, compute := range []bool{false, true} {
		ms[i] = math.Inf(1)
		for range 3 {
			start := time.Now()
			ends, err := epoch(compute)
			ms[i] = min(ms[i], float64(time.Since(start).Microseconds())/1000)
			for k, t := range ends {
				v, itemErr := t.Item()
				if err = errors.Join(err, itemErr); v != float64(k/2) {
					wrong++
				}
				t.Release()
			}
			if err == nil && len(ends) != 2*batches {
				err = fmt.Errorf("an epoch of %d batches had %d", batches, len(ends)/2)
			}
			if err != nil {
				return err
			}
		}
	}
	products, err := medianMS(func() error {
		for range batches * kernels {
			if err := product(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	note := fmt.Sprintf("%d values wrong; %.1f ms without products, %.1f ms for the products alone", wrong, ms[0], products)
	row(streamRow{Row: fmt.Sprintf("an epoch of %d pinned batches of %d MiB, with products", batches, n>>18), MS: ms[1], OK: wrong == 0 || dry(), Note: note})
	return nil
}

// readAfterFree sums a tensor on a side stream behind long work, frees it, and writes to new tensors of the same size on
// the default stream meanwhile. Without a recorded stream the sum would be of what was written.
func readAfterFree() error {
	n, rounds := 16<<20, 20
	if dry() {
		n, rounds = 1<<18, 2
	}
	side, err := cuda.NewStream(gpu)
	if err != nil {
		return err
	}
	now, err := cuda.CurrentStream(gpu)
	if err != nil {
		return err
	}
	busy := tensor.Randn([]int{2048, 2048}, gpu)
	wrong := 0
	start := time.Now()
	for range rounds {
		var sum *tensor.Tensor
		err := tensor.WithScope(func() error { // x ends with this scope, while side has not begun to read it
			x := tensor.Ones([]int{n}, gpu)
			if err := side.WaitStream(now); err != nil {
				return err
			}
			return cuda.WithStream(side, func() error {
				for range 20 {
					if err := busy.MatMul(busy).Err(); err != nil {
						return err
					}
				}
				return tensor.Replace(&sum, x.Sum())
			})
		})
		if err != nil {
			return err
		}
		for range 4 {
			if err := tensor.WithScope(func() error { return tensor.Full([]int{n}, 7, gpu).Err() }); err != nil {
				return err
			}
		}
		if err := side.Synchronize(); err != nil {
			return err
		}
		v, err := sum.Item()
		sum.Release()
		if err != nil {
			return err
		}
		if v != float64(n) {
			wrong++
		}
	}
	row(streamRow{Row: "tensors freed while another stream reads them", MS: float64(time.Since(start).Milliseconds()) / float64(rounds),
		OK: wrong == 0 || dry(), Note: fmt.Sprintf("%d of %d sums wrong", wrong, rounds)})
	return nil
}

// graphTrainer is a model with its optimizer and its batch, which stays at its place.
type graphTrainer struct {
	net        *nn.Sequential
	forward    func(x *tensor.Tensor) *tensor.Tensor
	opt        *optim.Optimizer
	x, y, loss *tensor.Tensor
}

func newGraphTrainer(width, batch int) (*graphTrainer, error) {
	if err := tensor.ManualSeed(1); err != nil {
		return nil, err
	}
	t := &graphTrainer{net: nn.NewSequential()}
	t.forward = t.net.Forward
	for i := range 6 {
		if i > 0 {
			t.net.Layers = append(t.net.Layers, &nn.ReLU{})
		}
		t.net.Layers = append(t.net.Layers, nn.NewLinear(width, width, nn.Device(gpu)))
	}
	var err error
	if t.opt, err = optim.NewAdamW(nn.Parameters(t.net), 1e-3); err != nil {
		return nil, err
	}
	t.x, t.y = tensor.Randn([]int{batch, width}, gpu).Keep(), tensor.Zeros([]int{batch}, tensor.Int64, gpu).Keep()
	return t, errors.Join(t.x.Err(), t.y.Err())
}

func (t *graphTrainer) step() error {
	l := nn.CrossEntropy(t.forward(t.x), t.y)
	if err := l.Backward(); err != nil {
		return err
	}
	if err := t.opt.Step(); err != nil {
		return err
	}
	t.opt.ZeroGrad()
	return tensor.Replace(&t.loss, l.Detach())
}

func (t *graphTrainer) release() {
	t.opt.Release()
	nn.Release(t.net)
	for _, x := range []*tensor.Tensor{t.x, t.y, t.loss} {
		x.Release()
	}
}

// graphs trains with and without a graph and compares the losses, while another goroutine computes, frees and sweeps.
func graphs([]string) error {
	width, steps := 256, 100
	if dry() {
		width, steps = 32, 5
	}
	defer vram.SetPolicy(vram.SetPolicy(vram.Threshold{Bytes: 8 << 20}))
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { // garbage, sweeps and frees on another goroutine, during the captures and the replays
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			x := tensor.Zeros([]int{1 << 16}, gpu).Add(1)
			if err := errors.Join(x.Err(), vram.Collect()); err != nil {
				ended <- err
				return
			}
		}
	}()
	err := compareSteps(width, steps)
	close(stop)
	if beside := <-ended; beside != nil {
		row(streamRow{Row: "a goroutine that sweeps beside captures", Note: text(beside)})
	} else {
		row(streamRow{Row: "a goroutine that sweeps beside captures", OK: true})
	}
	return err
}

func compareSteps(width, steps int) error {
	var losses [3][]float64
	for i, how := range []string{"a step, eager", "a step, one graph", "a step, graphed layers"} {
		t, err := newGraphTrainer(width, 64)
		if err != nil {
			return err
		}
		step := func() error { return tensor.WithScope(t.step) }
		var layers []*cuda.GraphedCallable
		for range 3 { // the warm-up of the graph trains, too
			if err := step(); err != nil {
				return err
			}
		}
		switch i {
		case 1:
			g, err := cuda.Capture(gpu, t.step)
			if err != nil {
				return err
			}
			defer g.Close()
			step = g.Replay
		case 2:
			layers, err = cuda.MakeGraphedCallables([]nn.Layer{t.net}, []*tensor.Tensor{t.x})
			if err != nil {
				return err
			}
			t.forward = layers[0].Forward
		}
		start := time.Now()
		for range steps {
			if err := step(); err != nil {
				return fmt.Errorf("%s: %w", how, err)
			}
			v, err := t.loss.Item()
			if err != nil {
				return err
			}
			losses[i] = append(losses[i], v)
		}
		r := streamRow{Row: how, MS: float64(time.Since(start).Microseconds()) / 1000 / float64(steps), OK: true}
		var worst float64
		for j := range losses[i] {
			worst = max(worst, math.Abs(losses[i][j]-losses[0][j]))
		}
		if i > 0 {
			r.Note = fmt.Sprintf("losses differ by %.2g at most from those of eager steps", worst)
			r.OK = worst < 1e-4 || dry()
		}
		row(r)
		for _, l := range layers {
			_ = l.Close()
		}
		t.release()
	}
	return nil
}
