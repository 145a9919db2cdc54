package data_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

func Example() {
	// Ten samples: inputs x and targets 2x.
	dataset, err := data.NewSamples(10, []int{1}, []int{1}, func(i int, x, y []float32) error {
		x[0], y[0] = float32(i), float32(2*i)
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := data.NewLoader(dataset, data.BatchSize(4), data.Workers(2))
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Batches(context.Background()) {
		if err != nil {
			fmt.Println(err)
			return
		}
		sum, err := batch.Inputs.Add(batch.Targets).Sum().Item()
		fmt.Println(batch.Index, batch.Inputs.Shape(), sum, err)
	}
	// Output:
	// 0 [4 1] 18 <nil>
	// 1 [4 1] 66 <nil>
	// 2 [2 1] 51 <nil>
}

func ExampleNewWindows() {
	text := []byte("to be or not to be")
	windows, err := data.NewWindows(text, 5, 5)
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := data.NewLoader(windows, data.BatchSize(3))
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Batches(context.Background()) {
		if err != nil {
			fmt.Println(err)
			return
		}
		in, err := tensor.Data[int64](batch.Inputs)
		if err != nil {
			fmt.Println(err)
			return
		}
		out, err := tensor.Data[int64](batch.Targets)
		if err != nil {
			fmt.Println(err)
			return
		}
		for i := range batch.Size {
			fmt.Printf("%q -> %q\n", letters(in[5*i:5*i+5]), letters(out[5*i:5*i+5]))
		}
	}
	// Output:
	// "to be" -> "o be "
	// " or n" -> "or no"
	// "ot to" -> "t to "
}

func letters(tokens []int64) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteByte(byte(t))
	}
	return b.String()
}

