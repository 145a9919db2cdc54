#!/usr/bin/env bash
# Runs the tiers of `make test` and prints a table with a line for each. A tier that fails does not stop the others; the
# exit code is 0 only if all pass.
#
#   tests/run.sh [TIER…]      without names: lint build go race cpp fakecuda install verify
#
# The slowest tiers run in `make verify` instead: layers (the race detector on packages that start no goroutines),
# cgocheck (strict checks of the pointers passed to C), sanitize (AddressSanitizer and UBSan), thread (ThreadSanitizer),
# lastuse (builds with linstock go), setup (an installation from nothing), and gpu (a tenth of the kit for a machine with
# a GPU). Each can be named here.
#
# libtorch and the shim must be set up (make does that). LINSTOCK_TORCH selects the libtorch.
set -u -o pipefail
cd "$(dirname "$0")/.."

tiers=("$@")
[ ${#tiers[@]} -gt 0 ] || tiers=(lint build go race cpp fakecuda install verify)
version=${LINSTOCK_TORCH:-$(tail -n 1 internal/locate/versions.txt)}
work=build/test
mkdir -p "$work"
eval "$(LINSTOCK_TORCH=$version go run ./cmd/linstock env)" || exit 1
root=${LIBTORCH:?libtorch is not set up; run: make setup}
echo "fetching the Go modules of the tests …"
go mod download && (cd internal/tools && go mod download) || exit 1
tool() { go tool -modfile=internal/tools/go.mod "$@"; }

names=() states=() counts=() times=()
passed=0 failed=0

need() { # need COMMAND PACKAGE: says what is missing and how to get it
  command -v "$1" >/dev/null || { echo "missing: $1; install it with: apt-get install $2" >&2; return 1; }
}

lint() {
  local bad=0
  check() { # check WHAT COMMAND…: no output and exit 0
    local what=$1 out
    shift
    if out=$("$@" 2>&1) && [ -z "$out" ]; then
      echo "  ok    $what"
      passed=$((passed + 1))
    else
      printf '  FAIL  %s\n%s\n' "$what" "$out"
      failed=$((failed + 1)) bad=1
    fi
  }
  gofmt_clean() { gofmt -l $(git ls-files --cached --others --exclude-standard '*.go'); }
  clang_format_clean() {
    if [ ! -x build/tools/bin/clang-format ]; then
      # Without a virtual environment, for which Debian's Python needs one more package.
      { python3 -m pip install -q --upgrade --target build/tools/python clang-format==18.1.8 && mkdir -p build/tools/bin &&
        ln -sf ../python/clang_format/data/bin/clang-format build/tools/bin/clang-format; } >build/test/pip.log 2>&1 ||
        { cat build/test/pip.log; echo "pip did not install clang-format"; return 1; }
    fi
    build/tools/bin/clang-format --style=file:cshim/.clang-format --dry-run --Werror \
      $(git ls-files --cached --others --exclude-standard 'cshim/*.cpp' 'cshim/*.h' 'cshim/*.c' 'tests/*.cpp' 'tests/*.h' 'tests/*.c' | grep -v '_gen\.')
  }
  generated_clean() {
    local before after
    before=$(git ls-files --cached --others --exclude-standard -z '*_gen.*' '*_gen_test.go' | xargs -0 sha256sum)
    go run ./internal/opgen -check "$include" >build/test/opgen.log 2>&1 || { cat build/test/opgen.log; return 1; }
    after=$(git ls-files --cached --others --exclude-standard -z '*_gen.*' '*_gen_test.go' | xargs -0 sha256sum)
    [ "$before" = "$after" ] || { echo "the generated files were stale; regenerated now: commit them"; diff <(echo "$before") <(echo "$after"); return 1; }
  }
  one_cgo_package() { git ls-files --cached --others --exclude-standard '*.go' | grep -v '^cshim/\|/testdata/' | xargs grep -lE '^import "C"|^[[:space:]]+"C"$' /dev/null; true; }
  # Licences of the packages that a user's program links must be permissive. The plots of the examples also draw with
  # freetype-go (the FreeType licence, which the tool does not know) and svgo (CC BY 4.0); nothing else may need them.
  licences() {
    local allowed=--allowed_licenses=Apache-2.0,MIT,BSD-2-Clause,BSD-3-Clause,ISC,Zlib,Unlicense
    {
      tool go-licenses check $(go list ./... | grep -v /examples/) $allowed &&
        tool go-licenses check ./examples/... $allowed --ignore github.com/golang/freetype --ignore github.com/ajstarks/svgo
    } >build/test/licences.log 2>&1 || { grep -i licen build/test/licences.log; return 1; }
  }
  deploy_valid() { (cd internal/tools && go test -count=1 ./deploy) >build/test/deploy.log 2>&1 || { cat build/test/deploy.log; return 1; }; }
  local include=$root/torch/include
  [ -d "$include" ] || include=$root/include
  check "gofmt" gofmt_clean
  check "clang-format" clang_format_clean
  check "go vet" go vet ./...
  check "staticcheck" tool staticcheck ./...
  check "linstockvet" go run ./cmd/linstockvet ./...
  check "generated files are current, schemas agree with libtorch $version" generated_clean
  check "only cshim imports C" one_cgo_package
  check "licences of the dependencies" licences
  check "deploy/ by the schemas of Kubernetes, Kubeflow and Compose" deploy_valid
  note="9 checks"
  return $bad
}

# A machine without libtorch: everything builds, and a program prints in one line what to do.
build() {
  local empty out
  empty=$(mktemp -d "$PWD/$work/empty.XXXXXX")
  go build ./... && go vet ./tensor || return 1
  go build -o "$empty/program" ./tests/hello || return 1
  out=$(env -i HOME="$empty" PATH="$PATH" "$empty/program" 2>&1)
  local code=$?
  rm -rf "$empty"
  echo "  $out"
  note="2 checks"
  if [ $code -ne 0 ] && [ "$(wc -l <<<"$out")" -eq 1 ] && grep -q 'cmd/linstock setup' <<<"$out"; then
    passed=$((passed + 2))
  else
    failed=$((failed + 1))
    return 1
  fi
}

gotest() { # gotest LABEL ARGUMENTS…: runs go test, counts
  local label=$1 log=$work/$1.json code
  shift
  tool gotestsum --format pkgname --hide-summary=skipped --jsonfile "$log" -- "$@"
  code=$?
  local ok bad
  ok=$(grep -c '"Action":"pass".*"Test":\|"Test":.*"Action":"pass"' "$log")
  bad=$(grep -c '"Action":"fail".*"Test":\|"Test":.*"Action":"fail"' "$log")
  passed=$((passed + ok)) failed=$((failed + bad))
  note="${ok:-0} Go tests"
  [ "${ok:-0}" -gt 0 ] && return $code
}

# vram and, in race, dist take the longest: they come before others, so as not to run alone at the end.
go_() { gotest go -timeout 20m $(go list ./... | grep -v /tests/) $(go list ./tests/... | grep -v '/\(install\|lastuse\)$'); }

# linstock go, and a few of the programs of the row last-use. It compiles the standard library again.
lastuse() { gotest lastuse -timeout 20m ./tests/lastuse; }

race() { underrace race ./dist ./cshim ./tensor ./vram ./autograd ./checkpoint ./data ./dist/dcp ./serve ./profiler ./examples/serve ./internal/sites; }

# Packages that start no goroutines of their own.
layers() { underrace layers ./nn ./optim ./distributions; }

# underrace LABEL PACKAGE…: without tests of a single goroutine, or of settings in a new process, that take long: go_ runs
# them. A name is skipped in every package. TestHostile of package tensor makes fewer calls than there.
underrace() {
  local label=$1
  shift
  local single='^(TestHostileValues|TestRemovedHooksLeaveNothing|TestStrides|TestGolden'
  single+='|TestFailingOperators|TestTorchModules|TestTenMillionLosses|TestAllocationIsBoundedByTheFile|TestHeadersOfEscapes'
  single+='|TestSavePyTorchWritesWhatLoadReads|TestSavePyTorchOfManyTensors|TestValuesOfAllSizes|TestUnusualValidFiles'
  single+='|TestSettingsFromOutside|TestRefusedOpenMPSettings|TestTooLittleAddressSpace)$'
  LINSTOCK_HOSTILE_CALLS=100 gotest "$label" -race -short -skip "$single" -timeout 20m "$@"
}

# Strict checks of the pointers passed to C, overwriting of freed memory, and frequent collections.
cgocheck() {
  GOEXPERIMENT=cgocheck2 GODEBUG=cgocheck=1,clobberfree=1 GOGC=25 \
    gotest cgocheck -short -timeout 20m ./cshim ./tensor ./autograd
}

cppbuild() { # cppbuild DIR TARGET OPTIONS…
  local dir=$1 target=$2
  shift 2
  need cmake cmake || return 1
  cmake -S cshim -B "$dir" -DLINSTOCK_TORCH_ROOT="$root" -DLINSTOCK_BUILD_TESTS=ON "$@" >"$dir.log" 2>&1 &&
    cmake --build "$dir" --target "$target" --parallel "$(nproc)" >>"$dir.log" 2>&1 || { tail -40 "$dir.log"; return 1; }
}

cpptest() { # cpptest DIR
  local log=$1.tests code ok bad
  "$1/tests/cshim_test" --gtest_brief=1 >"$log" 2>&1
  code=$?
  ok=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests\{0,1\}\..*/\1/p' "$log")
  bad=$(sed -n 's/^ *\([0-9]*\) FAILED TESTS\{0,1\}.*/\1/p' "$log")
  passed=$((passed + ${ok:-0})) failed=$((failed + ${bad:-0}))
  [ $code -eq 0 ] || cut -c1-400 "$log" | tail -60
  note="${ok:-0} C++ tests"
  [ "${ok:-0}" -gt 0 ] && return $code
}

# The shim that setup has built.
cpp() { cppbuild "$work/cpp-$version" all -DLINSTOCK_CORE="$LINSTOCK_LIB" && cpptest "$work/cpp-$version" && fuzztrace "$work/cpp-$version/tests/cshim_fuzz"; }

# The command that the fuzzer prints for a failure uses -trace, which must not crash itself.
fuzztrace() {
  for sequence in 0 1 2 3 4 5 6 7 8 9; do
    "$1" -seed 1 -sequence $sequence -trace >"$work/trace.log" 2>&1 ||
      { tail -5 "$work/trace.log"; echo "cshim_fuzz -seed 1 -sequence $sequence -trace: $?"; failed=$((failed + 1)); return 1; }
  done
  passed=$((passed + 1))
}

# The shim and its tests under sanitizers. libtorch is not instrumented, and needs no suppressions.
sanitize() {
  cppbuild "$work/asan-$version" cshim_test -DLINSTOCK_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo || return 1
  ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 cpptest "$work/asan-$version"
}

# The same under ThreadSanitizer.
thread() {
  cppbuild "$work/tsan-$version" cshim_test -DLINSTOCK_SANITIZE=thread -DCMAKE_BUILD_TYPE=RelWithDebInfo || return 1
  TSAN_OPTIONS=allocator_may_return_null=1:suppressions=$PWD/tests/cshim/tsan.supp cpptest "$work/tsan-$version"
}

# libtorch's CUDA part with its real allocator, over a fake CUDA runtime: lifetimes, limits, faults.
fakecuda() {
  need cmake cmake || return 1
  LINSTOCK_TORCH=$version LINSTOCK_TEST_FAKECUDA=1 gotest fakecuda -count=1 -timeout 20m ./tests/fakecuda/...
}

# The kit for a machine with a GPU (docs/gpu-kit.md), built and run over the same runtime, in a bare environment.
gpu() {
  need cmake cmake && need ninja ninja-build || return 1
  local log=$work/gpu.log code line
  rm -rf "$work/gpu"
  LINSTOCK_TORCH=$version tests/gpu/dry.sh --share 0.1 "$work/gpu" | tee "$log"
  code=$?
  if [ $code -eq 4 ]; then # said on stderr, too
    note="left out: this machine has no Python for which there is a PyTorch $version"
    return 0
  fi
  line=$(sed -n 's/^scorecard|gpu-kit|\([^;]*\);.*/\1/p' "$log")
  if [ -z "$line" ]; then
    failed=$((failed + 1)) note="no result"
    return 1
  fi
  passed=$((passed + ${line%% of*})) failed=$((failed + $(sed 's/.* of \([0-9]*\) steps.*/\1/' <<<"$line") - ${line%% of*}))
  note="$line"
  return $code
}

# What a user does: another module, an empty HOME, a bundle. setup also installs libtorch and the shim anew.
install_() { LINSTOCK_TEST_INSTALL=1 gotest install -count=1 -timeout 20m ./tests/install; }
setup() { LINSTOCK_TEST_INSTALL=full gotest setup -count=1 -timeout 20m ./tests/install; }

# A fiftieth of the scorecard of docs/reliability.md; `make verify` runs all of it. Rows that other tiers cover, that
# measure time (storm), compile everything again (mutation, strict-gc) or take a minute (forced-gc, exceptions) are omitted.
verify() {
  local log=$work/verify.log
  LINSTOCK_TORCH=$version go run ./tests/verify -share 0.02 \
    -rows oom-device,oom-host,device-errors,release,kill,hostile,hostile-pytorch,crashhunt,cfuzz,shapes | tee "$log"
  local code=$? line
  line=$(grep -o '^[0-9]* of [0-9]* lines hold' "$log")
  if [ -z "$line" ]; then
    failed=$((failed + 1)) note="no result"
    return 1
  fi
  passed=$((passed + ${line%% of*})) failed=$((failed + $(sed 's/.* of \([0-9]*\) .*/\1/' <<<"$line") - ${line%% of*}))
  note="$line"
  return $code
}

summary() {
  echo
  printf '%-10s %-8s %7s  %s\n' tier result seconds what
  for i in "${!names[@]}"; do printf '%-10s %-8s %7s  %s\n' "${names[$i]}" "${states[$i]}" "${times[$i]}" "${counts[$i]}"; done
  echo
  echo "libtorch $version; tiers run: ${names[*]:-none}; no GPU is needed or used"
  echo "$passed passed, $failed failed"
}
trap 'echo "interrupted"; summary; exit 130' INT TERM

for tier in "${tiers[@]}"; do
  echo "== $tier"
  note="" start=$SECONDS
  case $tier in go | install) run=${tier}_ ;; *) run=$tier ;; esac
  before=$failed
  if $run; then state=ok; else
    state=FAILED
    [ "$failed" -gt "$before" ] || failed=$((failed + 1)) # a tier that fails without a count of its own
  fi
  names+=("$tier") states+=("$state") counts+=("$note") times+=($((SECONDS - start)))
done
summary
[ "$failed" -eq 0 ]
