"""dense_recurrence: the same operator as glr_attention on the pattern dense."""

import subprocess
import sys

import pytest
import torch

from blockwise import assert_near, block_inputs, call, dense
from operators import DTYPES, LIBRARY, assert_close, ops, rand, with_gradients


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("T", [1, 15, 16, 17, 127, 128, 129, 255, 257, 400])
def test_is_glr_attention_on_dense(T, dtype):
    tensors = block_inputs("dense_recurrence", T=T, D=20, DV=12, dtype=DTYPES[dtype])
    blocks = with_gradients(lambda t: ops.dense_recurrence(*t), tensors)
    rows = with_gradients(lambda t: ops.glr_attention(*t, "dense"), tensors)
    for a, e in zip(blocks, rows):
        assert_near(a, e.double(), DTYPES[dtype])


def test_gradient_of_the_gate_at_zero():
    """What a closed gate would let in still has a gradient."""
    tensors = block_inputs("dense_recurrence", T=40)
    tensors[3] = torch.zeros_like(tensors[3])
    actual = with_gradients(lambda t: ops.dense_recurrence(*t), tensors)
    for a, e in zip(actual, with_gradients(lambda t: dense("dense_recurrence", t), tensors)):
        assert_close(a, e, torch.float64)
    assert (actual[4][:, 1:] != 0).all()


MEASURE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
torch.set_num_threads(1)
name, kind = sys.argv[2], getattr(torch, sys.argv[3])

def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024

def train(T):
    tensors = [torch.rand(1, T, 1, 64).to(kind).requires_grad_() for _ in range(3)]
    if name == "dense_recurrence":
        tensors += [torch.rand(1, T, 1).to(kind).requires_grad_() for _ in range(3)]
    tail = (0.9,) if name.endswith("chacal") else ()
    getattr(torch.ops.hopmix, name)(*tensors, *tail).sum().backward()

train(1000)
open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
before = peak()
train(16384)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["dense_recurrence", "chacal", "block_chacal", "attention"])
def test_memory_grows_with_tokens(name, dtype):
    """A score matrix of 16384 tokens would be 1 GB, 256 of these tensors."""
    run = [sys.executable, "-c", MEASURE, str(LIBRARY), name, dtype]
    used = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    one_tensor = 16384 * 64 * 4
    assert one_tensor < used < 20 * one_tensor
