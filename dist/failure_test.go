package dist_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/launch"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// blames returns an error unless err is a PeerError of op and kind that names ranks.
func blames(err error, op string, kind error, ranks ...int) error {
	var e *dist.PeerError
	if !errors.As(err, &e) || e.Op != op || kind != nil && !errors.Is(err, kind) || !slices.Equal(e.Ranks, ranks) {
		return fmt.Errorf("got %v, want an error of %s that wraps %v and names ranks %v", err, op, kind, ranks)
	}
	if !strings.Contains(e.Caller, "_test.go") || !strings.Contains(e.Error(), op) {
		return fmt.Errorf("the error does not say where and what: %v", err)
	}
	return nil
}

// TestAbsentRank tests that a rank that does not take part in time is named by all others, also by later calls.
func TestAbsentRank(t *testing.T) {
	leak.Check(t)
	done := make(chan struct{})
	others := make(chan struct{}, 2)
	go func() {
		for range 2 {
			<-others
		}
		close(done)
	}()
	ranks(t, 3, func(g *dist.Group) error {
		if g.Rank() == 1 {
			<-done
			return nil
		}
		defer func() { others <- struct{}{} }()
		x := tensor.Ones([]int{4})
		return errors.Join(blames(g.AllReduce(ctx, x, dist.Sum), "AllReduce", nil, 1),
			blames(g.Barrier(ctx), "Barrier", nil, 1), blames(second(dist.AllGatherObject(ctx, g, 1)), "AllGatherObject", nil, 1))
	}, dist.Timeout(time.Second))
}

// TestAbsentSender tests that a receive that expires names the sender.
func TestAbsentSender(t *testing.T) {
	leak.Check(t)
	done := make(chan struct{})
	ranks(t, 3, func(g *dist.Group) error {
		if g.Rank() != 0 {
			<-done
			return nil
		}
		defer close(done)
		return blames(g.Recv(ctx, tensor.Ones([]int{4}), 2, 0), "Recv", dist.ErrTimeout, 2)
	}, dist.Timeout(time.Second))
}

// TestLateRanks tests that sends, receives, monitored barriers and compared collectives wait for a late rank for the
// group's timeout, not for gloo's connection timeout.
func TestLateRanks(t *testing.T) {
	leak.Check(t)
	x := func() *tensor.Tensor { return tensor.Ones([]int{4}) }
	large := func() *tensor.Tensor { return tensor.Ones([]int{4_000_000}) } // more than a socket takes
	var all sync.WaitGroup
	for _, late := range []func(g *dist.Group) error{
		func(g *dist.Group) error {
			if g.Rank() == 0 {
				return g.Send(ctx, x(), 1, 0)
			}
			return g.Recv(ctx, x(), 0, 0)
		},
		func(g *dist.Group) error {
			if g.Rank() == 0 {
				return dist.SendObject(ctx, g, 1, 1, 0)
			}
			_, _, err := dist.RecvObject[int](ctx, g, dist.AnySource, 0)
			return err
		},
		func(g *dist.Group) error {
			if g.Rank() == 0 {
				return g.Recv(ctx, large(), 1, 0)
			}
			return g.Send(ctx, large(), 0, 0)
		},
		func(g *dist.Group) error { return g.MonitoredBarrier(ctx, 0) },
		func(g *dist.Group) error { return g.AllReduce(ctx, x(), dist.Sum) },
	} {
		all.Go(func() {
			ranks(t, 2, func(g *dist.Group) error {
				if g.Rank() == 0 {
					time.Sleep(3 * time.Second)
				}
				return late(g)
			}, dist.Timeout(10*time.Second), dist.CheckCollectives(true))
		})
	}
	all.Wait()
}

