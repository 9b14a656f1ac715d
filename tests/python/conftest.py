"""Fixtures: threads, memory full of NaN, products without oneDNN, the peak memory of a training step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture
def set_threads():
    """Sets the number of threads; what it was comes back after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def filled_with_nan():
    """New memory holds NaN, so an entry that no kernel writes shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=[True, False], ids=["onednn", "loops"])
def products(request):
    """Products by oneDNN, and by the loops that stand in for it."""
    with torch.backends.mkldnn.flags(enabled=request.param):
        yield


@pytest.fixture
def loops():
    with torch.backends.mkldnn.flags(enabled=False):
        yield


MEASURE = """
import json, os, sys, torch
torch.set_num_threads(1)  # and no other thread runs, so that a fork is safe
import registry

def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024

def step(op, dtype, train, sizes, **options):
    run, leaves = op.of_leaves(op.make(dtype=getattr(torch, dtype), **sizes), **options)
    leaves = [t.requires_grad_(train) for t in leaves]
    yield
    total = run(leaves)[0].sum()  # and the result itself is gone
    if train:
        total.backward()
    yield

for name, dtype, train, sizes, options in json.loads(sys.argv[1]):
    if os.fork() == 0:  # each in a process of its own: what one frees would hide what the next takes
        op = registry.BY_NAME[name]
        list(step(op, dtype, train, {**sizes, "T": 64}, **options))
        run = step(op, dtype, train, sizes, **options)
        next(run)
        open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
        before = peak()
        next(run)
        print(peak() - before, flush=True)
        os._exit(0)
    if os.wait()[1] != 0:
        print(-1, flush=True)
"""


@pytest.fixture(scope="session")
def peak_memory():
    """By how many bytes each run of [operator, dtype, with gradients, sizes, options] raises the peak of memory."""

    def measure(runs):
        # What is freed goes back to the system, so that it does not hide what comes after.
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        output = subprocess.run(
            [sys.executable, "-c", MEASURE, json.dumps(runs)],
            check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent, env=environment,
        ).stdout  # fmt: skip
        return [int(line) for line in output.split()]

    return measure
