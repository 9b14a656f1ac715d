#!/usr/bin/env bash
# Builds the tests with a sanitizer and runs them.
#
#   scripts/sanitize.sh asan     addresses, undefined behavior and leaks: all C++ tests, then the properties of the operators
#   scripts/sanitize.sh tsan     threads: the kernels on four threads (clang, LLVM's OpenMP), then all C++ tests on one OpenMP
#                                thread, because libgomp is not instrumented
set -euo pipefail
cd "$(dirname "$0")/.."
which=${1:-}
jobs=$(nproc)

build() {
  mkdir -p "build-$1"
  cmake --preset "$1" >"build-$1/configure.log" 2>&1 || { cat "build-$1/configure.log"; exit 2; }
  cmake --build --preset "$1" -j "$jobs"
}

case $which in
  asan)
    build asan
    ctest --preset asan -j "$jobs" --progress
    # A library with ASan needs the runtime loaded first. Python frees little at exit, so leaks are not looked for.
    LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
      HOPMIX_LIB=build-asan/lib/libhopmix_ops.so .venv/bin/python -m pytest -q tests/python \
      --deselect tests/python/test_memory.py --ignore tests/python/test_tracing.py --ignore tests/python/test_library.py
    ;;
  tsan)
    command -v clang++-16 >/dev/null || {
      echo "sanitize: clang++-16 is missing; run: sudo apt-get install -y clang-16 libclang-rt-16-dev libomp-16-dev" >&2
      exit 2
    }
    build tsan-kernels
    ctest --preset tsan-kernels -j "$jobs" --progress
    build tsan
    ctest --preset tsan -j "$jobs" --progress
    ;;
  *)
    echo "sanitize: '$which' must be asan or tsan" >&2
    exit 2
    ;;
esac
