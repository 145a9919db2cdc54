package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/serve"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// inBubble runs f with a clock of its own, which moves when all goroutines wait.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	leak.Check(t)
	synctest.Test(t, f)
}

// recorder is a model that takes a time for each batch and records the batches.
type recorder struct {
	takes time.Duration
	start time.Time

	mu      sync.Mutex
	batches []string // "time: inputs"
}

func newRecorder(takes time.Duration) *recorder { return &recorder{takes: takes, start: time.Now()} }

func (r *recorder) run(batch []int) ([]int, error) {
	r.mu.Lock()
	r.batches = append(r.batches, fmt.Sprint(time.Since(r.start), ": ", batch))
	r.mu.Unlock()
	time.Sleep(r.takes)
	out := make([]int, len(batch))
	for i, in := range batch {
		out[i] = 10 * in
	}
	return out, nil
}

func (r *recorder) want(t *testing.T, batches ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.batches, batches) {
		t.Errorf("batches:\n%s\nwant:\n%s", strings.Join(r.batches, "\n"), strings.Join(batches, "\n"))
	}
}

func newBatcher[In, Out any](t *testing.T, run func([]In) ([]Out, error), opts ...serve.Option) *serve.Batcher[In, Out] {
	t.Helper()
	b, err := serve.NewBatcher(run, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ask calls Do for each input on a goroutine of its own, in this order, and expects the recorder's outputs.
func ask(t *testing.T, wg *sync.WaitGroup, b *serve.Batcher[int, int], inputs ...int) {
	for _, in := range inputs {
		wg.Go(func() {
			if out, err := b.Do(t.Context(), in); err != nil || out != 10*in {
				t.Errorf("Do(%d) = %d, %v", in, out, err)
			}
		})
		synctest.Wait()
	}
}

func TestWindow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRecorder(0)
		b := newBatcher(t, r.run, serve.MaxBatch(3), serve.Window(10*time.Millisecond))
		var wg sync.WaitGroup
		wg.Go(b.Run)
		ask(t, &wg, b, 1)
		time.Sleep(4 * time.Millisecond)
		ask(t, &wg, b, 2) // joins 1, whose window ends at 10 ms
		time.Sleep(16 * time.Millisecond)
		ask(t, &wg, b, 3, 4, 5, 6) // three fill a batch; 6 waits for its window
		time.Sleep(20 * time.Millisecond)
		ask(t, &wg, b, 7)
		b.Close() // ends the window of 7
		wg.Wait()
		r.want(t, "10ms: [1 2]", "20ms: [3 4 5]", "30ms: [6]", "40ms: [7]")
	})
}

// TestNoWindow tests that an idle goroutine computes at once, and that requests gather while all are busy.
func TestNoWindow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRecorder(10 * time.Millisecond)
		b := newBatcher(t, r.run, serve.MaxBatch(3))
		var wg sync.WaitGroup
		wg.Go(b.Run)
		wg.Go(b.Run)
		ask(t, &wg, b, 1)
		time.Sleep(time.Millisecond)
		ask(t, &wg, b, 2)
		time.Sleep(time.Millisecond)
		ask(t, &wg, b, 3, 4, 5, 6)
		if s := b.Stats(); s.Waiting != 4 || s.Running != 2 {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Hour)
		if s := b.Stats(); s != (serve.Stats{Batches: 4, Computed: 6}) {
			t.Errorf("%+v", s)
		}
		b.Close()
		wg.Wait()
		r.want(t, "0s: [1]", "1ms: [2]", "10ms: [3 4 5]", "11ms: [6]")
	})
}

// TestShape tests that batches have one shape each, and that the oldest request that is due goes first.
func TestShape(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRecorder(10 * time.Millisecond)
		b := newBatcher(t, r.run, serve.MaxBatch(2), serve.Window(5*time.Millisecond), serve.Shape(func(in int) int { return in / 100 }))
		var wg sync.WaitGroup
		wg.Go(b.Run)
		ask(t, &wg, b, 101, 201, 202, 102, 103, 301)
		wg.Go(func() {
			time.Sleep(time.Hour)
			b.Close()
		})
		wg.Wait()
		r.want(t, "0s: [201 202]", "10ms: [101 102]", "20ms: [103]", "30ms: [301]")
	})
}

