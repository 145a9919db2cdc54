package fakecuda

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func TestAllocatorSettings(t *testing.T) {
	t.Run("none", func(t *testing.T) { run(t, "options", 1, 1<<30) })
	t.Run("environment", func(t *testing.T) {
		run(t, "options", 1, 1<<30, "PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:[256:4,>:1],max_split_size_mb:64")
	})
	t.Run("new environment", func(t *testing.T) {
		run(t, "options", 1, 1<<30, "PYTORCH_ALLOC_CONF=roundup_power2_divisions:[256:4,>:1],max_split_size_mb:64")
	})
}
func TestAllocatorSettingsAtOnce(t *testing.T)    { run(t, "settings", 1, 1<<30) }
func TestMaxSplitSize(t *testing.T)               { run(t, "split", 1, 1<<30) }
func TestGarbageCollectionThreshold(t *testing.T) { run(t, "threshold", 1, 1<<30) }

// TestDoctorShowsAllocatorSettings runs linstock doctor. It does not check the rest of doctor's table: the fake
// device's kernels compute nothing.
func TestDoctorShowsAllocatorSettings(t *testing.T) {
	env, err := environment()
	if err != nil {
		t.Fatal(err)
	}
	if env == nil {
		t.Skip("builds libraries: run it with LINSTOCK_TEST_FAKECUDA=1, or tests/run.sh fakecuda")
	}
	cmd := exec.Command("go", "run", "../../cmd/linstock", "doctor")
	cmd.Env = append(append(os.Environ(), env...), "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True")
	out, _ := cmd.CombinedOutput()
	if want := "max_split_size_mb 64, garbage_collection_threshold none, expandable_segments on"; !strings.Contains(string(out), want) {
		t.Errorf("doctor does not say %q:\n%s", want, out)
	}
}

