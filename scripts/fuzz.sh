#!/usr/bin/env bash
# Builds the fuzz targets of tests/fuzz with clang and runs each for a while; then random calls of the operators.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]     60 seconds for each of all targets
#
# Starts from the committed corpora and from what earlier runs found (build-fuzz/found). An input that breaks something is
# left in build-fuzz/crashes; `build-fuzz/bin/fuzz_TARGET FILE` runs it again. Exits with 1 if there is one.
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz: SECONDS is '$seconds', but must be a whole number of at least 1" >&2; exit 2; }
shift || true
all=(pattern matrix_market config tokenizer safetensors text_stream state_file model operators)
targets=("${@:-${all[@]}}")
for target in "${targets[@]}"; do
  [[ " ${all[*]} " == *" $target "* ]] || { echo "fuzz: TARGET is '$target', but must be one of ${all[*]}" >&2; exit 2; }
done
command -v clang++-16 >/dev/null || {
  echo "fuzz: clang++-16 is missing; run: sudo apt-get install -y clang-16 libclang-rt-16-dev" >&2
  exit 2
}

folder=$PWD
export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
built=()
for target in "${targets[@]}"; do [ "$target" = operators ] || built+=("fuzz_$target"); done
if [ ${#built[@]} -gt 0 ]; then
  cmake --preset fuzz >build-fuzz-configure.log 2>&1 || { cat build-fuzz-configure.log; exit 2; }
  mv build-fuzz-configure.log build-fuzz/
  cmake --build --preset fuzz --target "${built[@]}" || exit 2
fi

failed=0
printf '%-14s  %12s  %8s  %s\n' target inputs corpus result
for target in "${targets[@]}"; do
  if [ "$target" = operators ]; then
    output=$(.venv/bin/python -W ignore tests/fuzz/operators.py --seconds "$seconds" 2>/dev/null)
    [ $? -eq 0 ] || failed=1
    printf '%-14s  %12s  %8s  %s\n' operators "$(sed -n 's/^operators: \([0-9]*\) calls.*/\1/p' <<<"$output")" - \
      "$(sed -n 's/.*, \([0-9]* findings\)/\1/p' <<<"$output")"
    grep '^seed' <<<"$output"
    continue
  fi
  mkdir -p "build-fuzz/found/$target" build-fuzz/crashes
  log=build-fuzz/$target.log
  "build-fuzz/bin/fuzz_$target" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 -max_len=4096 -print_final_stats=1 \
    -artifact_prefix="build-fuzz/crashes/$target-" "build-fuzz/found/$target" "tests/fuzz/corpus/$target" >"$log" 2>&1
  status=$?
  result=passed
  [ $status -eq 0 ] || { failed=1; result="failed, see $folder/$log"; }
  printf '%-14s  %12s  %8s  %s\n' "$target" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
    "$(find "build-fuzz/found/$target" -type f | wc -l)" "$result"
done
exit $failed