// TestShapeWithoutEquality tests that a request whose shape is not equal to itself leaves the queue when its context is
// done, and is otherwise computed alone, and that a shape that cannot be compared is an error of Do.
func TestShapeWithoutEquality(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRecorder(0)
		b := newBatcher(t, r.run, serve.Queue(4), serve.Shape(func(int) float64 { return math.NaN() }))
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancelCause(t.Context())
		for in := range 2 {
			wg.Go(func() {
				if _, err := b.Do(ctx, in); !errors.Is(err, io.ErrClosedPipe) {
					t.Errorf("Do(%d): %v", in, err)
				}
			})
		}
		ask(t, &wg, b, 3, 4)
		cancel(io.ErrClosedPipe)
		synctest.Wait()
		if s := b.Stats(); s != (serve.Stats{Waiting: 2, Expired: 2}) {
			t.Errorf("%+v", s)
		}
		wg.Go(b.Run)
		synctest.Wait()
		b.Close()
		wg.Wait()
		r.want(t, "0s: [3]", "0s: [4]")
	})
	inBubble(t, func(t *testing.T) {
		r := newRecorder(0)
		b := newBatcher(t, r.run, serve.Shape(func(in int) any {
			if in%2 == 0 {
				return [1]any{[]int{in}}
			}
			return in
		}))
		var wg sync.WaitGroup
		ask(t, &wg, b, 1)
		for range 2 {
			if _, err := b.Do(t.Context(), 2); err == nil || !strings.Contains(err.Error(), "cannot be compared") {
				t.Errorf("a shape that cannot be compared: %v", err)
			}
		}
		wg.Go(b.Run)
		synctest.Wait()
		b.Close()
		wg.Wait()
		r.want(t, "0s: [1]")
	})
}

// TestAbandonedRequestLeaves tests a request whose context is done when Close answers it.
func TestAbandonedRequestLeaves(t *testing.T) {
	leak.Check(t)
	for range 200 {
		b := newBatcher(t, func(batch []int) ([]int, error) { return batch, nil })
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := b.Do(ctx, 1); !errors.Is(err, serve.ErrClosed) && !errors.Is(err, context.Canceled) {
				t.Errorf("Do: %v", err)
			}
		})
		for b.Stats().Waiting == 0 {
			runtime.Gosched()
		}
		wg.Go(cancel)
		b.Close()
		wg.Wait()
	}
}

