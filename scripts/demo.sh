#!/usr/bin/env bash
# What hopmix is about, in a few minutes: a pattern as a picture, then three one-layer models on a task that takes two
# hops. Costs about two minutes on two cores after the build.
set -euo pipefail
cd "$(dirname "$0")/.."
hopmix=build/bin/hopmix

echo "The pattern cached(k^2+1): row i shows which of 64 earlier tokens token i reads."
echo
"$hopmix" pattern 'cached(k^2+1)' -n 64 --plot results/pattern-cached-k2.png
echo
echo "The same as a picture: results/pattern-cached-k2.png"
echo
echo "Training attention, k^2+1 and dense recurrence on multi-hop recall ..."
"$hopmix" reproduce demo --jobs "$(nproc)" --runs runs/demo --results runs/demo
