// Package flight records the collectives of a rank in a file that outlives its process, and explains the files of all ranks.
//
// A file has slots of equal size, each a line of JSON: a header, and then a ring of the last records. A slot is written by
// one system call when a collective begins and again when it ends, so what a process has recorded is there however it ends.
package flight

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	version = 1
	slot    = 512 // bytes; a divisor of a page, which the kernel writes as a whole

	// DefaultRecords is the number of records that a file keeps unless the user sets another, PyTorch's default.
	DefaultRecords = 2000
)

// Header is the first line of a file.
type Header struct {
	Version int       `json:"version"`
	Rank    int       `json:"rank"` // in the group of all
	Size    int       `json:"size"`
	Records int       `json:"records"` // that the ring keeps
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Begun   time.Time `json:"begun"`
}

// A Record is a call of a rank.
type Record struct {
	Number int64  `json:"n"` // among the calls of the rank, from 1
	Group  string `json:"group"`
	Rank   int    `json:"rank"` // in the group
	Size   int    `json:"size"` // of the group
	// Collective is the number of a collective of all ranks of the group, from 1. It is 0 for a send, a receive and the
	// end of the group.
	Collective int64  `json:"collective,omitempty"`
	Call       string `json:"call"` // for a collective, what all ranks must have in common
	Begun      int64  `json:"begun"`
	Ended      int64  `json:"ended,omitempty"` // nanoseconds since 1970; 0 while the call is in flight
	Error      string `json:"error,omitempty"`
	Line       string `json:"line"` // file:line of the program
}

// A Recorder writes the file of a rank. Its methods do nothing if it is nil.
type Recorder struct {
	mu      sync.Mutex
	file    *os.File
	records int64
	last    int64
	err     error // the first of writing, after which nothing more is written
}

// Create makes the file of a rank in the directory of a run, which ranks of this machine may have made.
func Create(dir string, h Header) (*Recorder, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("rank-%d.jsonl", h.Rank)))
	if err != nil {
		return nil, err
	}
	h.Version, h.PID, h.Begun = version, os.Getpid(), time.Now()
	h.Host, _ = os.Hostname()
	r := &Recorder{file: f, records: int64(h.Records)}
	if err := r.write(0, &h); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

// Begin records that a call begins, and returns the record for End.
func (r *Recorder) Begin(c Record) *Record {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	c.Number, c.Begun = r.last, time.Now().UnixNano()
	r.put(&c)
	return &c
}

// End records that a call of Begin has ended.
func (r *Recorder) End(c *Record, err error) {
	if r == nil || c == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Ended != 0 || c.Number <= r.last-r.records {
		return
	}
	c.Ended = time.Now().UnixNano()
	if err != nil {
		c.Error = err.Error()
	}
	r.put(c)
}

func (r *Recorder) put(c *Record) {
	if r.err == nil {
		r.err = r.write(1+(c.Number-1)%r.records, c)
	}
}

func (r *Recorder) write(i int64, v any) error {
	text, err := line(v)
	if err != nil {
		return err
	}
	_, err = r.file.WriteAt(text, i*slot)
	return err
}

// line encodes v in a slot. What does not fit is cut: the end of a text, the beginning of a path.
func line(v any) ([]byte, error) {
	for most := slot; ; most /= 2 {
		if c, ok := v.(*Record); ok {
			short := *c
			if len(short.Call) > most {
				short.Call = short.Call[:most] + "…"
			}
			if len(short.Error) > most {
				short.Error = short.Error[:most] + "…"
			}
			if n := len(short.Line); n > most {
				short.Line = "…" + short.Line[n-most:]
			}
			v = &short
		}
		text, err := json.Marshal(v)
		if err != nil || len(text) < slot {
			return append(text, strings.Repeat(" ", max(0, slot-1-len(text)))+"\n"...), err
		}
		if most == 0 {
			return nil, fmt.Errorf("a record of %d bytes", len(text))
		}
	}
}

// Close closes the file and returns the first error of writing.
func (r *Recorder) Close() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	err := errors.Join(r.err, r.file.Close())
	r.err = os.ErrClosed
	return err
}