// TestTensorOfAnAbandonedRequest tests that a batch computes although a request whose context was done has freed its tensor.
func TestTensorOfAnAbandonedRequest(t *testing.T) {
	leak.Check(t)
	computing, proceed := make(chan struct{}), make(chan struct{})
	b, err := serve.NewBatcher(func(batch []*tensor.Tensor) ([]float64, error) {
		close(computing)
		<-proceed
		return tensor.Data[float64](tensor.Stack(batch).Sum(tensor.Dim(1)).To(tensor.Float64))
	}, serve.MaxBatch(2), serve.Window(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context, value float64) (sum float64, err error) {
		err = tensor.WithScope(func() error {
			sum, err = b.Do(ctx, tensor.Full([]int{2}, value))
			return err
		})
		return sum, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(b.Run)
	all.Go(func() {
		if sum, err := ask(t.Context(), 2); err != nil || sum != 4 {
			t.Errorf("the other request: %v, %v", sum, err)
		}
	})
	all.Go(func() {
		<-computing
		cancel()
	})
	if _, err := ask(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("the abandoned request: %v", err)
	}
	close(proceed)
	b.Close()
	all.Wait()

	// Requests that no batch takes free what they hold.
	if _, err := ask(t.Context(), 1); !errors.Is(err, serve.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestFullQueue(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRecorder(0)
		b := newBatcher(t, r.run, serve.Queue(2))
		var wg sync.WaitGroup
		ask(t, &wg, b, 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		wg.Go(func() {
			if _, err := b.Do(ctx, 2); !errors.Is(err, io.ErrClosedPipe) || !errors.Is(err, context.Canceled) {
				t.Errorf("the cause of the context, or its error, is lost: %v", err)
			}
		})
		synctest.Wait()
		for range 3 {
			if _, err := b.Do(t.Context(), 3); !errors.Is(err, serve.ErrFull) {
				t.Errorf("a third request: %v", err)
			}
		}
		cancel(io.ErrClosedPipe)
		synctest.Wait()
		ask(t, &wg, b, 4) // in the place of 2
		if s := b.Stats(); s != (serve.Stats{Waiting: 2, Full: 3, Expired: 1}) {
			t.Errorf("%+v", s)
		}
		wg.Go(b.Run)
		synctest.Wait()
		b.Close()
		wg.Wait()
		r.want(t, "0s: [1 4]")
	})
}

func TestDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRecorder(10 * time.Millisecond)
		b := newBatcher(t, r.run)
		var wg sync.WaitGroup
		wg.Go(b.Run)
		after := func(d time.Duration, in int) {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				defer cancel()
				begun := time.Now()
				if _, err := b.Do(ctx, in); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != d {
					t.Errorf("Do(%d) returned after %v with %v; want its deadline, %v", in, time.Since(begun), err, d)
				}
			})
			synctest.Wait()
		}
		ask(t, &wg, b, 1)
		after(5*time.Millisecond, 2) // leaves the queue while 1 computes
		ask(t, &wg, b, 3)
		after(15*time.Millisecond, 4) // its batch computes until 20 ms
		after(0, 5)
		wg.Go(func() {
			time.Sleep(time.Hour)
			if s := b.Stats(); s != (serve.Stats{Batches: 2, Computed: 3, Expired: 1}) {
				t.Errorf("%+v", s)
			}
			b.Close()
		})
		wg.Wait()
		r.want(t, "0s: [1]", "10ms: [3 4]")
	})
}

// TestExpiredBeforeItsBatch tests that a request is not computed if its deadline passes at the moment when its batch is
// due.
func TestExpiredBeforeItsBatch(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRecorder(0)
		b := newBatcher(t, r.run, serve.MaxBatch(3))
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			wg.Go(func() {
				if _, err := b.Do(ctx, 1); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		ask(t, &wg, b, 2, 3)
		cancel() // Run may see the requests before Do does
		wg.Go(b.Run)
		synctest.Wait()
		b.Close()
		wg.Wait()
		if s := b.Stats(); s.Expired != 2 || s.Computed != 2 || s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestClose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRecorder(10 * time.Millisecond)
		b := newBatcher(t, r.run, serve.MaxBatch(2), serve.Window(time.Hour))
		var wg sync.WaitGroup
		wg.Go(b.Run)
		ask(t, &wg, b, 1, 2, 3, 4, 5)
		for range 2 {
			wg.Go(func() {
				begun := time.Now()
				if b.Close(); time.Since(begun) != 30*time.Millisecond {
					t.Errorf("Close returned after %v; three batches take 30 ms", time.Since(begun))
				}
			})
		}
		synctest.Wait()
		if _, err := b.Do(t.Context(), 6); !errors.Is(err, serve.ErrClosed) {
			t.Errorf("during Close: %v", err)
		}
		wg.Wait()
		b.Close()
		b.Run() // returns
		if _, err := b.Do(t.Context(), 7); !errors.Is(err, serve.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		r.want(t, "0s: [1 2]", "10ms: [3 4]", "20ms: [5]")
	})
}

func TestCloseWithoutRun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBatcher(t, newRecorder(0).run)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if _, err := b.Do(t.Context(), 1); !errors.Is(err, serve.ErrClosed) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		b.Close()
		wg.Wait()
		if s := b.Stats(); s != (serve.Stats{}) {
			t.Errorf("%+v", s)
		}
	})
}

var errModel = errors.New("the model is ill")

