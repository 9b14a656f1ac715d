#!/usr/bin/env bash
# Formats every C++ file in place; with --check, reports the files that need formatting.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-format >/dev/null || {
  echo "format: clang-format is missing; run: sudo apt-get install -y clang-format" >&2
  exit 1
}
mode=(-i)
[ "${1:-}" = --check ] && mode=(--dry-run --Werror)
git ls-files -co --exclude-standard '*.h' '*.cc' | xargs clang-format "${mode[@]}"