// TestReceiveFromAnyEnds tests that a receive from any rank ends with its context, when the group is closed, and when all
// other ranks have left, but not while one of them may send.
func TestReceiveFromAnyEnds(t *testing.T) {
	leak.Check(t)
	begun := time.Now()
	var all sync.WaitGroup
	job := func(f func(g *dist.Group) error) {
		all.Go(func() {
			ranks(t, 3, func(g *dist.Group) error { return errors.Join(g.Barrier(ctx), f(g)) })
		})
	}
	for _, receive := range []func(ctx context.Context, g *dist.Group) error{
		func(ctx context.Context, g *dist.Group) error { return g.Recv(ctx, vector(0), dist.AnySource, 0) },
		func(ctx context.Context, g *dist.Group) error {
			_, _, err := dist.RecvObject[int](ctx, g, dist.AnySource, 0)
			return err
		},
	} {
		job(func(g *dist.Group) error {
			if g.Rank() != 0 {
				return blames(g.Barrier(ctx), "Barrier", dist.ErrConnection, 0)
			}
			ends, end := context.WithCancel(ctx)
			time.AfterFunc(20*time.Millisecond, end)
			if err := receive(ends, g); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("a context that ends: %w", err)
			}
			return nil
		})
	}
	job(func(g *dist.Group) error {
		if g.Rank() != 0 {
			return nil
		}
		return blames(g.Recv(ctx, vector(0), dist.AnySource, 0), "Recv", dist.ErrConnection, 1, 2)
	})
	job(func(g *dist.Group) error {
		switch g.Rank() {
		case 1:
			return nil // has left
		case 2:
			time.Sleep(4 * time.Second)
			return g.Send(ctx, vector(7), 0, 0)
		}
		x := vector(0)
		return errors.Join(g.Recv(ctx, x, dist.AnySource, 0), want("x", x, 7))
	})
	job(func(g *dist.Group) error {
		if g.Rank() != 0 {
			return blames(g.Barrier(ctx), "Barrier", dist.ErrConnection, 0)
		}
		w, err := g.RecvAsync(vector(0), dist.AnySource, 0)
		if err != nil {
			return err
		}
		closed := make(chan error)
		time.AfterFunc(20*time.Millisecond, func() { closed <- g.Close() })
		if err := w.Wait(ctx); !errors.Is(err, dist.ErrClosed) {
			t.Errorf("a group that is closed: %v", err)
		}
		return <-closed
	})
	all.Wait()
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestThirdRankLeaves tests that a receive from one rank goes on after another rank has left a group that looks out for failures.
func TestThirdRankLeaves(t *testing.T) {
	leak.Check(t)
	left := make(chan struct{})
	ranks(t, 3, func(g *dist.Group) error {
		dist.LookOut(g)
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		r := g.Rank()
		if r == 2 {
			defer close(left)
			return g.Close()
		}
		<-left
		x := vector(0)
		for turn := range 2 { // each of the two ranks waits once
			if turn == r {
				time.Sleep(3 * time.Second)
				if err := g.Send(ctx, vector(7), 1-r, 0); err != nil {
					return err
				}
			} else if err := errors.Join(g.Recv(ctx, x, 1-r, 0), want("x", x, 7)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestMonitoredBarrierNames tests that a monitored barrier names all ranks that did not come.
func TestMonitoredBarrierNames(t *testing.T) {
	leak.Check(t)
	done := make(chan struct{})
	ranks(t, 4, func(g *dist.Group) error {
		if r := g.Rank(); r == 1 || r == 3 {
			<-done
			return nil
		} else if r == 0 {
			defer close(done)
		}
		return blames(g.MonitoredBarrier(ctx, time.Second), "MonitoredBarrier", nil, 1, 3)
	})
}

// TestAbort tests that Abort fails the collective in flight, and that the other ranks name the one that aborted.
func TestAbort(t *testing.T) {
	leak.Check(t)
	ranks(t, 3, func(g *dist.Group) error {
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if g.Rank() != 2 {
			return blames(g.AllReduce(ctx, tensor.Ones([]int{4}), dist.Sum), "AllReduce", dist.ErrConnection, 2)
		}
		w, err := g.RecvAsync(tensor.Ones([]int{4}), 0, 1)
		if err != nil {
			return err
		}
		if w.Done() || w.Err() != nil {
			t.Error("a receive is complete that nobody has sent")
		}
		if err := errors.Join(g.Abort(), g.Abort()); err != nil {
			return err
		}
		for name, err := range map[string]error{"Wait": w.Wait(ctx), "Err": w.Err(), "Barrier": g.Barrier(ctx)} {
			if !errors.Is(err, dist.ErrAborted) {
				t.Errorf("%s after Abort: %v", name, err)
			}
		}
		return nil
	})
}

// TestContext tests that a context that ends aborts the group of a collective that waits, and that Wait only returns.
func TestContext(t *testing.T) {
	leak.Check(t)
	waited := make(chan struct{})
	ranks(t, 2, func(g *dist.Group) error {
		x := tensor.Ones([]int{4})
		if g.Rank() == 1 {
			<-waited
			if err := errors.Join(g.AllReduce(ctx, x, dist.Sum), g.Recv(ctx, x, 0, 0), want("x", x, 2, 2, 2, 2)); err != nil {
				return err
			}
			return blames(g.ReduceScatterTensor(ctx, tensor.Ones([]int{2}), x, dist.Sum), "ReduceScatterTensor", dist.ErrConnection, 0)
		}
		w, err := g.AllReduceAsync(x, dist.Sum)
		if err != nil {
			return err
		}
		s, err := g.SendAsync(tensor.Full([]int{4}, 2.0), 1, 0)
		if err != nil {
			return err
		}
		for _, w := range []*dist.Work{w, s} {
			short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			if err := w.Wait(short); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dist.ErrTimeout) {
				t.Errorf("Wait: %v", err)
			}
			cancel()
		}
		close(waited)
		if err := errors.Join(w.Wait(ctx), s.Wait(ctx), want("x", x, 2, 2, 2, 2)); err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		if err := g.Recv(short, x, 1, 9); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Recv: %v", err)
		}
		if err := g.Barrier(ctx); !errors.Is(err, dist.ErrAborted) {
			t.Errorf("a collective after it: %v", err)
		}
		return nil
	})
}

// TestContextOfAStart tests that a context that ends also aborts the group of a collective that waits for the other
// ranks when it starts.
func TestContextOfAStart(t *testing.T) {
	leak.Check(t)
	done := make(chan struct{})
	ranks(t, 2, func(g *dist.Group) error {
		x := tensor.Ones([]int{4})
		if g.Rank() == 1 {
			<-done
			return blames(g.AllReduce(ctx, x, dist.Sum), "AllReduce", nil, 0)
		}
		defer close(done)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := g.AllReduce(short, x, dist.Sum); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("AllReduce: %w", err)
		}
		if err := g.AllReduce(ctx, x, dist.Sum); !errors.Is(err, dist.ErrAborted) {
			return fmt.Errorf("a collective after it: %w", err)
		}
		return nil
	}, dist.CheckCollectives(), dist.Timeout(10*time.Second))
}

// TestCloseInFlight tests that Close fails the collectives in flight, and that the other ranks name the one that left.
func TestCloseInFlight(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if g.Rank() == 0 {
			return blames(g.Barrier(ctx), "Barrier", dist.ErrConnection, 1)
		}
		var works []*dist.Work
		for _, begin := range []func() (*dist.Work, error){
			func() (*dist.Work, error) { return g.RecvAsync(tensor.Ones([]int{4}), 0, 1) },
			func() (*dist.Work, error) {
				return g.AllGatherIntoTensorAsync(tensor.Ones([]int{4}), tensor.Ones([]int{2}))
			},
		} {
			w, err := begin()
			if err != nil {
				return err
			}
			works = append(works, w)
		}
		if err := g.Close(); err != nil {
			return err
		}
		for _, w := range works {
			if err := w.Wait(ctx); !errors.Is(err, dist.ErrClosed) {
				t.Errorf("Wait after Close: %v", err)
			}
		}
		if err := g.Barrier(ctx); !errors.Is(err, dist.ErrClosed) {
			t.Errorf("Barrier after Close: %v", err)
		}
		return nil
	})
}

