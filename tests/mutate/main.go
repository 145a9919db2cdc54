// Mutate removes, one at a time, each hand-written line that keeps the library safe, and checks that a test or an
// analyzer detects it: pins and unpins, locks, atomic exchanges, and guards of a lifetime's state; in the shim locks,
// refusals and exception handlers; in generated code each such line of the generator, and a sample of single places.
//
//	go run ./tests/mutate              all of them
//	go run ./tests/mutate -share 0.1   a tenth
//	go run ./tests/mutate -only REGEXP those whose name matches, each with what detected it
//
// The sources are not changed: all mutants are compiled into the tests' binaries and one library, in build/mutate, and
// the environment variable LINSTOCK_MUTANT=n activates one. equivalent.txt lists those that cannot be detected, with
// the reason for each; they are counted separately.
package main

import (
	"bufio"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

//go:embed equivalent.txt
var equivalentText string

func main() {
	share := flag.Float64("share", 1, "share of the mutants to try")
	seed := flag.Uint64("seed", 1, "seed for choosing them and the places of generated code")
	only := flag.String("only", "", "try those whose name matches this regular expression, or the one with this number")
	list := flag.Bool("list", false, "list the mutants and do nothing")
	jobs := flag.Int("jobs", 2, "number of parallel jobs")
	most := flag.Float64("most", 40, "seconds of tests per mutant, for each of two ways of compiling them")
	build := flag.Bool("build", false, "compile everything and stop")
	flag.Parse()
	failed, err := run(*share, *seed, *only, *list, *build, *jobs, *most)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		failed = true
	}
	if failed {
		os.Exit(1)
	}
}

// A result is the result of a mutant.
type result struct {
	*mutant
	dynamic, static bool
	by              string
	equivalent      string // the reason
	seconds         float64
}

func run(share float64, seed uint64, only string, list, build bool, jobs int, most float64) (failed bool, err error) {
	root, err := scorecard.ModuleRoot()
	if err != nil {
		return false, err
	}
	c := &collector{root: root, keys: map[string]int{}, samples: 50, seed: seed}
	if err := c.goSources(); err != nil {
		return false, err
	}
	if err := c.cppSources(); err != nil {
		return false, err
	}
	kinds := map[string]int{}
	for _, m := range c.all {
		kinds[m.kind]++
	}
	for kind, least := range map[string]int{"pin": 15, "unpin": 25, "lock": 100, "guard": 350, "generated": 55, "exceptions": 30, "atomic": 8} {
		if kinds[kind] < least {
			return false, fmt.Errorf("only %d mutants of the kind %s: have the forms of the sources changed?", kinds[kind], kind)
		}
	}
	if list {
		for _, m := range c.all {
			fmt.Println(m.n, m.kind, m.key)
		}
		fmt.Println(len(c.all), kinds)
		return false, nil
	}
	equivalent, err := equivalents(c.all)
	if err != nil {
		return false, err
	}
	chosen, err := choose(c.all, share, seed, only)
	if err != nil {
		return false, err
	}
	r, err := prepare(c, jobs)
	if err != nil || build {
		return false, err
	}
	r.most = most
	results := r.all(chosen, jobs)
	if err := r.analyze(results); err != nil {
		return false, err
	}
	for i := range results {
		results[i].equivalent = equivalent[results[i].key]
	}
	return report(results, only != ""), nil
}

func choose(all []*mutant, share float64, seed uint64, only string) (chosen []*mutant, err error) {
	if only != "" {
		re, err := regexp.Compile(only)
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			if re.MatchString(m.key) || only == strconv.Itoa(m.n) {
				chosen = append(chosen, m)
			}
		}
		return chosen, nil
	}
	order := rand.New(rand.NewPCG(seed, 1)).Perm(len(all))
	for _, i := range order[:int(math.Ceil(share*float64(len(all))))] {
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// equivalents reads lines "name | reason".
func equivalents(all []*mutant) (map[string]string, error) {
	known := map[string]bool{}
	for _, m := range all {
		known[m.key] = true
	}
	reasons := map[string]string{}
	for line := range strings.Lines(equivalentText) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "//") {
			continue
		}
		key, reason, ok := strings.Cut(line, " => ")
		if !ok || !known[key] {
			return nil, fmt.Errorf("equivalent.txt: no mutant has the name %q", key)
		}
		reasons[key] = reason
	}
	return reasons, nil
}