// TestFailingModel tests each way in which the batch's function can fail; the batcher goes on after all of them.
func TestFailingModel(t *testing.T) {
	leak.Check(t)
	b := newBatcher(t, func(batch []string) ([]int, error) {
		x := tensor.Ones([]int{len(batch), 4})
		switch batch[0] {
		case "error":
			return make([]int, len(batch)), errModel
		case "panic":
			panic(errModel)
		case "panic text":
			panic("text")
		case "none":
			return nil, nil
		case "many":
			return make([]int, len(batch)+1), nil
		case "exit":
			runtime.Goexit()
		case "shapes":
			_, err := x.MatMul(x).Item()
			return make([]int, len(batch)), err
		case "unread": // an operator failed, and nobody read the error
			_ = x.MatMul(x)
		}
		return make([]int, len(batch)), nil
	}, serve.Shape(func(in string) string { return in }))
	var wg sync.WaitGroup
	run := func() { wg.Go(b.Run) }
	run()
	for _, c := range []struct {
		in, want string
		is       error
	}{
		{"error", "ill", errModel},
		{"panic", "panicked: the model is ill", errModel},
		{"panic text", "panicked: text", nil},
		{"none", "0 outputs for 1 input", nil},
		{"many", "2 outputs for 1 input", nil},
		{"exit", "Goexit", nil},
		{"shapes", "mat1", nil},
		{"unread", "mat1", nil},
	} {
		_, err := b.Do(t.Context(), c.in)
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(c.want)) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v", c.in, err)
		}
		var p *tensor.PanicError // serve.PanicError is the same
		if errors.As(err, &p) != strings.HasPrefix(c.in, "panic") || p != nil && !strings.Contains(string(p.Stack), "TestFailingModel") {
			t.Errorf("%s: %#v", c.in, p)
		}
		if c.in == "exit" {
			run() // it has ended the goroutine
		}
		out, err := b.Do(t.Context(), "fine")
		for c.in == "exit" && err != nil && strings.Contains(err.Error(), "Goexit") { // the new one is not in Run yet
			out, err = b.Do(t.Context(), "fine")
		}
		if out != 0 || err != nil {
			t.Errorf("after %s: %v", c.in, err)
		}
	}
	b.Close()
	wg.Wait()
}

// TestExitOfTheLastRunner tests that requests do not wait for a goroutine that a batch's function has ended, but for others.
func TestExitOfTheLastRunner(t *testing.T) {
	for _, runners := range []int{1, 2} {
		inBubble(t, func(t *testing.T) {
			b := newBatcher(t, func(batch []int) ([]int, error) {
				time.Sleep(time.Second)
				if batch[0] == 0 {
					runtime.Goexit()
				}
				return batch, nil
			}, serve.MaxBatch(1))
			var wg sync.WaitGroup
			for range runners {
				wg.Go(b.Run)
			}
			synctest.Wait()
			var errs [4]error
			for i := range errs {
				wg.Go(func() { _, errs[i] = b.Do(context.Background(), i) })
				synctest.Wait()
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			for i, err := range errs {
				if exits := i == 0 || runners == 1; exits != (err != nil && strings.Contains(err.Error(), "Goexit")) {
					t.Errorf("%d goroutines in Run: request %d: %v", runners, i, err)
				}
			}
			if n := b.Stats().Waiting; n != 0 {
				t.Errorf("%d requests wait", n)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := b.Do(ctx, 1); (runners == 1) != (err != nil && strings.Contains(err.Error(), "Goexit")) {
				t.Errorf("%d goroutines in Run: a later request: %v", runners, err)
			}
			wg.Go(b.Run)
			synctest.Wait()
			if out, err := b.Do(ctx, 2); out != 2 || err != nil {
				t.Errorf("%d goroutines in Run, and another: %v, %v", runners, out, err)
			}
			b.Close()
			wg.Wait()
		})
	}
}

// TestFailureReachesTheWholeBatch tests that the other requests of a batch get its error, too.
func TestFailureReachesTheWholeBatch(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBatcher(t, func(batch []int) ([]int, error) { return nil, errModel })
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				if _, err := b.Do(t.Context(), i); !errors.Is(err, errModel) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		wg.Go(b.Run)
		synctest.Wait()
		b.Close()
		wg.Wait()
		if s := b.Stats(); s != (serve.Stats{Batches: 1, Computed: 5}) {
			t.Errorf("%+v", s)
		}
	})
}

