package vram

import (
	"cmp"
	"slices"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/sites"
)

// Holder is a line of the program with the live memory that it allocated, estimated from samples.
type Holder struct {
	Line    string // "model.go:31 (main.forward)"
	Device  Name
	Bytes   int64
	Tensors int64
}

// Holders returns the lines of the program that allocated the live memory of a device, the largest first. The figures are
// estimated from samples (see [SetProfileRate]); blocks much smaller than the rate may be missing.
func Holders(d Device) ([]Holder, error) {
	a, err := accountFor(d)
	if err != nil {
		return nil, err
	}
	return holders(a.word), nil
}

func holders(w int32) []Holder {
	byLine := map[string]*Holder{}
	for _, s := range cshim.SampledSites() {
		if s.Device != w || s.LiveBytes <= 0 {
			continue
		}
		line := sites.Line(s.Site)
		h := byLine[line]
		if h == nil {
			h = &Holder{Line: line, Device: nameOf(w)}
			byLine[line] = h
		}
		h.Bytes += s.LiveBytes
		h.Tensors += s.LiveCount
	}
	list := make([]Holder, 0, len(byLine))
	for _, h := range byLine {
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Line, b.Line))
	})
	return list
}

// DefaultProfileRate is the default of [SetProfileRate].
const DefaultProfileRate = 2 << 20

// SetProfileRate sets the average number of bytes allocated between two samples of the profile. 1 samples every block, 0
// none. Like runtime.MemProfileRate, it is best set at the start of a program.
func SetProfileRate(bytes int) error {
	if bytes < 0 {
		return refused("SetProfileRate: want 0 bytes or more, got %d", bytes)
	}
	if err := cshim.Load(); err != nil {
		return err
	}
	history.Lock()
	defer history.Unlock()
	history.rate = int64(bytes)
	if !history.on.Load() {
		cshim.SamplesSetRate(history.rate)
	}
	return nil
}
