package main

import (
	"slices"
	"strings"
	"time"
)

var speedSteps = []step{
	speedStep("operators", "the cost of an operator and of its gradient's record", "add,view,matmul,add+grad,matmul+grad", 2, 9, 3*time.Minute),
	speedStep("mlp", "a training step bound by launches", "mlp", 3, 11, 3*time.Minute),
	speedStep("gpt10m", "GPT of 10 M parameters in bf16", "gpt10m", 3, 11, 4*time.Minute),
	large(speedStep("gpt350m", "GPT of 350 M parameters in bf16", "gpt350m", 2, 7, 5*time.Minute)),
	speedStep("resnet50", "ResNet-50", "resnet50", 2, 9, 5*time.Minute),
	speedStep("lstm", "an LSTM of two layers", "lstm", 3, 11, 3*time.Minute),
	speedStep("attention", "causal attention, forward and backward, in bf16", "attention", 3, 11, 3*time.Minute),
	{name: "float8", shows: "a Linear with products in float8 beside one in bf16, forward and backward", limit: 2 * time.Minute, argv: "{bin}/gpu float8"},
}

// oneCompiler makes Inductor compile in its own process. Its process pool can hang on two cores (PyTorch 2.11).
const oneCompiler = "TORCHINDUCTOR_COMPILE_THREADS=1"

func large(s step) step {
	s.large = true
	return s
}

// speedStep times tasks in Go, C++ and Python (eager, with CUDA graphs and compiled), in shuffled turns.
func speedStep(name, shows, tasks string, rounds, turns int, limit time.Duration) step {
	return step{name: name, shows: shows + ": Go compared with C++ and Python", limit: limit,
		argv: "{bin}/bench -device cuda:0 -json -tasks " + tasks + " -rounds " + itoa(rounds) + " -turns " + itoa(turns) + " {dry}",
		env:  []string{"LINSTOCK_BENCH_PYTHON={python}", "TORCHINDUCTOR_CACHE_DIR={work}/inductor"},
		// The fake runtime does not implement cuDNN's layout of an LSTM's weights.
		dry: "-rounds 1 -turns 1 -tasks " + tasks[strings.LastIndexByte(tasks, ',')+1:], dryEnv: append(slices.Clone(roomy), "LINSTOCK_CUDNN=0", oneCompiler)}
}
