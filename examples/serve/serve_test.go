package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/examples/internal/clitest"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/serve"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// tiny saves an untrained model, and loads it as the command does.
func tiny(t *testing.T) (*gpt.GPT, gpt.Vocab) {
	t.Helper()
	vocab := gpt.Vocab("\n abcdefgh")
	config := gpt.Config{Vocab: len(vocab), Width: 16, Layers: 2, Heads: 2, Context: 12}
	fresh := gpt.New(config)
	defer nn.Release(fresh)
	path := filepath.Join(t.TempDir(), "model.safetensors")
	if err := checkpoint.SaveTraining(path, fresh, nil, gpt.Saved(&config, &vocab)...); err != nil {
		t.Fatal(err)
	}
	model, got, err := gpt.Load(path, tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	if got != vocab {
		t.Errorf("vocabulary %q, want %q", got, vocab)
	}
	t.Cleanup(func() { nn.Release(model) })
	return model, got
}

type client struct {
	http.Client
	address, base string
}

// start serves on a loopback port. stop shuts the server down and returns its error.
func start(t *testing.T, jobs int, window time.Duration) (c *client, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	limits := defaultLimits
	limits.jobs, limits.window = jobs, window
	c, ended := startWith(ctx, t, limits)
	return c, func() error {
		c.CloseIdleConnections()
		cancel()
		return <-ended
	}
}

func startWith(ctx context.Context, t *testing.T, limits limits) (c *client, ended chan error) {
	t.Helper()
	model, vocab := tiny(t)
	s, err := newServer(model, vocab, limits)
	if err != nil {
		t.Fatal(err)
	}
	return startServer(ctx, t, s)
}

func startServer(ctx context.Context, t *testing.T, s *server) (c *client, ended chan error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() { ended <- s.serve(ctx, listener) }()
	c = &client{address: listener.Addr().String(), base: "http://" + listener.Addr().String()}
	c.Transport = &http.Transport{}
	return c, ended
}

func (c *client) complete(ctx context.Context, body string) (status int, text string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/complete", bytes.NewBufferString(body))
	if err != nil {
		return 0, "", err
	}
	w, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer w.Body.Close()
	raw, err := io.ReadAll(w.Body)
	if err != nil {
		return 0, "", err
	}
	var a answer
	err = json.Unmarshal(raw, &a)
	return w.StatusCode, a.Text, err
}

func TestManyClients(t *testing.T) {
	leak.Check(t)
	c, stop := start(t, 4, time.Millisecond)
	want := map[int]string{}
	ask := func(seed, length int) string {
		status, text, err := c.complete(t.Context(), fmt.Sprintf(`{"prompt": "abc", "length": %d, "seed": %d}`, length, seed))
		if err != nil || status != http.StatusOK || len(text) != length {
			t.Errorf("status %d, %q, %v", status, text, err)
		}
		return text
	}
	for seed := range 4 {
		want[seed] = ask(seed, 20)
	}
	if want[0] == want[1] {
		t.Error("two seeds return the same text")
	}
	before := nativeBytes(t)
	var alone, beside map[string]int64
	c.get(t, "/stats", &alone)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for k := range 3 {
				if got := ask((i+k)%4, 20); got != want[(i+k)%4] {
					t.Errorf("seed %d returned %q beside others, %q alone", (i+k)%4, got, want[(i+k)%4])
				}
			}
		})
	}
	wg.Wait()
	c.get(t, "/stats", &beside)
	if rows, batches := beside["rows"]-alone["rows"], beside["batches"]-alone["batches"]; alone["rows"] != alone["batches"] || rows != 64*3*20 || batches > rows/2 {
		t.Errorf("one client: %v\n64 clients: %v; %d rows in %d batches", alone, beside, rows, batches)
	}
	if err := stop(); err != nil { // the handlers have returned
		t.Error(err)
	}
	if after := nativeBytes(t); after != before {
		t.Errorf("%d native bytes before the requests, %d after", before, after)
	}
}

