package serve

import (
	"slices"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// callerStreams returns the current streams of the goroutine that calls Do, without default streams.
func callerStreams() ([]cshim.Stream, error) {
	current, err := cshim.CurrentStreams()
	if err != nil {
		return nil, handle.NativeError("Do", err)
	}
	current = slices.DeleteFunc(current, func(s cshim.Stream) bool { return s.ID == 0 })
	if len(current) > 0 && cshim.GraphCapturing() {
		cshim.GraphRefuse() // the capture fails, too
		return nil, refuse.Error("Do", tensor.ErrCapture, "another goroutine computes the batch, which would not be part of the graph")
	}
	return current, nil
}

// pair is two streams of a device that wait for each other: one of a request's caller, and that of its batch.
type pair struct{ caller, batch cshim.Stream }

// pairsOf returns the pairs of streams of a batch that the calling goroutine computes, each once.
func pairsOf[In, Out any](requests []*request[In, Out]) (pairs []pair, err error) {
	current, err := cshim.CurrentStreams()
	if err != nil {
		return nil, handle.NativeError("Do", err)
	}
	for _, own := range current {
		for _, r := range requests {
			caller := cshim.Stream{Device: own.Device} // the default one
			if i := slices.IndexFunc(r.streams, func(s cshim.Stream) bool { return s.Device == own.Device }); i >= 0 {
				caller = r.streams[i]
			}
			if p := (pair{caller, own}); caller != own && !slices.Contains(pairs, p) {
				pairs = append(pairs, p)
			}
		}
	}
	return pairs, nil
}

// order calls wait for each pair.
func order(pairs []pair, wait func(pair) error) error {
	for _, p := range pairs {
		if err := wait(p); err != nil {
			return handle.NativeError("Do", err)
		}
	}
	return nil
}