// TestCloseInForward tests that Close ends a forward pass of a DDP that waits for another rank.
func TestCloseInForward(t *testing.T) {
	leak.Check(t)
	closed := make(chan struct{})
	ranks(t, 2, func(g *dist.Group) error {
		ddp, err := dist.NewDDP(ctx, g, nn.NewLinear(3, 3))
		if err != nil {
			return err
		}
		x := tensor.Ones([]int{2, 3})
		if err := ddp.Forward(x).Sum().Backward(); err != nil {
			return err
		}
		if g.Rank() == 0 {
			<-closed
			return nil
		}
		defer close(closed)
		failed := make(chan error, 1)
		go func() { // the second forward pass exchanges the order of the buckets
			failed <- tensor.WithScope(func() error { return ddp.Forward(tensor.Ones([]int{2, 3})).Err() })
		}()
		time.Sleep(200 * time.Millisecond)
		begun := time.Now()
		if err := g.Close(); err != nil {
			return err
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("Close took %v", took)
		}
		if err := <-failed; !errors.Is(err, dist.ErrClosed) {
			t.Errorf("the forward pass: %v", err)
		}
		return nil
	}, dist.Timeout(10*time.Second))
}

// TestInitEnds tests that Init ends with its context and timeout if the other ranks do not come.
func TestInitEnds(t *testing.T) {
	leak.Check(t)
	store, err := dist.NewHashStore()
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ends, end := context.WithCancel(ctx)
	time.AfterFunc(20*time.Millisecond, end)
	alone := func(ctx context.Context, opts ...dist.Option) error {
		g, err := dist.Init(ctx, append(opts, dist.WithStore(store), dist.Rank(0), dist.WorldSize(2))...)
		if g != nil {
			t.Error("a group")
		}
		return err
	}
	if err := alone(ends); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v", err)
	}
	if err := alone(ctx, dist.Timeout(50*time.Millisecond)); !errors.Is(err, dist.ErrTimeout) || !strings.Contains(err.Error(), "rank 1)") {
		t.Errorf("a timeout: %v", err)
	}
	address := "127.0.0.1:" + freePort(t)
	g, err := dist.Init(ctx, dist.InitMethod("tcp://"+address), dist.Rank(0), dist.WorldSize(100), dist.Timeout(50*time.Millisecond))
	if g != nil || !errors.Is(err, dist.ErrTimeout) || !strings.Contains(err.Error(), address+", unless") || !strings.Contains(err.Error(), "rank 1, 2, 3") ||
		!strings.Contains(err.Error(), "16, … (99 of 100)") {
		t.Errorf("a timeout with 100 ranks: %v, %v", g, err)
	}
}

