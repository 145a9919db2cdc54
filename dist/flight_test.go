package dist_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/flight"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// explains fails the test unless the explanation of a run contains all texts.
func explains(t *testing.T, dir string, want ...string) *flight.Run {
	t.Helper()
	run, err := flight.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(run.Explain(), "\n")
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("the explanation does not contain %q:\n%s", w, text)
		}
	}
	return run
}

// TestFlightLate tests the record of a rank that does not take part.
func TestFlightLate(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	done, others := make(chan struct{}), make(chan struct{}, 2)
	go func() {
		for range 2 {
			<-others
		}
		close(done)
	}()
	ranks(t, 3, func(g *dist.Group) error {
		// An argument that is refused here is no collective for the others.
		if err := g.AllReduce(ctx, tensor.Ones([]int{4, 2}).T(), dist.Sum); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("a transposed tensor: %v", err)
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if g.Rank() == 1 {
			<-done
			return nil
		}
		defer func() { others <- struct{}{} }()
		return blames(g.AllReduce(ctx, tensor.Ones([]int{4, 2}), dist.Max), "AllReduce", nil, 1)
	}, dist.Timeout(time.Second), dist.FlightRecorder(dir))
	explains(t, dir, "rank 1 is late in collective 2, AllReduce Max, float32 [4 2], line ", "rank 1 ended with Close", "flight_test.go", "timed out")
}

// TestFlightDifferent tests the record of ranks that call different collectives, in a group made from another.
func TestFlightDifferent(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	t.Setenv("LINSTOCK_FLIGHT", dir)
	t.Setenv("TORCH_FR_BUFFER_SIZE", "5")
	ranks(t, 3, func(g *dist.Group) error {
		sub, err := g.NewGroup(ctx, []int{2, 0})
		if err != nil || sub == nil {
			return err
		}
		op := dist.Sum
		if sub.Rank() == 1 {
			op = dist.Min
		}
		x := tensor.Ones([]int{3}, tensor.Int64)
		if err := sub.AllReduce(ctx, x, op); err != nil {
			return err
		}
		if sub.Rank() == 0 {
			err = sub.Send(ctx, x, 1, 7)
		} else {
			err = sub.Recv(ctx, x, 0, 7)
		}
		return errors.Join(err, sub.Close())
	})
	run := explains(t, dir, "Group 0.1: the ranks called different collectives as number 1", "rank 0 called AllReduce Sum, int64 [3] at ", "rank 1 called AllReduce Min")
	calls := run.Ranks[2].Records
	if len(calls) != 4 || calls[1].Call != "Send to 1, tag 7, int64 [3]" || calls[1].Collective != 0 || calls[1].Ended == 0 {
		t.Errorf("got %+v", calls)
	}
}

// TestFlightBackward tests the record of the passes of a DDP, also on a rank that has run out of inputs.
func TestFlightBackward(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	job{n: 2, role: "join", env: []string{"LINSTOCK_FLIGHT=" + dir}}.run(t)
	for _, r := range explains(t, dir, "Group 0: no rank is late").Ranks {
		passes := 0
		for _, c := range r.Records {
			if c.Call == "Backward of a DDP" {
				passes++
			}
			if c.Ended == 0 && c.Call != flight.Close || c.Error != "" || !strings.Contains(c.Line, "_test.go") {
				t.Errorf("rank %d: %+v", r.Rank, c)
			}
		}
		if passes != 2 {
			t.Errorf("rank %d has recorded %d passes of 2", r.Rank, passes)
		}
	}
}

// TestFlightKilled tests that the record of a process that was killed is there.
func TestFlightKilled(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	job{n: 4, role: "killed", dead: []int{2}, env: []string{"LINSTOCK_FLIGHT=" + dir}}.run(t)
	explains(t, dir, "rank 2 is late in collective 4, AllReduce Sum, float32 [1000], line ", "rank 2's last call was collective 3, AllReduce Sum", "which ended at")
}

// TestFlightRefused tests settings that cannot be used.
func TestFlightRefused(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, size, named string }{
		{file, "", ""}, {dir, "0", ""}, {dir, "x", ""}, {dir, "", "../x"}, {dir, "", "/x"}, {dir, "", ".."}, {dir, "", "a/b"},
	} {
		t.Setenv("TORCH_FR_BUFFER_SIZE", c.size)
		store, err := dist.NewHashStore()
		if err != nil {
			t.Fatal(err)
		}
		if c.named != "" {
			if err := store.Set("default_pg/linstock/flight", []byte(c.named)); err != nil {
				t.Fatal(err)
			}
		}
		g, err := dist.Init(ctx, dist.WithStore(store), dist.Rank(0), dist.WorldSize(1), dist.FlightRecorder(c.dir))
		if err == nil {
			t.Errorf("%+v was accepted", c)
			_ = g.Close()
		}
		_ = store.Close()
	}
}
