#!/usr/bin/env bash
# Prepares a Debian-like machine for `make build`: installs missing Debian packages, creates a Python environment in .venv,
# and installs the pinned PyTorch wheel, whose C++ library hopmix links. Does nothing if everything is installed.
#
#   PYTHON=/path/to/python   the interpreter to use; if it has torch of the pinned version, setup reuses it
#   TORCH_INDEX=URL          the package index for the torch wheel (a CPU-only index saves several GB where pip's default
#                            index provides the CUDA build)
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0
packages=(cmake ninja-build g++ ccache python3-venv libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
          libmuparser-dev libhwy-dev coinor-libclp-dev libgtest-dev libbenchmark-dev libsentencepiece-dev gnuplot-nox graphviz)

install_debian_packages() {
  command -v dpkg-query >/dev/null || {
    echo "setup: this is not a Debian-like system; install the equivalents of: ${packages[*]}" >&2
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
      echo "setup: installing the missing Debian packages requires root; run" >&2
      echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
      echo "and then run this script again" >&2
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
      echo "setup: reusing torch $torch_version from $PYTHON"
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