// TestTensorsWithoutValue tests that a request whose tensor is failed, released or nil gets an error, which is the tensor's
// own or names Do, and that the others do not.
func TestTensorsWithoutValue(t *testing.T) {
	leak.Check(t)
	x := tensor.Ones([]int{2})
	released := tensor.Ones([]int{2})
	released.Release()
	b := newBatcher(t, func(batch []*tensor.Tensor) ([]float64, error) {
		return tensor.Data[float64](tensor.Stack(batch).Sum(tensor.Dim(1)).To(tensor.Float64))
	}, serve.Queue(1), serve.Shape(func(x *tensor.Tensor) int { return x.Size(0) }))
	var asking, running sync.WaitGroup
	asking.Go(func() {
		if sum, err := b.Do(t.Context(), x); err != nil || sum != 2 {
			t.Errorf("the request beside them: %v, %v", sum, err)
		}
	})
	for b.Stats().Waiting == 0 {
		runtime.Gosched()
	}
	for _, c := range []struct {
		in   *tensor.Tensor
		op   string
		kind error
	}{
		{tensor.FromSlice([]float32{1}, []int{2}), "FromSlice", tensor.ErrArgument}, {released, "Do", tensor.ErrReleased}, {nil, "Do", tensor.ErrNil},
	} {
		_, err := b.Do(t.Context(), c.in)
		var e *tensor.Error
		if !errors.As(err, &e) || e.Op != c.op || !errors.Is(err, c.kind) { // otherwise the queue would be full
			t.Errorf("got %v, want an error of %s, %v", err, c.op, c.kind)
		}
	}
	running.Go(b.Run)
	asking.Wait()
	b.Close()
	running.Wait()
	x.Release()
}

// TestAnswersAreThoseOfSingleRows compares a network's answers in batches of all sizes with those of single rows.
func TestAnswersAreThoseOfSingleRows(t *testing.T) {
	leak.Check(t)
	const width, rows = 32, 40
	model := nn.NewSequential(nn.NewLinear(width, 64), &nn.GELU{}, nn.NewLinear(64, 10))
	defer nn.Release(model)
	forward := func(batch [][]float32) (out [][]float32, err error) {
		err = autograd.NoGrad(func() error {
			x := tensor.FromSlice(slices.Concat(batch...), []int{len(batch), width})
			flat, err := tensor.Data[float32](model.Forward(x))
			for row := range slices.Chunk(flat, 10) {
				out = append(out, row)
			}
			return err
		})
		return out, err
	}
	random := rand.New(rand.NewPCG(1, 2))
	inputs, want := make([][]float32, rows), make([][]float32, rows)
	for i := range inputs {
		inputs[i] = make([]float32, width)
		for k := range inputs[i] {
			inputs[i][k] = float32(random.NormFloat64())
		}
		if err := tensor.WithScope(func() error {
			out, err := forward(inputs[i : i+1])
			want[i] = slices.Concat(out...)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, size := range []int{1, 2, 7, 16, rows} {
		sizes := map[int]int{}
		b := newBatcher(t, func(batch [][]float32) ([][]float32, error) {
			sizes[len(batch)]++
			return forward(batch)
		}, serve.MaxBatch(size))
		var wg, running sync.WaitGroup
		for i, in := range inputs {
			wg.Go(func() {
				out, err := b.Do(t.Context(), in)
				if err != nil {
					t.Error(err)
				}
				if same := slices.Equal(out, want[i]); size == 1 && !same || !same && !slices.EqualFunc(out, want[i], near) {
					t.Errorf("row %d in batches of %d:\n%v\nalone:\n%v", i, size, out, want[i])
				}
			})
		}
		for b.Stats().Waiting < rows {
			runtime.Gosched()
		}
		running.Go(b.Run)
		wg.Wait()
		b.Close()
		running.Wait()
		if sizes[size] != rows/size {
			t.Errorf("batches of %d: sizes %v", size, sizes)
		}
	}
}

func near(a, b float32) bool { return max(a-b, b-a) <= 1e-5+1.3e-6*max(b, -b) }

// TestManyGoroutines tests that every request is answered once and with its own answer, while requests expire, the queue
// is full and batches fail.
func TestManyGoroutines(t *testing.T) {
	leak.Check(t)
	const goroutines, each = 64, 100
	var computed atomic.Int64
	b := newBatcher(t, func(batch []int) ([]int, error) {
		computed.Add(int64(len(batch)))
		switch {
		case slices.Contains(batch, 77):
			panic(errModel)
		case slices.Contains(batch, 78):
			return nil, errModel
		}
		ids := make([]float32, len(batch))
		for i, in := range batch {
			ids[i] = float32(in)
		}
		sums, err := tensor.Data[float32](tensor.FromSlice(ids, nil).Add(1))
		out := make([]int, len(sums))
		for i, v := range sums {
			out[i] = int(v)
		}
		return out, err
	}, serve.MaxBatch(8), serve.Queue(48), serve.Window(50*time.Microsecond), serve.Shape(func(in int) int { return in % 3 }))
	var running, clients sync.WaitGroup
	for range 3 {
		running.Go(b.Run)
	}
	var answered, full, expired, failed atomic.Int64
	for g := range goroutines {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 0))
			for k := range each {
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if k%4 == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(300))*time.Microsecond)
				}
				in := random.IntN(1000)
				out, err := b.Do(ctx, in)
				cancel()
				switch {
				case err == nil:
					if answered.Add(1); out != in+1 {
						t.Errorf("Do(%d) = %d", in, out)
					}
				case errors.Is(err, serve.ErrFull):
					full.Add(1)
				case errors.Is(err, context.DeadlineExceeded):
					expired.Add(1)
				case errors.Is(err, errModel):
					failed.Add(1)
				default:
					t.Errorf("Do(%d): %v", in, err)
				}
			}
		})
	}
	clients.Wait()
	b.Close()
	running.Wait()
	s := b.Stats()
	t.Logf("%d answered, %d full, %d expired, %d failed; %+v", answered.Load(), full.Load(), expired.Load(), failed.Load(), s)
	if n := answered.Load() + full.Load() + expired.Load() + failed.Load(); n != goroutines*each {
		t.Errorf("%d answers to %d requests", n, goroutines*each)
	}
	if s.Waiting != 0 || s.Running != 0 || s.Computed != computed.Load() || s.Full != full.Load() || s.Computed < answered.Load()+failed.Load() {
		t.Errorf("%d were computed; %+v", computed.Load(), s)
	}
}

