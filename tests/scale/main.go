package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
)

func main() {
	parameters := flag.Float64("parameters", 124e6, "parameters of the model, whose gradients are float32")
	forward := flag.Duration("forward", 30*time.Millisecond, "time of a forward pass")
	backward := flag.Duration("backward", 60*time.Millisecond, "time of a backward pass")
	optimizer := flag.Duration("optimizer", 3*time.Millisecond, "time of the optimizer")
	bucket := flag.Float64("bucket", 25, "MiB of a bucket")
	node := flag.Int("node", 8, "ranks of a node")
	within := flag.Duration("within", 2*time.Microsecond, "latency within a node")
	withinBandwidth := flag.Float64("within-bandwidth", 400, "GB/s of a rank within a node")
	between := flag.Duration("between", 6*time.Microsecond, "latency between nodes")
	betweenBandwidth := flag.Float64("between-bandwidth", 45, "GB/s of a rank between nodes")
	jitter := flag.Float64("jitter", 0.01, "standard deviation of a rank's compute time, as a fraction of it")
	random := flag.Float64("random", 0.3, "fraction of a latency that is random")
	steps := flag.Int("steps", 3, "number of steps to average")
	seed := flag.Uint64("seed", 1, "seed of the noise")
	flag.Parse()
	seconds := time.Duration.Seconds
	j := job{seconds(*forward), seconds(*backward), seconds(*optimizer), 4 * *parameters, *bucket * (1 << 20)}
	c := cluster{
		node:   *node,
		within: link{seconds(*within), *withinBandwidth * 1e9}, between: link{seconds(*between), *betweenBandwidth * 1e9},
		jitter: *jitter, random: *random,
	}
	if j.bytes <= 0 || j.bucket <= 0 || c.node < 1 || c.within.bandwidth <= 0 || c.between.bandwidth <= 0 || *steps < 1 {
		fmt.Fprintln(os.Stderr, "scale: sizes, bandwidths and steps must be positive")
		os.Exit(2)
	}
	w := table.NewWriter()
	w.SetTitle(fmt.Sprintf("Step on one device %v; gradients %.0f MB in %d buckets", time.Duration(j.compute()*1e9).Round(time.Millisecond/10), j.bytes/1e6, j.buckets()))
	w.AppendHeader(table.Row{"ranks", "ring, ms", "bound", "tree, ms", "bound", "all-reduce of a bucket: ring, ms", "tree, ms", "efficiency of the better"})
	ms := func(s float64) string { return fmt.Sprintf("%.2f", s*1e3) }
	for ranks := 1; ranks <= 4096; ranks *= 2 {
		if ranks != 1 && ranks < 8 {
			continue
		}
		mean := func(a algorithm) (sum float64) {
			rng := rand.New(rand.NewPCG(*seed, uint64(ranks)))
			for range *steps {
				sum += c.step(j, ranks, a, rng) / float64(*steps)
			}
			return sum
		}
		r, t := mean(ring), mean(tree)
		size := j.bytes / float64(j.buckets())
		br, bt := c.ringBound(size, ranks), c.treeBound(size, ranks)
		w.AppendRow(table.Row{ranks, ms(r), ms(stepBound(j, br)), ms(t), ms(stepBound(j, bt)), ms(br), ms(bt), fmt.Sprintf("%.2f", j.compute()/min(r, t))})
	}
	fmt.Println(w.Render())
}
