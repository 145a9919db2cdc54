package profiler_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/profiler"
)

func stepTrace(t *testing.T) (*profiler.Trace, lines) {
	t.Helper()
	n := newNetwork(t)
	var at lines
	return record(t, func() (err error) {
		at, err = n.step()
		return err
	}, profiler.RecordShapes()), at
}

// A file whose name ends in .gz is compressed, as PyTorch's.
func TestCompressedChromeTrace(t *testing.T) {
	leak.Check(t)
	trace, _ := stepTrace(t)
	var want bytes.Buffer
	path := filepath.Join(t.TempDir(), "trace.json.gz")
	if err := errors.Join(trace.WriteChromeTrace(&want), trace.ExportChromeTrace(path)); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(z); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("the file has %d bytes, want %d, %v", len(got), want.Len(), err)
	}
}

// The trace is valid in the Trace Event Format, and has each event once.
func TestChromeTrace(t *testing.T) {
	leak.Check(t)
	trace, _ := stepTrace(t)
	path := filepath.Join(t.TempDir(), "trace.json")
	if err := trace.ExportChromeTrace(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		DisplayTimeUnit string
		TraceEvents     []struct {
			Ph, Cat, Name, Bp string
			Pid               *int
			Tid, ID           uint64
			Ts, Dur           *float64
			Args              map[string]any
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	next := 0
	arrows := map[uint64]int{}
	for _, e := range file.TraceEvents {
		if e.Pid == nil {
			t.Fatalf("%s has no process", e.Name)
		}
		switch e.Ph {
		case "M":
			if e.Args["name"] == "" {
				t.Errorf("%s has no name", e.Name)
			}
		case "X":
			if e.Ts == nil || e.Dur == nil || *e.Ts < 0 || *e.Dur < 0 {
				t.Fatalf("%s has no time", e.Name)
			}
			if strings.HasPrefix(e.Name, "ProfilerStep#") {
				continue
			}
			want := trace.Events[next]
			next++
			if e.Name != want.Name || e.Tid != want.Thread || e.Args["Line"] != want.Line || int64(*e.Dur*1e3+0.5) != int64(want.Time) {
				t.Errorf("event %d is %s %v on %d, want %s", next-1, e.Name, *e.Dur, e.Tid, want.Name)
			}
			if _, ok := e.Args["Input Dims"].([]any); ok != (want.Shapes != "") {
				t.Errorf("%s has the shapes %v, want %s", e.Name, e.Args["Input Dims"], want.Shapes)
			}
		case "s":
			arrows[e.ID]++
		case "f":
			if arrows[e.ID] != 1 || e.Bp != "e" {
				t.Errorf("an arrow ends that has not begun")
			}
			arrows[e.ID]++
		default:
			t.Errorf("the phase %q", e.Ph)
		}
	}
	if next != len(trace.Events) {
		t.Errorf("%d events, want %d", next, len(trace.Events))
	}
	if len(arrows) != 6 {
		t.Errorf("%d arrows, want one for each node with a forward operator, 6", len(arrows))
	}
	if err := trace.ExportChromeTrace(t.TempDir()); err == nil || !strings.Contains(err.Error(), "a directory") {
		t.Errorf("to a directory: %v", err)
	}
	if err := trace.ExportChromeTrace(""); err == nil || !strings.Contains(err.Error(), "the path is empty") {
		t.Errorf("an empty path: %v", err)
	}
	if err := trace.ExportChromeTrace(filepath.Join(t.TempDir(), "no", "folder")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a trace in a folder that does not exist")
	}
	if err := trace.WriteChromeTrace(broken{}); err == nil {
		t.Error("no error of the writer")
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, os.ErrClosed }

// go tool pprof's library reads the profile, which has the lines of the program and all time of operators.
func TestProfile(t *testing.T) {
	leak.Check(t)
	trace, want := stepTrace(t)
	var b bytes.Buffer
	if err := trace.WriteProfile(&b); err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	if p.DefaultSampleType != "cpu_time" {
		t.Errorf("the default is %s", p.DefaultSampleType)
	}
	var calls, memory, time int64
	for _, e := range trace.Events {
		if !e.Range {
			calls++
			memory += e.SelfCPUMemory + e.SelfDeviceMemory
			time += int64(e.SelfTime)
		}
	}
	found := map[string]bool{}
	for _, s := range p.Sample {
		calls -= s.Value[0]
		memory -= s.Value[1]
		time -= s.Value[2]
		l := s.Location[0].Line[0]
		at := filepath.Base(l.Function.Filename)
		for _, name := range s.Label["native"] {
			found[name+" "+s.Label["pass"][0]+" "+strings.Join(s.Label["operator"], "")+" "+strings.Join(s.Label["range"], "")] = at == "profiler_test.go"
		}
		if s.Label["native"][0] == "ReluBackward0" && want.relu != fmt.Sprintf("%s:%d", at, l.Line) {
			t.Errorf("ReluBackward0 is at %s:%d, want %s", at, l.Line, want.relu)
		}
	}
	if calls != 0 || memory != 0 || time != 0 {
		t.Errorf("the samples differ from the events by %d calls, %d bytes, %d ns", calls, memory, time)
	}
	for _, name := range []string{"aten::addmm forward Linear forward", "AddmmBackward0 backward Linear ", "aten::mm backward Linear "} {
		if !found[name] {
			t.Errorf("there is no sample %q at a line of this test", name)
		}
	}
	if err := trace.WriteProfile(broken{}); err == nil {
		t.Error("no error of the writer")
	}
}

// TestProfileOfOtherEvents tests that events of a Trace that was read from JSON are at no line of this process.
func TestProfileOfOtherEvents(t *testing.T) {
	leak.Check(t)
	recorded, _ := stepTrace(t)
	data, err := json.Marshal(recorded)
	if err != nil {
		t.Fatal(err)
	}
	read := new(profiler.Trace)
	if err := json.Unmarshal(data, read); err != nil {
		t.Fatal(err)
	}
	p, err := read.Profile()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range p.Sample {
		for _, l := range s.Location {
			for _, line := range l.Line {
				if line.Function.Filename != "" {
					t.Errorf("%v is at %s:%d", s.Label, line.Function.Filename, line.Line)
				}
			}
		}
	}
}

// TestInvalidExports tests that nil writers are errors, and that indices of events that are not there, as after the
// program has removed some, count as none.
func TestInvalidExports(t *testing.T) {
	leak.Check(t)
	for _, at := range []int{5, 1, -1, -7, math.MaxInt, math.MinInt} {
		trace := &profiler.Trace{Events: []profiler.Event{{Name: "a", Parent: at, Forward: at}}}
		var b bytes.Buffer
		if err := trace.WriteProfile(&b); err != nil {
			t.Errorf("the parent %d: %v", at, err)
		}
		b.Reset()
		if err := trace.WriteChromeTrace(&b); err != nil || strings.Contains(b.String(), "fwdbwd") || !json.Valid(b.Bytes()) {
			t.Errorf("the forward operator %d: %v, %s", at, err, &b)
		}
		for name, f := range map[string]func(io.Writer) error{"WriteProfile": trace.WriteProfile, "WriteChromeTrace": trace.WriteChromeTrace} {
			if err := f(nil); err == nil || !strings.Contains(err.Error(), name+": a writer is needed, got nil") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
