package dist

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/callsite"
	"github.com/linstock-ml/linstock/internal/flight"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// FlightRecorder makes Init record the collectives of this rank, of the group and those made from it, in a file in a new
// directory below dir: kind, dtypes and sizes, line of the program, begin, end and error. The file always has the last ones,
// however the process ends, 2000 or the number in the environment variable TORCH_FR_BUFFER_SIZE. "linstock flight DIR" reads
// the files of all ranks and says which one is late in which collective. The default is the environment variable
// LINSTOCK_FLIGHT; if it is empty nothing is recorded. All ranks must record, or none. PyTorch: torch.distributed.flight_recorder.
func FlightRecorder(dir string) Option { return optionFunc(func(o *options) { o.flight = dir }) }

// record starts the recorder of a job if the options ask for one.
func (o *options) record(ctx context.Context, op string, j *job) error {
	if o.flight == "" {
		return nil
	}
	records := flight.DefaultRecords
	if s := os.Getenv("TORCH_FR_BUFFER_SIZE"); s != "" {
		var err error
		if records, err = strconv.Atoi(s); err != nil || records < 1 {
			return refuse.Error(op, tensor.ErrArgument, "TORCH_FR_BUFFER_SIZE=%q is not a positive number", s)
		}
	}
	// All ranks write to the directory that the first one names.
	name := fmt.Sprintf("%s-%d", time.Now().UTC().Format("20060102T150405.000"), os.Getpid())
	run, err := await(ctx, op, j.store, o.timeout, func(n cshim.Store, _ int64, _ *int32) ([]byte, error) {
		return n.CompareSet("linstock/flight", nil, []byte(name))
	}, func([]byte) {})
	if err != nil {
		return err
	}
	if name = string(run); !filepath.IsLocal(name) || filepath.Base(name) != name || strings.HasPrefix(name, ".") {
		return refuse.Error(op, tensor.ErrArgument, "the store names %q as the directory of the flight recorder", name)
	}
	j.flight, err = flight.Create(filepath.Join(o.flight, name), flight.Header{Rank: o.rank, Size: o.world, Records: records})
	if err != nil {
		return refuse.Error(op, err, "flight recorder: %v", err)
	}
	return nil
}

// record records that a call of this rank begins; the result is for g.job.flight.End. The caller holds g.start for a call
// that all ranks make, which is counted.
func (g *Group) record(all bool, format string, args ...any) *flight.Record {
	if g.job.flight == nil {
		return nil
	}
	c := flight.Record{Group: g.name, Rank: g.rank, Size: g.size, Call: fmt.Sprintf(format, args...), Line: callsite.Line()}
	if all {
		g.collectives++
		c.Collective = g.collectives
	}
	return g.job.flight.Begin(c)
}

// recordCollective is record for a collective, with what all ranks must have in common.
func (g *Group) recordCollective(op string, c cshim.Collective, out, in []*tensor.Tensor) *flight.Record {
	if g.job.flight == nil {
		return nil
	}
	var b strings.Builder
	b.WriteString(op)
	switch c.Kind {
	case cshim.AllReduce, cshim.AllReduceCoalesced, cshim.Reduce, cshim.ReduceScatter, cshim.ReduceScatterOne:
		fmt.Fprintf(&b, " %v", ReduceOp(c.Reduce))
	}
	switch c.Kind {
	case cshim.Broadcast, cshim.Scatter, cshim.Receive:
		fmt.Fprintf(&b, " from %d", c.Peer)
	case cshim.Reduce, cshim.Gather, cshim.Send:
		fmt.Fprintf(&b, " to %d", c.Peer)
	case cshim.Exchange:
		fmt.Fprintf(&b, " with %d", c.Peer)
	}
	if pairwise[c.Kind] {
		fmt.Fprintf(&b, ", tag %d", c.Tag)
	}
	var common []*tensor.Tensor
	switch c.Kind {
	case cshim.AllToAllOne, cshim.Barrier: // nothing
	case cshim.AllGather, cshim.AllGatherOne, cshim.Gather, cshim.Send:
		common = in
	default:
		common = out
	}
	for i, t := range common {
		if i == 4 {
			fmt.Fprintf(&b, " and %d more tensors", len(common)-i)
			break
		}
		fmt.Fprintf(&b, ", %v %v", t.DType(), t.Shape())
	}
	return g.record(!pairwise[c.Kind], "%s", b.String())
}

var reduceNames = [...]string{Sum: "Sum", Avg: "Avg", Product: "Product", Min: "Min", Max: "Max", BAnd: "BAnd", BOr: "BOr", BXor: "BXor"}

// String returns the name of the constant, such as "Sum".
func (r ReduceOp) String() string {
	if r >= 0 && int(r) < len(reduceNames) {
		return reduceNames[r]
	}
	return fmt.Sprintf("ReduceOp(%d)", int32(r))
}
