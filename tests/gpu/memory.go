package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"time"
)

// In a dry run the fake device has more memory than the machine, which is safe because nothing writes to it.
var roomy = []string{"FAKECUDA_CAPACITY=128G"}

var memorySteps = []step{
	{name: "garbage", shows: "64 times the device's limit in tensors that nobody releases", limit: 3 * time.Minute,
		argv: "{bin}/allocations {dry} garbage", dry: "-times 8", dryEnv: roomy},
	{name: "outofmemory", shows: "the example: 256 GiB through a limit of 4 GiB", limit: 2 * time.Minute,
		argv: "{bin}/outofmemory -device cuda:0 -limit 4GiB -total 256GiB -dir {work}", dryEnv: roomy, read: readOutOfMemory},
	{name: "programs", shows: "1,000 random programs near their limits: no false out-of-memory error", limit: 4 * time.Minute,
		argv: "{bin}/memory -json -device cuda:0 -programs 1000 {dry} programs", dry: "-values=false -programs 40", dryEnv: roomy},
	{name: "history", shows: "history with Go lines, in PyTorch's viewer", limit: time.Minute,
		argv: "{bin}/allocations -python {python} -dir {out} history"},
	{name: "rates", shows: "R torch's rates on real allocations", limit: time.Minute, argv: "{bin}/allocations rates", dryEnv: roomy},
	{name: "options", shows: "max_split_size_mb, garbage_collection_threshold, expandable_segments", limit: time.Minute,
		argv: "{bin}/allocations options", dryEnv: roomy},
	{name: "roundup", shows: "roundup_power2_divisions of the environment", limit: time.Minute, argv: "{bin}/allocations roundup",
		env: []string{"PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:4"}, dryEnv: roomy},
	{name: "stress", shows: "random scenarios; after each bytes, handles, goroutines and values are right", limit: 4 * time.Minute,
		argv: "{bin}/stress -device cuda:0 -minutes 2 -seed 1 {dry}", dry: "-device fake -minutes 0.2", read: readStress},
	peakStep("mlp"), peakStep("cnn"), peakStep("gru"), peakStep("gpt"),
}

// peakStep compares a model's peak and time with Python's: by hand, by layers, unscoped, and with last-use release.
func peakStep(model string) step {
	return step{name: "peak-" + model, shows: "peak and time compared with Python's on the same allocator: " + model, limit: 3 * time.Minute,
		argv: "{bin}/peak -device cuda:0 -json -peaks -lines table -scale 8 -rounds 2 -steps 10 -models " + model + " -lastuse {bin}/peak-lastuse {dry}",
		env:  []string{"LINSTOCK_BENCH_PYTHON={python}"},
		dry:  "-rounds 1 -steps 2 -modes train", dryEnv: roomy}
}

func itoa(n int) string { return strconv.Itoa(n) }

var stressRow = regexp.MustCompile(`(?m)^\| (\w+) +\| +(\d+) +\| +(\d+) +\|`)

// readStress parses the table of tests/stress: its scenarios, with the rounds and those that failed.
func readStress(stdout, _ []byte, res *stepResult) error {
	for _, m := range stressRow.FindAllSubmatch(stdout, -1) {
		line, err := json.Marshal(map[string]any{"row": string(m[1]), "rounds": json.Number(m[2]), "failed": json.Number(m[3])})
		if err != nil {
			return err
		}
		res.Rows = append(res.Rows, line)
	}
	if len(res.Rows) == 0 {
		return errors.New("tests/stress printed no table")
	}
	return nil
}

var outOfMemoryLine = regexp.MustCompile(`(?m)^(\d+ steps in .*|limit .*|sweeps: .*|allocations that waited: .*)$`)

// readOutOfMemory parses the output of examples/outofmemory.
func readOutOfMemory(stdout, _ []byte, res *stepResult) error {
	for _, m := range outOfMemoryLine.FindAll(stdout, -1) {
		ok := !bytes.Contains(m, []byte("none failed: false"))
		line, err := json.Marshal(map[string]any{"row": string(m), "ok": ok})
		if err != nil {
			return err
		}
		res.Rows = append(res.Rows, line)
		if !ok {
			res.fail(string(m))
		}
	}
	if len(res.Rows) == 0 {
		return errors.New("the example printed none of its figures")
	}
	return nil
}