// settings sets two options on two goroutines. Neither undoes what the other sets.
func settings(*Control) error {
	const times = 20000
	var begun sync.WaitGroup
	begun.Add(2)
	change := func(set func(i int) vram.AllocatorSetting, get func(vram.AllocatorSettings) int, done chan<- error) {
		begun.Done()
		begun.Wait()
		for i := range times {
			i %= 1000
			if err := vram.SetAllocatorSettings(set(i)); err != nil {
				done <- err
				return
			}
			now, err := vram.ReadAllocatorSettings()
			if err == nil && get(now) != i {
				err = fmt.Errorf("option %d is set, and the settings are %+v", i, now)
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}
	done := make(chan error, 2)
	go change(func(i int) vram.AllocatorSetting { return vram.MaxSplitSizeMB(100 + i) },
		func(s vram.AllocatorSettings) int { return s.MaxSplitSizeMB - 100 }, done)
	go change(func(i int) vram.AllocatorSetting { return vram.GarbageCollectionThreshold(float64(i) / 1024) },
		func(s vram.AllocatorSettings) int { return int(math.Round(s.GarbageCollectionThreshold * 1024)) }, done)
	return errors.Join(<-done, <-done)
}

// options sets options before and after the first use of CUDA. Options that are not set keep their values from
// the environment.
func options(*Control) error {
	for _, bad := range []vram.AllocatorSetting{
		{}, vram.MaxSplitSizeMB(-1), vram.MaxSplitSizeMB(19), vram.GarbageCollectionThreshold(1), vram.GarbageCollectionThreshold(-0.1),
		vram.GarbageCollectionThreshold(math.NaN()),
	} {
		if err := vram.SetAllocatorSettings(vram.ExpandableSegments(true), bad); err == nil {
			return fmt.Errorf("%+v gives no error", bad)
		}
	}
	conf := os.Getenv("PYTORCH_CUDA_ALLOC_CONF") + os.Getenv("PYTORCH_ALLOC_CONF")
	want := vram.AllocatorSettings{Conf: conf}
	if conf != "" {
		want.MaxSplitSizeMB = 64
	}
	if got, err := vram.ReadAllocatorSettings(); err != nil || got != want {
		return fmt.Errorf("at the start: %+v, %v, want %+v", got, err, want)
	}
	// The settings before one that libtorch refuses are undone.
	if err := cshim.CUDASetAllocatorSettings("max_split_size_mb:128,garbage_collection_threshold:none"); err == nil {
		return errors.New("a threshold that is no number gives no error")
	}
	if got, err := vram.ReadAllocatorSettings(); err != nil || got != want {
		return fmt.Errorf("after settings that were refused: %+v, %v, want %+v", got, err, want)
	}
	check := func(size int, expandable bool) error {
		want.ExpandableSegments = expandable
		got, err := vram.ReadAllocatorSettings()
		got.Conf = want.Conf
		if err != nil || got != want {
			return fmt.Errorf("%+v, %v, want %+v", got, err, want)
		}
		x := tensor.Empty([]int{size}, tensor.Uint8, tensor.CUDA(0))
		if x.Err() != nil {
			return x.Err()
		}
		s, _, _, err := readSnapshot()
		if err != nil {
			return err
		}
		found := false
		for _, segment := range s.list("segments") {
			for _, block := range segment.list("blocks") {
				if block.number("requested_size") == int64(size) && segment.number("device") == 0 {
					found = true
					if segment.get("is_expandable") != expandable {
						return fmt.Errorf("%d bytes lie in a segment that is expandable: %v; want %v", size, segment.get("is_expandable"), expandable)
					}
				}
			}
		}
		if !found {
			return fmt.Errorf("no block of %d bytes is in the snapshot", size)
		}
		settings := s.dict("allocator_settings")
		most := int64(-1)
		if want.MaxSplitSizeMB != 0 {
			most = int64(want.MaxSplitSizeMB) << 20
		}
		if got, _ := settings.get("PYTORCH_CUDA_ALLOC_CONF").(string); settings.get("expandable_segments") != expandable ||
			settings.number("max_split_size") != most || !strings.Contains(got, "roundup_power2_divisions") && conf != "" {
			return fmt.Errorf("the snapshot's settings are %v", settings)
		}
		return nil
	}
	if err := vram.SetAllocatorSettings(vram.ExpandableSegments(true)); err != nil {
		return err
	}
	if err := check(50<<20, true); err != nil {
		return fmt.Errorf("before the first use: %w", err)
	}
	want.MaxSplitSizeMB, want.GarbageCollectionThreshold = 100, 0.75
	if err := vram.SetAllocatorSettings(vram.ExpandableSegments(false), vram.MaxSplitSizeMB(100), vram.GarbageCollectionThreshold(0.75)); err != nil {
		return err
	}
	if err := check(51<<20, false); err != nil {
		return fmt.Errorf("after it: %w", err)
	}
	want.MaxSplitSizeMB, want.GarbageCollectionThreshold = 0, 0
	if err := vram.SetAllocatorSettings(vram.MaxSplitSizeMB(0), vram.GarbageCollectionThreshold(0)); err != nil {
		return err
	}
	if err := check(52<<20, false); err != nil {
		return fmt.Errorf("with none: %w", err)
	}
	return nil
}

// split: the allocator neither splits a block of max_split_size or more nor uses it for a smaller request.
func split(*Control) error {
	const mib = 1 << 20
	d := tensor.CUDA(0)
	ask := func(n int) error {
		x := tensor.Empty([]int{n * mib}, tensor.Uint8, d)
		defer tensor.Flush()
		defer x.Release()
		return x.Err()
	}
	// reserved returns the bytes that the allocator holds after a request of so many MiB, made while a block of 40
	// MiB is free.
	reserved := func(mb int) (int64, error) {
		if err := errors.Join(vram.EmptyCache(d), ask(40), ask(mb)); err != nil {
			return 0, err
		}
		m, err := stats(d)
		return m.Reserved / mib, err
	}
	for _, test := range []struct {
		most, asked int
		want        int64
	}{{0, 24, 40}, {32, 24, 64}, {32, 39, 40}, {0, 24, 40}} {
		if err := vram.SetAllocatorSettings(vram.MaxSplitSizeMB(test.most)); err != nil {
			return err
		}
		if got, err := reserved(test.asked); err != nil || got != test.want {
			return fmt.Errorf("with a maximum of %d MiB, %d asked beside a free block of 40: %d reserved, want %d; %v", test.most, test.asked, got, test.want, err)
		}
	}
	// The block is used whole, without a split.
	if err := errors.Join(vram.SetAllocatorSettings(vram.MaxSplitSizeMB(32)), vram.EmptyCache(d), ask(40)); err != nil {
		return err
	}
	x := tensor.Empty([]int{39 * mib}, tensor.Uint8, d)
	defer x.Release()
	m, err := stats(d)
	if err != nil || m.Requested != 39*mib || m.Allocated != 40*mib {
		return fmt.Errorf("39 MiB from a block of 40 that is not split: %+v, %v", m, err)
	}
	return nil
}

// threshold: once the allocator holds more than the given share of the limit, a request for a new segment frees
// cached blocks, and the pacer has nothing left to free.
func threshold(*Control) error {
	const mib = 1 << 20
	d := tensor.CUDA(0)
	if err := vram.SetLimit(d, vram.Bytes(200*mib)); err != nil {
		return err
	}
	held := func(threshold float64) (int64, error) {
		if err := errors.Join(vram.SetAllocatorSettings(vram.GarbageCollectionThreshold(threshold)), vram.EmptyCache(d)); err != nil {
			return 0, err
		}
		var xs []*tensor.Tensor
		for range 4 {
			xs = append(xs, tensor.Empty([]int{30 * mib}, tensor.Uint8, d))
		}
		for _, x := range xs {
			x.Release()
		}
		tensor.Flush()
		// None of the cached blocks is large enough.
		x := tensor.Empty([]int{40 * mib}, tensor.Uint8, d)
		defer x.Release()
		m, err := stats(d)
		return m.Reserved / mib, errors.Join(err, x.Err())
	}
	without, err := held(0)
	if err != nil || without != 160 {
		return fmt.Errorf("%d MiB reserved without a threshold, want 160; %v", without, err)
	}
	with, err := held(0.5)
	if err != nil || with > 140 || with < 40 {
		return fmt.Errorf("%d MiB reserved with a threshold of 100 MiB, want 40 to 140; %v", with, err)
	}

	// A program that releases nothing and requests sizes that no cached block has.
	if err := vram.SetLimit(d, vram.Bytes(500*mib)); err != nil {
		return err
	}
	sweeps := func(threshold float64) (full int64, most int64, err error) {
		if err := errors.Join(vram.SetAllocatorSettings(vram.GarbageCollectionThreshold(threshold)), vram.Collect(), vram.EmptyCache(d), vram.ResetPeak(d)); err != nil {
			return 0, 0, err
		}
		before := vram.ReadCounts()
		for i := range 600 {
			if err := tensor.Empty([]int{(12 + i%29) * mib}, tensor.Uint8, d).Err(); err != nil {
				return 0, 0, fmt.Errorf("block %d: %w", i, err)
			}
		}
		n := vram.ReadCounts().Since(before)
		m, err := vram.Stats(d)
		return n.Full + n.Deep, m.Peak, err
	}
	var counts [2][]int64
	for range 3 {
		for i, threshold := range []float64{0, 0.5} {
			n, peak, err := sweeps(threshold)
			if err != nil {
				return fmt.Errorf("with a threshold of %v: %w", threshold, err)
			}
			if peak > 500*mib {
				return fmt.Errorf("with a threshold of %v: a peak of %d", threshold, peak)
			}
			counts[i] = append(counts[i], n)
		}
	}
	for i := range counts {
		slices.Sort(counts[i])
	}
	if off, on := counts[0][1], counts[1][1]; on > 2*off+4 {
		return fmt.Errorf("sweeps without a threshold %v, with one %v", counts[0], counts[1])
	}
	return nil
}
