// Allocations checks Linstock's memory management on a real device, for the kit of docs/gpu-kit.md. Each check
// prints its rows as JSON objects.
//
//	allocations [-device cuda:0] garbage | rates | options | roundup
//	allocations [-device cuda:0] -python PYTHON -dir DIR history
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

const mib = 1 << 20

var (
	device tensor.Device
	python string // a Python with PyTorch, which has the viewer
	dir    string // directory of the snapshot
	times  int    // the limit: bytes that garbage allocates in all
)

func main() {
	name := flag.String("device", "cuda:0", "device")
	flag.StringVar(&python, "python", "python3", "the Python whose PyTorch has the memory viewer")
	flag.StringVar(&dir, "dir", ".", "directory of the snapshot")
	flag.IntVar(&times, "times", 64, "total of garbage, as a multiple of the limit")
	flag.Parse()
	var err error
	if device, err = tensor.ParseDevice(*name); err == nil {
		switch flag.Arg(0) {
		case "garbage":
			err = garbage()
		case "history":
			err = history()
		case "rates":
			err = rates()
		case "options":
			err = options()
		case "roundup":
			err = roundUp()
		default:
			err = fmt.Errorf("no check %q", flag.Arg(0))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "allocations:", err)
		os.Exit(1)
	}
}

// row prints a line of the step's table. note is the reason if ok is false.
func row(name string, ok bool, note string, columns map[string]any) {
	line := map[string]any{"row": name, "ok": ok}
	if note != "" {
		line["note"] = note
	}
	for k, v := range columns {
		line[k] = v
	}
	text, err := json.Marshal(line)
	if err != nil {
		text, _ = json.Marshal(map[string]any{"row": name, "ok": false, "note": err.Error()})
	}
	fmt.Printf("%s\n", text)
}

func bytesText(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

func empty(bytes int64) *tensor.Tensor { return tensor.Empty([]int{int(bytes)}, tensor.Uint8, device) }

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// start initializes the device and returns its limit and its capacity.
func start() (limit, capacity int64, err error) {
	one := empty(1)
	defer one.Release()
	m, err := vram.Stats(device)
	_, capacity, err2 := cshim.MemoryCapacity(cshim.DeviceWord(int32(device.Type), device.Index))
	return m.Limit, capacity, errors.Join(one.Err(), err, err2)
}

// garbage allocates many times the device's limit in tensors that nobody releases: first in blocks of a 256th
// of the limit, then in blocks of 4 MiB with a limit of 4 GiB.
func garbage() error {
	limit, _, err := start()
	if err != nil {
		return err
	}
	run := func(limit, block int64) error {
		if err := errors.Join(vram.SetLimit(device, vram.Bytes(limit)), vram.ResetPeak(device)); err != nil {
			return err
		}
		n := int(block / 4)
		x := tensor.Ones([]int{n}, device)
		defer x.Release()
		before := vram.ReadCounts()
		begun := time.Now()
		var made int64
		var failed error
		for made < int64(times)*limit && failed == nil {
			failed = x.Add(1).Err()
			made += block
		}
		failed = errors.Join(failed, tensor.Synchronize(device))
		took := time.Since(begun)
		m, err := vram.Stats(device)
		if err != nil {
			return err
		}
		c := vram.ReadCounts().Since(before)
		ok := failed == nil && m.Peak <= limit
		row(fmt.Sprintf("%d times the limit, blocks of %s", times, bytesText(block)), ok, message(failed), map[string]any{
			"limit": bytesText(limit), "peak": bytesText(m.Peak), "given out": bytesText(made), "seconds": fmt.Sprintf("%.1f", took.Seconds()),
			"sweeps": c.Full + c.Deep, "in sweeps": fmt.Sprintf("%.1f %%", 100*c.Sweeping.Seconds()/took.Seconds()), "waits": c.Waits,
		})
		return errors.Join(vram.Collect(), vram.EmptyCache(device))
	}
	return errors.Join(run(limit, limit/256/4*4), run(4<<30, 4*mib))
}

// history records a training step, a freed tensor and an out-of-memory error. PyTorch's viewer reads the
// snapshot.
func history() error {
	limit, _, err := start()
	if err != nil {
		return err
	}
	if err := vram.RecordHistory(100000); err != nil {
		return err
	}
	model := nn.NewSequential(nn.NewLinear(512, 1024, nn.Device(device)), &nn.ReLU{}, nn.NewLinear(1024, 10, nn.Device(device)))
	opt, err := optim.NewAdamW(nn.Parameters(model), 1e-3)
	if err != nil {
		return err
	}
	for range 3 {
		if err := tensor.WithScope(func() error {
			loss := nn.CrossEntropy(model.Forward(tensor.Randn([]int{256, 512}, device)), tensor.Zeros([]int{256}, tensor.Int64, device))
			return errors.Join(loss.Backward(), opt.Step())
		}); err != nil {
			return err
		}
	}
	freed := empty(64 * mib)
	freed.Release()
	tooMuch := empty(limit + 1)
	if !errors.Is(tooMuch.Err(), vram.ErrOutOfMemory) {
		return fmt.Errorf("more than the limit: %w", tooMuch.Err())
	}
	var b bytes.Buffer
	if err := vram.Snapshot(&b); err != nil {
		return err
	}
	if err := vram.RecordHistory(0); err != nil {
		return err
	}
	file := filepath.Join(dir, "snapshot.pickle")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		return err
	}
	cmd := exec.Command(python, "tests/gpu/allocations/viewer.py", file)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()
	runtime.KeepAlive(model)
	return err
}

