#!/usr/bin/env bash
# Shows what hopmix does: draws a pattern, then trains three one-layer models on a task that takes two hops. Takes about
# two minutes on two cores after the build.
set -euo pipefail
cd "$(dirname "$0")/.."
hopmix=build/bin/hopmix

mkdir -p runs/demo
"$hopmix" pattern 'cached(k^2+1)' -n 64
"$hopmix" pattern 'cached(k^2+1)' -n 128 --plot runs/demo/pattern.png
echo "Row i shows which of the 64 tokens token i reads. The same pattern on 128 tokens is plotted in runs/demo/pattern.png."
echo
echo "Training attention, the k^2+1 recurrence and the dense recurrence on multi-hop recall ..."
"$hopmix" reproduce demo --jobs "$(nproc)" --runs runs --results runs/demo
