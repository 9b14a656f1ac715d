"""Memory of training, what the core libraries need, the examples of the manual."""

import re
import subprocess
import sys

import pytest
import torch

from operators import LIBRARY, ROOT


MEASURE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
torch.set_num_threads(1)

def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024

def train(T):
    q, k, v = (torch.rand(1, T, 8, 64, requires_grad=True) for _ in range(3))
    gates = [torch.rand(1, T, 8, requires_grad=True) for _ in range(3)]
    if sys.argv[2] == "glr_attention":
        torch.ops.hopmix.glr_attention(q, k, v, *gates, "k^2+1").sum().backward()
    else:
        indices = ((torch.rand(1, T, 8, 8) * torch.arange(T)[:, None, None]).int() - 1).clamp(min=-1)
        torch.ops.hopmix.retrieved_recurrence(q, k, v, gates[0], indices, 3).sum().backward()

train(64)
open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
before = peak()
train(4096)
print(peak() - before)
"""


def peak_of_training(name):
    run = [sys.executable, "-c", MEASURE, str(LIBRARY), name]
    return int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_retrieved_recurrence_keeps_no_gathered_rows():
    """8 keys and values for each token and head, of 3 hops, would be 4 * 8 tensors."""
    used, one_tensor = peak_of_training("retrieved_recurrence"), 4096 * 8 * 64 * 4
    # q, k, v, their gradients, that of 4 blocks (whose values are gone by then), lists (an eighth), and
    # one head at a time.
    assert 10 * one_tensor < used < 14 * one_tensor


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_training_memory_grows_with_tokens_not_reads():
    """At T = 4096, k^2+1 has 240,000 reads a head: 8 times 62 MB if each kept a row, 8 times 64 MB for dense scores."""
    used, one_tensor = peak_of_training("glr_attention"), 4096 * 8 * 64 * 4
    # q, k, v, y, their gradients, and the rows of one head at a time.
    assert 4 * one_tensor < used < 13 * one_tensor


@pytest.mark.parametrize("archive", ["libhopmix_" + layer + ".a" for layer in ("base", "pattern", "analysis", "kernels")])
def test_core_libraries_do_not_need_torch(archive):
    symbols = subprocess.run(
        ["nm", "--demangle", str(LIBRARY.parent / archive)], check=True, capture_output=True, text=True
    ).stdout
    assert "hopmix::" in symbols
    assert not re.findall(r"\b(?:at|c10|torch|caffe2)::\S*", symbols)


def test_examples_of_the_manual_run():
    text = (ROOT / "docs/operators.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= 5
    assert text.count("\n```") % 2 == 0, "a fence is open"
    names = {"torch": torch}
    for example in examples:
        exec(re.sub(r"^torch\.ops\.load_library.*$", "", example, flags=re.MULTILINE), names)