// rates checks the policy Rates as R torch uses it: its decisions depend on the allocator's own counters.
func rates() error {
	_, capacity, err := start()
	if err != nil {
		return err
	}
	vram.SetPolicy(vram.Rates{})
	if err := vram.SetLimit(device, vram.Share(0.9)); err != nil {
		return err
	}
	block := capacity / 64
	// make allocates and drops n blocks and returns the number of sweeps meanwhile.
	leave := func(n int, block int64) (c vram.Counts, peak int64, err error) {
		before := vram.ReadCounts()
		for range n {
			if err := empty(block).Err(); err != nil {
				return c, 0, err
			}
			m, err := vram.Stats(device)
			if err != nil {
				return c, 0, err
			}
			peak = max(peak, m.Reserved)
		}
		return vram.ReadCounts().Since(before), peak, nil
	}
	put := func(name string, ok bool, c vram.Counts, peak int64, err error) {
		row(name, ok && err == nil, message(err), map[string]any{"full sweeps": c.Full + c.Deep, "light sweeps": c.Light,
			"reserved / capacity": fmt.Sprintf("%.2f", float64(peak)/float64(capacity))})
	}
	c, peak, err := leave(11, block) // 0.17 of the capacity
	put("reserved below 0.2 of the capacity: no sweep", c.Full+c.Deep+c.Light == 0, c, peak, err)
	c, peak, err = leave(300, block)
	put("all that is reserved is allocated: full sweeps", c.Full > 0 && peak < capacity/2, c, peak, err)
	if err := errors.Join(vram.Collect(), vram.EmptyCache(device)); err != nil {
		return err
	}
	// Half of the device is in the cache; little of it is allocated.
	var held []*tensor.Tensor
	for range 32 {
		held = append(held, empty(block))
	}
	for _, x := range held {
		x.Release()
	}
	// The policy is called again once more bytes are live than at the last sweep.
	if err := vram.Collect(); err != nil {
		return err
	}
	c, peak, err = leave(200, block/16)
	put("little of what is reserved is allocated: light sweeps", c.Full+c.Deep == 0 && c.Light > 0, c, peak, err)
	return errors.Join(vram.Collect(), vram.EmptyCache(device))
}