// TestInitWithADeadRank tests that Init ends with its timeout if another rank has died after it reached the store.
func TestInitWithADeadRank(t *testing.T) {
	leak.Check(t)
	port := freePort(t)
	store, err := dist.NewTCPStore(ctx, "127.0.0.1:"+port, true)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	dead := exec.CommandContext(t.Context(), os.Args[0])
	dead.Env = append(launch.Environ(1, 3, port), envRole+"=dead")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	for keys, since := 0, time.Now(); keys < 2 || time.Since(since) < time.Second; time.Sleep(20 * time.Millisecond) {
		now, err := store.NumKeys()
		if err != nil {
			t.Fatal(err)
		}
		if now != keys {
			keys, since = now, time.Now()
		}
	}
	if err := dead.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = dead.Wait()
	var all sync.WaitGroup
	for _, r := range []int{0, 2} {
		all.Go(func() {
			start := time.Now()
			g, err := dist.Init(ctx, dist.WithStore(store), dist.Rank(r), dist.WorldSize(3), dist.Timeout(3*time.Second))
			if !errors.Is(err, dist.ErrTimeout) && !errors.Is(err, dist.ErrConnection) || g != nil {
				t.Errorf("rank %d: %v, %v", r, g, err)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("rank %d: Init took %v", r, took)
			}
		})
	}
	all.Wait()
}

