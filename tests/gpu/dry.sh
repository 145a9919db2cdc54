#!/usr/bin/env bash
# Runs the kit (tests/gpu/build.sh) over the fake CUDA runtime as if this were a lent machine: nothing in the environment,
# no Go in PATH, another HOME, and a Python whose PyTorch has the fake runtime beneath it. Values are compared
# in the part tests alone, over kernels of the CPU's; elsewhere the fake runtime's kernels do nothing.
#
#   tests/gpu/dry.sh [-share F …] OUT [PART | PART/STEP …]    arguments go to the kit's run.sh
#
# OUT is emptied first; the last line of output is for tests/verify. A second call of the kit follows a first that went
# well; it must find nothing left to do. The exit code is 4 where the machine lacks the Python that the wheel is for.
# The kit is built for LINSTOCK_TORCH, 2.11.0 by default; with GPU_KIT=keep the one that is there for it is taken.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
version=${LINSTOCK_TORCH:-2.11.0}
export LINSTOCK_TORCH=$version
tests/fakecuda/setup.sh "$version" >/dev/null
fakes=$PWD/build/fakecuda/$version/libtorch/torch/lib
root=$(cd "$(readlink -f "$fakes/../include")/../.." && pwd)

# The Python that this PyTorch is for.
tag=$(basename "$root"/torch/_C.cpython-*.so)
tag=${tag#_C.cpython-3}
minor=3.${tag%%-*}
python=
for p in "$root/../../../bin/python3" "python$minor" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$minor".*/bin/python3; do
  if [ "$("$p" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$minor" ]; then python=$p && break; fi
done
[ -n "$python" ] || { echo "missing: python$minor, which the PyTorch in $root is for; install it with: apt-get install python$minor-venv" >&2; exit 4; }
if [ "${GPU_KIT:-}" != keep ] || ! grep -q "\"torch\": \"$version\"" build/gpu-kit/kit.json 2>/dev/null; then
  tests/gpu/build.sh "$version"
fi

# An environment whose PyTorch is that one, by links, with the fake libraries beside libtorch.
venv=$PWD/build/fakecuda/$version/python
made="$minor $root $(cat "$fakes/../../fakecuda.stamp")"
if [ "$(cat "$venv/made" 2>/dev/null)" != "$made" ]; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install -q numpy safetensors typing_extensions sympy networkx jinja2 fsspec filelock setuptools
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  cp -rs "$root"/{torch,torchgen,functorch} "$site/"
  for info in "$root"/torch-*.dist-info; do [ ! -d "$info" ] || cp -r "$info" "$site/"; done
  for lib in "$fakes"/*; do [ -e "$site/torch/lib/${lib##*/}" ] || ln -s "$lib" "$site/torch/lib/"; done
  echo "$made" >"$venv/made"
fi

# Kernels that compute, for the steps that compare values.
kernels=$PWD/build/fakecuda/$version/libfakekernels.so
tests/fakecuda/kernels/build.sh "$fakes/../.." "$kernels"

home=$(mktemp -d "${TMPDIR:-/tmp}/gpu-kit-home.XXXXXX")
trap 'rm -rf "$home"' EXIT
mkdir "$home/bin"
# The directories of a container image's PATH; Go and compilers are not in PATH.
for tool in bash sh env cat cp ln ls mkdir mv rm sed grep awk dirname basename readlink uname sleep ldd tar date tail head; do
  path=$(command -v "$tool") && ln -s "$path" "$home/bin/$tool"
done
kit() {
  env -i PATH="$home/bin" HOME="$home" PYTHON="$venv/bin/python" LINSTOCK_GPU_DRY=1 LINSTOCK_GPU_KERNELS="$kernels" build/gpu-kit/run.sh "$@"
}
out=
flag=
for arg in "$@"; do # the first word that is no flag, nor a flag's value
  case $arg in -share | --share | -for | --for) flag=1 ;; -*) flag= ;; *) [ -n "$flag" ] || out=${out:-$arg}; flag= ;; esac
done
[ -n "$out" ] || { echo "usage: tests/gpu/dry.sh [-share F …] OUT [PART | PART/STEP …]" >&2; exit 2; }
rm -f "$out"/results.json "$out"/results.md "$out"/log.txt
# Calls are of at most 8 minutes: a slow machine takes another one for what is left (exit status 3).
for call in 1 2 3 4; do
  code=0
  kit "$@" || code=$?
  [ $code -eq 3 ] || break
done
# A second call has nothing left to do: a step that ran again would write its result.
if [ $code -eq 0 ]; then
  cp "$out/results.json" "$home/before"
  kit "$@" 2>"$home/again" || code=$?
  if ! cmp -s "$out/results.json" "$home/before"; then
    echo "the second call has run steps again:" >&2
    cat "$home/again" >&2
    code=1
  fi
fi
"$venv/bin/python" - "$code" "$out" <<'PY'
import json, os, sys
code, out = int(sys.argv[1]), sys.argv[2]
with open(os.path.join(out, "results.json")) as f:
    steps = json.load(f)["steps"]
bad = [s for s in steps if s["state"] != "ok"]
for s in bad:
    print("%s/%s: %s" % (s["part"], s["step"], s.get("note", "")))
print("scorecard|gpu-kit|%d of %d steps of %d parts; %s/results.md|%s"
      % (len(steps) - len(bad), len(steps), len({s["part"] for s in steps}), out, "FAILED" if code else "ok"))
PY
exit $code
