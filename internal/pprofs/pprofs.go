// Package pprofs adds stacks of Go frames to profiles of go tool pprof.
package pprofs

import (
	"runtime"

	"github.com/google/pprof/profile"
)

type line struct {
	function, file string
	number         int
}

// Builder adds samples to a profile.
type Builder struct {
	p         *profile.Profile
	functions map[string]*profile.Function
	locations map[line]*profile.Location
}

// New returns a Builder of p, which has no samples yet.
func New(p *profile.Profile) *Builder {
	return &Builder{p: p, functions: map[string]*profile.Function{}, locations: map[line]*profile.Location{}}
}

// Add adds a sample with a stack, innermost frame first.
func (b *Builder) Add(frames []runtime.Frame, labels map[string][]string, values ...int64) {
	s := &profile.Sample{Value: values, Label: labels}
	for _, f := range frames {
		s.Location = append(s.Location, b.location(line{f.Function, f.File, f.Line}))
	}
	if len(s.Location) == 0 {
		s.Location = []*profile.Location{b.location(line{function: "unknown"})}
	}
	b.p.Sample = append(b.p.Sample, s)
}

func (b *Builder) location(at line) *profile.Location {
	if l := b.locations[at]; l != nil {
		return l
	}
	f := b.functions[at.function]
	if f == nil {
		f = &profile.Function{ID: uint64(len(b.p.Function) + 1), Name: at.function, SystemName: at.function, Filename: at.file}
		b.functions[at.function] = f
		b.p.Function = append(b.p.Function, f)
	}
	l := &profile.Location{ID: uint64(len(b.p.Location) + 1), Line: []profile.Line{{Function: f, Line: int64(at.number)}}}
	b.locations[at] = l
	b.p.Location = append(b.p.Location, l)
	return l
}