// TestNewGroupNamesTheAbsent tests that NewGroup names a rank that has ended, long before the timeout, and at the timeout one
// that does not call it.
func TestNewGroupNamesTheAbsent(t *testing.T) {
	leak.Check(t)
	ranks(t, 3, func(g *dist.Group) error {
		if g.Rank() == 1 {
			return nil
		}
		start := time.Now()
		err := blames(second(g.NewGroup(ctx, []int{2, 0, 1})), "NewGroup", dist.ErrConnection, 1)
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("NewGroup took %v", took)
		}
		return err
	})
	var done sync.WaitGroup
	done.Add(2)
	ranks(t, 3, func(g *dist.Group) error {
		if g.Rank() == 1 {
			done.Wait()
			return nil
		}
		defer done.Done()
		return blames(second(g.NewGroup(ctx, []int{2, 0, 1}, dist.Timeout(time.Second))), "NewGroup", dist.ErrTimeout, 1)
	})
}

// TestManyGroups tests that a hundred groups leave nothing behind.
func TestManyGroups(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		for i := range 100 {
			sub, err := g.NewGroup(ctx, []int{0, 1})
			if err != nil {
				return err
			}
			x := tensor.Full([]int{1}, float64(i))
			if err := errors.Join(sub.AllReduce(ctx, x, dist.Sum), want("x", x, float32(2*i)), sub.Close()); err != nil {
				return err
			}
		}
		return nil
	})
}

// ending is a context that ends when Err has been called a number of times.
type ending struct {
	context.Context
	calls *atomic.Int64 // of Err that are left
}

