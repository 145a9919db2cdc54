# Linstock. `make help` lists the targets; `make setup demo` shows that it works.
#
# TORCH chooses the libtorch: make test TORCH=2.11.0

TORCH ?= $(or $(LINSTOCK_TORCH),$(shell tail -n 1 internal/locate/versions.txt))
GO    ?= go
# Set here, it also applies to the programs that the targets run; otherwise they use the libtorch of the last
# setup.
ifneq ($(origin TORCH),file)
export LINSTOCK_TORCH := $(TORCH)
endif

.DEFAULT_GOAL := help
.PHONY: gpu-kit figures verify help setup doctor demo demo-dist test bench bench-setup bench-peak bench-serve bench-suite generate golden fmt lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install libtorch $(TORCH) and compile the shim (does nothing if already done)
	@$(GO) run ./cmd/linstock setup

doctor: ## report what is installed and how to fix what is missing
	@$(GO) run ./cmd/linstock doctor

demo: setup ## train a small GPT on the Go toolchain's source text, or continue, then generate text
	@mkdir -p build
	@$(GO) build -o build/chargpt ./examples/chargpt
	@build/chargpt -out runs/chargpt

demo-dist: setup ## train the GPT with four processes on this machine
	@mkdir -p build
	@$(GO) build -o build/ddp ./examples/ddp
	@rm -rf runs/demo-dist
	@for rank in 0 1 2 3; do \
		RANK=$$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 OMP_NUM_THREADS=1 build/ddp -out runs/demo-dist & \
		all="$$all $$!"; \
	done; \
	for process in $$all; do wait $$process || failed=1; done; exit $${failed:-0}

test: setup ## the checks and tests of CI (less than 20 minutes); TIERS="lint go" runs some of them
	@tests/run.sh $(TIERS)

bench-setup: setup ## install Python's PyTorch in its own environment, for comparison in the benchmarks
	@tests/bench/setup.sh $(TORCH)

bench: setup ## speed and memory side by side with C++ and Python, in shuffled rounds
	@tests/bench/run.sh $(BENCH)

bench-peak: setup ## peak memory, and what keeping it low costs, side by side with Python at sizes where it matters
	@mkdir -p build/bench
	@$(GO) build -o build/bench/linstock-bench-peak ./tests/bench/peak
	@$(GO) run ./cmd/linstock go build -o build/bench/linstock-bench-peak-lastuse ./tests/bench/peak
	@build/bench/linstock-bench-peak -lastuse build/bench/linstock-bench-peak-lastuse $(BENCH)

bench-serve: setup ## servers of one network compared with uvicorn and PyTorch, and cpp-httplib and libtorch: requests/s, p50, p99
	@tests/bench/serve/run.sh $(BENCH)

bench-suite: setup ## 21 workloads in Go, C++ and Python: losses, speed, memory, start (docs/speed.md; BENCH=-help)
	@tests/bench/suite/run.sh $(BENCH)

generate: setup ## regenerate the files made from internal/opgen/ops.txt
	@$(GO) run ./internal/opgen

golden: ## regenerate the golden data with the PyTorch of bench-setup
	@for script in tests/golden/*.py tests/crashhunt/record.py examples/*/twin.py; do echo "$$script"; build/pytorch/bin/python "$$script" || exit 1; done

gpu-kit: ## build/gpu-kit: the tests and measurements for a machine with a GPU, in at most 60 MiB (docs/gpu-kit.md)
	@tests/gpu/build.sh $(or $(KIT_TORCH),2.11.0)

figures: setup ## memory figures and their targets (half an hour; FIGURES="-quick loop" for some, "-device fakecuda")
	@eval "$$(go run ./cmd/linstock env)" && go run ./tests/memory $(FIGURES)

verify: setup ## every line of the scorecard in docs/reliability.md, in full (nearly three hours; VERIFY="-rows storm" for some)
	@$(GO) run ./tests/verify $(VERIFY)

fmt: ## format Go and C++
	gofmt -w $$(git ls-files '*.go')
	@if [ -x build/tools/bin/clang-format ]; then build/tools/bin/clang-format --style=file:cshim/.clang-format -i $$(git ls-files 'cshim/*.cpp' 'cshim/*.h' 'cshim/*.c' 'tests/*.cpp' 'tests/*.h' 'tests/*.c' | grep -v '_gen\.'); fi

lint: setup ## the checks of the sources that CI runs
	@tests/run.sh lint

clean: ## remove what was built in this checkout; the cache stays (linstock env tells where)
	rm -rf build
