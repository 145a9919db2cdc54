package dist

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
)

// Kinds of errors, for errors.Is.
var (
	// ErrTimeout: another rank did not take part, or a key was not set, in time.
	ErrTimeout = errors.New("timed out")
	// ErrConnection: the connection to another rank, or to the store, is lost.
	ErrConnection = errors.New("a connection is lost")
	// ErrAborted: Abort was called, or the context of a collective has ended, on this rank.
	ErrAborted = errors.New("the group was aborted")
	// ErrClosed: a group or store was used after its Close, or closed during the call.
	ErrClosed = errors.New("used after Close")
)

// PeerError is the error of a collective, or of NewGroup, that fails because of other ranks. It wraps ErrTimeout or
// ErrConnection.
type PeerError struct {
	Ranks   []int  // the ranks that are gone or late, in ascending order; empty if they are not known
	Op      string // the collective that failed on this rank, "AllReduce"
	Rank    int    // this rank
	Kind    error  // ErrTimeout or ErrConnection
	Message string // the backend's message
	Caller  string // file:line outside Linstock
}

// Error returns the ranks, the collective and the backend's message.
func (e *PeerError) Error() string {
	if e == nil {
		return "<nil>"
	}
	who := "ranks that are not known"
	if len(e.Ranks) != 0 {
		who = "rank " + strings.Trim(strings.ReplaceAll(fmt.Sprint(e.Ranks), " ", ", "), "[]")
	}
	return fmt.Sprintf("linstock: %s on rank %d failed because of %s: %v: %s at %s", e.Op, e.Rank, who, e.Kind, e.Message, e.Caller)
}

// Unwrap returns the kind, for errors.Is(err, dist.ErrTimeout).
func (e *PeerError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Kind
}

// lateRanks are in the error of c10d's monitored barrier on rank 0.
var lateRanks = regexp.MustCompile(`[Rr]anks? ([0-9, ]+) failed to pass monitoredBarrier`)

// late returns the ranks that the message of a monitored barrier names, except this one.
func (g *Group) late(message string) (ranks []int) {
	if m := lateRanks.FindStringSubmatch(message); m != nil {
		for _, s := range strings.Split(m[1], ",") {
			if r, err := strconv.Atoi(strings.TrimSpace(s)); err == nil && r != g.rank {
				ranks = append(ranks, r)
			}
		}
	}
	return ranks
}

// network returns the message of a native error that is an ErrTimeout or ErrConnection, and which.
func network(err error) (message string, kind error) {
	var native *cshim.Error
	if !errors.As(err, &native) {
		return "", nil
	}
	message, _, _ = strings.Cut(native.Message, "\n")
	switch native.Code {
	case cshim.CodeTimeout:
		return message, ErrTimeout
	case cshim.CodeConnection:
		return message, ErrConnection
	}
	return "", nil
}

// failed converts a native error that no group has diagnosed.
func failed(op string, err error) error {
	if message, kind := network(err); kind != nil {
		return refuse.Error(op, kind, "%v: %s", kind, message)
	}
	return handle.NativeError(op, err)
}
