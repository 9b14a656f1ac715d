#!/usr/bin/env bash
# Ends training runs in every way there is and checks that nothing is lost: each is resumed and must reach the same losses and
# the same weights, to the byte, as a run that nobody disturbed. Then decodes long texts and watches the memory.
#
#   scripts/torture.sh [--kills N] [--tokens N]     50 kills, 10,000,000 tokens for each of five mixers
#
# Prints a table in Markdown. Needs strace; the full disk and the read-only folder also need root. Exits with 1 on a loss.
set -uo pipefail
cd "$(dirname "$0")/.."
hopmix=$PWD/build/bin/hopmix
kills=50 tokens=10000000
while [ $# -gt 0 ]; do
  case $1 in
    --kills) kills=${2:-}; shift 2 ;;
    --tokens) tokens=${2:-}; shift 2 ;;
    *) echo "torture: '$1' is not --kills or --tokens" >&2; exit 2 ;;
  esac
done
for number in "$kills" "$tokens"; do
  [[ $number =~ ^[0-9]+$ ]] || { echo "torture: '$number' must be a whole number" >&2; exit 2; }
done
[ -x "$hopmix" ] || { echo "torture: $hopmix is missing; run make build" >&2; exit 2; }
command -v strace >/dev/null || { echo "torture: strace is missing; run: sudo apt-get install -y strace" >&2; exit 2; }

work=$(mktemp -d)
trap 'umount -q "$work/small" "$work/sealed" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 2
export OMP_NUM_THREADS=1
cat >tiny.toml <<'TOML'
seed = 3
threads = 1
task = { name = "copy", m = 6 }
model = { width = 16, blocks = [{ mixer = "glr", pattern = "2^k" }] }
train = { steps = 120, batch = 8, warmup = 2, log_every = 1, checkpoint_every = 2, eval_batches = 2 }
TOML
train() { "$hopmix" train tiny.toml --quiet --out "$1" "${@:2}"; }
losses() { sed 's/"seconds":[^,}]*//' "$1/metrics.jsonl"; }
same() { cmp -s "$1/model.safetensors" unbroken/model.safetensors && diff -q <(losses "$1") <(losses unbroken) >/dev/null; }

bad=0
row() { printf '| %s | %s | %s | %s |\n' "$@"; }  # what, how often, lost, different
finish() {  # what, times, runs...: resumes each run and compares
  local what=$1 times=$2 lost=0 different=0
  shift 2
  for run in "$@"; do
    if ! train "$run" --resume >/dev/null 2>"$run.err"; then
      lost=$((lost + 1))
      sed "s/^/  $run: /" "$run.err" >&2
    elif ! same "$run"; then
      different=$((different + 1))
    fi
  done
  [ $((lost + different)) -eq 0 ] || bad=1
  row "$what" "$times" "$lost" "$different"
}

train unbroken >/dev/null || exit 2
echo '| disturbance | times | lost | different |'
echo '|---|---|---|---|'

done_kills=0 run=0 runs=()
while [ $done_kills -lt "$kills" ]; do
  run=$((run + 1))
  runs+=("killed-$run")
  for _ in 1 2 3 4 5; do
    [ $done_kills -lt "$kills" ] || break
    "$hopmix" train tiny.toml --quiet --out "killed-$run" --resume >/dev/null 2>&1 &
    pid=$!
    sleep "0.$((RANDOM % 900 + 100))"
    kill -KILL $pid 2>/dev/null && done_kills=$((done_kills + 1))
    { wait $pid; } 2>/dev/null
  done
done
[ "$kills" -eq 0 ] || finish "SIGKILL at a random moment" "$done_kills" "${runs[@]}"

for signal in INT TERM HUP; do
  "$hopmix" train tiny.toml --quiet --out "sig$signal" >/dev/null 2>&1 &
  pid=$!
  sleep 0.7
  kill -$signal $pid
  { wait $pid; } 2>/dev/null
  finish "SIG$signal" 1 "sig$signal"
done

traced() {  # run, options of strace...
  { strace -f -qq -o /dev/null "${@:2}" "$hopmix" train tiny.toml --quiet --out "$1" >/dev/null; } 2>/dev/null
}

