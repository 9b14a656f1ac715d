"""Memory of training grows with tokens: not with reads, states, scores or gathered rows."""

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HEADS = dict(B=1, H=8, G=8, D=64, DV=64)
STATES = dict(B=1, H=4, G=4, D=64, DV=64)
ONE = dict(B=1, H=1, G=1, D=64, DV=64)

# Operator, type, T, other sizes, and between how many times q (in float32) beyond the inputs a training step takes.
BOUNDS = [
    # k^2+1 has 240,000 reads a head here: 8 times 62 MB if each kept a row, 8 times 64 MB for dense scores.
    ("glr_attention", "float32", 4096, HEADS, 1, 10),
    # The gradient of 4 blocks, the results, and one head at a time; gathered rows would be 32.
    ("retrieved_recurrence", "float32", 4096, HEADS | dict(W=8), 7, 11),
    # A matrix of the scores would be 128.
    *((name, dtype, 8192, ONE, 1, 17) for name in ("dense_recurrence", "chacal", "block_chacal", "attention") for dtype in ("float32", "bfloat16")),
    *(("attention_topk", dtype, 8192, ONE, 1, 21) for dtype in ("float32", "bfloat16")),
    # A state of every token would be 64; of log-linear attention it is log2(T / 64) / 2 states a chunk for one head.
    *((name, "float32", 16384, STATES, 1, 9) for name in ("linear_attention", "ssd", "gated_delta_rule", "log_linear_attention", "log_linear_delta_rule")),
    *((name, "float32", 16384, STATES, 1, 12) for name in ("gla", "kda")),
    # Every state would be 16.
    ("selective_scan", "float32", 16384, dict(B=1, D=256, S=16), 1, 5),
]  # fmt: skip


@pytest.fixture(scope="module")
def used(peak_memory):
    runs = [(name, dtype, True, dict(T=T, **sizes), {}) for name, dtype, T, sizes, *_ in BOUNDS]
    runs += [("attention_topk", dtype, False, dict(T=32768, **ONE), {"kappa": 32}) for dtype in ("float32", "bfloat16")]
    runs += [(name, dtype, True, dict(T=T // 4, **sizes), {}) for name, dtype, T, sizes, *_ in BOUNDS if sizes is STATES]
    return peak_memory(runs)


@pytest.mark.parametrize("case", range(len(BOUNDS)), ids=[f"{b[0]}-{b[1]}" for b in BOUNDS])
def test_memory_of_training(case, used):
    name, _, T, sizes, low, high = BOUNDS[case]
    one_tensor = T * sizes.get("H", 1) * sizes["D"] * 4
    assert low < used[case] / one_tensor < high
    if sizes is STATES:  # four times as much for four times the tokens
        first = next(i for i, b in enumerate(BOUNDS) if b[3] is STATES)
        assert used[case] < 5 * used[len(BOUNDS) + 2 + case - first]


def test_memory_of_selecting(used):
    """A matrix of the scores of 32768 tokens would be 512 of these tensors."""
    for bytes_used in used[len(BOUNDS) : len(BOUNDS) + 2]:
        assert 0.9 < bytes_used / (32768 * 64 * 4) < 9