func nativeBytes(t *testing.T) int64 {
	t.Helper()
	s, err := vram.Stats(tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	return s.Allocated
}

func TestClientsThatHangUp(t *testing.T) {
	leak.Check(t)
	c, stop := start(t, 2, 0)
	before := nativeBytes(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(5+i)*time.Millisecond)
			defer cancel()
			if _, _, err := c.complete(ctx, `{"prompt": "a", "length": 2000}`); err == nil {
				t.Error("2,000 characters came in milliseconds")
			}
		})
	}
	wg.Wait()
	var s map[string]int64
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) { // the handlers notice it a little later
		c.get(t, "/stats", &s)
		if s["computing"] == 0 && s["waiting"] == 0 && s["native_bytes"] == before {
			break
		}
		if time.Now().After(until) {
			t.Errorf("%d native bytes before; 30 s after all clients have hung up: %v", before, s)
			break
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func (c *client) get(t *testing.T, path string, v any) {
	t.Helper()
	w, err := c.Get(c.base + path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	if w.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", path, w.Status)
	}
	if v != nil {
		if err := json.NewDecoder(w.Body).Decode(v); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBadRequests(t *testing.T) {
	leak.Check(t)
	c, stop := start(t, 2, 0)
	c.get(t, "/healthz", nil)
	for _, body := range []string{"", "{", `{"prompt": ""}`, `{"prompt": "XYZ"}`, `{"length": 0}`, `{"length": 1000000}`, `{"temperature": -1}`, `{"else": 1}`, `{"length": 5} {}`} {
		if status, _, err := c.complete(t.Context(), body); status != http.StatusBadRequest || err != nil {
			t.Errorf("%.40q: status %d, %v", body, status, err)
		}
	}
	for size, want := range map[int]int{maxBody: http.StatusOK, maxBody + 1: http.StatusRequestEntityTooLarge, 100 * maxBody: http.StatusRequestEntityTooLarge} {
		body := `{"prompt": "abc"}`
		body += strings.Repeat(" ", size-len(body))
		if status, text, err := c.complete(t.Context(), body); status != want || err != nil {
			t.Errorf("a body of %d bytes: status %d, %q, %v; want status %d", size, status, text, err, want)
		}
	}
	if status, text, err := c.complete(t.Context(), `{"prompt": "abcabcabcabcabcabcabc", "temperature": 0}`); status != 200 || len(text) != 100 || err != nil {
		t.Errorf("status %d, %q, %v", status, text, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestFailingModel tests that the server logs what fails in it, with the stack of a panic, and counts it apart from clients'
// mistakes.
func TestFailingModel(t *testing.T) {
	leak.Check(t)
	var logged bytes.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	model, vocab := tiny(t)
	s, err := newServer(model, vocab, defaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	s.steps, err = serve.NewBatcher(func(rows [][]int64) ([][]float32, error) {
		if len(rows[0]) == 1 {
			return nil, errors.New("the model is ill")
		}
		panic("the model is worse")
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c, ended := startServer(ctx, t, s)
	for prompt, want := range map[string]int{"a": http.StatusInternalServerError, "ab": http.StatusInternalServerError, "XYZ": http.StatusBadRequest} {
		if status, _, err := c.complete(t.Context(), fmt.Sprintf(`{"prompt": %q}`, prompt)); status != want || err != nil {
			t.Errorf("%s: status %d, %v, want %d", prompt, status, err, want)
		}
	}
	var stats map[string]int64
	if c.get(t, "/stats", &stats); stats["internal"] != 2 || stats["failed"] != 3 {
		t.Errorf("%v", stats)
	}
	c.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"the model is ill\n", "the model is worse\n", "TestFailingModel"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, &logged)
		}
	}
	if strings.Contains(logged.String(), "XYZ") || strings.Contains(logged.String(), "vocabulary") {
		t.Errorf("the log has clients' mistakes:\n%s", &logged)
	}
}

// TestFlags tests that values with which the server cannot serve are errors that name the flag.
func TestFlags(t *testing.T) {
	leak.Check(t)
	clitest.Refused(t, func(flag string) error { return command(t.Context(), []string{flag, "-model", "none"}) }, map[string]string{
		"-jobs, -rows and -queue must be at least 1, got 0, 32 and 256":                        "-jobs=0",
		"-jobs, -rows and -queue must be at least 1, got " + fmt.Sprint(defaultLimits.jobs):    "-rows=-1",
		"-rows and -queue must be at least 1":                                                  "-queue=0",
		"-timeout must be more than 0, and -window and -grace at least 0, got 0s, 0s and 20s":  "-timeout=0",
		"-timeout must be more than 0, and -window and -grace at least 0, got -1s, 0s and 20s": "-timeout=-1s",
		"-window and -grace at least 0, got 1m0s, 0s and -1s":                                  "-grace=-1s",
		"-window and -grace at least 0, got 1m0s, -1s and 20s":                                 "-window=-1s",
	})
}

// TestShutdownWaits tests that an active request is answered before the server ends.
func TestShutdownWaits(t *testing.T) {
	leak.Check(t)
	c, stop := start(t, 2, 0)
	answered := make(chan error, 1)
	go func() {
		status, text, err := c.complete(t.Context(), `{"prompt": "a", "length": 300}`)
		if err == nil && (status != 200 || len(text) != 300) {
			err = fmt.Errorf("status %d, %d characters", status, len(text))
		}
		answered <- err
	}()
	for {
		var s map[string]int64
		if c.get(t, "/stats", &s); s["computing"]+s["done"] > 0 {
			break
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
