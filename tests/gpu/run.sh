#!/usr/bin/env bash
# Runs the kit of `make gpu-kit` on a machine with a GPU (docs/gpu-kit.md). It needs bash and a Python with the PyTorch that
# the kit was built for: $PYTHON, python3 by default. Nothing else of the machine is used: no Go, no compiler, no network.
#
#   run.sh [--for 9m] [--share F] [--again] [--failed] [--dry] OUT [PART | PART/STEP …]
#   run.sh --list
#
# OUT gets results.md, results.json and log.txt; steps whose results are there are not run again. LINSTOCK_GPU_WORK is
# where the kit is unpacked, by default the folder work beside this file.
set -eu -o pipefail
kit=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHON=${PYTHON:-python3} LINSTOCK_GPU_KIT=$kit LINSTOCK_GPU_WORK=${LINSTOCK_GPU_WORK:-$kit/work}
PYTHON=$(command -v "$PYTHON") || { echo "there is no Python: set PYTHON to one that has PyTorch" >&2; exit 2; }

# Unpacks the kit unless it is unpacked already, and prints the directory of PyTorch.
torch=$("$PYTHON" - "$kit" "$LINSTOCK_GPU_WORK" <<'PY'
import importlib.util, json, os, shutil, sys, tarfile
kit, work = sys.argv[1:]
with open(kit + "/kit.json") as f:
    want = json.load(f)
mark = work + "/kit.json"
if not os.path.exists(mark) or open(mark).read() != open(kit + "/kit.json").read():
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    with tarfile.open(kit + "/kit.tar.gz") as t:
        t.extractall(work)
    shutil.copy(kit + "/kit.json", mark)
spec = importlib.util.find_spec("torch")
if spec is None:
    sys.exit("%s has no PyTorch: set PYTHON to one that has" % sys.executable)
torch = os.path.dirname(spec.origin)
with open(torch + "/version.py") as f:
    found = {}
    exec(f.read(), found)
if found["__version__"].split("+")[0] != want["torch"]:
    sys.exit("the kit is for PyTorch %s; %s has %s" % (want["torch"], sys.executable, found["__version__"]))
print(torch)
PY
) || exit 2

# Laid out as a bundle: libtorch beside the shim, NVIDIA's libraries beside libtorch.
ln -sfn "$torch" "$LINSTOCK_GPU_WORK/lib/torch"
[ ! -d "$torch/../nvidia" ] || ln -sfn "$(cd "$torch/../nvidia" && pwd)" "$LINSTOCK_GPU_WORK/lib/nvidia"
export LINSTOCK_LIB=$LINSTOCK_GPU_WORK/lib LD_LIBRARY_PATH=$LINSTOCK_GPU_WORK/lib:$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export HOME=${HOME:-$LINSTOCK_GPU_WORK} PYTHONUNBUFFERED=1
exec "$LINSTOCK_GPU_WORK/bin/gpu" "$@"
