// Command serve measures servers of one small network side by side: Linstock's package serve behind net/http, PyTorch
// behind uvicorn, and libtorch behind cpp-httplib, each with dynamic batching and without. All have the same weights and
// answer the same requests: a row of 32 floats as bytes, answered by 10. Each round restarts all servers; they take
// turns in a random order, with 1, 8 and 64 clients. A round's ratio compares turns with as many clients; the table has
// the medians of the rounds, and the quartiles of the ratios. `make bench-serve` builds and runs it; BENCH="-rounds 3"
// passes arguments.
//
// With -load URL it is a load generator: it posts the file -body from -clients connections for the time -turn.
//
//	linstock-bench-serve -load http://127.0.0.1:8080/complete -clients 64 -turn 10s -body request.json
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/linstock-ml/linstock/tests/internal/proc"
	"github.com/linstock-ml/linstock/tests/internal/stats"
	"github.com/linstock-ml/linstock/tests/internal/worker"
)

// widths are the sizes of the network's layers: linear layers with ReLU between them.
var widths = []int{32, 64, 64, 10}

var clients = []int{1, 8, 64}

type options struct {
	rounds, threads, rows int
	turn, warm            time.Duration
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 7, "rounds, each with new processes")
	flag.DurationVar(&o.turn, "turn", time.Second, "length of a turn")
	flag.DurationVar(&o.warm, "warm", 200*time.Millisecond, "length of the load before a turn, which is not counted")
	flag.IntVar(&o.threads, "threads", 1, "threads an operator may use")
	flag.IntVar(&o.rows, "rows", 64, "maximum number of requests in a batch")
	load := flag.String("load", "", "only generate load for this URL")
	n := flag.Int("clients", 64, "connections of -load")
	body := flag.String("body", "", "file with the body of -load's requests")
	arm := flag.String("arm", "", "run as the Go server with the weights in this file")
	flag.Parse()
	var err error
	switch {
	case *arm != "":
		err = serveGo(*arm, o.threads, o.rows)
	case *load != "":
		err = generate(*load, *body, *n, o.turn)
	default:
		err = o.compare()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-serve:", err)
		os.Exit(1)
	}
}

func generate(url, file string, n int, turn time.Duration) error {
	var body []byte
	var err error
	if file != "" {
		if body, err = os.ReadFile(file); err != nil {
			return err
		}
	}
	r, err := load(url, body, n, turn)
	if err == nil {
		fmt.Printf("%d clients: %.0f requests/s, p50 %v, p99 %v\n", n, r.rate, r.p50, r.p99)
	}
	return err
}

// An arm is a server: a command that prints a line with its address and the kilobytes of its RSS after a first
// operator, and that ends when its standard input does.
type arm struct {
	name string
	argv []string
	env  []string
}

func (o options) arms(weights string) ([]arm, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var arms []arm
	add := func(name string, argv, env []string) {
		arms = append(arms, arm{name + ", batched", append(slices.Clone(argv), strconv.Itoa(o.rows)), env}, arm{name, append(slices.Clone(argv), "1"), env})
	}
	threads := strconv.Itoa(o.threads)
	add("Go", []string{self, "-arm", weights, "-threads", threads, "-rows"}, nil)
	dir := filepath.Dir(self)
	if native := filepath.Join(dir, "serve-arm"); exists(native) {
		add("C++", []string{native, weights, threads}, nil)
	} else {
		fmt.Println("there is no C++ server: cpp-httplib could not be installed")
	}
	python := "build/pytorch/bin/python"
	if p := os.Getenv("LINSTOCK_BENCH_PYTHON"); p != "" {
		python = p
	}
	if packages := filepath.Join(dir, "python"); exists(python) && exists(packages) {
		add("Python", []string{python, "tests/bench/serve/arm.py", weights, threads}, []string{"PYTHONPATH=" + packages})
	} else {
		fmt.Println("there is no Python server: PyTorch (make bench-setup) or uvicorn is not installed")
	}
	return arms, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

type server struct {
	*worker.Process
	url  string
	base float64 // RSS in KB after the first operator
}

func (a arm) start() (*server, error) {
	cmd := exec.Command(a.argv[0], a.argv[1:]...)
	cmd.Env = append(os.Environ(), a.env...)
	cmd.Stderr = os.Stderr
	p, err := worker.Start(cmd)
	if err != nil {
		return nil, err
	}
	s := &server{Process: p}
	line, err := p.Out.ReadString('\n')
	if err == nil {
		var address string
		_, err = fmt.Sscan(line, &address, &s.base)
		s.url = "http://" + address + "/predict"
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %q: %w", a.name, line, err), p.End())
	}
	return s, nil
}

// peak returns the server's peak RSS above its first operator, in MB.
func (s *server) peak() float64 {
	peak, err := proc.Status(strconv.Itoa(s.Cmd.Process.Pid), "VmHWM")
	if err != nil {
		return math.NaN()
	}
	return (float64(peak>>10) - s.base) / 1024
}

// cpu returns the CPU time of the server's process in seconds, in steps of 10 ms.
func (s *server) cpu() float64 {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.Cmd.Process.Pid))
	_, rest, _ := bytes.Cut(stat, []byte(") ")) // behind the name, which may hold spaces
	f := bytes.Fields(rest)
	if len(f) < 13 {
		return math.NaN()
	}
	user, _ := strconv.ParseFloat(string(f[11]), 64)
	system, _ := strconv.ParseFloat(string(f[12]), 64)
	return (user + system) / 100
}

