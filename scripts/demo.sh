#!/usr/bin/env bash
# What hopmix is about, in a few minutes: a pattern as a picture, then three one-layer models on a task that takes two
# hops. Costs about two minutes on two cores after the build.
set -euo pipefail
cd "$(dirname "$0")/.."
hopmix=build/bin/hopmix

mkdir -p runs/demo
"$hopmix" pattern 'cached(k^2+1)' -n 64
"$hopmix" pattern 'cached(k^2+1)' -n 128 --plot runs/demo/pattern.png
echo "Row i shows which of 64 earlier tokens token i reads. On 128 tokens, as a picture: runs/demo/pattern.png"
echo
echo "Training attention, k^2+1 and dense recurrence on multi-hop recall ..."
"$hopmix" reproduce demo --jobs "$(nproc)" --runs runs --results runs/demo
