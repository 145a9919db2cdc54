package pprof

import (
	"net/http"
	"net/http/httptest"
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
