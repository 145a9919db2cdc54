package vram

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
)

// Yields are what Linstock's own ways to free memory and then each registered reclaimer have given back.
func Yields() []Yield {
	list := everyReclaimer()
	out := make([]Yield, 0, len(list))
	for _, r := range list {
		out = append(out, Yield{Name: r.Name, Calls: r.calls.Load(), Bytes: r.bytes.Load(), Time: time.Duration(r.ns.Load())})
	}
	return out
}

func everyReclaimer() []*registered { return slices.Concat(own, registrations()) }

// Metric is a figure that [ReadMetrics] knows, named as in runtime/metrics: a path and a unit.
type Metric struct {
	Name        string
	Description string
	Cumulative  bool // only grows
}

// MetricSample is one figure, to be filled in by [ReadMetrics].
type MetricSample struct {
	Name  string
	Value float64 // NaN: there is no such metric
}

type metric struct {
	Metric
	read func(*readings) float64
}

// readings are taken once for all metrics of a call.
type readings struct {
	counts Counts
	memory map[int32]cshim.Memory
}

var processMetrics = []metric{
	{Metric{"/policy/questions:calls", "Questions put to the policy.", true}, func(r *readings) float64 { return float64(r.counts.Asked) }},
	{Metric{"/sweeps/light:sweeps", "Sweeps that freed what was known to be garbage.", true}, func(r *readings) float64 { return float64(r.counts.Light) }},
	{Metric{"/sweeps/full:sweeps", "Sweeps that ran the Go collector.", true}, func(r *readings) float64 { return float64(r.counts.Full) }},
	{Metric{"/sweeps/deep:sweeps", "Sweeps that asked every reclaimer.", true}, func(r *readings) float64 { return float64(r.counts.Deep) }},
	{Metric{"/sweeps/freed:bytes", "Bytes that sweeps have freed, on all devices.", true}, func(r *readings) float64 { return float64(r.counts.Freed) }},
	{Metric{"/sweeps/time:seconds", "Time in sweeps.", true}, func(r *readings) float64 { return r.counts.Sweeping.Seconds() }},
	{Metric{"/sweeps/collector:seconds", "Of it, in Go's collector.", true}, func(r *readings) float64 { return r.counts.Collecting.Seconds() }},
	{Metric{"/sweeps/share:ratio", "Share of the time since libtorch was loaded that sweeps took, compelled ones too.", false}, func(r *readings) float64 { return sweepShare(r.counts) }},
	{Metric{"/waits/rounds:rounds", "Rounds of the pacer, each for all allocations that wait.", true}, func(r *readings) float64 { return float64(r.counts.Rounds) }},
	{Metric{"/waits/count:waits", "Allocations that waited for memory, and operators before they began.", true}, func(r *readings) float64 { return float64(r.counts.Waits) }},
	{Metric{"/waits/time:seconds", "All their waits together.", true}, func(r *readings) float64 { return r.counts.WaitTime.Seconds() }},
	{Metric{"/waits/timeouts:waits", "Waits that ran out of time.", true}, func(r *readings) float64 { return float64(r.counts.Timeouts) }},
	{Metric{"/waits/retries:tries", "Tries after a wait.", true}, func(r *readings) float64 { return float64(r.counts.Retries) }},
	{Metric{"/ooms:errors", "Allocations that failed in the end.", true}, func(r *readings) float64 { return float64(r.counts.OOMs) }},
}

var deviceMetrics = []struct {
	name, description string
	cumulative        bool
	read              func(m *cshim.Memory) int64
}{
	{"allocated:bytes", "Bytes live.", false, func(m *cshim.Memory) int64 { return m.Allocated }},
	{"peak:bytes", "The most bytes live since the start or the last ResetPeak.", false, func(m *cshim.Memory) int64 { return m.Peak }},
	{"requested:bytes", "Bytes live as they were asked for.", false, func(m *cshim.Memory) int64 { return m.Requested }},
	{"reserved:bytes", "Bytes live and kept by the allocator.", false, func(m *cshim.Memory) int64 { return m.Reserved }},
	{"cached:bytes", "Bytes of free blocks that the allocator keeps.", false, func(m *cshim.Memory) int64 { return m.Cached }},
	{"limit:bytes", "The hard limit; 0 is none.", false, func(m *cshim.Memory) int64 { return m.Limit }},
	{"allocations:blocks", "Blocks given out.", true, func(m *cshim.Memory) int64 { return m.Allocations }},
	{"frees:blocks", "Blocks taken back.", true, func(m *cshim.Memory) int64 { return m.Frees }},
}

// slug makes a reclaimer's name a part of a path.
func slug(name string) string { return strings.ReplaceAll(name, " ", "-") }

func allMetrics() []metric {
	list := slices.Clone(processMetrics)
	for _, r := range everyReclaimer() {
		at := "/reclaimers/" + slug(r.Name)
		list = append(list,
			metric{Metric{at + "/calls:calls", "How often it was asked.", true}, func(*readings) float64 { return float64(r.calls.Load()) }},
			metric{Metric{at + "/freed:bytes", "What it has given back, on all devices.", true}, func(*readings) float64 { return float64(r.bytes.Load()) }},
			metric{Metric{at + "/time:seconds", "How long it took.", true}, func(*readings) float64 { return time.Duration(r.ns.Load()).Seconds() }})
	}
	for _, a := range known() {
		for _, d := range deviceMetrics {
			list = append(list, metric{Metric{"/devices/" + string(nameOf(a.word)) + "/" + d.name, d.description, d.cumulative},
				func(r *readings) float64 {
					m := r.memory[a.word]
					return float64(d.read(&m))
				}})
		}
	}
	return list
}

// Metrics are the figures that [ReadMetrics] knows now, by name: those of the process, of each registered reclaimer
// (/reclaimers/NAME/…) and of each device in use (/devices/cuda:0/…).
func Metrics() []Metric {
	var out []Metric
	for _, m := range allMetrics() {
		out = append(out, m.Metric)
	}
	slices.SortFunc(out, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// ReadMetrics fills in the values of the metrics that are named in samples, like metrics.Read of runtime/metrics.
// Before libtorch is loaded all are 0.
func ReadMetrics(samples []MetricSample) {
	r := &readings{counts: ReadCounts(), memory: map[int32]cshim.Memory{}}
	if cshim.Path() != "" {
		for _, a := range known() {
			if m, err := cshim.MemoryStats(a.word); err == nil {
				r.memory[a.word] = m
			}
		}
	}
	// Reclaimers of one name count as one.
	values := map[string]float64{}
	for _, m := range allMetrics() {
		values[m.Name] += m.read(r)
	}
	for i := range samples {
		v, ok := values[samples[i].Name]
		if !ok {
			v = math.NaN()
		}
		samples[i].Value = v
	}
}

// started is when libtorch was loaded.
var started atomic.Int64

// sweepShare is what sweeps took of the time since libtorch was loaded.
func sweepShare(c Counts) float64 {
	if since := started.Load(); since != 0 {
		return float64(c.Sweeping) / float64(max(1, time.Now().UnixNano()-since))
	}
	return 0
}

func round(d time.Duration) time.Duration {
	switch {
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	case d > time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d
}
