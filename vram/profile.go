package vram

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/pprofs"
	"github.com/linstock-ml/linstock/internal/sites"
)

// Profile returns the native memory by line of the program, for go tool pprof. The sample types are live_bytes (the default),
// live_tensors, alloc_bytes and alloc_tensors (since the start). Samples have labels for the device and for the operator
// that the line called. Like those of Go's heap profile the figures are estimates: nearly every block larger than the
// profile's rate is sampled (see [SetProfileRate]), and a fraction of the smaller ones, scaled up.
// Blocks for which no call was named ("unknown") count in alloc_bytes and alloc_tensors only while they are live, so the
// difference of two profiles may be negative there.
func Profile() (*profile.Profile, error) {
	if err := cshim.Load(); err != nil {
		return nil, err
	}
	history.Lock()
	rate := history.rate
	history.Unlock()
	p := &profile.Profile{
		SampleType: []*profile.ValueType{
			{Type: "live_bytes", Unit: "bytes"}, {Type: "live_tensors", Unit: "count"},
			{Type: "alloc_bytes", Unit: "bytes"}, {Type: "alloc_tensors", Unit: "count"},
		},
		DefaultSampleType: "live_bytes",
		PeriodType:        &profile.ValueType{Type: "native", Unit: "bytes"},
		Period:            rate,
		TimeNanos:         time.Now().UnixNano(),
		Comments:          []string{"native memory of tensors, by Linstock"},
	}
	b := pprofs.New(p)
	for _, s := range cshim.SampledSites() {
		where := sites.Of(s.Site)
		labels := map[string][]string{"device": {string(nameOf(s.Device))}}
		if where.Operator != "" {
			labels["operator"] = []string{where.Operator}
		}
		b.Add(where.Frames, labels, s.LiveBytes, s.LiveCount, s.TotalBytes, s.TotalCount)
	}
	return p, p.CheckValid()
}

// WriteProfile writes the [Profile], compressed, for go tool pprof.
func WriteProfile(w io.Writer) error {
	if w == nil {
		return refused("WriteProfile: a writer is needed, got nil")
	}
	p, err := Profile()
	if err != nil {
		return err
	}
	return p.Write(w)
}

// Report returns the profile as text: for each device the lines that allocated most of the live memory, n at most, and the
// [BlockedCalls].
func Report(n int) (string, error) {
	if err := cshim.Load(); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, a := range known() {
		list := holders(a.word)
		for i, h := range list {
			if i == n {
				fmt.Fprintf(&b, "%12s          and %d more lines\n", "", len(list)-n)
				break
			}
			fmt.Fprintf(&b, "%12s %8d %s %s\n", size(h.Bytes), h.Tensors, h.Device, h.Line)
		}
	}
	for _, c := range BlockedCalls() {
		fmt.Fprintf(&b, "%12s          not returned yet: %v\n", "", c)
	}
	return b.String(), nil
}
