package profiler

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	"github.com/google/renameio/v2"

	"github.com/linstock-ml/linstock/internal/pprofs"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/regular"
	"github.com/linstock-ml/linstock/internal/sites"
)

// chromeEvent is an event of the Trace Event Format.
type chromeEvent struct {
	Phase    string         `json:"ph"`
	Category string         `json:"cat,omitempty"`
	Name     string         `json:"name"`
	Process  int            `json:"pid"`
	Thread   uint64         `json:"tid"`
	Time     json.Number    `json:"ts,omitempty"`
	Duration json.Number    `json:"dur,omitempty"`
	ID       int            `json:"id,omitempty"`
	Binding  string         `json:"bp,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
}

// us writes a time in microseconds with the nanoseconds that float64 would round.
func us(d time.Duration) json.Number {
	return json.Number(fmt.Sprintf("%d.%03d", d/1000, d%1000))
}

// WriteChromeTrace writes the events as JSON for chrome://tracing and ui.perfetto.dev: a row for each OS thread and one for
// the steps, with arrows from forward operators to the nodes of their gradients. Times are since Trace.Began. A
// Forward outside the events counts as -1.
func (t *Trace) WriteChromeTrace(w io.Writer) error {
	if t == nil {
		return refuse.Nil("WriteChromeTrace", "a trace")
	}
	if w == nil {
		return refuse.Nil("WriteChromeTrace", "a writer")
	}
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "{\"displayTimeUnit\": \"ms\", \"baseTimeNanoseconds\": %d, \"traceEvents\": [", t.Began.UnixNano())
	comma := "\n"
	var failed error
	put := func(e chromeEvent) {
		e.Process = os.Getpid()
		data, err := json.Marshal(e)
		if err != nil && failed == nil {
			failed = err
		}
		b.WriteString(comma)
		b.Write(data)
		comma = ",\n"
	}
	put(chromeEvent{Phase: "M", Name: "process_name", Args: map[string]any{"name": "linstock"}})
	threads := map[uint64]bool{}
	for i := range t.Events {
		threads[t.Events[i].Thread] = true
	}
	for _, id := range slices.Sorted(maps.Keys(threads)) {
		put(chromeEvent{Phase: "M", Name: "thread_name", Thread: id, Args: map[string]any{"name": fmt.Sprintf("thread %d", id)}})
	}
	if len(t.steps) > 0 {
		put(chromeEvent{Phase: "M", Name: "thread_name", Args: map[string]any{"name": "steps"}})
	}
	for _, s := range t.steps {
		// libtorch counts threads from 1.
		put(chromeEvent{Phase: "X", Category: "user_annotation", Name: fmt.Sprintf("ProfilerStep#%d", s.number),
			Time: us(max(0, s.began.Sub(t.Began))), Duration: us(s.end.Sub(s.began))})
	}
	for i := range t.Events {
		t.putChrome(put, i)
	}
	fmt.Fprint(b, "\n]}\n")
	if failed != nil {
		return failed
	}
	return b.Flush()
}

func (t *Trace) putChrome(put func(chromeEvent), i int) {
	e := &t.Events[i]
	began := us(max(0, e.Began.Sub(t.Began)))
	args := map[string]any{"Line": e.Line}
	if e.Operator != "" {
		args["Operator"] = e.Operator
	}
	if e.Sequence >= 0 {
		args["Sequence number"] = e.Sequence
	}
	if e.Shapes != "" {
		args["Input Dims"] = json.RawMessage(e.Shapes)
	}
	if e.CPUMemory != 0 {
		args["CPU memory"] = e.CPUMemory
	}
	if e.DeviceMemory != 0 {
		args["Device memory"] = e.DeviceMemory
	}
	category := "cpu_op"
	if e.Range {
		category = "user_annotation"
	}
	put(chromeEvent{Phase: "X", Category: category, Name: e.Name, Thread: e.Thread, Time: began, Duration: us(e.Time), Args: args})
	if e.Forward < 0 || e.Forward >= len(t.Events) {
		return
	}
	f := &t.Events[e.Forward]
	arrow := chromeEvent{Category: "fwdbwd", Name: "fwdbwd", ID: i + 1}
	arrow.Phase, arrow.Thread, arrow.Time = "s", f.Thread, us(max(0, f.Began.Sub(t.Began)))
	put(arrow)
	arrow.Phase, arrow.Thread, arrow.Time, arrow.Binding = "f", e.Thread, began, "e"
	put(arrow)
}

// ExportChromeTrace writes WriteChromeTrace's text to a file, which it replaces as a whole. The text is compressed if path
// ends in .gz. PyTorch: torch.profiler.profile.export_chrome_trace.
func (t *Trace) ExportChromeTrace(path string) error {
	if t == nil {
		return refuse.Nil("ExportChromeTrace", "a trace")
	}
	write := t.WriteChromeTrace
	if strings.HasSuffix(path, ".gz") {
		write = func(w io.Writer) error {
			z := gzip.NewWriter(w)
			return cmp.Or(t.WriteChromeTrace(z), z.Close())
		}
	}
	path, err := regular.Destination(path)
	if err != nil {
		return fmt.Errorf("linstock: ExportChromeTrace: %w", err)
	}
	f, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o666), renameio.WithExistingPermissions())
	if err != nil {
		return err
	}
	defer func() { _ = f.Cleanup() }() // does nothing after CloseAtomicallyReplace
	if err := write(f); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}

// Profile returns the time by line of the program, for go tool pprof. The sample types are cpu_time (the default), the time
// in operators and in nodes of backward passes, calls, and alloc_bytes, the bytes that they requested of all devices less
// those that they freed. Ranges are no samples: their own time is the program's. Samples have labels, which -tagfocus and
// -tagleaf of pprof take: operator, the function of Linstock that the line called, as in vram.Profile; native, libtorch's
// name; pass, "forward" or "backward"; and range, the name of the innermost RecordFunction. A Parent outside the events
// counts as -1.
func (t *Trace) Profile() (*profile.Profile, error) {
	if t == nil {
		return nil, refuse.Nil("Profile", "a trace")
	}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{
			{Type: "calls", Unit: "count"}, {Type: "alloc_bytes", Unit: "bytes"}, {Type: "cpu_time", Unit: "nanoseconds"},
		},
		DefaultSampleType: "cpu_time",
		PeriodType:        &profile.ValueType{Type: "cpu_time", Unit: "nanoseconds"},
		Period:            1,
		TimeNanos:         t.Began.UnixNano(),
		DurationNanos:     int64(t.Ended.Sub(t.Began)),
		Comments:          []string{"time of operators, by Linstock"},
	}
	type key struct {
		site       uint32
		name, span string
		backward   bool
	}
	rows := map[key]int{}
	var keys []key
	var values [][3]int64
	ranges := make([]string, len(t.Events)) // the innermost range around or at each event
	for i := range t.Events {
		e := &t.Events[i]
		if e.Parent >= 0 && e.Parent < len(t.Events) {
			ranges[i] = ranges[e.Parent]
		}
		if e.Range {
			ranges[i] = e.Name
			continue
		}
		k := key{e.site, e.Name, ranges[i], e.Backward}
		row, ok := rows[k]
		if !ok {
			row = len(keys)
			rows[k], keys, values = row, append(keys, k), append(values, [3]int64{})
		}
		v := &values[row]
		v[0]++
		v[1] += e.SelfCPUMemory + e.SelfDeviceMemory
		v[2] += int64(e.SelfTime)
	}
	b := pprofs.New(p)
	for row, k := range keys {
		where := sites.Of(k.site)
		labels := map[string][]string{"native": {k.name}, "pass": {"forward"}}
		if k.backward {
			labels["pass"] = []string{"backward"}
		}
		if where.Operator != "" {
			labels["operator"] = []string{where.Operator}
		}
		if k.span != "" {
			labels["range"] = []string{k.span}
		}
		b.Add(where.Frames, labels, values[row][:]...)
	}
	return p, p.CheckValid()
}

// WriteProfile writes the Profile, compressed, for go tool pprof.
func (t *Trace) WriteProfile(w io.Writer) error {
	if w == nil {
		return refuse.Nil("WriteProfile", "a writer")
	}
	p, err := t.Profile()
	if err != nil {
		return err
	}
	return p.Write(w)
}
