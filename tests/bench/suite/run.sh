#!/usr/bin/env bash
# Builds the suite's arms and runs them; arguments go to the runner (see -help).
set -eu
cd "$(dirname "$0")/../../.."
eval "$(go run ./cmd/linstock env)"
out=build/bench/suite
mkdir -p $out
# Without the commit, so that a commit does not end a run that could go on.
go build -buildvcs=false -o $out/suite ./tests/bench/suite
case " $* " in *" -help "* | *" --help "* | *" -h "*) exec $out/suite -help ;; esac
echo "building the C++ arm …"
cmake -S tests/bench/suite/cpp -B $out/cpp -DCMAKE_BUILD_TYPE=Release \
  -DLINSTOCK_CORE="${LINSTOCK_LIB:?run: make setup}" -DLINSTOCK_TORCH_ROOT="${LIBTORCH:?run: make setup}" >$out/cmake.log
cmake --build $out/cpp --target suite --parallel "$(nproc)" >$out/build.log || { tail -30 $out/build.log; exit 1; }
exec $out/suite "$@"
