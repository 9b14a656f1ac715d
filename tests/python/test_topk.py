"""attention_topk: which positions it selects. What its output is, the tests of all operators see."""

import math

import pytest
import torch

from common import DTYPES, ops
from references import selection
from registry import BY_NAME

TOP = BY_NAME["attention_topk"]


def call(tensors, kappa=4, scale=None, **options):
    return ops.attention_topk(*tensors, kappa, scale, **options)


def inputs(dtype=torch.float64, **sizes):
    return list(TOP.make(dtype, **sizes).values())


def whole_numbers(dtype=torch.float32, largest=1, **sizes):
    """Their products are exact in every type, and many are equal."""
    q, k, v = inputs(**sizes)
    return [t.to(dtype) for t in ((q * (largest + 0.5) / 2).round(), (k * (largest + 0.5) / 2).round(), v)]


EQUAL = [
    # B, T, H, G, D, kappa
    (2, 1, 4, 2, 3, 1, "float64"),
    (2, 2, 2, 1, 20, 8, "bfloat16"),
    (1, 63, 2, 1, 20, 2, "float32"),
    (2, 64, 4, 2, 64, 32, "bfloat16"),
    (2, 65, 4, 2, 20, 70, "float32"),
    (1, 65, 2, 2, 3, 1, "bfloat16"),
    (1, 100, 2, 1, 100, 8, "float64"),
    (1, 300, 6, 3, 3, 32, "bfloat16"),
    (1, 300, 6, 3, 3, 2, "float64"),
    (1, 1000, 1, 1, 20, 70, "float32"),
    (1, 1000, 1, 1, 20, 1, "bfloat16"),
]


@pytest.mark.parametrize("B,T,H,G,D,kappa,dtype", EQUAL)
def test_selection_among_many_equal_scores(B, T, H, G, D, kappa, dtype):
    """Whole numbers of three values: exact scores, most of them equal."""
    q, k, v = whole_numbers(DTYPES[dtype], B=B, T=T, H=H, G=G, D=D)
    for include_self in (True, False):
        expected = selection(q, k, kappa, include_self=include_self)
        for onednn in (True, False):
            with torch.backends.mkldnn.flags(enabled=onednn):
                indices = call((q, k, v), kappa, include_self=include_self)[1]
            assert indices.dtype == torch.int32 and torch.equal(indices, expected)


def test_selection_among_random_scores(products):
    q, k, v = inputs(B=1, T=1000, H=2, G=1, D=20)
    order = selection(q, k, 2000)
    for kappa in (1, 5, 32, 200, 2000):
        assert torch.equal(call((q, k, v), kappa)[1], order[..., :kappa])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_selection_by_the_scores_in_float32(dtype):
    """A position is only passed over for another whose exact score is at most a few roundings lower."""
    T, kappa = 700, 16
    q, k, v = inputs(DTYPES[dtype], B=1, T=T, H=2, G=2, D=64)
    indices = call((q, k, v), kappa)[1].long()[0].transpose(0, 1)
    scores = torch.einsum("ihd,jhd->hij", q[0].double(), k[0].double())
    scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
    best = scores.topk(kappa, dim=-1).values[:, kappa:]
    actual = scores.gather(-1, indices.clamp(min=0))[:, kappa:]
    size = q[0].double().abs().amax() * k[0].double().abs().amax() * 64
    assert ((best - actual).abs() <= 8 * torch.finfo(torch.float32).eps * size).all()


@pytest.mark.parametrize("scale", [0.7, 0.0, -0.4])
def test_scale_turns_the_order(scale):
    """With 0 all scores are equal, and the earliest are chosen."""
    for dtype in DTYPES.values():
        tensors = whole_numbers(dtype, T=300)
        order = math.copysign(1, scale) if scale else 0
        assert torch.equal(call(tensors, scale=scale)[1], selection(*tensors[:2], 4, order))