func (c ending) Err() error {
	if c.calls.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// TestContextEndsWithinACall tests that a context that ends between the collectives of one call aborts the group.
func TestContextEndsWithinACall(t *testing.T) {
	leak.Check(t)
	for _, c := range []struct {
		name string
		errs int64 // calls of Err before the collective that does not start
		f    func(ctx context.Context, g *dist.Group) error
	}{
		{"AllGatherObject", 1, func(ctx context.Context, g *dist.Group) error { return second(dist.AllGatherObject(ctx, g, "x")) }},
		{"BroadcastObject", 1, func(ctx context.Context, g *dist.Group) error { v := "x"; return dist.BroadcastObject(ctx, g, &v, 1) }},
		{"SendObject", 1, func(ctx context.Context, g *dist.Group) error {
			if g.Rank() == 0 {
				return dist.SendObject(ctx, g, "x", 1, 0)
			}
			_, _, err := dist.RecvObject[string](ctx, g, 0, 0)
			return err
		}},
		{"RecvObject", 1, func(ctx context.Context, g *dist.Group) error {
			if g.Rank() == 0 {
				_, _, err := dist.RecvObject[string](ctx, g, 1, 0)
				return err
			}
			return errors.Join(dist.SendObject(ctx, g, "x", 0, 0), g.Barrier(ctx))
		}},
		{"NewDDP", 1, func(ctx context.Context, g *dist.Group) error { return second(dist.NewDDP(ctx, g, nn.NewLinear(2, 2))) }},
		{"Shard", 3, func(ctx context.Context, g *dist.Group) error { return second(dist.Shard(ctx, g, nn.NewLinear(2, 2))) }},
		{"FullStateDict", 1, func(ctx context.Context, g *dist.Group) error {
			m := nn.NewLinear(2, 2)
			return errors.Join(second(dist.Shard(context.Background(), g, m)), second(dist.FullStateDict(ctx, g, m, 0)))
		}},
		{"Eval", 3, func(ctx context.Context, g *dist.Group) error {
			p, err := dist.NewPipeline(g, function(func(x *tensor.Tensor) *tensor.Tensor { return x.Mul(2) }), func(y, target *tensor.Tensor) *tensor.Tensor {
				return nn.MSELoss(y, target)
			}, 1)
			if err != nil {
				return err
			}
			return second(p.Eval(ctx, tensor.Ones([]int{2, 2}), tensor.Ones([]int{2, 2})))
		}},
	} {
		ranks(t, 2, func(g *dist.Group) error {
			if g.Rank() == 1 {
				if err := c.f(ctx, g); !errors.Is(err, dist.ErrConnection) {
					return fmt.Errorf("%s beside a rank whose context has ended: %w", c.name, err)
				}
				return nil
			}
			left := new(atomic.Int64)
			left.Store(c.errs)
			if err := c.f(ending{ctx, left}, g); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if err := g.Barrier(ctx); !errors.Is(err, dist.ErrAborted) {
				return fmt.Errorf("%s: the group was not aborted: %w", c.name, err)
			}
			return nil
		})
	}
}

// TestContextEndsBetweenGroups tests that a context that ends between the collectives of Shard's two groups aborts both.
func TestContextEndsBetweenGroups(t *testing.T) {
	leak.Check(t)
	ranks(t, 4, func(g *dist.Group) error {
		mesh, err := dist.NewDeviceMesh(ctx, g, []int{2, 2}, "replicate", "shard")
		if err != nil {
			return err
		}
		defer mesh.Close()
		shard := func(ctx context.Context) error {
			return second(dist.Shard(ctx, mesh.Group("shard"), nn.NewLinear(2, 2), dist.Replicas(mesh.Group("replicate"))))
		}
		if g.Rank() != 0 {
			if err := shard(ctx); !errors.Is(err, dist.ErrConnection) {
				return fmt.Errorf("beside a rank whose context has ended: %w", err)
			}
			return nil
		}
		left := new(atomic.Int64)
		left.Store(4) // that of the second group's first collective is the fifth
		if err := shard(ending{ctx, left}); !errors.Is(err, context.Canceled) {
			return err
		}
		for _, name := range []string{"replicate", "shard"} {
			if err := mesh.Group(name).Barrier(ctx); !errors.Is(err, dist.ErrAborted) {
				return fmt.Errorf("the group %s was not aborted: %w", name, err)
			}
		}
		return nil
	})
}

// TestCallbackDoesNotReturn tests that a stage, a loss or a hook that panics or ends its goroutine aborts the group, so
// that no rank waits for this one.
func TestCallbackDoesNotReturn(t *testing.T) {
	leak.Check(t)
	pass := func() {}
	pipeline := func(eval bool, stage, loss func()) func(g *dist.Group) error {
		return func(g *dist.Group) error {
			p, err := dist.NewPipeline(g, function(func(x *tensor.Tensor) *tensor.Tensor {
				stage()
				return x.Mul(2)
			}), func(y, target *tensor.Tensor) *tensor.Tensor {
				loss()
				return nn.MSELoss(y, target)
			}, 2)
			if err != nil {
				return err
			}
			call := p.Step
			if eval {
				call = p.Eval
			}
			_, err = call(ctx, tensor.Ones([]int{4, 3}), tensor.Ones([]int{4, 3}))
			return err
		}
	}
	for what, end := range map[string]func(){"panic": func() { panic("mine") }, "Goexit": runtime.Goexit} {
		for name, c := range map[string]struct {
			rank int // the one that ends
			call func(ends func()) func(g *dist.Group) error
		}{
			"stage": {0, func(ends func()) func(g *dist.Group) error { return pipeline(false, ends, pass) }},
			"loss":  {1, func(ends func()) func(g *dist.Group) error { return pipeline(false, pass, ends) }},
			"Eval":  {0, func(ends func()) func(g *dist.Group) error { return pipeline(true, ends, pass) }},
			"hook": {0, func(ends func()) func(g *dist.Group) error {
				return func(g *dist.Group) error {
					opt, err := dist.NewZeroRedundancyOptimizer(g, nn.Parameters(nn.NewLinear(2, 2)), func(part []*tensor.Tensor) (*optim.Optimizer, error) {
						return optim.NewSGD(part, 0.1)
					})
					if err != nil {
						return err
					}
					opt.Local().RegisterStepPreHook(func(*optim.Optimizer) error {
						ends()
						return nil
					})
					return opt.Step()
				}
			}},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				leak.Check(t)
				other := make(chan struct{})
				ranks(t, 2, func(g *dist.Group) error {
					call := c.call(func() {
						if g.Rank() == c.rank {
							end()
						}
					})
					if err := g.Barrier(ctx); err != nil { // the ranks have connected
						return err
					}
					err := elsewhere.Call(func() error { return tensor.WithScope(func() error { return call(g) }) })
					if g.Rank() != c.rank {
						close(other)
						var peer *dist.PeerError
						if !errors.As(err, &peer) || !slices.Equal(peer.Ranks, []int{c.rank}) {
							return fmt.Errorf("want an error that names rank %d: %w", c.rank, err)
						}
						return nil
					}
					if err != elsewhere.ErrLeft {
						return err
					}
					select {
					case <-other:
						return nil
					case <-time.After(20 * time.Second):
						return errors.New("the other rank waits")
					}
				})
			})
		}
	}
}