// options checks the allocator's three options by their effect on the reserved bytes.
func options() error {
	if _, _, err := start(); err != nil {
		return err
	}
	reserved := func() (int64, error) {
		tensor.Flush()
		m, err := vram.Stats(device)
		return m.Reserved / mib, err
	}
	ask := func(mb int64) error {
		x := empty(mb * mib)
		defer x.Release()
		return x.Err()
	}
	put := func(name string, ok bool, got int64, want string, err error) {
		row(name, ok && err == nil, message(err), map[string]any{"reserved": fmt.Sprintf("%d MiB", got), "expected": want})
	}
	for _, most := range []int{0, 32} {
		want := int64(40)
		if most > 0 {
			want = 64
		}
		err := errors.Join(vram.SetAllocatorSettings(vram.MaxSplitSizeMB(most)), vram.EmptyCache(device), ask(40), ask(24))
		got, err2 := reserved()
		put(fmt.Sprintf("max_split_size_mb %d: 24 MiB beside a free block of 40", most), got >= want && got < want+8, got, fmt.Sprint(want), errors.Join(err, err2))
	}
	if err := vram.SetAllocatorSettings(vram.MaxSplitSizeMB(0)); err != nil {
		return err
	}
	if err := vram.SetLimit(device, vram.Bytes(200*mib)); err != nil {
		return err
	}
	for _, share := range []float64{0, 0.5} {
		err := errors.Join(vram.SetAllocatorSettings(vram.GarbageCollectionThreshold(share)), vram.EmptyCache(device))
		var held []*tensor.Tensor
		for range 4 {
			held = append(held, empty(30*mib))
		}
		for _, x := range held {
			err = errors.Join(err, x.Err())
			x.Release()
		}
		tensor.Flush()
		x := empty(40 * mib)
		got, err2 := reserved()
		err = errors.Join(err, err2, x.Err())
		x.Release()
		ok, want := got >= 160 && got < 168, "160"
		if share > 0 {
			ok, want = got <= 140, "at most 140"
		}
		put(fmt.Sprintf("garbage_collection_threshold %v: 40 MiB beside four free blocks of 30, limit 200", share), ok, got, want, err)
	}
	if err := errors.Join(vram.SetAllocatorSettings(vram.GarbageCollectionThreshold(0)), vram.SetLimit(device, vram.Share(0.9))); err != nil {
		return err
	}
	// A block larger than the free part: the segment grows.
	for _, on := range []bool{false, true} {
		err := errors.Join(vram.SetAllocatorSettings(vram.ExpandableSegments(on)), vram.EmptyCache(device), ask(40), ask(60))
		got, err2 := reserved()
		want := int64(100)
		if on {
			want = 60
		}
		put(fmt.Sprintf("expandable_segments %v: 60 MiB beside a free block of 40", on), got >= want && got < want+8, got, fmt.Sprint(want), errors.Join(err, err2))
	}
	return nil
}

// roundUp checks the environment's roundup_power2_divisions:4 with the sizes of R torch's page: between 1,024
// and 2,048, allocations are rounded up to 1,024, 1,280, 1,536, 1,792 or 2,048.
func roundUp() error {
	if _, _, err := start(); err != nil {
		return err
	}
	for _, test := range [][2]int64{{1024, 1024}, {1200, 1280}, {1281, 1536}, {1600, 1792}, {1800, 2048}} {
		x := empty(test[0] * mib)
		m, err := vram.Stats(device)
		got := m.Allocated / mib
		err = errors.Join(err, x.Err())
		row(fmt.Sprintf("roundup_power2_divisions 4: %d MiB", test[0]), got == test[1] && err == nil, message(err), map[string]any{
			"allocated": fmt.Sprintf("%d MiB", got), "expected": fmt.Sprintf("%d MiB", test[1])})
		x.Release()
		tensor.Flush()
	}
	return nil
}
