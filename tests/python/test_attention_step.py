"""Softmax attention of one token to what a decoder holds, against the definition in float64."""

import pytest
import torch

from operators import DTYPES, ops, rand, sliced, transposed

SIZES = [(2, 4, 2, 3, 5), (1, 3, 3, 20, 7), (1, 2, 1, 64, 64), (3, 1, 1, 100, 33)]


def inputs(B, S, H, G, D, DV, dtype=torch.float64):
    q, k, v = rand(B, H, D, seed=1, low=-3, high=3), rand(B, S, G, D, seed=2), rand(B, S, G, DV, seed=3)
    return [t.to(dtype) for t in (q, k, v, rand(B, G, D, seed=4), rand(B, G, DV, seed=5))]


def definition(q, k, v, slots=None, own_k=None, own_v=None, scale=None):
    q, k, v = q.double(), k.double(), v.double()
    if slots is not None:
        k, v = k[:, slots.long()], v[:, slots.long()]
    if own_k is not None:
        k, v = torch.cat([k, own_k.double()[:, None]], 1), torch.cat([v, own_v.double()[:, None]], 1)
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[2], 2) for t in (k, v))
    scores = torch.einsum("bhd,bshd->bhs", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.einsum("bhs,bshd->bhd", scores.softmax(-1), v)


def assert_close(actual, expected, dtype):
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    assert actual.dtype == dtype and actual.shape == expected.shape
    allowed = 16 * torch.finfo(sums).eps + (dtype == torch.bfloat16) * 2.0**-8 * expected.abs()
    assert ((actual.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("S", [0, 1, 2, 63, 64, 65, 1000])
@pytest.mark.parametrize("B,H,G,D,DV", SIZES)
def test_matches_the_definition(B, H, G, D, DV, S, dtype):
    dtype = DTYPES[dtype]
    q, k, v, own_k, own_v = inputs(B, S, H, G, D, DV, dtype)
    some = torch.randperm(S, generator=torch.Generator().manual_seed(0))[: S // 2].int()
    for kwargs in ({}, {"slots": some}, {"own_k": own_k, "own_v": own_v, "scale": 0.3}):
        assert_close(ops.attention_step(q, k, v, **kwargs), definition(q, k, v, **kwargs), dtype)


def test_is_the_last_row_of_sparse_attention():
    q, k, v = (rand(2, 50, h, 20, seed=h, dtype=torch.float32) for h in (4, 2, 2))
    whole = ops.sparse_attention(q, k, v, "k^2+1", True)
    row_ptr, cols = ops.pattern("k^2+1", 50)
    last = cols[row_ptr[49] :]
    y = ops.attention_step(q[:, -1], k[:, :-1], v[:, :-1], last, k[:, -1], v[:, -1])
    torch.testing.assert_close(y, whole[:, -1])


def test_any_strides_to_the_same_bits():
    q, k, v, own_k, own_v = inputs(3, 40, 4, 2, 20, 33, torch.float32)
    plain = ops.attention_step(q, k, v, None, own_k, own_v)
    for layout in (sliced, transposed):
        assert torch.equal(ops.attention_step(*(layout(t) for t in (q, k, v)), None, layout(own_k), layout(own_v)), plain)
    more = torch.full_like(k, float("nan")), torch.full_like(v, float("nan"))
    k, v = torch.cat([k, more[0]], 1), torch.cat([v, more[1]], 1)
    assert torch.equal(ops.attention_step(q, k[:, :40], v[:, :40], None, own_k, own_v), plain)  # a part of the slots
    every_other = torch.arange(0, 80, 2, dtype=torch.int32)[:40]
    assert ops.attention_step(q, k, v, every_other[:20]).isfinite().all()


def test_on_meta_tensors():
    y = ops.attention_step(*(t.to("meta") for t in inputs(2, 9, 4, 2, 20, 7, torch.bfloat16)[:3]))
    assert y.shape == (2, 4, 7) and y.dtype == torch.bfloat16 and y.is_meta


def test_has_no_gradient():
    q, k, v, own_k, own_v = inputs(1, 9, 4, 2, 20, 7)
    with pytest.raises(ValueError, match="attention_step: own_v requires a gradient"):
        ops.attention_step(q, k, v, None, own_k, own_v.requires_grad_())
    with torch.no_grad():
        assert not ops.attention_step(q, k, v, None, own_k, own_v).requires_grad


@pytest.mark.parametrize(
    "change,message",
    [
        ({"slots": torch.tensor([0, 9], dtype=torch.int32)}, r"slots\[1\] is 9, but must be from 0 to 8"),
        ({"slots": torch.tensor([-1], dtype=torch.int32)}, r"slots\[0\] is -1"),
        ({"slots": torch.tensor([0])}, "slots is Long"),
        ({"own_k": torch.zeros(1, 2, 20, dtype=torch.float64)}, "own_k and own_v must be given together"),
        ({"k": torch.zeros(1, 9, 3, 20, dtype=torch.float64)}, "v is"),
        ({"v": torch.zeros(1, 8, 2, 7, dtype=torch.float64)}, "v is .*S = 9"),
        ({"scale": float("nan")}, "scale is nan"),
    ],
)
def test_errors(change, message):
    q, k, v, _, _ = inputs(1, 9, 4, 2, 20, 7)
    with pytest.raises(ValueError, match=f"attention_step: .*{message}"):
        ops.attention_step(**({"q": q, "k": k, "v": v} | change))
