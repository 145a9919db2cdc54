// Kill checks that a training checkpoint survives kill -9. It kills a process that trains and saves continuously at a
// random moment of a save, again and again. Each time the file must be the complete old or new generation.
//
//	go run ./tests/kill [-kills 1000] [-seed S] [-share F]
//
// The generations are known in advance, because training on the CPU and the file are deterministic. The next process
// continues from the file that the killed one left, and must leave no other files.
package main

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/internal/scorecard"
	"github.com/linstock-ml/linstock/tests/internal/worker"
)

func main() {
	child := flag.String("save", "", "train and save to this file until killed")
	kills := flag.Int64("kills", 1000, "number of processes to kill")
	seed := flag.Uint64("seed", 1, "seed of the moments at which they are killed")
	share := flag.Float64("share", 1, "share of the kills")
	flag.Parse()
	if *child != "" {
		if err := train(*child); err != nil {
			fmt.Fprintln(os.Stderr, "kill: the child:", err)
			os.Exit(1)
		}
		return
	}
	p := &parent{seed: *seed, kills: scorecard.Share(*kills, *share)}
	stop := scorecard.Progress(func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		return fmt.Sprintf("kill: %d of %d kills", p.done, p.kills)
	})
	err := p.run()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kill:", err)
	}
	scorecard.Line("kill", fmt.Sprintf("%d kills: %d before the write, %d while writing, %d at the sync, %d after the rename; %d old, %d new, %d other files, %d leftovers",
		p.done, p.at[0], p.at[1], p.at[2], p.at[3], p.old, p.fresh, p.bad, p.litter), err == nil)
	if err != nil {
		os.Exit(1)
	}
}

// run is a model and its training, the same in every process.
type run struct {
	model nn.Layer
	opt   *optim.Optimizer
	step  int // the generation
}

func newRun() (*run, error) {
	r := &run{model: nn.NewSequential(nn.NewLinear(192, 384), &nn.Tanh{}, nn.NewLinear(384, 192))}
	for _, p := range nn.NamedParameters(r.model) { // the same in all processes
		n := p.Tensor.Numel()
		if err := tensor.WithScope(func() error {
			return nn.LoadStateDict(r.model, map[string]*tensor.Tensor{p.Name: tensor.Linspace(-0.05, 0.05, n).View(p.Tensor.Shape()...)}, nn.Strict(false))
		}); err != nil {
			return nil, err
		}
	}
	var err error
	r.opt, err = optim.NewAdamW(nn.Parameters(r.model), 1e-3)
	return r, err
}

// next takes one training step.
func (r *run) next() error {
	r.step++
	return tensor.WithScope(func() error {
		x := tensor.Linspace(-1, float64(r.step%7), 8*192).View(8, 192)
		r.opt.ZeroGrad()
		if err := nn.MSELoss(r.model.Forward(x), x.Cos()).Backward(); err != nil {
			return err
		}
		return r.opt.Step()
	})
}

func (r *run) save(path string) error {
	return checkpoint.SaveTraining(path, r.model, r.opt, checkpoint.Value("step", &r.step))
}

func (r *run) load(path string) error {
	return checkpoint.LoadTraining(path, r.model, r.opt, checkpoint.Value("step", &r.step))
}

// train reports that it is ready, waits for a line, continues from the file, and reports when each save begins and
// ends.
func train(path string) error {
	if err := tensor.SetNumThreads(1); err != nil {
		return err
	}
	r, err := newRun()
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return nil // the parent has ended
	}
	if err := r.load(path); err != nil {
		return err
	}
	for {
		if err := r.next(); err != nil {
			return err
		}
		fmt.Println("begin", r.step)
		if err := r.save(path); err != nil {
			return err
		}
		fmt.Println("end", r.step)
	}
}

type parent struct {
	seed  uint64
	kills int64

	mu         sync.Mutex
	done       int64
	old, fresh int
	bad        int
	litter     int
	at         [4]int // what the killed process was doing, according to the files it left

	oracle *run   // computes the known generations
	files  []file // by generation
	dir    string
}

type file struct {
	sum  [32]byte
	size int64
}