def test_few_visible_tokens():
    """All of them, best first, and no other: as many as there are."""
    tensors = inputs(T=6)
    indices = call(tensors, 9)[1]
    for i in range(6):
        assert torch.equal(indices[:, i, :, : i + 1].sort().values, torch.arange(i + 1).int().expand(2, 4, -1))
        assert (indices[:, i, :, i + 1 :] == -1).all()
    strict = call(tensors, 9, include_self=False)[1]
    assert (strict[:, 0] == -1).all()
    assert torch.equal(strict[:, 5, :, :5].sort().values, torch.arange(5).int().expand(2, 4, -1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_include_self_is_about_the_selection_alone(dtype):
    tensors = inputs(DTYPES[dtype], T=300)
    with_self, strict = call(tensors), call(tensors, include_self=False)
    assert torch.equal(with_self[0], strict[0])
    positions = torch.arange(300)[None, :, None, None]
    assert (with_self[1] == positions).any() and not (strict[1] == positions).any()


@pytest.mark.parametrize("block", [2, 7, 64, 128, 500, 1000])
def test_blocks(block):
    for dtype, kappa in (("float32", 1), ("float64", 3), ("bfloat16", 200), ("float32", 200)):
        q, k, v = whole_numbers(DTYPES[dtype], T=700, H=2, G=1, largest=3)
        for include_self in (True, False):
            o, indices = call((q, k, v), kappa, include_self=include_self, block=block)
            assert torch.equal(indices, selection(q, k, kappa, include_self=include_self, block=block))
            assert torch.equal(o, call((q, k, v))[0])


def test_blocks_see_no_future_and_count_from_their_sequence():
    for dtype in DTYPES.values():
        tensors = inputs(dtype, B=1, T=300)
        before = call(tensors, block=10)
        for cut in (1, 15, 128, 200, 299):
            for change in (1e4, torch.nan, torch.inf):
                after = call([torch.cat([t[:, :cut], t[:, cut:] * change], dim=1) for t in tensors], block=10)
                assert all(torch.equal(b[:, :cut], a[:, :cut]) for b, a in zip(before, after))
        packed = call(tensors, cu_seqlens=torch.tensor([0, 0, 131, 300]), block=3)
        for a, b in ((0, 131), (131, 300)):
            alone = call([t[:, a:b] for t in tensors], block=3)
            assert all(torch.equal(p[:, a:b], s) for p, s in zip(packed, alone))


def test_more_places_than_tokens_in_a_packed_batch(filled_with_nan):
    tensors = inputs(B=1, T=70)
    indices = call(tensors, 50, cu_seqlens=torch.tensor([0, 0, 1, 34, 69, 70, 70]))[1]
    assert ((indices >= -1) & (indices <= torch.arange(70)[None, :, None, None])).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_is_chosen_last_and_not_hidden(dtype, products):
    T, bad = 300, [3, 130, 131, 260]
    q, k, v = whole_numbers(DTYPES[dtype], T=T)
    plain = selection(q, k, T)
    k = k.clone()
    k[:, bad] = torch.nan
    o, indices = call((q, k, v), T)
    assert o[:, :3].isfinite().all() and o[:, 3:].isnan().all()
    # The order without them, then they.
    keep = ~torch.isin(plain, torch.tensor(bad, dtype=torch.int32)) & (plain >= 0)
    for i in (0, 2, 3, 130, 200, 299):
        last = torch.tensor([j for j in bad if j <= i], dtype=torch.int32)
        for b, h in ((0, 0), (1, 3)):
            expected = torch.cat([plain[b, i, h][keep[b, i, h]], last])
            assert torch.equal(indices[b, i, h, : i + 1], expected)
    k[:, bad] = 0
    k[:, bad, :, 0] = torch.inf  # infinity, minus infinity or NaN times the first of q
    first = call((q, k, v), 1)[1]
    for i in (3, 130, 299):
        above = q[:, i, :, 0] > 0
        assert (first[:, i][above] == 3).all()
        assert not torch.isin(first[:, i][~above & (q[:, i, :, 0] != 0)], torch.tensor(bad)).any() or i == 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_bad_query_spoils_its_own_row_alone(dtype):
    tensors = inputs(DTYPES[dtype], T=300)
    before = call(tensors)
    for at in (0, 17, 131):
        spoiled = tensors[0].clone()
        spoiled[:, at] = torch.nan
        after = call((spoiled, *tensors[1:]))
        assert after[0][:, at].isnan().all()
        assert (after[1][:, at] == torch.tensor([j if j <= at else -1 for j in range(4)])).all()
        for b, a in zip(before, after):
            assert torch.equal(torch.cat([b[:, :at], b[:, at + 1 :]], 1), torch.cat([a[:, :at], a[:, at + 1 :]], 1))
