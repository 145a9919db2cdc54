// Package pprof serves the profile of native memory over HTTP. The import
//
//	import _ "github.com/linstock-ml/linstock/vram/pprof"
//
// registers it at /debug/pprof/native in http.DefaultServeMux, beside the profiles of net/http/pprof:
//
//	go tool pprof localhost:6060/debug/pprof/native
//
// It is a separate package so that programs without an HTTP server do not link net/http.
package pprof

import (
	"fmt"
	"net/http"
	_ "net/http/pprof" // the rest of /debug/pprof
	"strconv"
	"time"

	"github.com/google/pprof/profile"

	"github.com/linstock-ml/linstock/vram"
)

func init() {
	http.Handle("GET /debug/pprof/native", Handler())
	http.Handle("GET /debug/pprof/native/snapshot", Snapshot())
}

// Handler serves [vram.Profile] for go tool pprof. With gc=1 it calls [vram.Collect] first. With seconds=N the profile is the
// difference over N seconds. With debug=1 it is a text with the summary of each device.
func Handler() http.Handler { return http.HandlerFunc(serve) }

// Snapshot serves [vram.Snapshot], for PyTorch's memory viewer.
func Snapshot() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Disposition", `attachment; filename="snapshot.pickle"`)
		if err := vram.Snapshot(w); err != nil {
			fail(w, http.StatusInternalServerError, err)
		}
	})
}

// fail answers with an error instead of a file.
func fail(w http.ResponseWriter, status int, err error) {
	w.Header().Del("Content-Disposition")
	http.Error(w, err.Error(), status)
}

func serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if gc, _ := strconv.Atoi(r.FormValue("gc")); gc > 0 {
		if err := vram.Collect(); err != nil {
			fail(w, http.StatusInternalServerError, err)
			return
		}
	}
	if debug, _ := strconv.Atoi(r.FormValue("debug")); debug > 0 {
		text(w)
		return
	}
	p, err := vram.Profile()
	if s := r.FormValue("seconds"); s != "" && err == nil {
		n, bad := strconv.Atoi(s)
		if bad != nil || n <= 0 || n > 3600 {
			fail(w, http.StatusBadRequest, fmt.Errorf("invalid seconds=%q: want a number from 1 to 3600", s))
			return
		}
		d := time.Duration(n) * time.Second
		extendWriteDeadline(w, r, d)
		p, err = difference(r, p, d)
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="native"`)
	_ = p.Write(w) // it fails if the client has gone
}

func text(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	report, err := vram.Report(50)
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	for _, d := range vram.Devices() {
		summary, err := vram.Summary(d)
		if err != nil {
			summary = fmt.Sprintf("%s: %v\n", d, err)
		}
		fmt.Fprintln(w, summary)
	}
	fmt.Fprint(w, "live bytes, tensors, device, line\n", report)
}

// extendWriteDeadline extends the deadline of a request that takes d to d plus the server's WriteTimeout.
func extendWriteDeadline(w http.ResponseWriter, r *http.Request, d time.Duration) {
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.WriteTimeout > 0 {
		// An error: w has no deadline.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.WriteTimeout + d))
	}
}

func difference(r *http.Request, before *profile.Profile, d time.Duration) (*profile.Profile, error) {
	select {
	case <-time.After(d):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	after, err := vram.Profile()
	if err != nil {
		return nil, err
	}
	before.Scale(-1)
	both, err := profile.Merge([]*profile.Profile{before, after})
	if err != nil {
		return nil, err
	}
	both.TimeNanos, both.DurationNanos = before.TimeNanos, int64(d)
	return both, nil
}