// prepare compiles the binaries and records what each test reaches, unless that was done for the same sources.
func prepare(c *collector, jobs int) (*runner, error) {
	b := &builder{root: c.root, dir: filepath.Join(c.root, "build/mutate"), c: c, several: map[string]bool{}}
	if err := os.MkdirAll(b.dir, 0o777); err != nil {
		return nil, err
	}
	env, err := linstockEnv(c.root)
	if err != nil {
		return nil, err
	}
	if err := b.writeOverlay(); err != nil {
		return nil, err
	}
	stamp, err := b.stamp(env["LIBTORCH"])
	if err != nil {
		return nil, err
	}
	r := &runner{b: b, binaries: map[string]string{}, budget: 0.3, env: []string{"LINSTOCK_LIB=" + filepath.Join(b.dir, "cpp/liblinstock.so"), "LIBTORCH=" + env["LIBTORCH"]}}
	stampFile := filepath.Join(b.dir, "stamp")
	saved, _ := os.ReadFile(stampFile)
	fresh := string(saved) == stamp
	var tasks []func() error
	if !fresh {
		tasks = append(tasks, func() error { _, err := b.shim(env["LIBTORCH"], false); return err },
			func() error { _, err := b.shim(env["LIBTORCH"], true); return err })
	}
	for _, variant := range []string{"", "gc", "race"} {
		for _, pkg := range testPackages {
			r.binaries[pkg+variant] = filepath.Join(b.dir, "bin", strings.ReplaceAll(pkg, "/", "_")+"_"+variant+".test")
			if !fresh {
				tasks = append(tasks, func() error { _, err := b.goTest(pkg, variant); return err })
			}
		}
	}
	r.cpp = filepath.Join(b.dir, "cpp")
	r.tsan = filepath.Join(b.dir, "cpp-tsan")
	progress("compiling %d binaries", len(tasks))
	if err := parallel(jobs, len(tasks), func(i int) error { return tasks[i]() }); err != nil {
		return nil, err
	}
	if r.cudaEnv, err = b.cuda(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(stampFile, []byte(stamp), 0o666); err != nil {
		return nil, err
	}
	surveyFile := filepath.Join(b.dir, "survey.json")
	if !fresh {
		_ = os.Remove(surveyFile)
	}
	if data, err := os.ReadFile(surveyFile); err == nil {
		if err := json.Unmarshal(data, &r.reaches); err == nil {
			return r, nil
		}
	}
	progress("running all tests once without a mutant")
	for _, pkg := range testPackages {
		reaches, err := r.survey(pkg)
		if err != nil {
			return nil, err
		}
		r.reaches = append(r.reaches, reaches...)
	}
	if err := r.baseline(); err != nil {
		return nil, err
	}
	data, err := json.Marshal(r.reaches)
	if err != nil {
		return nil, err
	}
	return r, os.WriteFile(surveyFile, data, 0o666)
}

// stamp returns a hash of all that is compiled.
func (b *builder) stamp(torch string) (string, error) {
	h := sha256.New()
	fmt.Fprint(h, torch, mutantPackage, mutantHelpers, mutantHeader, mutantSource)
	for _, f := range b.c.files {
		h.Write(rewrite(f.source, f.wraps))
	}
	for _, f := range b.c.cpp {
		h.Write(rewrite(f.source, f.wraps))
	}
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.go", "*.cpp", "*.h", "*.c", "*.txt", "go.sum", "*.json", "*.jsonl")
	cmd.Dir = b.root
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if strings.HasPrefix(name, "tests/mutate/") && name != "tests/mutate/build.go" {
			continue // its output is hashed above
		}
		f, err := os.Open(filepath.Join(b.root, name))
		if err != nil {
			continue // deleted, not committed
		}
		fmt.Fprintln(h, name)
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

func linstockEnv(root string) (map[string]string, error) {
	cmd := exec.Command("go", "run", "./cmd/linstock", "env")
	cmd.Dir = root
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "LINSTOCK_LIB=") })
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("linstock env: %w", err)
	}
	env := map[string]string{}
	s := bufio.NewScanner(strings.NewReader(string(out)))
	for s.Scan() {
		if name, value, ok := strings.Cut(strings.TrimPrefix(s.Text(), "export "), "="); ok {
			env[name] = strings.Trim(value, `'"`)
		}
	}
	if env["LIBTORCH"] == "" {
		return nil, fmt.Errorf("libtorch is not set up: run make setup")
	}
	return env, nil
}

