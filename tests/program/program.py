"""Runs the program as a user does, and reads its output files.

The program is build/bin/hopmix, or what the environment variable HOPMIX_BIN names.
"""

import json
import os
import re
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOPMIX = Path(os.environ.get("HOPMIX_BIN", ROOT / "build/bin/hopmix")).resolve()
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
PATIENCE = 120  # seconds; a limit for a busy machine, far above what any test takes

TINY = """\
seed = 3
threads = 1

[task]
name = "copy"
m = 6

[model]
width = 16

[[model.blocks]]
mixer = "glr"
pattern = "2^k"

[train]
steps = 12
batch = 8
warmup = 2
log_every = 1
checkpoint_every = 4
eval_batches = 2
"""

RUN_FILES = {"config.toml", "metrics.jsonl", "model.safetensors", "optimizer.safetensors", "state.json"}


def hopmix(*arguments, **options):
    return subprocess.run(
        [HOPMIX, *arguments], capture_output=True, text=True, timeout=PATIENCE, env=ENVIRONMENT, **options
    )


def succeed(*arguments, **options):
    """stdout of a command that must succeed."""
    done = hopmix(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refuse(*arguments, code=2, **options):
    """The one-line error of a command that must fail."""
    done = hopmix(*arguments, **options)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert re.fullmatch(r"hopmix: [^\n]+\n", done.stderr), done.stderr
    return done.stderr[len("hopmix: ") : -1]


def start(*arguments):
    return subprocess.Popen(
        [HOPMIX, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )


def wait_until(true, process):
    """Waits while `process` runs; returns whether it became true before the process ended."""
    end = time.monotonic() + PATIENCE
    while not true():
        if process.poll() is not None:
            return False
        assert time.monotonic() < end
        time.sleep(0.0005)
    return True


# ---- A run directory ------------------------------------------------------------------------------


def lines(run):
    """The complete lines of metrics.jsonl; the last one may still be being written."""
    file = Path(run, "metrics.jsonl")
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def metrics(run):
    """Everything that must be reproducible: all but the times."""
    read = lines(run)
    for line in read:
        assert line.pop("seconds") >= 0
    return read


def step(run):
    return json.loads(Path(run, "state.json").read_text())["step"]


def names(run):
    return {entry.name for entry in Path(run).iterdir()}


def contents(folder):
    """Every file below `folder`, with its bytes and modification time."""
    files = (f for f in Path(folder).rglob("*") if f.is_file())
    return {str(f): (f.read_bytes(), f.stat().st_mtime_ns) for f in files}


def train(run, *arguments, config="tiny.toml"):
    return succeed("train", config, "--out", run, "--quiet", *arguments)
