#!/usr/bin/env bash
# Compiles kernels.cpp against the output of tests/fakecuda/build.sh, unless that is done:
# tests/fakecuda/kernels/build.sh LIBTORCH OUT.so
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$1" && pwd)
stamp=$(cat "$root/fakecuda.stamp" "$0" "$here/kernels.cpp" | sha256sum)
if [ "$(cat "$2.stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
c++ -std=c++20 -O1 -fPIC -shared -Wall -Wextra -isystem "$root/torch/include" -isystem "$root/torch/include/torch/csrc/api/include" \
  -isystem "$root/nvidia/cu/include" -idirafter "$here/../../../cshim/cuda/include" -o "$2" "$here/kernels.cpp" \
  -L"$root/torch/lib" -Wl,--no-as-needed -ltorch_cuda -ltorch_cpu -lc10 -Wl,--allow-shlib-undefined
echo "$stamp" >"$2.stamp"
