#!/usr/bin/env bash
# Builds the arms and runs the benchmarks; arguments go to the runner (see -help).
set -eu
cd "$(dirname "$0")/../.."
eval "$(go run ./cmd/linstock env)"
mkdir -p build/bench
echo "building the C++ arm …"
cmake -S tests/bench/cpp -B build/bench -DCMAKE_BUILD_TYPE=Release \
  -DLINSTOCK_CORE="${LINSTOCK_LIB:?run: make setup}" -DLINSTOCK_TORCH_ROOT="${LIBTORCH:?run: make setup}" >build/bench/cmake.log
cmake --build build/bench --parallel "$(nproc)" >build/bench/build.log || { tail -30 build/bench/build.log; exit 1; }
go build -o build/bench/linstock-bench ./tests/bench
exec build/bench/linstock-bench "$@"
