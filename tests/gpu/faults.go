package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/fakecuda"
	"github.com/linstock-ml/linstock/vram"
)

// The part "faults". A lost device stays lost for its process, so each fault has its own child process: this
// program, started with the fault's name.
func init() {
	programs["sticky"] = sticky
	programs["sticky-child"] = stickyChild
	programs["killed"] = killed
	programs["two"] = two
	programs["busy-child"] = busyChild
}

var faultSteps = []step{
	{name: "sticky", shows: "kernels that end in an error; then ErrDeviceLost at each call, while the CPU continues to work", limit: 3 * time.Minute, argv: "{bin}/gpu sticky"},
	{name: "killed", shows: "a process killed in a kernel; the next one uses the device", limit: 2 * time.Minute, argv: "{bin}/gpu killed"},
	{name: "two", shows: "two processes on one device, each with its budget", limit: 2 * time.Minute, argv: "{bin}/gpu two"},
}

func dry() bool { return os.Getenv("LINSTOCK_GPU_DRY") == "1" }

// row prints a line of the step's table.
func row(v any) {
	if b, err := json.Marshal(v); err == nil {
		fmt.Printf("%s\n", b)
	}
}

var gpu = tensor.CUDA(0)

// A child is another process of this program that answers commands line by line.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(env []string, args ...string) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(program, args...)}
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	return c, c.cmd.Start()
}

// line returns the next line that the child prints.
func (c *child) line() (string, error) {
	s, err := c.out.ReadString('\n')
	return strings.TrimSpace(s), err
}

// stickyFaults are faults that lose a device. Each has the name of the CUDA error that is expected; the table
// shows the actual error.
var stickyFaults = []struct {
	name  string
	code  int // with the fake runtime
	cause func() *tensor.Tensor
}{
	{"index out of bounds (cudaErrorAssert)", 710, func() *tensor.Tensor {
		x := tensor.Arange(0, 1000, tensor.Float32, gpu)
		return x.IndexSelect(0, tensor.FromSlice([]int{3, 1 << 30}, nil, gpu))
	}},
	{"gather out of bounds in a backward pass (cudaErrorAssert)", 710, func() *tensor.Tensor {
		x := tensor.Randn([]int{8, 8}, gpu).RequiresGrad_()
		y := x.Mul(2.0).Gather(1, tensor.Full([]int{8, 1}, 1<<30, tensor.Int64, gpu))
		if err := y.Sum().Backward(); err != nil {
			return tensor.Failed(err)
		}
		return x.Grad()
	}},
	{"a segment that ends outside of all memory (cudaErrorIllegalAddress)", 700, func() *tensor.Tensor {
		x := tensor.Ones([]int{1 << 10}, gpu)
		out, err := tensor.CallUnchecked("aten::segment_reduce", x, "sum", nil, nil, tensor.FromSlice([]int{0, 1 << 40}, nil, gpu), 0, true, nil)
		if err != nil {
			return tensor.Failed(err)
		}
		y, _ := out[0].(*tensor.Tensor)
		return y
	}},
}

func sticky([]string) error {
	for i, f := range stickyFaults {
		var env []string
		if dry() {
			words, err := os.CreateTemp("", "fakecuda")
			if err != nil {
				return err
			}
			_ = words.Close()
			defer os.Remove(words.Name())
			env = append(env, "FAKECUDA_CONTROL="+words.Name())
		}
		c, err := start(env, "sticky-child", fmt.Sprint(i))
		if err != nil {
			return err
		}
		said, _ := c.line()
		timer := time.AfterFunc(time.Minute, func() { _ = c.cmd.Process.Kill() })
		_, _ = io.Copy(io.Discard, c.out)
		err = c.cmd.Wait()
		timer.Stop()
		var got stickyRow
		if jsonErr := json.Unmarshal([]byte(said), &got); jsonErr != nil {
			got.Note = fmt.Sprintf("the child printed %q", said)
		}
		got.Row, got.End = f.name, "exit status 0"
		if err != nil {
			got.OK, got.End = false, err.Error()
		}
		row(got)
	}
	return nil
}

type stickyRow struct {
	Row   string `json:"row"`
	First string `json:"first error"`
	Later string `json:"later calls that say ErrDeviceLost"`
	CPU   string `json:"the CPU after it"`
	End   string `json:"end of the process"`
	OK    bool   `json:"ok"`
	Note  string `json:"note,omitempty"`
}