func TestRefusals(t *testing.T) {
	leak.Check(t)
	run := func([]int) ([]int, error) { return nil, nil }
	for want, opt := range map[string]serve.Option{
		"MaxBatch must be at least 1, got 0":                            serve.MaxBatch(0),
		"Queue must be at least 1, got -1":                              serve.Queue(-1),
		"Window must be at least 0, got -1s":                            serve.Window(-time.Second),
		"the function of Shape does not take the batcher's inputs, int": serve.Shape(func(string) int { return 0 }),
	} {
		_, err := serve.NewBatcher(run, opt)
		var e *tensor.Error
		if !errors.As(err, &e) || e.Kind != tensor.ErrArgument || !strings.Contains(e.Caller, "batcher_test.go:") || !strings.Contains(err.Error(), "linstock: NewBatcher: "+want) {
			t.Errorf("got %v, want ErrArgument of this file with %q", err, want)
		}
	}
	if _, err := serve.NewBatcher[int, int](nil); !errors.Is(err, tensor.ErrNil) {
		t.Errorf("a nil function: %v", err)
	}
	if _, err := serve.NewBatcher(run, serve.Shape[int, int](nil)); err != nil {
		t.Error(err)
	}
	for _, b := range []*serve.Batcher[int, int]{nil, {}} {
		b.Run()
		b.Close()
		if _, err := b.Do(t.Context(), 1); !errors.Is(err, tensor.ErrArgument) || b.Stats() != (serve.Stats{}) {
			t.Errorf("a batcher that NewBatcher has not made: %v", err)
		}
	}
	b := newBatcher(t, run)
	//lint:ignore SA1012 the nil context is what is tested
	if _, err := b.Do(nil, 1); !errors.Is(err, tensor.ErrNil) {
		t.Errorf("a nil context: %v", err)
	}
}

// live returns the native bytes that are allocated.
func live(t *testing.T) int64 {
	t.Helper()
	s, err := vram.Stats(vram.CPU)
	if err != nil {
		t.Fatal(err)
	}
	return s.Allocated
}