// A relay stands between a store's host and a rank.
type relay struct {
	listener net.Listener
	delay    atomic.Int64  // of what the rank sends
	stopped  atomic.Bool   // nothing arrives
	end      chan struct{} // closed by close
	once     sync.Once
	all      sync.WaitGroup
}

// relayTo returns a relay to the store at addr, which may begin to listen later.
func relayTo(t *testing.T, addr string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, end: make(chan struct{})}
	r.all.Go(func() {
		for {
			rank, err := l.Accept()
			if err != nil {
				return
			}
			r.all.Go(func() { r.connect(rank, addr) })
		}
	})
	return r
}

// over reports whether the relay was closed, after a pause.
func (r *relay) over(pause time.Duration) bool {
	select {
	case <-r.end:
		return true
	case <-time.After(pause):
		return false
	}
}

func (r *relay) connect(rank net.Conn, addr string) {
	defer rank.Close()
	host, err := net.Dial("tcp", addr)
	for ; err != nil; host, err = net.Dial("tcp", addr) {
		if r.over(10 * time.Millisecond) {
			return
		}
	}
	defer host.Close()
	r.all.Go(func() {
		_, _ = io.Copy(rank, host)
		_ = rank.Close()
	})
	r.all.Go(func() {
		<-r.end
		_, _ = rank.Close(), host.Close()
	})
	data := make([]byte, 1<<16)
	for {
		n, err := rank.Read(data)
		for r.stopped.Load() {
			if r.over(10 * time.Millisecond) {
				return
			}
		}
		if err != nil || r.over(time.Duration(r.delay.Load())) {
			return
		}
		if _, err := host.Write(data[:n]); err != nil {
			return
		}
	}
}

// close ends all connections.
func (r *relay) close() {
	r.once.Do(func() {
		close(r.end)
		_ = r.listener.Close()
	})
	r.all.Wait()
}

// within returns an error if f takes longer than limit; it then closes the relay, after which f must return.
func (r *relay) within(limit time.Duration, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- tensor.WithScope(f) }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		r.close()
		return errors.Join(fmt.Errorf("a call did not return within %v", limit), <-done)
	}
}

// overRelay runs f as each of n ranks, of which rank 0 hosts the store and rank 1 reaches it over a relay. The relay is nil for
// the others.
func overRelay(t *testing.T, n int, f func(g *dist.Group, r *relay) error, opts ...dist.Option) {
	t.Helper()
	addr := "127.0.0.1:" + freePort(t)
	r := relayTo(t, addr)
	defer r.close()
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() {
			at, own := addr, (*relay)(nil)
			if rank == 1 {
				at, own = r.listener.Addr().String(), r
			}
			g, err := dist.Init(ctx, append([]dist.Option{dist.InitMethod("tcp://" + at), dist.Rank(rank), dist.WorldSize(n), dist.Timeout(time.Minute)}, opts...)...)
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
				return
			}
			err = tensor.WithScope(func() error { return errors.Join(g.Barrier(ctx), f(g, own)) })
			if err := errors.Join(err, g.Close()); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	all.Wait()
}