// figures are those of an arm with a number of clients, by round.
type figures struct{ rate, p50, p99, cpu []float64 }

func (o options) compare() error {
	dir, err := os.MkdirTemp("", "bench-serve")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	weights := filepath.Join(dir, "weights")
	if err := os.WriteFile(weights, floatBytes(randomWeights()), 0o600); err != nil {
		return err
	}
	arms, err := o.arms(weights)
	if err != nil {
		return err
	}
	results := map[string]*figures{}
	peaks := map[string][]float64{}
	key := func(a arm, n int) string { return fmt.Sprint(a.name, " ", n) }
	for range o.rounds {
		if err := o.round(arms, func(a arm, n int, r result) {
			f := results[key(a, n)]
			if f == nil {
				f = new(figures)
				results[key(a, n)] = f
			}
			f.rate = append(f.rate, r.rate)
			f.p50 = append(f.p50, float64(r.p50.Nanoseconds())/1e6)
			f.p99 = append(f.p99, float64(r.p99.Nanoseconds())/1e6)
			f.cpu = append(f.cpu, r.cpu)
		}, func(a arm, peak float64) { peaks[a.name] = append(peaks[a.name], peak) }); err != nil {
			return err
		}
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"clients", "server", "requests/s", "p50 ms", "p99 ms", "Go batched / this", "CPU µs", "peak MB"})
	for _, n := range clients {
		first := results[key(arms[0], n)].rate
		for _, a := range arms {
			f := results[key(a, n)]
			ratios := make([]float64, len(f.rate))
			for i := range ratios {
				ratios[i] = first[i] / f.rate[i]
			}
			t.AppendRow(table.Row{n, a.name, fmt.Sprintf("%.0f", stats.Median(f.rate)), fmt.Sprintf("%.2f", stats.Median(f.p50)), fmt.Sprintf("%.2f", stats.Median(f.p99)),
				fmt.Sprintf("%.2f (%.2f–%.2f)", stats.Median(ratios), stats.Quantile(ratios, 0.25), stats.Quantile(ratios, 0.75)),
				fmt.Sprintf("%.0f", stats.Median(f.cpu)), fmt.Sprintf("%.1f", stats.Median(peaks[a.name]))})
		}
		t.AppendSeparator()
	}
	fmt.Println(t.Render())
	fmt.Println("CPU µs: CPU time of the server's process for a request")
	fmt.Println("peak MB: of the process's RSS, above that after its first operator, over the round")
	return nil
}

func (o options) round(arms []arm, got func(arm, int, result), end func(arm, float64)) (err error) {
	servers := make([]*server, len(arms))
	defer func() {
		for _, s := range servers {
			if s != nil {
				err = errors.Join(err, s.End())
			}
		}
	}()
	row := make([]float32, widths[0])
	for i := range row {
		row[i] = float32(math.Sin(float64(i)))
	}
	body := floatBytes(row)
	var want []float32
	type turn struct{ arm, clients int }
	var turns []turn
	for i, a := range arms {
		if servers[i], err = a.start(); err != nil {
			return err
		}
		answer, err := post(servers[i].url, body)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		if want == nil {
			want = answer
		}
		if !slices.EqualFunc(answer, want, func(a, b float32) bool { return math.Abs(float64(a-b)) < 1e-5 }) {
			return fmt.Errorf("%s answers %v, %s %v", a.name, answer, arms[0].name, want)
		}
		for _, n := range clients {
			turns = append(turns, turn{i, n})
		}
	}
	rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
	for _, t := range turns {
		if _, err := load(servers[t.arm].url, body, t.clients, o.warm); err != nil {
			return fmt.Errorf("%s: %w", arms[t.arm].name, err)
		}
		before := servers[t.arm].cpu()
		r, err := load(servers[t.arm].url, body, t.clients, o.turn)
		if err != nil {
			return fmt.Errorf("%s: %w", arms[t.arm].name, err)
		}
		r.cpu = (servers[t.arm].cpu() - before) / r.requests * 1e6
		got(arms[t.arm], t.clients, r)
	}
	for i, a := range arms {
		end(a, servers[i].peak())
	}
	return nil
}

func post(url string, body []byte) ([]float32, error) {
	w, err := http.Post(url, "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer w.Body.Close()
	data, err := io.ReadAll(w.Body)
	if err == nil && (w.StatusCode != http.StatusOK || len(data) != 4*widths[len(widths)-1]) {
		err = fmt.Errorf("%s: %q", w.Status, data)
	}
	return floats(data), err
}

// randomWeights returns the weight (out, in) and the bias of each layer, one after the other.
func randomWeights() []float32 {
	random := rand.New(rand.NewPCG(28, 0))
	var all []float32
	for i, in := range widths[:len(widths)-1] {
		for range (in + 1) * widths[i+1] {
			all = append(all, float32(random.NormFloat64()/math.Sqrt(float64(in))))
		}
	}
	return all
}

func floatBytes(v []float32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func floats(b []byte) []float32 {
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}
