package flight

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
)

// recorded makes the files of n ranks; f makes the calls of one by call, which returns the function that ends it.
func recorded(t *testing.T, n int, f func(rank int, call func(collective int64, what, line string) func(error))) *Run {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a[1]", "20260101")
	for rank := range n {
		r, err := Create(dir, Header{Rank: rank, Size: n, Records: 4})
		if err != nil {
			t.Fatal(err)
		}
		f(rank, func(collective int64, what, line string) func(error) {
			c := r.Begin(Record{Group: "0", Rank: rank, Size: n, Collective: collective, Call: what, Line: line})
			return func(err error) { r.End(c, err) }
		})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	run, err := Read(filepath.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Ranks) != n {
		t.Fatalf("%d files of %d", len(run.Ranks), n)
	}
	return run
}

func explains(t *testing.T, run *Run, want ...string) {
	t.Helper()
	text := strings.Join(run.Explain(), "\n")
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("the explanation does not contain %q:\n%s", w, text)
		}
	}
}

func TestLate(t *testing.T) {
	leak.Check(t)
	run := recorded(t, 3, func(rank int, call func(int64, string, string) func(error)) {
		for i := range int64(9) {
			call(i+1, "Barrier", "main.go:1")(nil)
		}
		if rank != 1 {
			call(10, "AllReduce Sum, float32 [4]", "main.go:2")(errors.New("linstock: timed out"))
		}
	})
	if n := len(run.Ranks[0].Records); n != 4 {
		t.Errorf("a ring of 4 has %d records", n)
	}
	explains(t, run, "rank 1 is late in collective 10, AllReduce Sum, float32 [4], line main.go:2",
		"rank 1's last call was collective 9, Barrier, line main.go:1, which ended", "rank 2 began it", "failed at", "timed out")
}

func TestInFlight(t *testing.T) {
	leak.Check(t)
	run := recorded(t, 2, func(rank int, call func(int64, string, string) func(error)) {
		call(1, "AllReduce Sum, float32 [4]", "main.go:1") // not waited for
		call(2, "Barrier", "main.go:2")(nil)
		call(3, "Barrier", "main.go:3")
		if rank == 1 {
			call(0, "Recv from 0, tag 7, float32 [4]", "main.go:4")
		}
	})
	explains(t, run, "no rank has completed, but all have begun collective 3, Barrier, line main.go:3", "rank 1 was the last to begin",
		"rank 1 began Recv from 0, tag 7, float32 [4]", "which has not ended")
}

func TestMismatch(t *testing.T) {
	leak.Check(t)
	run := recorded(t, 4, func(rank int, call func(int64, string, string) func(error)) {
		call(1, "Barrier", "main.go:1")(nil)
		if rank == 2 {
			call(2, "Barrier", "main.go:5")
			return
		}
		call(2, "AllReduce Sum, float32 [4]", "main.go:2")
	})
	explains(t, run, "the ranks called different collectives as number 2", "ranks 0, 1, 3 called AllReduce Sum, float32 [4] at main.go:2",
		"rank 2 called Barrier at main.go:5")
}

func TestAllWell(t *testing.T) {
	leak.Check(t)
	run := recorded(t, 2, func(_ int, call func(int64, string, string) func(error)) {
		call(1, "Barrier", "main.go:1")(nil)
		call(0, Close, "main.go:2")(nil)
	})
	explains(t, run, "no rank is late; 1 collectives")
	if err := os.Remove(filepath.Join(run.Dir, "rank-0.jsonl")); err != nil {
		t.Fatal(err)
	}
	run, err := Read(run.Dir)
	if err != nil {
		t.Fatal(err)
	}
	explains(t, run, "No file from rank 0")
}

func TestLongTexts(t *testing.T) {
	leak.Check(t)
	long := strings.Repeat("\x01ä", 1000)
	run := recorded(t, 1, func(_ int, call func(int64, string, string) func(error)) {
		call(1, long, long+"/main.go:12")(errors.New(long))
	})
	c := run.Ranks[0].Records
	if len(c) != 1 || !strings.HasSuffix(c[0].Line, "main.go:12") || c[0].Ended == 0 {
		t.Errorf("got %+v", c)
	}
}

// TestDamaged tests files of other content, and records that cannot be.
func TestDamaged(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	if _, err := Read(dir); err == nil {
		t.Error("a run without files")
	}
	path := filepath.Join(dir, "rank-0.jsonl")
	pad := func(s string) string { return s + strings.Repeat(" ", slot-1-len(s)) + "\n" }
	for _, text := range []string{"", strings.Repeat("x", slot), pad("{}"), pad(`{"version":2}`), pad(`{"version":1,"size":4000000000}`)} {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	good := pad(`{"n":2,"group":"0","rank":0,"size":1,"collective":1,"call":"Barrier","begun":5,"line":"a.go:1"}`)
	for _, text := range []string{"", pad("{"), pad(`{"n":1,"group":"0","rank":7,"size":4000000000}`), strings.Repeat("\x00", slot)} {
		if err := os.WriteFile(path, []byte(pad(`{"version":1,"rank":0,"size":1}`)+text+good+"torn"), 0o666); err != nil {
			t.Fatal(err)
		}
		run, err := Read(dir)
		if err != nil || len(run.Ranks[0].Records) != 1 {
			t.Fatalf("%.20q: %v, %+v", text, err, run)
		}
		explains(t, run, "collective 1, Barrier, line a.go:1")
	}
}
