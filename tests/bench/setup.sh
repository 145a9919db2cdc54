#!/usr/bin/env bash
# Installs Python's PyTorch into build/pytorch: the peer that the benchmarks compare with, and what makes the
# golden data. Linstock itself never needs it.
#   tests/bench/setup.sh [VERSION]
set -eu
cd "$(dirname "$0")/../.."
version=${1:-$(tail -n 1 internal/locate/versions.txt)}
venv=build/pytorch
if [ -x $venv/bin/python ] && [ "$($venv/bin/python -c 'import importlib.metadata as m; print(m.version("torch").split("+")[0])' 2>/dev/null)" = "$version" ]; then
  echo "PyTorch $version is installed in $venv"
  exit 0
fi
echo "installing PyTorch $version into $venv (several GB with its CUDA libraries)"
mkdir -p build
python3 -m venv $venv
$venv/bin/python -m pip install "torch==$version" numpy safetensors expecttest