func stickyChild(args []string) error {
	var which int
	if _, err := fmt.Sscan(args[0], &which); err != nil {
		return err
	}
	f := stickyFaults[which]
	var control *fakecuda.Control
	if dry() {
		c, err := fakecuda.Open(os.Getenv("FAKECUDA_CONTROL"), 1, 8<<30)
		if err != nil {
			return err
		}
		control = c
	}
	var got stickyRow
	err := tensor.WithScope(func() error {
		// Live when the device is lost: a model in training on the device, and one on the CPU.
		there, err := newTrainer(gpu)
		if err != nil {
			return err
		}
		here, err := newTrainer(tensor.CPU)
		if err != nil {
			return err
		}
		x := tensor.Randn([]int{64, 64}, gpu).Keep()
		if err := errors.Join(there.step(), here.step(), x.Err()); err != nil {
			return err
		}
		if control != nil {
			control.Lose(0, f.code)
		}
		first := tensor.WithScope(func() error {
			y := f.cause()
			if err := y.Err(); err != nil {
				return err
			}
			_, err := tensor.Data[float32](y.To(tensor.Float32))
			return err
		})
		got.First = "none"
		if first != nil {
			got.First = shortened(first.Error())
		}
		later := map[string]func() error{
			"Add":           func() error { return x.Add(x).Err() },
			"MatMul":        func() error { return x.MatMul(x).Err() },
			"Zeros":         func() error { return tensor.Zeros([]int{4}, gpu).Err() },
			"FromSlice":     func() error { return tensor.FromSlice([]float32{1}, nil, gpu).Err() },
			"To(CPU)":       func() error { return x.To(tensor.CPU).Err() },
			"Item":          func() error { _, err := x.Sum().Item(); return err },
			"training step": there.step,
			"Synchronize":   func() error { return tensor.Synchronize(gpu) },
			"a large one":   func() error { return tensor.Empty([]int{1 << 28}, gpu).Err() },
		}
		said, wrong := 0, []string{}
		for range 3 {
			for name, call := range later {
				if err := tensor.WithScope(call); errors.Is(err, tensor.ErrDeviceLost) {
					said++
				} else {
					wrong = append(wrong, fmt.Sprintf("%s: %v", name, err))
				}
			}
		}
		got.Later = fmt.Sprintf("%d of %d", said, 3*len(later))
		got.CPU = "works"
		for range 20 {
			if err := here.step(); err != nil {
				got.CPU = err.Error()
			}
		}
		if sum, err := tensor.Ones([]int{1000}).Sum().Item(); err != nil || sum != 1000 {
			got.CPU = fmt.Sprintf("1000 ones are %v, %v", sum, err)
		}
		// Everything on the device is released, and the process exits by itself.
		there.release()
		here.release()
		x.Release()
		tensor.Flush()
		got.OK = first != nil && len(wrong) == 0 && got.CPU == "works"
		if len(wrong) > 0 {
			got.Note = shortened(strings.Join(wrong, "; "))
		}
		if first == nil {
			got.Note = "the device was not lost"
		}
		return nil
	})
	if err != nil {
		got.Note = err.Error()
	}
	row(got)
	return nil
}

func shortened(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 200 {
		s = s[:200] + " …"
	}
	return s
}

// A trainer is a small model in training.
type trainer struct {
	net    *nn.Sequential
	opt    *optim.Optimizer
	device tensor.Device
}

func newTrainer(d tensor.Device) (*trainer, error) {
	t := &trainer{device: d, net: nn.NewSequential(nn.NewLinear(64, 256, nn.Device(d)), &nn.ReLU{}, nn.NewLinear(256, 10, nn.Device(d)))}
	var err error
	t.opt, err = optim.NewAdamW(nn.Parameters(t.net), 1e-3)
	return t, err
}

func (t *trainer) step() error {
	return tensor.WithScope(func() error {
		x := tensor.Randn([]int{32, 64}, t.device)
		loss := nn.CrossEntropy(t.net.Forward(x), tensor.Zeros([]int{32}, tensor.Int64, t.device))
		if err := loss.Backward(); err != nil {
			return err
		}
		if err := t.opt.Step(); err != nil {
			return err
		}
		t.opt.ZeroGrad()
		_, err := loss.Item()
		return err
	})
}

func (t *trainer) release() {
	t.opt.Release()
	nn.Release(t.net)
}

