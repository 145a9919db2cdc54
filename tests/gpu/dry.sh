#!/usr/bin/env bash
# Runs the kit (tests/gpu/build.sh) over the fake CUDA runtime as if this were a lent machine: nothing in the environment,
# no Go in PATH, another HOME, and a Python whose PyTorch has the fake runtime beneath it. Values are not compared: the
# fake runtime's kernels do nothing.
#
#   tests/gpu/dry.sh [--share F …] OUT [PART | PART/STEP …]    arguments go to the kit's run.sh
#
# The kit that is there is taken where it is for the libtorch under test (LINSTOCK_TORCH, 2.11.0 by default) and GPU_KIT=keep
# is set; else it is built.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
version=${LINSTOCK_TORCH:-2.11.0}
export LINSTOCK_TORCH=$version
if [ "${GPU_KIT:-}" != keep ] || ! grep -q "\"torch\": \"$version\"" build/gpu-kit/kit.json 2>/dev/null; then
  tests/gpu/build.sh "$version"
fi
tests/fakecuda/setup.sh "$version" >/dev/null
fakes=$PWD/build/fakecuda/$version/libtorch/torch/lib
root=$(cd "$(readlink -f "$fakes/../include")/../.." && pwd)

# The Python that this PyTorch is for.
tag=$(basename "$root"/torch/_C.cpython-*.so)
tag=${tag#_C.cpython-3}
minor=3.${tag%%-*}
python=
for p in "$root/../../../bin/python3" "python$minor" "$HOME"/.pyenv/versions/"$minor".*/bin/python3; do
  if [ "$("$p" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$minor" ]; then python=$p && break; fi
done
[ -n "$python" ] || { echo "missing: python$minor, which the PyTorch in $root is for; install it with: apt-get install python$minor-venv" >&2; exit 1; }

# An environment whose PyTorch is that one, by links, with the fake libraries beside libtorch.
venv=$PWD/build/fakecuda/$version/python
if [ ! -f "$venv/made" ]; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install -q numpy safetensors typing_extensions sympy networkx jinja2 fsspec filelock setuptools
fi
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [ "$(cat "$venv/made" 2>/dev/null)" != "$(cat "$fakes/../../fakecuda.stamp")" ]; then
  rm -rf "$site/torch" "$site/torchgen"
  cp -rs "$root/torch" "$root/torchgen" "$site/"
  [ -d "$root/torch-"*.dist-info ] && cp -r "$root"/torch-*.dist-info "$site/"
  for lib in "$fakes"/*; do [ -e "$site/torch/lib/${lib##*/}" ] || ln -s "$lib" "$site/torch/lib/"; done
  cp "$fakes/../../fakecuda.stamp" "$venv/made"
fi

home=$(mktemp -d "${TMPDIR:-/tmp}/gpu-kit-home.XXXXXX")
trap 'rm -rf "$home"' EXIT
mkdir "$home/bin"
# What an image for containers has; Go, compilers and the like are not in PATH.
for tool in bash sh env cat cp ln ls mkdir mv rm sed grep awk dirname basename readlink uname sleep ldd tar date tail head; do
  path=$(command -v "$tool") && ln -s "$path" "$home/bin/$tool"
done
env -i PATH="$home/bin" HOME="$home" PYTHON="$venv/bin/python" LINSTOCK_GPU_DRY=1 FAKECUDA_CAPACITY="${FAKECUDA_CAPACITY:-}" \
  build/gpu-kit/run.sh "$@"