# The n-th call of a kind, within a checkpoint or between two.
for call in rename fsync ftruncate unlink; do
  runs=()
  for n in 1 2 3 4 5 6 7 8 9 13; do
    traced "$call-$n" -e trace=$call -e inject=$call:signal=SIGKILL:when=$n
    [ -d "$call-$n" ] && runs+=("$call-$n")
  done
  finish "SIGKILL at a call of $call" ${#runs[@]} "${runs[@]}"
done
runs=()
for n in 3 5 10 20 40 80; do
  folder=$work/write-$n
  traced "$folder" -P "$folder/model.safetensors.next.tmp" -P "$folder/metrics.jsonl" -P "$folder/state.json.tmp" \
    -e trace=write -e inject=write:signal=SIGKILL:when=$n
  [ -d "write-$n" ] && runs+=("write-$n")
done
finish "SIGKILL at a write to a file of the run" ${#runs[@]} "${runs[@]}"

fails() {  # what, run, kind of call, error, when: the program must stop with one line that names the reason
  strace -f -qq -o /dev/null -e trace="$3" -e inject="$3:error=$4:when=$5" "$hopmix" train tiny.toml --quiet --out "$2" >/dev/null 2>"$2.said"
  local status=$? said
  said=$(grep -c . "$2.said")
  [ "$status" -eq 2 ] && [ "$said" -eq 1 ] || { bad=1; echo "  $1: exit code $status, $said lines: $(head -1 "$2.said")" >&2; }
  finish "$1" 1 "$2"
}
fails "fsync fails (EIO)" eio fsync EIO 6
fails "rename fails (EIO)" rename-eio rename EIO 5
if [ "$(id -u)" -eq 0 ]; then
  mkdir small sealed
  mount -t tmpfs -o size=96k tmpfs small && {
    dd if=/dev/zero of=small/filler bs=1k count=40 2>/dev/null
    "$hopmix" train tiny.toml --quiet --out small/run >/dev/null 2>full.said
    [ "$(grep -c . full.said)" -le 1 ] || { bad=1; cat full.said >&2; }
    rm small/filler
    mount -o remount,size=4m small
    finish "a full disk" 1 small/run
  }
  mount -t tmpfs -o ro tmpfs sealed && {
    "$hopmix" train tiny.toml --quiet --out sealed/run >/dev/null 2>sealed.said
    status=$?
    [ $status -eq 2 ] && [ "$(grep -c . sealed.said)" -eq 1 ] || { bad=1; cat sealed.said >&2; }
    row "a read-only folder" 1 "refused with code $status" -
  }
fi

[ "$tokens" -eq 0 ] && exit $bad
echo
echo '| mixer | tokens | tokens/s | memory after a tenth | at the end |'
echo '|---|---|---|---|---|'
memory() { awk '/VmRSS/ {printf "%.1f MiB", $2 / 1024}' "/proc/$1/status" 2>/dev/null; }
i=0
for block in "mixer = 'glr', pattern = 'cached(2^k)'" "mixer = 'local_attention', window = 16" "mixer = 'gated_deltanet'" "mixer = 'mamba2'" \
  "mixer = 'sparse_attention', pattern = 'window(8) | global(2)'"; do
  i=$((i + 1))
  yes 'some text to read' | head -c 20000 >text.txt
  printf '%s\n' 'seed = 1' "task = { name = 'text', path = 'text.txt', length = 32 }" \
    "model = { width = 16, heads = 2, positions = 'none', blocks = [{ $block }] }" 'train = { steps = 2, batch = 2, eval_batches = 1 }' >decode.toml
  "$hopmix" train decode.toml --quiet --out "decode-$i" >/dev/null 2>&1 || { bad=1; continue; }
  start=$(date +%s.%N)
  "$hopmix" generate "decode-$i" --prompt 'some' --tokens "$tokens" >generated.txt 2>generate.err &
  pid=$!
  early=- late=-
  while kill -0 $pid 2>/dev/null; do
    [ "$early" = - ] && [ "$(stat -c %s generated.txt)" -ge $((tokens / 10)) ] && early=$(memory $pid)
    now=$(memory $pid)
    [ -n "$now" ] && late=$now
    sleep 0.5
  done
  wait $pid || { bad=1; cat generate.err >&2; }
  row "$block" "$tokens" "$(awk -v n="$tokens" -v s="$start" -v e="$(date +%s.%N)" 'BEGIN {printf "%d", n / (e - s)}')" "$early | $late"
done
exit $bad
