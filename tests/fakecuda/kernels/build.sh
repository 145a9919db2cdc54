#!/usr/bin/env bash
# Compiles kernels.cpp against the output of tests/fakecuda/build.sh: tests/fakecuda/kernels/build.sh LIBTORCH OUT.so
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$1" && pwd)
c++ -std=c++20 -O1 -fPIC -shared -Wall -Wextra -isystem "$root/torch/include" -isystem "$root/torch/include/torch/csrc/api/include" \
  -isystem "$root/nvidia/cu/include" -idirafter "$here/../../../cshim/cuda/include" -o "$2" "$here/kernels.cpp" \
  -L"$root/torch/lib" -Wl,--no-as-needed -ltorch_cuda -ltorch_cpu -lc10 -Wl,--allow-shlib-undefined
