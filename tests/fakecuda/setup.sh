#!/usr/bin/env bash
# Makes build/fakecuda/VERSION: libtorch VERSION on fake CUDA devices (build.sh), and the shim with its CUDA library
# for it. Idempotent. Ends with the lines that a program needs to run over it:
#
#   eval "$(tests/fakecuda/setup.sh [VERSION])" && FAKECUDA_DEVICES=2 go test ./…
#
# libtorch_cuda is taken from the first that holds it: FAKECUDA_TORCH (a directory with torch in it), the PyTorch of
# `make bench-setup`; else the wheel is downloaded (0.5 GB), without those of NVIDIA's libraries. It is all of PyTorch:
# tests/gpu/dry.sh runs Python over the fakes too.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
version=${1:-${LINSTOCK_TORCH:-$(tail -n 1 internal/locate/versions.txt)}}
out=$PWD/build/fakecuda/$version
mkdir -p "$out"

{
  is() { # is DIR: holds this PyTorch with its CUDA part and a CUDA header
    [ -f "$1/torch/lib/libtorch_cuda.so" ] && [ -f "$1/torch/lib/libtorch_python.so" ] && grep -q "^__version__ = '$version" "$1/torch/version.py" &&
      [ -n "$(find -L "$1/nvidia" -path '*/include/cuda_runtime_api.h' -print -quit 2>/dev/null)" ]
  }
  root=
  for dir in "${FAKECUDA_TORCH:-}" build/pytorch/lib/python3*/site-packages "$out/wheel"; do
    if is "$dir" 2>/dev/null; then root=$(cd "$dir" && pwd) && break; fi
  done
  if [ -z "$root" ]; then
    go run ./cmd/linstock fetch --torch "$version" "$out/wheels"
    rm -rf "$out/wheel"
    python3 - "$out/wheels" "$out/wheel" <<'PY'
import glob, re, sys, zipfile
want = re.compile(r'(torch|torchgen|functorch)/|torch-[^/]*\.dist-info/|nvidia/[^/]*/include/')
for wheel in glob.glob(sys.argv[1] + '/*.whl'):
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            if want.match(name):
                z.extract(name, sys.argv[2])
PY
    rm -rf "$out/wheels"
    root=$out/wheel
  fi
  tests/fakecuda/build.sh "$root" "$out/libtorch"

  # The shim of the last setup is reused: it is the same with and without CUDA.
  core=$(unset LIBTORCH LINSTOCK_LIB; export LINSTOCK_TORCH=$version; eval "$(go run ./cmd/linstock env)"; echo "${LINSTOCK_LIB:-}")
  cmake -S cshim -B "$out/shim" -DLINSTOCK_TORCH_ROOT="$out/libtorch" -DLINSTOCK_CUDA=ON -DLINSTOCK_CORE="$core" >"$out/shim.log" &&
    cmake --build "$out/shim" --parallel "${FAKECUDA_JOBS:-2}" >>"$out/shim.log" || { cat "$out/shim.log"; exit 1; }
  # Laid out as a bundle, so that the shim finds this libtorch first.
  mkdir -p "$out/lib"
  ln -sfn "$out/libtorch/torch" "$out/lib/torch"
  for lib in "${core:-$out/shim/liblinstock.so}" "$out/shim/liblinstock_cuda.so" "${core%/*}/libomp.so"; do
    [ -f "$lib" ] || continue
    cmp -s "$lib" "$out/lib/${lib##*/}" || { cp "$lib" "$out/lib/.new" && mv "$out/lib/.new" "$out/lib/${lib##*/}"; }
  done
} >&2

echo "export LINSTOCK_LIB=$out/lib"
echo "export LD_LIBRARY_PATH=$out/libtorch/torch/lib"
