#!/usr/bin/env bash
# Builds the kit of `make gpu-kit` into build/gpu-kit: run.sh, kit.json, and kit.tar.gz with all else. What the kit does
# is in docs/gpu-kit.md.
#
#   tests/gpu/build.sh [VERSION]    the libtorch that it is for, 2.11.0 by default
#
# libtorch_cuda, which the shim's CUDA library is linked with, comes with tests/fakecuda/setup.sh.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
version=${1:-2.11.0}
out=$PWD/build/gpu-kit
most=$((60 << 20)) # the size that a lent machine takes, with the repository beside it

say() { echo "gpu-kit: $*" >&2; }

say "the shim and its CUDA library for libtorch $version"
export LINSTOCK_TORCH=$version
go run ./cmd/linstock setup --torch "$version" >&2
LIB=$(tests/fakecuda/setup.sh "$version" | sed -n 's/^export LINSTOCK_LIB=//p')

new=$PWD/build/gpu-kit.new
rm -rf "$new"
mkdir -p "$new/tree/bin" "$new/tree/lib" "$new/tree/repo"
tree=$new/tree
for lib in "$LIB"/liblinstock*.so "$LIB/libomp.so"; do
  cp -L "$lib" "$tree/lib/"
  strip --strip-unneeded "$tree/lib/${lib##*/}"
done
cp internal/libtorch/llvm-openmp.txt "$tree/lib/"

# Packages whose tests can use a device: PACKAGE/NAME.test in the layout of the repository.
tests=(tensor autograd nn optim data checkpoint vram distributions profiler tests/fakecuda)
# Programs: bin/NAME from a package.
programs=(gpu=tests/gpu allocations=tests/gpu/allocations outofmemory=examples/outofmemory memory=tests/memory peak=tests/bench/peak
  bench=tests/bench stress=tests/stress)
# Files and folders of the repository that the steps read.
files=(tests/golden checkpoint/testdata internal/opgen/ops.txt tests/gpu/machine.py tests/gpu/copies.py tests/gpu/nccl.py
  tests/gpu/allocations/viewer.py tests/bench/arm.py tests/bench/peak/arm.py)

say "Go: ${tests[*]} ${programs[*]#*=}"
build() { go "$1" -trimpath -ldflags '-s -w' "${@:2}"; }
for p in "${tests[@]}"; do
  mkdir -p "$tree/repo/$p"
  build test -c -tags linstock_device -o "$tree/repo/$p/${p##*/}.test" "./$p"
done
go run ./cmd/linstock go build -trimpath -ldflags '-s -w' -o "$tree/bin/peak-lastuse" ./tests/bench/peak
for p in "${programs[@]}"; do build build -o "$tree/bin/${p%%=*}" "./${p#*=}"; done

say "C++"
root=$PWD/build/fakecuda/$version/libtorch
cmake -S cshim -B build/gpu-kit.cmake -G Ninja -DLINSTOCK_TORCH_ROOT="$root" -DLINSTOCK_BUILD_TESTS=ON -DLINSTOCK_CORE="$LIB/liblinstock.so" >build/gpu-kit.log &&
  ninja -C build/gpu-kit.cmake -j "${FAKECUDA_JOBS:-2}" cshim_test >>build/gpu-kit.log || { cat build/gpu-kit.log; exit 1; }
cp build/gpu-kit.cmake/tests/cshim_test "$tree/bin/"
strip "$tree/bin/cshim_test"
# The C++ arm of the benchmarks, beside bench. It opens libtorch_cuda itself.
cmake -S tests/bench/cpp -B build/gpu-kit.bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DLINSTOCK_WERROR=OFF -DLINSTOCK_TORCH_ROOT="$root" -DLINSTOCK_CORE="$LIB/liblinstock.so" >build/gpu-kit.log &&
  ninja -C build/gpu-kit.bench -j "${FAKECUDA_JOBS:-2}" arm >>build/gpu-kit.log || { cat build/gpu-kit.log; exit 1; }
cp build/gpu-kit.bench/arm "$tree/bin/"
strip "$tree/bin/arm"

for f in "${files[@]}"; do
  mkdir -p "$tree/repo/$(dirname "$f")"
  cp -RL "$f" "$tree/repo/$(dirname "$f")/"
done
find "$tree" -name __pycache__ -prune -exec rm -rf {} +

# The machine's C library may be older than this one's.
glibc=$(find "$tree" -type f \( -name '*.so' -o -name '*.test' -o -path '*/bin/*' \) -exec objdump -T {} ';' 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
cp tests/gpu/run.sh "$new/"
cat >"$new/kit.json" <<JSON
{"commit": "$(git describe --always --dirty 2>/dev/null || echo none)", "torch": "$version", "built": "$(date -u +%FT%TZ)", "glibc": "$glibc"}
JSON
tar -C "$tree" --owner=0 --group=0 -c . | gzip -9 >"$new/kit.tar.gz"
rm -rf "$tree"

bytes=$(du -sb "$new" | cut -f1)
[ "$bytes" -le "$most" ] || { say "the kit has $((bytes >> 20)) MiB, $((most >> 20)) are allowed"; exit 1; }
rm -rf "$out"
mv "$new" "$out"
say "$out: $((bytes >> 20)) MiB of at most $((most >> 20)), libtorch $version, needs $glibc"
