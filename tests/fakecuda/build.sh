#!/usr/bin/env bash
# Makes a libtorch whose CUDA devices are fake: the real libtorch_cuda over libraries that stand in for NVIDIA's.
#
#   tests/fakecuda/build.sh TORCH_ROOT OUT_DIR
#
# TORCH_ROOT holds torch/lib with libtorch_cuda.so, torch/include, and nvidia/*/include with cuda_runtime_api.h
# (unpacked wheels, a site-packages, or what setup.sh unpacks). OUT_DIR gets the same layout with links, so
# that the paths in libtorch's own DT_RPATH do not lead to NVIDIA's libraries. To use it:
#   LIBTORCH=OUT_DIR LD_LIBRARY_PATH=OUT_DIR/torch/lib …
# Nothing is done where nothing has changed.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
lib=$out/torch/lib
[ -f "$root/torch/lib/libtorch_cuda.so" ] || { echo "no torch/lib/libtorch_cuda.so in $root" >&2; exit 1; }
header=$(find -L "$root" -path '*/include/cuda_runtime_api.h' -print -quit)
[ -n "$header" ] || { echo "no cuda_runtime_api.h in $root: the wheel nvidia-cuda-runtime holds it" >&2; exit 1; }
include=$(dirname "$header")

stamp=$({
  echo "$root"
  stat -L -c '%s' "$root"/torch/lib/*.so*
  cat "$0" "$here"/fakecuda.h "$here"/src/* "$here"/gen/* "$here"/../../cshim/cuda/include/crt/host_defines.h
} | sha256sum)
if [ "$(cat "$out/fakecuda.stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
rm -rf "$out/fakecuda.stamp" "$out/torch" "$out/stubs" "$out/nvidia"
mkdir -p "$lib" "$out/stubs" "$out/nvidia/cu"

for f in "$root"/torch/lib/lib*.so*; do
  case ${f##*/} in *python*) ;; *) ln -s "$(readlink -f "$f")" "$lib/${f##*/}" ;; esac
done
ln -s "$root/torch/include" "$out/torch/include"
ln -s "$include" "$out/nvidia/cu/include"
[ ! -f "$root/torch/version.py" ] || ln -s "$root/torch/version.py" "$out/torch/version.py"

# Python's part is not linked here (it needs Python), but tests/gpu/dry.sh runs it over the same libraries.
python=("$root"/torch/lib/libtorch_python.so)
[ -f "${python[0]}" ] || python=()
(cd "$here" && go run ./gen "$lib" "$out/stubs" "${python[@]}")

# libtorch compares this version with the one it was compiled with.
flags=(-std=gnu11 -O1 -g1 -fPIC -fvisibility=hidden -Wall -Wextra -I"$here/src" -I"$include" -idirafter "$here/../../cshim/cuda/include")
link() { # link SONAME OBJECTS…
  local soname=$1
  shift
  cc -shared -o "$lib/$soname" -Wl,-soname,"$soname" -Wl,--version-script="$out/stubs/$soname.map" -Wl,-z,now "$@" -ldl -lpthread
}
compile() { # compile SOURCE: prints the object
  local o=$out/stubs/${1##*/}.o
  cc "${flags[@]}" -c "$1" -o "$o"
  echo "$o"
}
# Stubs are declared without the types that the compiler knows for functions of these names.
flags+=(-fno-builtin)
cudart=$(sed -n 's/^\(libcudart.so[^ ]*\) .*/\1/p' "$out/stubs/libs.txt")
link "$cudart" "$(compile "$out/stubs/$cudart.c")" "$(compile "$here/src/cudart.c")" "$(compile "$here/src/streams.c")" \
  "$(compile "$here/src/state.c")"
while read -r soname source; do
  [ "$soname" != "$cudart" ] || continue
  objects=("$(compile "$out/stubs/$soname.c")")
  [ "$source" = - ] || objects+=("$(compile "$here/src/$source.c")")
  link "$soname" "${objects[@]}" -Wl,-rpath,'$ORIGIN' "$lib/$cudart"
done <"$out/stubs/libs.txt"
echo "$stamp" >"$out/fakecuda.stamp"