// parallel runs f for 0 to n-1, up to jobs at once, and returns the first error.
func parallel(jobs, n int, f func(int) error) error {
	var wg sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, n)
	for range jobs {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs[i] = f(i)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

var began = time.Now()

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%5.0f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
}

// all tries the mutants.
func (r *runner) all(chosen []*mutant, jobs int) []result {
	results := make([]result, len(chosen))
	var done, noticed atomic.Int64
	last := time.Now()
	var mu sync.Mutex
	log, err := os.Create(filepath.Join(r.b.dir, "results.txt"))
	if err != nil {
		log = os.Stderr
	} else {
		defer log.Close()
	}
	_ = parallel(jobs, len(chosen), func(i int) error {
		start := time.Now()
		ok, by := r.dynamic(chosen[i])
		results[i] = result{mutant: chosen[i], dynamic: ok, by: by, seconds: time.Since(start).Seconds()}
		n := done.Add(1)
		mu.Lock()
		fmt.Fprintf(log, "%d\t%v\t%.1f\t%s\t%s\n", chosen[i].n, ok, results[i].seconds, chosen[i].key, by)
		mu.Unlock()
		if ok {
			noticed.Add(1)
		}
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) > 10*time.Second || int(n) == len(chosen) {
			last = time.Now()
			progress("%d of %d mutants, %d noticed by tests", n, len(chosen), noticed.Load())
		}
		return nil
	})
	return results
}

// report prints the mutants that were not detected, and the line of the scorecard.
func report(results []result, each bool) (failed bool) {
	slices.SortFunc(results, func(a, b result) int { return a.n - b.n })
	var tried, dynamic, both, equivalent int
	var seconds float64
	for _, m := range results {
		seconds += m.seconds
		if each {
			fmt.Printf("%d %s %s: %v by %s (%.1f s)\n", m.n, m.kind, m.key, m.dynamic || m.static, m.by, m.seconds)
		}
		if m.equivalent != "" {
			equivalent++
			if m.dynamic {
				fmt.Printf("%d is in equivalent.txt, but %s notices it: %s\n", m.n, m.by, m.key)
				failed = true
			}
			continue
		}
		tried++
		if m.dynamic {
			dynamic++
		}
		if m.dynamic || m.static {
			both++
			continue
		}
		fmt.Printf("nothing notices mutant %d, %s: %s\n", m.n, m.place, m.key)
	}
	percent := func(n int) float64 { return 100 * float64(n) / float64(max(1, tried)) }
	failed = failed || percent(dynamic) < 95 || both < tried
	fmt.Printf("%.0f s of tests\n", seconds)
	scorecard.Line("mutation", fmt.Sprintf("%d mutants: %.1f %% noticed by tests, %.1f %% with the analyzer; %d equivalent (listed)",
		tried, percent(dynamic), percent(both), equivalent), !failed)
	return failed
}
