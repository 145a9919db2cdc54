package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/leak"
)

// dial opens a connection to which the test writes directly. Each operation on it is limited to 30 s.
func (c *client) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", c.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestStalledRequestsAreCutOff tests that clients that stop in the middle of a header or body get status 408 or are
// disconnected, and no longer occupy resources.
func TestStalledRequestsAreCutOff(t *testing.T) {
	leak.Check(t)
	limits := defaultLimits
	limits.header, limits.body = 300*time.Millisecond, 300*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	c, ended := startWith(ctx, t, limits)
	const clients = 500
	conns := make([]net.Conn, clients)
	for i := range conns {
		conns[i] = c.dial(t)
		text := "POST /complete HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"prompt\": "
		if i%4 == 0 {
			text = text[:40] // within the header
		}
		if _, err := io.WriteString(conns[i], text); err != nil {
			t.Fatal(err)
		}
	}
	for i, conn := range conns {
		got, err := io.ReadAll(conn) // until the server closes it
		if err != nil {
			t.Fatalf("client %d: the server has not closed the connection: %v", i, err)
		}
		if i%4 != 0 && !strings.HasPrefix(string(got), "HTTP/1.1 408 ") {
			t.Fatalf("client %d, which stopped in the body, got %q", i, got)
		}
	}
	if status, _, err := c.complete(t.Context(), `{"prompt": "abc", "length": 5}`); status != http.StatusOK || err != nil {
		t.Errorf("afterwards: status %d, %v", status, err)
	}
	c.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestClientsThatDoNotReadAreCutOff tests that the server disconnects a client that reads no answers, and one that
// keeps a connection and sends nothing.
func TestClientsThatDoNotReadAreCutOff(t *testing.T) {
	leak.Check(t)
	limits := defaultLimits
	limits.body, limits.write, limits.idle = 100*time.Millisecond, 200*time.Millisecond, 300*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	c, ended := startWith(ctx, t, limits)

	idle := c.dial(t)
	if _, err := io.WriteString(idle, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(idle); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200 ") {
		t.Errorf("an idle connection: %q, %v; want the answer and its end", got, err)
	}

	deaf := c.dial(t)
	if err := deaf.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	const request = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
	if err := deaf.SetWriteDeadline(time.Now().Add(10 * limits.write)); err != nil {
		t.Fatal(err)
	}
	many, sent := strings.Repeat(request, 1000), 0
	for {
		n, err := io.WriteString(deaf, many)
		sent += n
		if err != nil {
			break
		}
	}
	// The write fails at once if the server's kernel resets the connection, but not if it first waits for the client to
	// read what was sent. Either way the client gets some answers and then the end of the connection.
	got, err := io.ReadAll(deaf)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Error("the server has not closed the connection of a client that read nothing")
	}
	if answers := strings.Count(string(got), "HTTP/1.1 200 "); answers >= sent/len(request) {
		t.Errorf("a client that read nothing for %v got all its %d answers", 10*limits.write, answers)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestComputationHasItsOwnTimeLimit tests that the deadline of the body does not cancel the computation of a
// request, and that a computation beyond its own limit is answered with 503.
func TestComputationHasItsOwnTimeLimit(t *testing.T) {
	leak.Check(t)
	limits := defaultLimits
	limits.header, limits.body, limits.write = 50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	c, ended := startWith(ctx, t, limits)
	begun := time.Now()
	for length := 100; time.Since(begun) < 500*time.Millisecond; length = min(2*length, maxLength) {
		begun = time.Now()
		status, text, err := c.complete(t.Context(), fmt.Sprintf(`{"prompt": "a", "length": %d}`, length))
		if status != http.StatusOK || len(text) != length || err != nil {
			t.Fatalf("%d characters in %v: status %d, %q, %v", length, time.Since(begun), status, text, err)
		}
		if length == maxLength {
			break // on a fast machine
		}
	}
	c.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	limits = defaultLimits
	limits.compute = time.Millisecond
	ctx, cancel = context.WithCancel(t.Context())
	c, ended = startWith(ctx, t, limits)
	if status, message := c.failure(t, `{"prompt": "a", "length": 2000}`); status != http.StatusServiceUnavailable || message != "no answer within 1ms" {
		t.Errorf("status %d, %q", status, message)
	}
	c.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestFullServer tests that requests beyond the limit are answered with 503 and Retry-After at once, and that a place
// is free again when a client leaves.
func TestFullServer(t *testing.T) {
	leak.Check(t)
	limits := defaultLimits
	limits.active = 2
	ctx, cancel := context.WithCancel(t.Context())
	c, ended := startWith(ctx, t, limits)
	var wg sync.WaitGroup
	leave := make([]context.CancelFunc, limits.active)
	for i := range leave {
		var long context.Context
		long, leave[i] = context.WithCancel(t.Context())
		wg.Go(func() {
			for long.Err() == nil { // a fast machine may finish one
				_, _, _ = c.complete(long, `{"prompt": "a", "length": 2000}`)
			}
		})
	}
	for {
		var s map[string]int64
		if c.get(t, "/stats", &s); s["waiting"]+s["computing"] == 2 {
			break
		}
	}
	for {
		status, message := c.failure(t, `{"prompt": "a", "length": 1}`)
		if status == http.StatusServiceUnavailable && message == "2 requests are active, as many as the server takes" {
			break
		}
		if status != http.StatusOK { // one of the long requests has ended
			t.Fatalf("status %d, %q", status, message)
		}
	}
	leave[0]()
	for until := time.Now().Add(30 * time.Second); ; {
		if status, _ := c.failure(t, `{"prompt": "a", "length": 1}`); status == http.StatusOK {
			break
		}
		if time.Now().After(until) {
			t.Fatal("the place of a client that has left is not free after 30 s")
		}
	}
	leave[1]()
	wg.Wait()
	var s map[string]int64
	if c.get(t, "/stats", &s); s["refused"] == 0 {
		t.Errorf("%v", s)
	}
	c.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// failure returns the status and error of an answer, or status 0 if the connection was closed without one.
func (c *client) failure(t *testing.T, body string) (status int, message string) {
	w, err := c.Post(c.base+"/complete", "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	defer w.Body.Close()
	var a struct{ Text, Error string }
	if err := json.NewDecoder(w.Body).Decode(&a); err != nil {
		return 0, err.Error()
	}
	if w.StatusCode == http.StatusServiceUnavailable && w.Header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
	return w.StatusCode, a.Error
}

// TestSIGTERMDuringLongRequests sends SIGTERM while long requests compute and wait: each is answered, completely or
// with 503, including those whose bodies have not arrived; no connection is closed without an answer.
func TestSIGTERMDuringLongRequests(t *testing.T) {
	if elsewhere.Process(t) {
		ctx, stop := untilSignal()
		defer stop()
		limits := defaultLimits
		limits.grace, limits.body = 100*time.Millisecond, 500*time.Millisecond
		c, ended := startWith(ctx, t, limits)
		slow := c.dial(t)
		if _, err := io.WriteString(slow, "POST /complete HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		const clients = 40
		counts, unavailable := map[int]int{}, ""
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				status, message := c.failure(t, `{"prompt": "a", "length": 2000}`)
				mu.Lock()
				defer mu.Unlock()
				if counts[status]++; status != http.StatusOK {
					unavailable = message
				}
			})
		}
		for {
			var s map[string]int64
			if c.get(t, "/stats", &s); s["waiting"]+s["computing"]+s["done"] == clients {
				break
			}
			time.Sleep(time.Millisecond)
		}
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if err := self.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		wg.Wait()
		if counts[http.StatusOK]+counts[http.StatusServiceUnavailable] != clients || counts[http.StatusServiceUnavailable] == 0 {
			t.Errorf("answers by status: %v; the last error: %s", counts, unavailable)
		}
		if counts[http.StatusServiceUnavailable] > 0 && unavailable != errShutdown.Error() {
			t.Errorf("503 says %q", unavailable)
		}
		if w, err := http.ReadResponse(bufio.NewReader(slow), nil); err != nil || w.StatusCode != http.StatusRequestTimeout {
			t.Errorf("the request without its body: %+v, %v", w, err)
		}
	}
	leak.Check(t)
}