// withoutCollector turns the garbage collector off for the test, so that only what is released is freed.
func withoutCollector(t *testing.T) {
	leak.Counted(t)
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
}

// TestTensorsWithoutScope tests that the inputs of a batch that gets no scope are freed.
func TestTensorsWithoutScope(t *testing.T) {
	leak.Check(t)
	withoutCollector(t)
	b := newBatcher(t, func(batch []*tensor.Tensor) ([]int, error) { return make([]int, len(batch)), nil })
	scope, err := tensor.NewScope()
	if err != nil {
		t.Fatal(err)
	}
	bound := tensor.SetMaxScopedGoroutines(1)
	defer tensor.SetMaxScopedGoroutines(bound)
	var wg sync.WaitGroup
	wg.Go(b.Run)
	before := live(t)
	for range 3 {
		x := tensor.Ones([]int{1 << 16})
		if _, err := b.Do(t.Context(), x); !errors.Is(err, tensor.ErrScope) {
			t.Errorf("want ErrScope, got %v", err)
		}
		x.Release()
	}
	b.Close()
	wg.Wait()
	if after := live(t); after != before {
		t.Errorf("%d bytes are live, before the requests %d", after, before)
	}
	if err := scope.Close(); err != nil {
		t.Error(err)
	}
}

// TestOutputsWithoutCaller tests that tensors of a batch that no caller of Do gets are freed, and no others.
func TestOutputsWithoutCaller(t *testing.T) {
	leak.Check(t)
	withoutCollector(t)
	for _, c := range []struct {
		name string
		gone int                                            // requests whose contexts end while the batch is computed
		outs func(n int) (outs []*tensor.Tensor, err error) // for n requests
		gets bool                                           // whether the others get an output
	}{
		{"requests left", 2, func(n int) ([]*tensor.Tensor, error) { return kept(n), nil }, true},
		{"all left", 3, func(n int) ([]*tensor.Tensor, error) { return kept(n), nil }, false},
		{"one tensor for all", 2, func(n int) ([]*tensor.Tensor, error) { return slices.Repeat(kept(1), n), nil }, true},
		{"too many", 0, func(n int) ([]*tensor.Tensor, error) { return kept(n + 1), nil }, false},
		{"an error", 1, func(n int) ([]*tensor.Tensor, error) { return kept(n), errModel }, false},
		{"an error that nobody has read", 0, func(n int) ([]*tensor.Tensor, error) {
			x := tensor.Ones([]int{2, 3})
			_ = x.MatMul(x)
			return kept(n), nil
		}, false},
	} {
		const n = 3
		before := live(t)
		computing, proceed := make(chan struct{}), make(chan struct{})
		b := newBatcher(t, func(batch []int) ([]*tensor.Tensor, error) {
			close(computing)
			<-proceed
			return c.outs(len(batch))
		}, serve.MaxBatch(n), serve.Window(time.Hour))
		ctx, cancel := context.WithCancel(t.Context())
		var left, others sync.WaitGroup
		for i := range n {
			gone := i < c.gone
			do := func() {
				of := t.Context()
				if gone {
					of = ctx
				}
				out, err := b.Do(of, i)
				if (err == nil) != (c.gets && !gone) {
					t.Errorf("%s: request %d: %v", c.name, i, err)
				}
				if err == nil {
					if v, err := tensor.Data[float32](out); err != nil || len(v) != 1<<16 {
						t.Errorf("%s: request %d: %v", c.name, i, err)
					}
				}
				out.Release()
			}
			if gone {
				left.Go(do)
			} else {
				others.Go(do)
			}
		}
		others.Go(b.Run)
		<-computing
		cancel()
		left.Wait()
		close(proceed)
		b.Close()
		others.Wait()
		if after := live(t); after != before {
			t.Errorf("%s: %d bytes are live, before the requests %d", c.name, after, before)
		}
	}
}

// kept returns n tensors that no scope frees.
func kept(n int) (outs []*tensor.Tensor) {
	for range n {
		outs = append(outs, tensor.Ones([]int{1 << 16}).Keep())
	}
	return outs
}
