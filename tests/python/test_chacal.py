"""chacal against its definition and where it is something known."""

import pytest
import torch

from blockwise import GAMMA, assert_near, block_chacal, block_inputs, chacal
from operators import DTYPES, assert_close, ops, rand, with_gradients


@pytest.mark.parametrize("name", ["chacal", "block_chacal"])
def test_gamma_zero_is_attention(name):
    q, k, v = block_inputs(name, T=100, G=4)
    options = {} if name == "chacal" else {"block": 100}
    y = getattr(ops, name)(q, k, v, 0.0, **options)
    attention = torch.nn.functional.scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (q, k, v)), is_causal=True
    )
    assert_close(y, attention.transpose(1, 2), torch.float64)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("T", [1, 130, 300])
def test_shares(gamma, T):
    tensors = block_inputs("chacal", T=T)
    actual = with_gradients(lambda t: ops.chacal(*t, gamma), tensors)
    expected = with_gradients(lambda t: chacal(*t, gamma), tensors)
    for a, e in zip(actual, expected):
        assert_near(a, e, torch.float64, gamma=gamma)


@pytest.mark.parametrize("dtype,allowed", [("float32", 2e-3), ("bfloat16", 0.1), ("float64", 1e-11)])
def test_long_chains_keep_the_digits_of_their_gradients(dtype, allowed):
    """At gamma 0.999 W is a thousand times V and nearly constant, and scores have a gradient from its differences."""
    tensors = block_inputs("chacal", T=260, DV=33, dtype=DTYPES[dtype])
    weight = rand(2, 260, 4, 33, seed=9, dtype=DTYPES[dtype])
    actual = with_gradients(lambda t: ops.chacal(*t, 0.999), tensors, weight)
    expected = with_gradients(lambda t: chacal(*t, 0.999), [t.double() for t in tensors], weight)
    for a, e in zip(actual[1:3], expected[1:3]):
        assert (a.double() - e).abs().max() <= allowed * e.abs().max()


def test_values_are_shares_of_values():
    """(1 - gamma) sum_k gamma^k A^(k+1) has rows that sum to 1."""
    q, k, v = block_inputs("chacal", T=200)
    assert_close(ops.chacal(q, k, torch.ones_like(v), GAMMA), torch.ones(2, 200, 4, 3).double(), torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("T,block", [(1, 1), (7, 1), (30, 4), (32, 4), (65, 5), (65, 64), (65, 65), (20, 1000)])
def test_blocks_of_any_size(T, block, dtype):
    dtype = DTYPES[dtype]
    tensors = block_inputs("block_chacal", B=1, T=T, dtype=dtype)
    weight = rand(1, T, 4, 3, seed=9, dtype=dtype)
    actual = with_gradients(lambda t: ops.block_chacal(*t, GAMMA, block), tensors, weight)
    exact = [t.double() for t in tensors]
    expected = with_gradients(lambda t: block_chacal(*t, GAMMA, block), exact, weight)
    for a, e in zip(actual, expected):
        assert_near(a, e, dtype)


def test_one_block_is_chacal():
    tensors = block_inputs("chacal", T=70)
    blocks = with_gradients(lambda t: ops.block_chacal(*t, GAMMA, 70), tensors)
    for a, e in zip(blocks, with_gradients(lambda t: ops.chacal(*t, GAMMA), tensors)):
        assert_near(a, e, torch.float64)


@pytest.mark.parametrize("T", [27, 28, 64, 65])
def test_default_block_is_the_cube_root(T):
    tensors = block_inputs("block_chacal", T=T)
    expected = {27: 3, 28: 4, 64: 4, 65: 5}[T]
    assert torch.equal(ops.block_chacal(*tensors, GAMMA), ops.block_chacal(*tensors, GAMMA, expected))


@pytest.mark.parametrize("gamma", [1.0, -0.1, float("nan")])
@pytest.mark.parametrize("name", ["chacal", "block_chacal"])
def test_gamma_out_of_range(name, gamma):
    with pytest.raises(ValueError, match=rf"^{name}: gamma is .*must be at least 0 and below 1$"):
        getattr(ops, name)(*block_inputs(name), gamma)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["chacal", "block_chacal"])
def test_gamma_is_below_one_in_the_type_of_sums(name, dtype):
    call = lambda: getattr(ops, name)(*block_inputs(name, dtype=DTYPES[dtype]), 1 - 1e-9)
    if dtype == "float64":
        assert call().isfinite().all()
    else:
        with pytest.raises(ValueError, match=rf"^{name}: gamma rounds to 1 in float32, but must be below 1$"):
            call()


def test_block_out_of_range():
    with pytest.raises(ValueError, match="^block_chacal: block is 0, but must be at least 1$"):
        ops.block_chacal(*block_inputs("block_chacal"), GAMMA, 0)
