#!/usr/bin/env bash
# Builds the fuzzer of the C API beside the C++ tests and runs it; arguments go to it (see fuzz.cpp).
set -eu -o pipefail
cd "$(dirname "$0")/../.."
eval "$(go run ./cmd/linstock env)"
dir=build/test/cpp-${LINSTOCK_TORCH:-$(tail -n 1 internal/locate/versions.txt)}
mkdir -p build/test
{ cmake -S cshim -B "$dir" -DLINSTOCK_TORCH_ROOT="${LIBTORCH:?run: make setup}" -DLINSTOCK_CORE="$LINSTOCK_LIB" -DLINSTOCK_BUILD_TESTS=ON &&
  cmake --build "$dir" --target cshim_fuzz --parallel "$(nproc)"; } >"$dir.log" 2>&1 ||
  { tail -40 "$dir.log"; exit 1; }
exec "$dir/tests/cshim_fuzz" "$@"
