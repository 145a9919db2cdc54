package vram

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
)

// Yields returns what Linstock's own reclaimers and then each registered [Reclaimer] have freed.
func Yields() []Yield {
	list := slices.Concat(own, registrations())
	out := make([]Yield, 0, len(list))
	for _, r := range list {
		out = append(out, Yield{Name: r.Name, Calls: r.calls.Load(), Bytes: r.bytes.Load(), Time: time.Duration(r.ns.Load())})
	}
	return out
}

// Metric describes a metric of [ReadMetrics]. It is named as in runtime/metrics, by a path and a unit.
type Metric struct {
	Name        string
	Description string
	Cumulative  bool // whether it only grows
}

// MetricSample is the value of one metric. [ReadMetrics] sets it.
type MetricSample struct {
	Name  string
	Value float64 // NaN: no metric has the name
}

type metric struct {
	Metric
	read func(*readings) float64
}

// readings are read once for all metrics of a call.
type readings struct {
	counts Counts
	memory map[int32]cshim.Memory
}

var processMetrics = []metric{
	{Metric{"/policy/questions:calls", "Questions to the policy.", true}, func(r *readings) float64 { return float64(r.counts.Asked) }},
	{Metric{"/sweeps/light:sweeps", "Sweeps without the Go collector.", true}, func(r *readings) float64 { return float64(r.counts.Light) }},
	{Metric{"/sweeps/full:sweeps", "Sweeps that ran the Go collector.", true}, func(r *readings) float64 { return float64(r.counts.Full) }},
	{Metric{"/sweeps/deep:sweeps", "Sweeps that may call reclaimers.", true}, func(r *readings) float64 { return float64(r.counts.Deep) }},
	{Metric{"/sweeps/freed:bytes", "Bytes that sweeps freed, on all devices.", true}, func(r *readings) float64 { return float64(r.counts.Freed) }},
	{Metric{"/sweeps/time:seconds", "Time in sweeps.", true}, func(r *readings) float64 { return r.counts.Sweeping.Seconds() }},
	{Metric{"/sweeps/collector:seconds", "Time in the Go collector, in sweeps.", true}, func(r *readings) float64 { return r.counts.Collecting.Seconds() }},
	{Metric{"/sweeps/share:ratio", "Share of the time since libtorch was loaded that sweeps took, those at a limit included.", false}, func(r *readings) float64 { return sweepShare(r.counts) }},
	{Metric{"/waits/rounds:rounds", "Rounds of the pacer; each serves all allocations that wait.", true}, func(r *readings) float64 { return float64(r.counts.Rounds) }},
	{Metric{"/waits/count:waits", "Waits for memory of allocations, and of operators before they began.", true}, func(r *readings) float64 { return float64(r.counts.Waits) }},
	{Metric{"/waits/time:seconds", "Sum of the waits.", true}, func(r *readings) float64 { return r.counts.WaitTime.Seconds() }},
	{Metric{"/waits/timeouts:waits", "Waits that ended because they took too long.", true}, func(r *readings) float64 { return float64(r.counts.Timeouts) }},
	{Metric{"/waits/retries:tries", "Attempts to allocate after a wait.", true}, func(r *readings) float64 { return float64(r.counts.Retries) }},
	{Metric{"/ooms:errors", "Allocations that failed.", true}, func(r *readings) float64 { return float64(r.counts.OOMs) }},
}

var deviceMetrics = []struct {
	name, description string
	cumulative        bool
	read              func(m *cshim.Memory) int64
}{
	{"allocated:bytes", "Bytes live.", false, func(m *cshim.Memory) int64 { return m.Allocated }},
	{"peak:bytes", "Maximum of the bytes live since the start or the last ResetPeak.", false, func(m *cshim.Memory) int64 { return m.Peak }},
	{"requested:bytes", "Bytes live, or freed but still used by a stream, as requested.", false, func(m *cshim.Memory) int64 { return m.Requested }},
	{"reserved:bytes", "Bytes that the allocator holds.", false, func(m *cshim.Memory) int64 { return m.Reserved }},
	{"cached:bytes", "Bytes of free blocks that the allocator keeps.", false, func(m *cshim.Memory) int64 { return m.Cached }},
	{"limit:bytes", "Hard limit; 0: none.", false, func(m *cshim.Memory) int64 { return m.Limit }},
	{"allocations:blocks", "Blocks allocated.", true, func(m *cshim.Memory) int64 { return m.Allocations }},
	{"frees:blocks", "Blocks freed.", true, func(m *cshim.Memory) int64 { return m.Frees }},
}

// slug returns the path element for the name of a reclaimer.
func slug(name string) string { return strings.NewReplacer(" ", "-", "/", "-", ":", "-").Replace(name) }

func allMetrics() []metric {
	list := slices.Clone(processMetrics)
	tallies.Lock()
	named := maps.Clone(tallies.named)
	tallies.Unlock()
	for name, t := range named {
		at := "/reclaimers/" + name
		list = append(list,
			metric{Metric{at + "/calls:calls", "Calls of the reclaimers.", true}, func(*readings) float64 { return float64(t.calls.Load()) }},
			metric{Metric{at + "/freed:bytes", "Bytes that the reclaimers freed, on all devices.", true}, func(*readings) float64 { return float64(t.bytes.Load()) }},
			metric{Metric{at + "/time:seconds", "Time in the reclaimers.", true}, func(*readings) float64 { return time.Duration(t.ns.Load()).Seconds() }})
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

// Metrics returns the metrics that [ReadMetrics] supports now, sorted by name: those of the process, of each device in
// use (/devices/cuda:0/…), and of each name of reclaimers since the start (/reclaimers/NAME/…, with - for spaces,
// slashes and colons). Reclaimers with the same name count together, also after they have been removed.
func Metrics() []Metric {
	var out []Metric
	for _, m := range allMetrics() {
		out = append(out, m.Metric)
	}
	slices.SortFunc(out, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// ReadMetrics sets the Value of each sample to that of the metric with its Name, like metrics.Read of runtime/metrics.
// Metrics are 0 before libtorch is loaded.
func ReadMetrics(samples []MetricSample) {
	r := &readings{counts: ReadCounts(), memory: map[int32]cshim.Memory{}}
	if cshim.Path() != "" {
		for _, a := range known() {
			if m, err := cshim.MemoryStats(a.word); err == nil {
				r.memory[a.word] = m
			}
		}
	}
	values := map[string]float64{}
	for _, m := range allMetrics() {
		values[m.Name] = m.read(r)
	}
	for i := range samples {
		v, ok := values[samples[i].Name]
		if !ok {
			v = math.NaN()
		}
		samples[i].Value = v
	}
}

// started is the time at which libtorch was loaded, in nanoseconds of the pacer's clock.
var started atomic.Int64

// sweepShare returns the share of the time since libtorch was loaded that sweeps took.
func sweepShare(c Counts) float64 {
	if since := started.Load(); since != 0 {
		return float64(c.Sweeping) / float64(max(1, int64(now())-since))
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