// TestEndWithoutTheStore tests that contexts, Abort and Close end while the store does not answer a look for failures, and a
// call of NewGroup with its timeout.
func TestEndWithoutTheStore(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long; it runs without -short")
	}
	leak.Check(t)
	canceled := func(receive func(ctx context.Context, g *dist.Group) error) func(g *dist.Group) error {
		return func(g *dist.Group) error {
			short, cancel := context.WithTimeout(ctx, 2500*time.Millisecond)
			defer cancel()
			if err := receive(short, g); !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("a context that ends: %w", err)
			}
			return nil
		}
	}
	fromAny := func(ctx context.Context, g *dist.Group) error { return g.Recv(ctx, vector(0), dist.AnySource, 0) }
	for name, f := range map[string]func(g *dist.Group) error{
		"any source": canceled(fromAny),
		"device": canceled(func(ctx context.Context, g *dist.Group) error {
			dist.LookOut(g)
			return g.Recv(ctx, vector(0), 0, 0)
		}),
		"Abort": func(g *dist.Group) error {
			aborted := make(chan error, 1)
			time.AfterFunc(2500*time.Millisecond, func() { aborted <- g.Abort() })
			if err := fromAny(ctx, g); !errors.Is(err, dist.ErrAborted) {
				return fmt.Errorf("a group that is aborted: %w", err)
			}
			return <-aborted
		},
		"NewGroup": func(g *dist.Group) error {
			if err := second(g.NewGroup(ctx, []int{0, 1}, dist.Timeout(time.Second))); !errors.Is(err, dist.ErrTimeout) {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			done := make(chan struct{})
			overRelay(t, 2, func(g *dist.Group, r *relay) error {
				if g.Rank() == 0 {
					<-done
					return nil
				}
				defer close(done)
				r.stopped.Store(true)
				return r.within(30*time.Second, func() error { return errors.Join(f(g), g.Close()) })
			})
		})
	}
}

// TestInitWithoutTheStore tests that Init ends with its context and timeout if the store does not answer.
func TestInitWithoutTheStore(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long; it runs without -short")
	}
	leak.Check(t)
	server, err := dist.NewTCPStore(ctx, "127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() }) // after the parallel tests
	for name, opts := range map[string][]dist.Option{"": nil, "flight recorder": {dist.FlightRecorder(t.TempDir())}, "token": {dist.Token("secret")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			r := relayTo(t, server.Addr())
			defer r.close()
			s, err := dist.NewTCPStore(ctx, r.listener.Addr().String(), false)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			r.stopped.Store(true)
			start := func(ctx context.Context, opts ...dist.Option) error {
				return r.within(30*time.Second, func() error {
					return second(dist.Init(ctx, append(opts, dist.WithStore(s), dist.Rank(0), dist.WorldSize(2))...))
				})
			}
			if err := start(ctx, append(opts, dist.Timeout(time.Second))...); !errors.Is(err, dist.ErrTimeout) {
				t.Errorf("a timeout: %v", err)
			}
			ends, end := context.WithCancel(ctx)
			time.AfterFunc(20*time.Millisecond, end)
			if err := start(ends, opts...); !errors.Is(err, context.Canceled) { // while the first call still waits
				t.Errorf("a context that ends: %v", err)
			}
		})
	}
}

// TestSlowStore tests that a rank for which the store answers slowly gives the verdict of the others, and does not name the
// store's host.
func TestSlowStore(t *testing.T) {
	leak.Check(t)
	const n = 6
	var others sync.WaitGroup
	others.Add(n - 1)
	overRelay(t, n, func(g *dist.Group, r *relay) error {
		if g.Rank() == n-1 {
			others.Wait()
			return nil
		}
		defer others.Done()
		if r != nil {
			r.delay.Store(int64(150 * time.Millisecond))
			defer r.delay.Store(0)
		}
		return blames(g.AllReduce(ctx, vector(1), dist.Sum), "AllReduce", nil, n-1)
	}, dist.Timeout(3*time.Second))
}

// TestReceiveAfterTheHostHasLeft tests that a receive from one rank in a group that looks out for failures goes on after the rank
// that hosts the store has left with its process.
func TestReceiveAfterTheHostHasLeft(t *testing.T) {
	leak.Check(t)
	overRelay(t, 3, func(g *dist.Group, r *relay) error {
		dist.LookOut(g)
		switch g.Rank() {
		case 1:
			r.close() // as if the store had ended
			x := vector(0)
			return errors.Join(g.Recv(ctx, x, 2, 0), want("x", x, 7))
		case 2:
			time.Sleep(2 * time.Second)
			return g.Send(ctx, vector(7), 1, 0)
		}
		return nil
	})
}