func (p *parent) run() (err error) {
	if err := tensor.SetNumThreads(1); err != nil {
		return err
	}
	if p.dir, err = os.MkdirTemp("", "linstock-kill"); err != nil {
		return err
	}
	defer os.RemoveAll(p.dir)
	var runs [3]*run // the last is the oracle
	for i := range runs {
		if runs[i], err = newRun(); err != nil {
			return err
		}
	}
	p.oracle = runs[2]
	// The generator's state is in the files; no code draws random numbers from here on.
	if err := tensor.ManualSeed(1); err != nil {
		return err
	}
	// Two lineages run at once: a process of one starts while one of the other saves.
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		wg.Go(func() { errs[i] = p.lineage(i, runs[i]) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// generation returns the expected file of a generation.
func (p *parent) generation(n int) (file, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	path := filepath.Join(p.dir, "oracle")
	for len(p.files) <= n {
		if len(p.files) > 0 {
			if err := p.oracle.next(); err != nil {
				return file{}, err
			}
		}
		if err := p.oracle.save(path); err != nil {
			return file{}, err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return file{}, err
		}
		p.files = append(p.files, file{sha256.Sum256(raw), int64(len(raw))})
	}
	return p.files[n], nil
}

// lineage is one training run, killed and resumed; each file is loaded into reopened.
func (p *parent) lineage(i int, reopened *run) error {
	r := rand.New(rand.NewPCG(p.seed, uint64(i)))
	dir := filepath.Join(p.dir, fmt.Sprint(i))
	path := filepath.Join(dir, "run.safetensors")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := reopened.save(path); err != nil {
		return err
	}
	typical := 5 * time.Millisecond
	next, err := start(path)
	if err != nil {
		return err
	}
	defer func() { next.end() }()
	for generation := 0; ; {
		p.mu.Lock()
		n := p.done
		p.done++
		enough := n >= p.kills || p.bad > 10
		if enough {
			p.done--
		}
		p.mu.Unlock()
		if enough {
			return p.clean(reopened, path)
		}
		c := next
		if next, err = start(path); err != nil {
			c.end()
			return err
		}
		ended, began, took, err := c.kill(r, typical)
		if err != nil {
			return fmt.Errorf("kill %d of seed %d: %w", n, p.seed, err)
		}
		if took > 0 {
			typical = (3*typical + took) / 4
		}
		if ended == 0 {
			ended = generation
		}
		if generation, err = p.check(reopened, path, ended, began); err != nil {
			return fmt.Errorf("kill %d of seed %d: %w", n, p.seed, err)
		}
	}
}

// check examines the files after a kill: the last save that ended was of generation ended, and the last that began was
// of generation began. It returns the generation of the file.
func (p *parent) check(r *run, path string, ended, began int) (int, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return 0, err
	}
	got, found := sha256.Sum256(raw), -1
	var want file
	for _, g := range []int{ended, began} {
		if want, err = p.generation(g); err != nil {
			return 0, err
		}
		if got == want.sum {
			found = g
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// There may be one temporary file: a process removes those of earlier ones before it writes its own. One killed
	// before that leaves only its predecessor's.
	if left := len(entries) - 1; left > 1 {
		p.litter += left - 1
		return 0, fmt.Errorf("%d files are beside %s", left, path)
	}
	if found < 0 {
		p.bad++
		return 0, fmt.Errorf("the file of %d bytes (whole ones have %d) is neither generation %d nor %d", len(raw), want.size, ended, began)
	}
	if err := r.load(path); err != nil || r.step != found {
		p.bad++
		return 0, fmt.Errorf("generation %d does not load: step %d, %v", found, r.step, err)
	}
	phase := 0
	for _, e := range entries {
		if e.Name() == filepath.Base(path) {
			continue
		}
		if info, err := e.Info(); err == nil && info.Size() < want.size {
			phase = 1
		} else {
			phase = 2
		}
	}
	if found == began && found != ended {
		p.fresh++
		phase = 3
	} else {
		p.old++
	}
	p.at[phase]++
	return found, nil
}

// clean saves once more. Afterwards the checkpoint must be the only file.
func (p *parent) clean(r *run, path string) error {
	if err := r.save(path); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	if len(entries) != 1 {
		p.mu.Lock()
		p.litter += len(entries) - 1
		p.mu.Unlock()
		return fmt.Errorf("after the last save there are %d files beside %s", len(entries)-1, path)
	}
	return nil
}

// process is a process that saves.
type process struct{ *worker.Process }

func start(path string) (process, error) {
	self, err := os.Executable()
	if err != nil {
		return process{}, err
	}
	cmd := exec.Command(self, "-save", path)
	cmd.Stderr = os.Stderr
	c, err := worker.Start(cmd)
	return process{c}, err
}

func (c process) end() {
	_ = c.Cmd.Process.Kill()
	_ = c.Wait()
}

// kill lets the process continue and kills it during one of its first saves. It returns the last generations that the
// process reported as saved and as begun, and how long a complete save took.
func (c process) kill(r *rand.Rand, typical time.Duration) (ended, began int, took time.Duration, err error) {
	defer c.end()
	timer := time.AfterFunc(time.Minute, c.end) // in case it hangs
	defer timer.Stop()
	if line, err := c.Out.ReadString('\n'); err != nil || line != "ready\n" {
		return 0, 0, 0, fmt.Errorf("the child printed %q: %w", line, err)
	}
	if _, err := fmt.Fprintln(c.In); err != nil {
		return 0, 0, 0, err
	}
	var since time.Time
	say := func(line string) error {
		switch what, n, _ := strings.Cut(strings.TrimSpace(line), " "); what {
		case "begin":
			since = time.Now()
			_, err = fmt.Sscan(n, &began)
		case "end":
			took = time.Since(since)
			_, err = fmt.Sscan(n, &ended)
		}
		return err
	}
	for saves := 1 + r.IntN(2); saves > 0; {
		line, err := c.Out.ReadString('\n')
		if err != nil {
			return 0, 0, 0, fmt.Errorf("the child ended by itself: %w", err)
		}
		if err := say(line); err != nil {
			return 0, 0, 0, err
		}
		if strings.HasPrefix(line, "begin") {
			saves--
		}
	}
	time.Sleep(time.Until(since.Add(time.Duration(r.Float64() * 1.1 * float64(typical)))))
	if err := c.Cmd.Process.Kill(); err != nil {
		return 0, 0, 0, err
	}
	rest, err := io.ReadAll(c.Out)
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return 0, 0, 0, err
	}
	for _, line := range slices.Collect(strings.Lines(string(rest))) {
		if strings.HasSuffix(line, "\n") {
			if err := say(line); err != nil {
				return 0, 0, 0, err
			}
		}
	}
	return ended, began, took, nil
}
