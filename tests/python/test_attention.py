"""Dense attention and recurrences by blocks: where they are something known, blocks, long chains; a step of a decoder."""

import pytest
import torch

import references
from common import DTYPES, assert_close, ops, rand, sliced, transposed, with_gradients
from registry import BY_NAME, GAMMA

CHACAL, BLOCKS, DENSE = BY_NAME["chacal"], BY_NAME["block_chacal"], BY_NAME["dense_recurrence"]
STEP = BY_NAME["attention_step"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_recurrence_is_glr_attention_on_dense(dtype):
    for T in (1, 15, 16, 17, 127, 128, 129, 255, 257, 400):
        leaves = list(DENSE.make(dtype, T=T, D=20, DV=12).values())
        blocks = with_gradients(lambda t: ops.dense_recurrence(*t), leaves)
        rows = with_gradients(lambda t: ops.glr_attention(*t, "dense"), leaves)
        for a, e in zip(blocks, rows, strict=True):
            assert_close(a, e, dtype, roundings=160)


def test_gradient_of_the_gate_at_zero():
    """What a closed gate would let in still has a gradient."""
    tensors = DENSE.make(T=40)
    tensors["gate"] = torch.zeros_like(tensors["gate"])
    actual, _ = DENSE.compare(tensors, torch.float64)
    assert (actual[4][:, 1:] != 0).all()


@pytest.mark.parametrize("name", ["chacal", "block_chacal"])
def test_gamma_zero_is_attention(name):
    q, k, v = BY_NAME[name].make(T=100, G=4).values()
    y = getattr(ops, name)(q, k, v, 0.0, **({} if name == "chacal" else {"block": 100}))
    heads_first = (t.transpose(1, 2) for t in (q, k, v))
    attention = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True)
    assert_close(y, attention.transpose(1, 2), torch.float64)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.99])
def test_shares(gamma, monkeypatch):
    monkeypatch.setattr(CHACAL, "roundings", 16 / (1 - gamma))
    for T in (1, 130, 300):
        CHACAL.compare(CHACAL.make(T=T), torch.float64, gamma=gamma)


@pytest.mark.parametrize("dtype,allowed", [("float32", 2e-3), ("bfloat16", 0.1), ("float64", 1e-11)])
def test_long_chains_keep_the_digits_of_their_gradients(dtype, allowed):
    """At gamma 0.999 W is a thousand times V and nearly constant, and scores have a gradient from its differences."""
    leaves = list(CHACAL.make(DTYPES[dtype], T=260, DV=33).values())
    actual = with_gradients(lambda t: ops.chacal(*t, 0.999), leaves)
    expected = with_gradients(lambda t: references.chacal(*t, 0.999), [t.double() for t in leaves])
    for a, e in zip(actual[1:3], expected[1:3]):
        assert (a.double() - e).abs().max() <= allowed * e.abs().max()


def test_values_are_shares_of_values():
    """(1 - gamma) sum_k gamma^k A^(k+1) has rows that sum to 1."""
    q, k, v = CHACAL.make(T=200).values()
    assert_close(ops.chacal(q, k, torch.ones_like(v), GAMMA), torch.ones(2, 200, 4, 3), torch.float64)


@pytest.mark.parametrize("T,block", [(1, 1), (7, 1), (30, 4), (32, 4), (65, 5), (65, 64), (65, 65), (20, 1000)])
def test_blocks_of_any_size(T, block):
    for dtype in DTYPES.values():
        BLOCKS.compare(BLOCKS.make(dtype, B=1, T=T), dtype, block=block)


def test_one_block_is_chacal():
    leaves = list(CHACAL.make(T=70).values())
    blocks = with_gradients(lambda t: ops.block_chacal(*t, GAMMA, 70), leaves)
    for a, e in zip(blocks, with_gradients(lambda t: ops.chacal(*t, GAMMA), leaves)):
        assert_close(a, e, torch.float64, roundings=160)


@pytest.mark.parametrize("T,block", [(27, 3), (28, 4), (64, 4), (65, 5)])
def test_default_block_is_the_cube_root(T, block):
    tensors = BLOCKS.make(T=T)
    assert torch.equal(BLOCKS.call(tensors)[0], BLOCKS.call(tensors, block=block)[0])


STEPS = [
    # B, S, H, G, D, DV
    (2, 0, 4, 2, 3, 5, "float64"),
    (1, 1, 3, 3, 20, 7, "bfloat16"),
    (1, 2, 2, 1, 64, 64, "float32"),
    (3, 63, 1, 1, 100, 33, "float64"),
    (2, 64, 4, 2, 3, 5, "float32"),
    (1, 65, 3, 3, 20, 7, "float64"),
    (3, 65, 1, 1, 100, 33, "bfloat16"),
    (1, 1000, 2, 1, 64, 64, "bfloat16"),
    (2, 1000, 4, 2, 100, 33, "float32"),
]


@pytest.mark.parametrize("B,S,H,G,D,DV,dtype", STEPS)
def test_attention_step(B, S, H, G, D, DV, dtype):
    """With or without a list of slots, a key and value of its own, a scale. Without any token it is 0."""
    dtype = DTYPES[dtype]
    tensors = STEP.make(dtype, B=B, S=S, H=H, G=G, D=D, DV=DV)
    absent = dict(slots=None, own_k=None, own_v=None)
    own = {n: tensors[n] for n in ("own_k", "own_v")}
    for given in ({}, {"slots": tensors["slots"]}, own, tensors):
        for scale in (None, 0.3):
            (actual,) = STEP.call({**tensors, **absent, **given}, scale=scale)
            (expected,) = STEP.expected({**tensors, **absent, **given}, scale=scale)
            STEP.assert_close(actual, expected, dtype, STEP.results[0])


def test_attention_step_is_the_last_row_of_sparse_attention():
    q, k, v = (rand(2, 50, h, 20, seed=h, dtype=torch.float32) for h in (4, 2, 2))
    whole = ops.sparse_attention(q, k, v, "k^2+1", True)
    row_ptr, cols = ops.pattern("k^2+1", 50)
    y = ops.attention_step(q[:, -1], k[:, :-1], v[:, :-1], cols[row_ptr[49] :], k[:, -1], v[:, -1])
    torch.testing.assert_close(y, whole[:, -1])


def test_attention_step_reads_a_part_of_the_slots():
    """What stands behind them may be anything."""
    q, k, v, _, own_k, own_v = STEP.make(torch.float32, B=3, S=40).values()
    plain = ops.attention_step(q, k, v, None, own_k, own_v)
    longer = [torch.cat([t, torch.full_like(t, torch.nan)], 1) for t in (k, v)]
    assert torch.equal(ops.attention_step(q, *(t[:, :40] for t in longer), None, own_k, own_v), plain)
    assert ops.attention_step(q, *longer, torch.arange(0, 40, 2, dtype=torch.int32)).isfinite().all()
    with torch.no_grad():
        assert not ops.attention_step(q, k, v, None, own_k, own_v.requires_grad_()).requires_grad
