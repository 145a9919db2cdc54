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

// stream returns the current stream of a device where the request's Do was called.
func (r *request[In, Out]) stream(device int32) cshim.Stream {
	if i := slices.IndexFunc(r.streams, func(s cshim.Stream) bool { return s.Device == device }); i >= 0 {
		return r.streams[i]
	}
	return cshim.Stream{Device: device} // the default one
}

// pairsOf returns the pairs of streams of a batch that the calling goroutine computes, each once.
func pairsOf[In, Out any](requests []*request[In, Out]) (pairs []pair, err error) {
	current, err := cshim.CurrentStreams()
	if err != nil {
		return nil, handle.NativeError("Do", err)
	}
	for _, own := range current {
		for _, r := range requests {
			if p := (pair{r.stream(own.Device), own}); p.caller != own && !slices.Contains(pairs, p) {
				pairs = append(pairs, p)
			}
		}
	}
	return pairs, nil
}

// fromCallers makes the work of a batch wait for the work that its callers' streams have.
func fromCallers(pairs []pair) error {
	for _, p := range pairs {
		if err := p.batch.WaitFor(p.caller); err != nil {
			return handle.NativeError("Do", err)
		}
	}
	return nil
}

// toCallers makes the streams of the callers wait for the work of their batch. The error of a stream is that of its requests
// alone. The streams of requests that have given up wait, too: memory of their inputs is reused in the order of these.
func toCallers[In, Out any](pairs []pair, requests []*request[In, Out]) {
	for _, p := range pairs {
		err := p.caller.WaitFor(p.batch)
		if err == nil {
			continue
		}
		err = handle.NativeError("Do", err)
		for _, r := range requests {
			if r.stream(p.batch.Device) == p.caller {
				r.err = err
			}
		}
	}
}