// squares is a dataset of i and i². Its delay makes workers overtake each other.
func squares(t *testing.T, n int, delay func(i int)) data.Dataset {
	t.Helper()
	d, err := data.NewSamples(n, []int{2}, nil, func(i int, in []float32, out []int64) error {
		if delay != nil {
			delay(i)
		}
		in[0], in[1], out[0] = float32(i), float32(i*i), int64(i)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// stream is squares as an iterable dataset. If the loop is left, it waits for the end of its context.
func stream(n int) data.IterableDataset[squared] {
	return data.IterableFunc[squared](func(ctx context.Context, _ int) iter.Seq2[squared, error] {
		return func(yield func(squared, error) bool) {
			left := true
			defer func() {
				if left {
					<-ctx.Done()
				}
			}()
			for i := range n {
				if !yield(squared{[2]float32{float32(i), float32(i * i)}, int64(i)}, nil) {
					return
				}
			}
			left = false
		}
	})
}

type squared struct {
	In  [2]float32
	Out int64
}

func newLoader(t *testing.T, d data.Dataset, opts ...data.Option) *data.Loader {
	t.Helper()
	l, err := data.NewLoader(d, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// take returns the samples of the first n batches of Batches, or of all if n is negative.
func take(t *testing.T, l *data.Loader, n int) []int64 {
	t.Helper()
	return takeOf(t, l.Batches(t.Context()), n)
}

// rest returns the samples of all batches of Resume.
func rest(t *testing.T, l *data.Loader) []int64 {
	t.Helper()
	return takeOf(t, l.Resume(t.Context()), -1)
}

func takeOf(t *testing.T, batches iter.Seq2[data.Batch, error], n int) (samples []int64) {
	t.Helper()
	if n == 0 {
		return nil
	}
	for batch, err := range batches {
		if err != nil {
			t.Fatal(err)
		}
		got, err := tensor.Data[int64](batch.Targets)
		if err != nil {
			t.Fatal(err)
		}
		in, err := tensor.Data[float32](batch.Inputs)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range got {
			if in[2*i] != float32(s) || in[2*i+1] != float32(s*s) {
				t.Fatalf("sample %d came with inputs %v", s, in[2*i:2*i+2])
			}
		}
		samples = append(samples, got...)
		if n--; n == 0 {
			break
		}
	}
	return samples
}

func TestOrderDependsOnlyOnSeed(t *testing.T) {
	leak.Check(t)
	for _, workers := range []int{0, 1, 2, 7} {
		for _, prefetch := range []int{0, 1, 20} {
			d := squares(t, 103, func(i int) { time.Sleep(time.Duration(i*7919%13) * 10 * time.Microsecond) })
			want := newLoader(t, squares(t, 103, nil), data.BatchSize(8), data.Shuffle(true), data.Seed(3))
			l := newLoader(t, d, data.BatchSize(8), data.Shuffle(true), data.Seed(3), data.Workers(workers), data.Prefetch(prefetch))
			var last []int64
			for epoch := range 2 {
				got := take(t, l, -1)
				if w := take(t, want, -1); !slices.Equal(got, w) {
					t.Fatalf("%d workers, %d ahead, epoch %d: %v, want %v", workers, prefetch, epoch, got, w)
				}
				if slices.Equal(got, last) {
					t.Errorf("epoch %d has the order of the one before", epoch)
				}
				last = slices.Clone(got)
				slices.Sort(got)
				for i, s := range got {
					if s != int64(i) {
						t.Fatalf("epoch %d: sample %d is missing or duplicated", epoch, i)
					}
				}
			}
		}
	}
}

func TestResumedRunSeesTheSameBatches(t *testing.T) {
	leak.Check(t)
	opts := []data.Option{data.BatchSize(7), data.Shuffle(true), data.Seed(11), data.Workers(2)}
	whole := newLoader(t, squares(t, 50, nil), opts...)
	var want []int64
	for range 3 {
		want = append(want, take(t, whole, -1)...)
	}
	for stop := range 24 {
		l := newLoader(t, squares(t, 50, nil), opts...)
		var got []int64
		for n := stop; n > 0; n -= min(n, l.Len()) {
			got = append(got, take(t, l, min(n, l.Len()))...)
		}
		resumed := newLoader(t, squares(t, 50, nil), append(opts, data.Seed(0), data.Workers(0))...)
		if err := resumed.SetState(l.State()); err != nil {
			t.Fatal(err)
		}
		for resumed.State().Epoch < 3 {
			got = append(got, take(t, resumed, -1)...)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("stopped after %d batches: %v, want %v", stop, got, want)
		}
	}
	l := newLoader(t, squares(t, 50, nil), opts...)
	for _, bad := range []data.State{{Batch: 8}, {Batch: -1}, {Epoch: -1}} {
		if err := l.SetState(bad); err == nil {
			t.Errorf("SetState accepts %+v", bad)
		}
	}
}

// TestBatchesAfterBreakBeginANewEpoch tests that leaving a loop in the middle of an epoch ends the epoch, as with
// PyTorch's DataLoader, and that Resume and SetState continue it.
func TestBatchesAfterBreakBeginANewEpoch(t *testing.T) {
	leak.Check(t)
	for _, workers := range []int{0, 2} {
		opts := []data.Option{data.BatchSize(7), data.Shuffle(true), data.Seed(5), data.Workers(workers)}
		whole := newLoader(t, squares(t, 50, nil), opts...)
		epochs := [][]int64{take(t, whole, -1), take(t, whole, -1), take(t, whole, -1)}

		l := newLoader(t, squares(t, 50, nil), opts...)
		if got := take(t, l, 3); !slices.Equal(got, epochs[0][:21]) {
			t.Fatalf("three batches: %v, want %v", got, epochs[0][:21])
		}
		left := l.State()
		if want := (data.State{Batch: 3, Seed: 5, Sampler: "Shuffle"}); left != want {
			t.Errorf("position after break %+v, want %+v", left, want)
		}
		first := true
		for batch, err := range l.Batches(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if first && (batch.Epoch != 1 || batch.Index != 0) {
				t.Errorf("after break: batch %d of epoch %d, want batch 0 of epoch 1", batch.Index, batch.Epoch)
			}
			first = false
			break
		}
		if got := rest(t, l); !slices.Equal(got, epochs[1][7:]) {
			t.Errorf("Resume: %v, want %v", got, epochs[1][7:])
		}
		if got := rest(t, l); !slices.Equal(got, epochs[2]) {
			t.Errorf("Resume after a whole epoch: %v, want the next, %v", got, epochs[2])
		}

		// The first Batches continues from a restored position, also after a loop without batches.
		if err := l.SetState(left); err != nil {
			t.Fatal(err)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range l.Batches(cancelled) {
			if err == nil {
				t.Error("a cancelled loop yielded a batch")
			}
		}
		if got := take(t, l, 2); !slices.Equal(got, epochs[0][21:35]) {
			t.Errorf("after SetState: %v, want %v", got, epochs[0][21:35])
		}
		if got := take(t, l, -1); !slices.Equal(got, epochs[1]) {
			t.Errorf("the Batches after that: %v, want epoch 1, %v", got, epochs[1])
		}
	}
}

func TestLeavingTheLoopFreesEverything(t *testing.T) {
	leak.Check(t)
	ofStream := func(workers int) *data.Loader {
		return must(data.NewIterableLoader(stream(100), nil, data.BatchSize(4), data.Workers(workers)))
	}
	for of, loader := range map[string]func() *data.Loader{
		"0 workers":         func() *data.Loader { return newLoader(t, squares(t, 100, nil), data.BatchSize(4)) },
		"3 workers":         func() *data.Loader { return newLoader(t, squares(t, 100, nil), data.BatchSize(4), data.Workers(3)) },
		"stream, 0 workers": func() *data.Loader { return ofStream(0) },
		"stream, 1 worker":  func() *data.Loader { return ofStream(1) },
	} {
		leave := map[string]func(l *data.Loader){
			"break": func(l *data.Loader) {
				for _, err := range l.Batches(t.Context()) {
					if err != nil {
						t.Error(err)
					}
					_ = tensor.Zeros([]int{1000})
					break
				}
			},
			"return": func(l *data.Loader) {
				func() error {
					for _, err := range l.Batches(t.Context()) {
						_ = tensor.Zeros([]int{1000})
						return err
					}
					return nil
				}()
			},
			"panic": func(l *data.Loader) {
				defer func() {
					if p := recover(); p != "in the body" {
						t.Errorf("the panic did not propagate: %v", p)
					}
				}()
				for _, err := range l.Batches(t.Context()) {
					if err != nil {
						t.Error(err)
					}
					_ = tensor.Zeros([]int{1000})
					panic("in the body")
				}
			},
			"goexit": func(l *data.Loader) {
				done := make(chan struct{})
				go func() {
					defer close(done)
					for _, err := range l.Batches(t.Context()) {
						if err != nil {
							t.Error(err)
						}
						_ = tensor.Zeros([]int{1000})
						runtime.Goexit()
					}
				}()
				<-done
			},
			"cancel": func(l *data.Loader) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				stopped := errors.New("stopped")
				var got error
				n := 0
				for _, err := range l.Batches(ctx) {
					if got = err; err == nil {
						n++
					}
					_ = tensor.Zeros([]int{1000})
					cancel(stopped)
				}
				if n != 1 || !errors.Is(got, stopped) || !errors.Is(got, context.Canceled) {
					t.Errorf("after cancelling: %d batches, error %v", n, got)
				}
			},
		}
		for name, f := range leave {
			t.Run(name+"/"+of, func(t *testing.T) {
				leak.Check(t)
				l := loader()
				f(l)
				if name != "cancel" && tensor.CurrentScope() != nil {
					t.Error("the body's scope is still open")
				}
				if got, want := bare(l.State()), (data.State{Batch: 1}); got != want {
					t.Errorf("position %+v, want %+v", got, want)
				}
				if left := rest(t, l); len(left) != 96 || left[0] != 4 {
					t.Errorf("the rest of the epoch is %v", left)
				}
			})
		}
	}
}

// TestCauseWithinABatch tests that the error of a batch that the context ends is the context's cause,
// and that of the context, too.
func TestCauseWithinABatch(t *testing.T) {
	leak.Check(t)
	stopped, one := errors.New("stopped"), []int{1}
	var cancel context.CancelCauseFunc
	items := must(data.NewItems(4, func(_ context.Context, i int) (int, error) {
		cancel(stopped)
		return i, nil
	}, nil))
	samples := must(data.NewSamples(4, one, one, func(int, []float32, []float32) error {
		cancel(stopped)
		return nil
	}))
	for _, dataset := range []data.Dataset{items, samples} {
		for _, workers := range []int{0, 1} {
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			cancel = stop
			if err := first(newLoader(t, dataset, data.BatchSize(2), data.Workers(workers)).Batches(ctx)); !errors.Is(err, stopped) || !errors.Is(err, context.Canceled) {
				t.Errorf("%T, %d workers: got %v, want %v and %v", dataset, workers, err, stopped, context.Canceled)
			}
		}
	}
}

func TestErrorsOfTheDataset(t *testing.T) {
	leak.Check(t)
	broken := errors.New("broken")
	for name, fail := range map[string]func() error{
		"error":  func() error { return broken },
		"panic":  func() error { var p *int; return fmt.Errorf("%d", *p) },
		"goexit": func() error { runtime.Goexit(); return nil },
	} {
		for _, workers := range []int{0, 1, 4} {
			if name == "goexit" && workers == 0 {
				continue // it ends the test's own goroutine, as intended
			}
			t.Run(fmt.Sprintf("%s/%d workers", name, workers), func(t *testing.T) {
				leak.Check(t)
				var mend atomic.Bool
				d, err := data.NewSamples(40, []int{2}, nil, func(i int, in []float32, out []int64) error {
					if i == 22 && !mend.Load() {
						return fail()
					}
					in[0], in[1], out[0] = float32(i), float32(i*i), int64(i)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				l := newLoader(t, d, data.BatchSize(5), data.Workers(workers))
				batches, errs := 0, []error{}
				for _, err := range l.Batches(t.Context()) {
					if err != nil {
						errs = append(errs, err)
						continue
					}
					batches++
				}
				if batches != 4 || len(errs) != 1 {
					t.Fatalf("%d batches, errors %v; want 4 and one", batches, errs)
				}
				if name == "error" && !errors.Is(errs[0], broken) {
					t.Errorf("error %v", errs[0])
				}
				var cause runtime.Error
				if name == "panic" && (!isPanic(errs[0], "TestErrorsOfTheDataset", "nil pointer") || !errors.As(errs[0], &cause)) {
					t.Errorf("error %v", errs[0])
				}
				mend.Store(true)
				if left := rest(t, l); len(left) != 20 || left[0] != 20 {
					t.Errorf("the batch that failed is not the next: %v", left)
				}
			})
		}
	}
}

// isPanic reports whether err is the error of a panic, with text in its one line and function in its stack.
func isPanic(err error, function, text string) bool {
	p, ok := errors.AsType[*tensor.PanicError](err)
	return ok && strings.Contains(string(p.Stack), function) && strings.Contains(err.Error(), "panicked: ") &&
		strings.Contains(err.Error(), text) && !strings.Contains(err.Error(), "\n")
}

// deep panics after n calls of itself.
func deep(n int) error {
	if n == 0 {
		panic("deep")
	}
	return deep(n - 1)
}

// TestStackOfDeepPanic tests that the error of a panic in a dataset has the whole stack.
func TestStackOfDeepPanic(t *testing.T) {
	leak.Check(t)
	d, err := data.NewSamples(1, []int{1}, nil, func(int, []float32, []int64) error { return deep(80) })
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range newLoader(t, d).Batches(t.Context()) {
		if !isPanic(err, "TestStackOfDeepPanic", "deep") {
			t.Errorf("error %v, want one with the stack up to the test", err)
		}
	}
}

// TestLoopWithinLoop tests that the error of a second loop over a loader names the method that began it.
func TestLoopWithinLoop(t *testing.T) {
	leak.Check(t)
	d, err := data.NewSamples(2, []int{1}, nil, func(int, []float32, []int64) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	l := newLoader(t, d)
	for _, err := range l.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		for op, batches := range map[string]iter.Seq2[data.Batch, error]{"Batches": l.Batches(t.Context()), "Resume": l.Resume(t.Context())} {
			for _, err := range batches {
				if err == nil || !strings.HasPrefix(err.Error(), "linstock: "+op+": a loop") {
					t.Errorf("error %v, want one of %s", err, op)
				}
			}
		}
	}
}

// kept is a dataset that returns the same tensors each time.
type kept struct{ a, b *tensor.Tensor }

func (k kept) Len() int { return 3 }
func (k kept) Batch(context.Context, []int) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{k.a, k.b}, nil
}

func TestDatasetMayReturnTensorsItKeeps(t *testing.T) {
	leak.Check(t)
	k := kept{tensor.Ones([]int{2}).Keep(), tensor.Ones([]int{2}).Keep()}
	defer k.a.Release()
	defer k.b.Release()
	for _, workers := range []int{0, 2} {
		for _, err := range newLoader(t, k, data.Workers(workers)).Batches(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if v, err := k.a.Add(k.b).Sum().Item(); v != 4 || err != nil {
		t.Errorf("the dataset's tensors sum to %v, %v", v, err)
	}
	for _, bad := range []kept{{k.a, nil}, {tensor.Zeros([]int{-1}), k.b}} {
		for _, err := range newLoader(t, bad).Batches(t.Context()) {
			if err == nil {
				t.Errorf("a batch with an unusable tensor was yielded")
			}
		}
	}
	tensor.Flush()
}

func TestUnreadErrorEndsTheLoop(t *testing.T) {
	leak.Check(t)
	for _, at := range []int{0, 2, 4} { // the first, a middle and the last batch
		l := newLoader(t, squares(t, 25, nil), data.BatchSize(5), data.Workers(1))
		seen, last := 0, error(nil)
		for batch, err := range l.Batches(t.Context()) {
			if err != nil {
				last = err
				break
			}
			seen++
			if batch.Index == at {
				_ = batch.Inputs.MatMul(batch.Inputs)
			} else if batch.Inputs.MatMul(batch.Inputs).Err() == nil {
				t.Error("matmul of (5,2) and (5,2) succeeded")
			}
		}
		var opErr *tensor.Error
		if !errors.As(last, &opErr) || seen != at+1 {
			t.Errorf("an error in body %d was reported as %v after %d batches", at, last, seen)
		}
	}
}

// TestStateAfterABody tests that the position after a loop is that after the last batch that the body got, however the
// body ended.
func TestStateAfterABody(t *testing.T) {
	leak.Check(t)
	for name, body := range map[string]func(data.Batch) (leave bool){
		"break":        func(data.Batch) bool { return true },
		"unread error": func(b data.Batch) bool { _ = b.Inputs.MatMul(b.Inputs); return false },
		"read error":   func(b data.Batch) bool { return b.Inputs.MatMul(b.Inputs).Err() != nil },
	} {
		for _, workers := range []int{0, 2} {
			l := newLoader(t, squares(t, 25, nil), data.BatchSize(5), data.Workers(workers))
			for b, err := range l.Batches(t.Context()) {
				if err != nil || b.Index == 2 && body(b) {
					break
				}
			}
			if s := l.State(); s != (data.State{Batch: 3, Sampler: "SequentialSampler"}) {
				t.Errorf("%s, %d workers: the position is %+v", name, workers, s)
			}
		}
	}
}

func TestTensorDataset(t *testing.T) {
	leak.Check(t)
	var d *data.TensorDataset
	err := tensor.WithScope(func() (err error) {
		x := tensor.Arange(0, 20, tensor.Float32).View(10, 2)
		d, err = data.NewTensorDataset(x, tensor.Arange(0, 10))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Release()
	l := newLoader(t, d, data.BatchSize(4), data.Shuffle(true), data.DropLast(true), data.Workers(2), data.Device(tensor.CPU))
	if l.Len() != 2 || d.Len() != 10 {
		t.Fatalf("%d batches of %d samples", l.Len(), d.Len())
	}
	for batch, err := range l.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		batch.Inputs.Mul_(1) // Batch returns copies: the next epoch must not see the change
		in, err := tensor.Data[float32](batch.Inputs)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range mustInts(t, batch.Targets) {
			if in[2*i] != float32(2*v) || in[2*i+1] != float32(2*v+1) {
				t.Errorf("row %d is %v", v, in[2*i:2*i+2])
			}
		}
		batch.Inputs.Zero_()
	}
	if v, err := tensorSum(t, l); err != nil || v == 0 {
		t.Errorf("the second epoch's sum is %v, %v", v, err)
	}
	short := tensor.Zeros([]int{3})
	defer short.Release()
	scalar := tensor.FromScalar(1.0)
	defer scalar.Release()
	for _, bad := range [][]*tensor.Tensor{{}, {nil}, {scalar}, {short, scalar}} {
		if _, err := data.NewTensorDataset(bad...); err == nil {
			t.Errorf("a dataset of %d odd tensors was made", len(bad))
		}
	}
}

// TestTensorDatasetOnDevices tests that a batch's tensors are on the devices of the dataset's tensors, and that samples
// that the dataset does not have are an error there.
func TestTensorDatasetOnDevices(t *testing.T) {
	leak.Check(t)
	_ = tensor.WithScope(func() error {
		d := must(data.NewTensorDataset(tensor.Zeros([]int{5, 2}, tensor.Meta), tensor.Ones([]int{5}), tensor.Zeros([]int{5}, tensor.Meta)))
		defer d.Release()
		for batch, err := range newLoader(t, d, data.BatchSize(3)).Batches(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if ts := batch.Tensors; ts[0].Device() != tensor.Meta || ts[1].Device() != tensor.CPU || ts[2].Device() != tensor.Meta || ts[0].Size(0) != batch.Size {
				t.Errorf("a batch of %v", ts)
			}
		}
		for _, at := range []int{-1, 5} {
			if _, err := d.Batch(t.Context(), []int{0, at}); !errors.Is(err, tensor.ErrIndex) {
				t.Errorf("sample %d: %v", at, err)
			}
		}
		return nil
	})
}

func tensorSum(t *testing.T, l *data.Loader) (sum float64, err error) {
	t.Helper()
	for batch, err := range l.Batches(t.Context()) {
		if err != nil {
			return 0, err
		}
		v, err := batch.Inputs.Sum().Item()
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

func mustInts(t *testing.T, x *tensor.Tensor) []int64 {
	t.Helper()
	v, err := tensor.Data[int64](x)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestInvalidLoaders(t *testing.T) {
	leak.Check(t)
	d := squares(t, 5, nil)
	for i, err := range []error{
		second(data.NewLoader(nil)),
		second(data.NewLoader(d, data.BatchSize(0))),
		second(data.NewLoader(d, data.Workers(-1))),
		second(data.NewLoader(d, data.Prefetch(-1))),
		second(data.NewWindows([]byte("x"), 0, 1)),
		second(data.NewWindows([]byte("x"), 1, 0)),
		second(data.NewSamples[float32, int64](-1, nil, nil, nil)),
		second(data.NewSamples(1, []int{-1}, nil, func(int, []float32, []int64) error { return nil })),
		second(data.NewSamples(1, []int{1 << 20, 1 << 20}, nil, func(int, []float32, []int64) error { return nil })),
	} {
		if !refused(err) {
			t.Errorf("case %d: %v, want an invalid argument at a line of this file", i, err)
		}
	}
}

// refused reports whether err is a *tensor.Error with a line of a test, for an argument that is invalid or nil.
func refused(err error) bool {
	var e *tensor.Error
	return errors.As(err, &e) && strings.Contains(e.Caller, "_test.go:") && (e.Kind == tensor.ErrArgument || e.Kind == tensor.ErrNil)
}

func second[T any](_ T, err error) error { return err }

func TestOnlyOneLoopAtATime(t *testing.T) {
	leak.Check(t)
	l := newLoader(t, squares(t, 5, nil))
	inner := 0
	for _, err := range l.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range l.Batches(t.Context()) {
			if err == nil {
				t.Fatal("a second loop ran")
			}
			inner++
		}
		if l.SetState(data.State{}) == nil {
			t.Error("the position was set while the loop ran")
		}
	}
	if inner != 5 {
		t.Errorf("%d inner loops failed, want 5", inner)
	}
}

func TestEmptyDatasets(t *testing.T) {
	leak.Check(t)
	for _, workers := range []int{0, 2} {
		if got := take(t, newLoader(t, squares(t, 0, nil), data.Workers(workers)), -1); len(got) != 0 {
			t.Errorf("samples %v", got)
		}
	}
	w, err := data.NewWindows([]byte("abc"), 3, 1)
	if err != nil || w.Len() != 0 {
		t.Errorf("%d windows of 3 and a target in 3 tokens, %v", w.Len(), err)
	}
}

// TestLoaderOnManyGoroutines tests that one loop at a time runs over a loader, that others get an error, and that State
// may be called meanwhile.
func TestLoaderOnManyGoroutines(t *testing.T) {
	leak.Check(t)
	dataset, err := data.NewSamples(8, []int{1}, []int{1}, func(i int, x, y []float32) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	loader, err := data.NewLoader(dataset, data.BatchSize(2))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var loops, refused atomic.Int64
	for range 6 {
		wg.Go(func() {
			for range 20 {
				for _, err := range loader.Batches(context.Background()) {
					if err != nil {
						refused.Add(1)
						break
					}
					if n := loops.Add(1); n > 1 {
						t.Errorf("%d loops run at once", n)
					}
					_ = loader.State()
					loops.Add(-1)
				}
				_ = loader.SetState(loader.State())
			}
		})
	}
	wg.Wait()
}
