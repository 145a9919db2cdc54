#!/usr/bin/env bash
# Builds the servers and measures them; arguments go to the runner (see -help).
#
# The C++ server needs OpenSSL's headers and cpp-httplib: from the system (libcpp-httplib-dev), from the folder that LINSTOCK_BENCH_HTTPLIB
# names (with include/ and lib/), or from Debian's packages, pinned by hash and unpacked into build/bench/httplib.
# The Python server needs the PyTorch of make bench-setup; uvicorn and what it needs are installed into
# build/bench/python. A server whose packages cannot be had is left out of the table.
set -eu
cd "$(dirname "$0")/../../.."
eval "$(go run ./cmd/linstock env)"
: "${LIBTORCH:?run: make setup}"
out=build/bench
mkdir -p $out

httplib() { # prints the compiler's arguments
  local dir=${LINSTOCK_BENCH_HTTPLIB:-} lib
  if [ -z "$dir" ] && [ -f /usr/include/httplib.h ]; then
    [ -e "/usr/lib/$(uname -m)-linux-gnu/libcpp-httplib.so" ] && echo "-lcpp-httplib"
    return 0
  fi
  if [ -z "$dir" ]; then
    dir=$PWD/$out/httplib
    if [ ! -f "$dir/usr/include/httplib.h" ]; then
      rm -rf "$dir" && mkdir -p "$dir"
      (
        cd "$dir"
        version=0.11.4+ds-1+deb12u1
        apt-get download -q "libcpp-httplib-dev=$version" "libcpp-httplib0.11=$version" &&
          sha256sum -c --quiet - <<SUMS &&
0ba447e468a8002f86641bf11290963494b71147cd9fc4a9a022f7ba4c284a12  libcpp-httplib-dev_${version}_amd64.deb
f6d5ab0b14b1bc72196a323455610a8dc8504efa28f3dcaa0c9156c329dd47d0  libcpp-httplib0.11_${version}_amd64.deb
SUMS
          for f in *.deb; do dpkg-deb -x "$f" .; done
      ) >$out/httplib.log 2>&1 || { rm -rf "$dir"; return 1; }
    fi
    dir=$dir/usr
  fi
  lib=$dir/lib
  [ ! -d "$lib/x86_64-linux-gnu" ] || lib=$lib/x86_64-linux-gnu
  echo "-isystem $dir/include -L$lib -Wl,-rpath,$lib -lcpp-httplib"
}

source=tests/bench/serve/cpp/arm.cpp
if flags=$(httplib); then
  torch=$LIBTORCH
  [ -d "$torch/include" ] || torch=$torch/torch
  if [ ! -x $out/serve-arm ] || [ $source -nt $out/serve-arm ] || [ "$torch" != "$(cat $out/serve-arm.torch 2>/dev/null)" ]; then
    echo "building the C++ server …"
    # The library is built with OpenSSL, which changes the layout of httplib::Request.
    # shellcheck disable=SC2086
    ${CXX:-c++} -DCPPHTTPLIB_OPENSSL_SUPPORT -std=c++20 -O3 -DNDEBUG -pthread $source -o $out/serve-arm -isystem "$torch/include" -L"$torch/lib" \
      -Wl,-rpath,"$torch/lib" -Wl,--no-as-needed -ltorch_cpu -lc10 -Wl,--allow-shlib-undefined $flags >$out/serve-arm.log 2>&1 &&
      echo "$torch" >$out/serve-arm.torch || { rm -f $out/serve-arm; head -5 $out/serve-arm.log; }
  fi
else
  echo "cpp-httplib cannot be installed: $(tail -n 1 $out/httplib.log)"
fi

python=${LINSTOCK_BENCH_PYTHON:-build/pytorch/bin/python}
if [ -x "$python" ] && [ ! -f $out/python/done ]; then
  rm -rf $out/python
  if "$python" -m pip install -q --target $out/python uvicorn==0.54.0 starlette==1.10.0 httptools uvloop >$out/pip.log 2>&1; then
    touch $out/python/done
  else
    rm -rf $out/python
    echo "uvicorn cannot be installed: $(tail -n 1 $out/pip.log)"
  fi
fi

go build -o $out/linstock-bench-serve ./tests/bench/serve
exec $out/linstock-bench-serve "$@"