// busyChild reports what it sees of the device, allocates its share, trains, and, on a line "kernels", computes
// without end.
func busyChild(args []string) error {
	var share float64
	if _, err := fmt.Sscan(args[0], &share); err != nil {
		return err
	}
	return tensor.WithScope(func() error {
		t, err := newTrainer(gpu)
		if err != nil {
			return err
		}
		if err := t.step(); err != nil {
			return err
		}
		before, err := vram.Stats(vram.Name(gpu.String()))
		if err != nil {
			return err
		}
		say := func(what string) error {
			now, err := vram.Stats(vram.Name(gpu.String()))
			fmt.Printf("%s %d %d %d %d\n", what, now.Limit, now.SoftLimit, now.Other, now.Allocated)
			return err
		}
		held := tensor.Zeros([]int{int(share * float64(before.Limit))}, tensor.Uint8, gpu)
		if held.Err() != nil {
			return held.Err()
		}
		if err := errors.Join(tensor.Synchronize(gpu), say("ready")); err != nil {
			return err
		}
		all := []*tensor.Tensor{held}
		defer runtime.KeepAlive(&all) // otherwise a sweep frees them
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			switch in.Text() {
			case "train":
				for range 200 {
					if err := t.step(); err != nil {
						return err
					}
				}
				if err := say("trained"); err != nil {
					return err
				}
			case "more": // more than the other process leaves free
				for {
					x := tensor.Zeros([]int{1 << 28}, tensor.Uint8, gpu)
					if errors.Is(x.Err(), tensor.ErrOutOfMemory) {
						break
					}
					if x.Err() != nil {
						return x.Err()
					}
					all = append(all, x)
				}
				if err := say("full"); err != nil {
					return err
				}
			case "kernels":
				n := 4096
				if dry() {
					n = 64
				}
				x := tensor.Randn([]int{n, n}, gpu)
				fmt.Println("computing")
				for {
					if err := tensor.WithScope(func() error { return x.MatMul(x).Err() }); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

// A report is a line that busyChild prints.
type report struct{ limit, budget, other, allocated int64 }

func (c *child) report(what string) (r report, err error) {
	line, err := c.line()
	if err != nil {
		return r, fmt.Errorf("the child ended before %q: %w", what, err)
	}
	var got string
	if _, err := fmt.Sscan(line, &got, &r.limit, &r.budget, &r.other, &r.allocated); err != nil || got != what {
		return r, fmt.Errorf("the child printed %q, want %q", line, what)
	}
	return r, nil
}

func (c *child) ask(what, answer string) (report, error) {
	if _, err := fmt.Fprintln(c.in, what); err != nil {
		return report{}, err
	}
	return c.report(answer)
}

// killed kills a child that holds half of the device and computes; the next child then allocates most of the
// device.
func killed([]string) error {
	for round := range 3 {
		victim, err := start(nil, "busy-child", "0.5")
		if err != nil {
			return err
		}
		defer victim.cmd.Process.Kill() //nolint:errcheck // it may have ended
		if _, err := victim.report("ready"); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(victim.in, "kernels"); err != nil {
			return err
		}
		if line, err := victim.line(); err != nil || line != "computing" {
			return fmt.Errorf("the child printed %q, %w", line, err)
		}
		time.Sleep(500 * time.Millisecond)
		if err := victim.cmd.Process.Kill(); err != nil {
			return err
		}
		_ = victim.cmd.Wait()
		began := time.Now()
		next, err := start(nil, "busy-child", "0.8")
		if err != nil {
			return err
		}
		defer next.cmd.Process.Kill() //nolint:errcheck // it may have ended
		_, readyErr := next.report("ready")
		took := time.Since(began)
		_, err = next.ask("train", "trained")
		_ = next.in.Close()
		err = errors.Join(readyErr, err, next.cmd.Wait())
		row(struct {
			Row  string  `json:"row"`
			Ms   float64 `json:"ms until the next process holds 0.8 of its limit"`
			OK   bool    `json:"ok"`
			Note string  `json:"note,omitempty"`
		}{fmt.Sprintf("killed in a kernel, round %d", round+1), float64(took.Microseconds()) / 1000, err == nil, text(err)})
	}
	return nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return shortened(err.Error())
}

// two runs two processes on the same device. Each sees the other's memory as used, trains, and gets an error
// instead of a crash when the device is full.
func two([]string) error {
	var env []string
	if dry() { // one shared control, so that both use the same fake devices
		words, err := os.CreateTemp("", "fakecuda")
		if err != nil {
			return err
		}
		_ = words.Close()
		defer os.Remove(words.Name())
		env = append(env, "FAKECUDA_CONTROL="+words.Name())
	}
	const share = 0.3
	var all [2]*child
	var ready [2]report
	for i := range all {
		c, err := start(env, "busy-child", fmt.Sprint(share))
		if err != nil {
			return err
		}
		defer c.cmd.Process.Kill() //nolint:errcheck // it may have ended
		all[i] = c
		if ready[i], err = c.report("ready"); err != nil {
			return err
		}
	}
	type line struct {
		Row    string `json:"row"`
		Limit  string `json:"limit"`
		Budget string `json:"budget"`
		Holds  string `json:"it holds"`
		Other  string `json:"taken by others"`
		OK     bool   `json:"ok"`
		Note   string `json:"note,omitempty"`
	}
	tell := func(what string, r report, err error, ok bool) {
		row(line{what, size(r.limit), size(r.budget), size(r.allocated), size(r.other), err == nil && ok, text(err)})
	}
	tell("first, alone", ready[0], nil, true)
	// The second must see at least what the first holds.
	tell("second, beside it", ready[1], nil, ready[1].other >= ready[0].allocated && ready[1].limit == ready[0].limit)
	for i, c := range all {
		if _, err := fmt.Fprintln(c.in, "train"); err != nil {
			return fmt.Errorf("process %d: %w", i, err)
		}
	}
	for i, c := range all {
		r, err := c.report("trained")
		tell(fmt.Sprintf("process %d after 200 steps at the same time", i+1), r, err, r.other >= ready[1-i].allocated/10*9)
	}
	r, err := all[0].ask("more", "full")
	tell("first, until it gets ErrOutOfMemory", r, err, r.allocated < r.limit)
	r, err = all[1].ask("train", "trained")
	tell("second, the device being full", r, err, true)
	_ = all[0].in.Close()
	_ = all[1].in.Close()
	return errors.Join(all[0].cmd.Wait(), all[1].cmd.Wait())
}

func size(n int64) string { return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30)) }
