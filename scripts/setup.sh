#!/usr/bin/env bash
# Brings a Debian-like machine to the point where `make build` works: the missing Debian packages, a Python environment
# in .venv, the pinned PyTorch wheel (its C++ library is what hopmix links). A second run finds all there and does nothing.
#
#   PYTHON=/path/to/python   the interpreter to use; if it already has torch of the pinned version, that one is taken
#   TORCH_INDEX=URL          the package index to take the torch wheel from (a CPU-only one saves several GB where
#                            pip's own index gives the CUDA build)
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0
packages=(cmake ninja-build g++ ccache python3-venv libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
          libmuparser-dev libhwy-dev coinor-libclp-dev libgtest-dev libbenchmark-dev libsentencepiece-dev gnuplot-nox graphviz)

install_debian_packages() {
  command -v dpkg-query >/dev/null || {
    echo "setup: not a Debian-like system; install the equivalents of: ${packages[*]}" >&2
    return
  }
  local missing=()
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      as_root=(sudo)
    else
      echo "setup: these Debian packages are missing and need root; run" >&2
      echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
      echo "then run this again" >&2
      exit 1
    fi
  fi
  echo "setup: installing Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
}

has_torch() { "$1" -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$torch_version')" 2>/dev/null; }

make_environment() {
  local python=${PYTHON:-python3}
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  if ! has_torch .venv/bin/python; then
    if [ -n "${PYTHON:-}" ] && has_torch "$PYTHON"; then
      echo "setup: taking torch $torch_version from $PYTHON"
      "$PYTHON" -c "import sysconfig, torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))" \
        >"$(.venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/hopmix-torch.pth"
    else
      echo "setup: downloading the torch $torch_version wheel (200 MB for the CPU build${TORCH_INDEX:+, from $TORCH_INDEX})"
      .venv/bin/pip install -q ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch==$torch_version"
    fi
  fi
  .venv/bin/python -c "import numpy, pytest, safetensors" 2>/dev/null ||
    .venv/bin/pip install -q -r scripts/requirements.txt
}

install_debian_packages
make_environment
