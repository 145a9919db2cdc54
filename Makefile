# Linstock. `make help` lists the targets; `make setup demo` shows that it works.
#
# TORCH chooses the libtorch: make test TORCH=2.11.0

TORCH ?= 2.15.0
GO    ?= go
# Chosen here, it also holds for the programs that the targets run; otherwise they
# take the libtorch of the last setup.
ifneq ($(origin TORCH),file)
export LINSTOCK_TORCH := $(TORCH)
endif

.DEFAULT_GOAL := help
.PHONY: help setup doctor demo test bench bench-setup generate fmt lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install libtorch $(TORCH) and compile the shim (ends at once when done before)
	@$(GO) run ./cmd/linstock setup --torch $(TORCH)

doctor: ## say what is installed and what is broken
	@$(GO) run ./cmd/linstock doctor

demo: setup ## train and sample a small model

test: setup ## every test; the installation of a user too
	LINSTOCK_TEST_INSTALL=1 $(GO) test ./...

bench-setup: setup ## what the benchmarks compare with

bench: setup ## the numbers of the README

generate: ## write the generated files anew
	$(GO) generate ./...

fmt: ## format
	gofmt -w $$(git ls-files '*.go')

lint: ## what CI demands of the sources
	$(GO) vet ./...

clean: ## remove build products of this checkout; the cache stays (linstock env tells where)
	rm -rf build dist
