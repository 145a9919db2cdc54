package main

import "time"

// A part is a list of steps that one call can run in eight minutes, in order.
type part struct {
	name, shows string
	steps       []step
}

// A step is a command. In it and in env, {bin}, {repo}, {work}, {out}, {python} and {share} are replaced (see
// runner.expand). It runs in dir, a directory of the repository as the kit holds it, for at most limit. read
// parses its output; the default is readRows.
type step struct {
	name, shows string
	argv        string
	dir         string
	env         []string
	dry         string   // options of a dry run, in place of {dry} in argv
	dryEnv      []string // environment added in a dry run
	limit       time.Duration
	large       bool // left out when the share is below 1
	read        func(stdout, all []byte, res *stepResult) error
}

// programs are the modes of the driver, chosen by its first argument.
var programs = map[string]func(args []string) error{}

// parts is the kit's table. A call without names runs them in this order, the most informative first.
var parts = []part{
	{name: "tests", shows: "Tests that can use a device, on the device; operators against the CPU and Python", steps: append([]step{
		{name: "python", shows: "Python's PyTorch results for every operator on the device", limit: 3 * time.Minute,
			argv: "{python} tests/golden/golden.py cuda:0 {work}/ops-python.jsonl", env: onDevice, dryEnv: kernels, read: readText},
		{name: "ops-python", shows: "values and gradients of every operator against Python on the device", limit: 3 * time.Minute,
			argv: "{repo}/tensor/tensor.test -test.v -test.run ^TestGolden$", dir: "tensor", read: readRowsAndTests,
			env: append([]string{"LINSTOCK_TEST_GOLDEN={work}/ops-python.jsonl"}, onDevice...), dryEnv: kernels},
		{name: "ops-cpu", shows: "values and gradients of every operator against the CPU", limit: 3 * time.Minute,
			argv: "{repo}/tensor/tensor.test -test.v -test.run ^TestGolden$", dir: "tensor", read: readRowsAndTests, env: onDevice, dryEnv: kernels},
		{name: "cpp", shows: "the shim's C++ tests with the machine's libtorch", argv: "{bin}/cshim_test --gtest_brief=1", limit: 3 * time.Minute, read: readGTest},
	}, goSteps()...)},
	{name: "faults", shows: "Errors that lose the device, killed processes, two processes on one device", steps: faultSteps},
	{name: "memory", shows: "Out-of-memory, peaks compared with Python's, history, allocator options on real allocations", steps: memorySteps},
	{name: "speed", shows: "Time compared with C++ and Python", steps: speedSteps},
	{name: "streams", shows: "Copies that overlap, pinned memory, several streams, graphs", steps: streamSteps},
	{name: "nccl", shows: "NCCL and a concurrent Go process", steps: ncclSteps},
}
