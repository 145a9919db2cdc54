package pprof

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/linstock-ml/linstock/internal/leak"
)

// TestWriteTimeout tests that a server serves a profile that takes longer than its WriteTimeout.
func TestWriteTimeout(t *testing.T) {
	leak.Check(t)
	s := httptest.NewUnstartedServer(Handler())
	s.Config.WriteTimeout = 500 * time.Millisecond
	s.Start()
	defer s.Close()
	answer, err := s.Client().Get(s.URL + "?seconds=1")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	p, err := profile.Parse(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || p.DurationNanos != int64(time.Second) {
		t.Errorf("%s, %v", answer.Status, err)
	}
}

// An error of a snapshot is not offered as a file.
func TestSnapshotFails(t *testing.T) {
	leak.Check(t)
	const why = "no space left"
	w := &full{httptest.NewRecorder(), errors.New(why)}
	Snapshot().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	answer := w.Result()
	defer answer.Body.Close()
	if file := answer.Header.Get("Content-Disposition"); file != "" || answer.StatusCode != http.StatusInternalServerError ||
		!strings.Contains(w.Body.String(), why) {
		t.Errorf("%s, %q, %q", answer.Status, file, w.Body)
	}
}

// full is a response whose first Write fails.
type full struct {
	*httptest.ResponseRecorder
	err error
}

func (w *full) Write(p []byte) (int, error) {
	if err := w.err; err != nil {
		w.err = nil
		return 0, err
	}
	return w.ResponseRecorder.Write(p)
}
