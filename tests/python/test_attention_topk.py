"""attention_topk: its output is attention, its indices are what a sort of all scores gives."""

import math
import subprocess
import sys

import pytest
import torch

from blockwise import assert_near
from operators import BOUNDS, DTYPES, LENGTHS, LIBRARY, ops, rand, sliced, transposed, with_gradients
from test_blockwise import products  # noqa: F401
from test_ops import filled_with_nan  # noqa: F401
from topk import attention, attention_inputs, call, selection, whole_inputs

SIZES = [
    (2, 1, 4, 3), (2, 2, 2, 20), (1, 63, 2, 20), (2, 64, 4, 64), (2, 65, 4, 20), (1, 100, 2, 100),
    (1, 1000, 1, 20), (1, 300, 6, 3),
]  # fmt: skip


def near(actual, expected, dtype, what=""):
    assert_near(actual, expected, dtype, what, gamma=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("B,T,H,D", SIZES)
def test_output_is_attention(B, T, H, D, dtype, products):  # noqa: F811
    dtype = DTYPES[dtype]
    tensors = attention_inputs(B, T, H, max(1, H // 2), D, D + 1, dtype=dtype)
    weight = rand(B, T, H, D + 1, seed=9, dtype=dtype)
    actual = with_gradients(lambda t: call(t)[0], tensors, weight)
    expected = with_gradients(lambda t: attention(*t), [t.double() for t in tensors], weight)
    for index, (a, e) in enumerate(zip(actual, expected)):
        near(a, e, dtype, "o" if index == 0 else f"gradient of input {index - 1}")


@pytest.mark.parametrize("kappa", [1, 2, 8, 32, 70])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("B,T,H,D", SIZES)
def test_selection_among_many_equal_scores(B, T, H, D, dtype, kappa, products):  # noqa: F811
    """Whole numbers of three values: exact scores, most of them equal."""
    q, k, v = whole_inputs(B, T, H, max(1, H // 2), D, 3, dtype=DTYPES[dtype])
    for self in (True, False):
        indices = call((q, k, v), kappa, include_self=self)[1]
        assert indices.dtype == torch.int32
        assert torch.equal(indices, selection(q, k, kappa, include_self=self))


@pytest.mark.parametrize("kappa", [1, 5, 32, 200, 2000])
def test_selection_among_random_scores(kappa, products):  # noqa: F811
    q, k, v = attention_inputs(T=1000, D=20)
    assert torch.equal(call((q, k, v), kappa)[1], selection(q, k, kappa))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_selection_by_the_scores_in_float32(dtype):
    """A position is only passed over for another whose exact score is at most a few roundings lower."""
    T, kappa = 700, 16
    q, k, v = attention_inputs(B=1, T=T, H=2, G=2, D=64, dtype=DTYPES[dtype])
    indices = call((q, k, v), kappa)[1].long()[0].transpose(0, 1)
    scores = torch.einsum("ihd,jhd->hij", q[0].double(), k[0].double())
    scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
    best = scores.topk(kappa, dim=-1).values[:, kappa:]
    actual = scores.gather(-1, indices[:, :, :].clamp(min=0))[:, kappa:]
    size = q[0].double().abs().amax() * k[0].double().abs().amax() * 64
    assert ((best - actual).abs() <= 8 * torch.finfo(torch.float32).eps * size).all()


@pytest.mark.parametrize("scale", [0.7, 0.0, -0.4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_is_used(scale, dtype):
    """With 0 all scores are equal, and the earliest are chosen; a negative one turns the order."""
    dtype = DTYPES[dtype]
    tensors = whole_inputs(T=300, dtype=dtype)
    actual = with_gradients(lambda t: call(t, scale=scale)[0], tensors)
    expected = with_gradients(lambda t: attention(*t, scale or 1e-300), [t.double() for t in tensors])
    for a, e in zip(actual, expected):
        near(a, e, dtype)
    order = math.copysign(1, scale) if scale else 0
    assert torch.equal(call(tensors, scale=scale)[1], selection(*tensors[:2], 4, order))


def test_few_visible_tokens():
    """All of them, best first, and no other: as many as there are."""
    q, k, v = attention_inputs(T=6)
    indices = call((q, k, v), 9)[1]
    for i in range(6):
        assert torch.equal(indices[:, i, :, : i + 1].sort().values, torch.arange(i + 1).int().expand(2, 4, -1))
        assert (indices[:, i, :, i + 1 :] == -1).all()
    strict = call((q, k, v), 9, include_self=False)[1]
    assert (strict[:, 0] == -1).all()
    assert torch.equal(strict[:, 5, :, :5].sort().values, torch.arange(5).int().expand(2, 4, -1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_include_self_is_about_the_selection_alone(dtype):
    tensors = attention_inputs(T=300, dtype=DTYPES[dtype])
    with_self, strict = call(tensors), call(tensors, include_self=False)
    assert torch.equal(with_self[0], strict[0])
    positions = torch.arange(300)[None, :, None, None]
    assert (with_self[1] == positions).any() and not (strict[1] == positions).any()


@pytest.mark.parametrize("block", [2, 7, 64, 128, 500, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks(dtype, block):
    q, k, v = whole_inputs(T=700, H=2, G=1, dtype=DTYPES[dtype], largest=3)
    for self in (True, False):
        for kappa in (1, 3, 200):
            o, indices = call((q, k, v), kappa, include_self=self, block=block)
            assert torch.equal(indices, selection(q, k, kappa, include_self=self, block=block))
            assert torch.equal(o, call((q, k, v))[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_token_sees_the_future(dtype):
    tensors = attention_inputs(T=300, dtype=DTYPES[dtype])
    for block in (1, 10):
        before = call(tensors, block=block)
        for cut in (1, 15, 16, 127, 128, 200, 256, 299):
            for change in (lambda x: x * 1e4, lambda x: x * torch.nan, lambda x: x + torch.inf):
                changed = [torch.cat([t[:, :cut], change(t[:, cut:])], dim=1) for t in tensors]
                after = call(changed, block=block)
                assert all(torch.equal(b[:, :cut], a[:, :cut]) for b, a in zip(before, after))
                assert not torch.equal(before[0][:, cut:], after[0][:, cut:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_is_chosen_last_and_not_hidden(dtype, products):  # noqa: F811
    dtype = DTYPES[dtype]
    T, bad = 300, [3, 130, 131, 260]
    q, k, v = whole_inputs(T=T, dtype=dtype)
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
    tensors = attention_inputs(T=300, dtype=DTYPES[dtype])
    before = call(tensors)
    for at in (0, 17, 131):
        spoiled = tensors[0].clone()
        spoiled[:, at] = torch.nan
        o, indices = call((spoiled, *tensors[1:]))
        assert o[:, at].isnan().all()
        assert (indices[:, at] == torch.tensor([j if j <= at else -1 for j in range(4)])).all()
        for b, a in zip(before, (o, indices)):
            assert torch.equal(torch.cat([b[:, :at], b[:, at + 1 :]], 1), torch.cat([a[:, :at], a[:, at + 1 :]], 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_huge_logits_stay_finite(dtype):
    tensors = attention_inputs(T=300, dtype=DTYPES[dtype])
    tensors[0], tensors[1] = tensors[0] * 100, tensors[1] * 100
    for t in with_gradients(lambda t: call(t)[0], tensors):
        assert t.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_grouped_heads_equal_repeated_ones(dtype):
    dtype = DTYPES[dtype]
    tensors = attention_inputs(T=150, H=6, G=2, dtype=dtype)
    repeat = lambda t: [t[0], *(x.repeat_interleave(3, dim=2) for x in t[1:])]
    assert torch.equal(call(tensors)[1], call(repeat(tensors))[1])
    grouped = with_gradients(lambda t: call(t)[0], tensors)
    for a, e in zip(grouped, with_gradients(lambda t: call(repeat(t))[0], tensors)):
        near(a, e.double(), dtype)


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_sequences_equal_separate_ones(dtype, block):
    """Positions and blocks are counted from the start of their sequence."""
    tensors = attention_inputs(B=1, T=sum(LENGTHS), dtype=DTYPES[dtype])
    edges = list(zip(BOUNDS[:-1].tolist(), BOUNDS[1:].tolist()))

    def separately(tensors, which):
        parts = [call([t[:, a:b] for t in tensors], block=block)[which] for a, b in edges]
        return torch.cat(parts, dim=1)

    packed = with_gradients(lambda t: call(t, cu_seqlens=BOUNDS, block=block)[0], tensors)
    for a, e in zip(packed, with_gradients(lambda t: separately(t, 0), tensors)):
        assert torch.equal(a, e)
    assert torch.equal(call(tensors, cu_seqlens=BOUNDS, block=block)[1], separately(tensors, 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_for_any_number_of_threads(dtype):
    before = torch.get_num_threads()
    for B, T, H, G in ((2, 300, 6, 2), (1, 300, 1, 1), (1, 4000, 2, 1)):
        tensors = attention_inputs(B=B, T=T, H=H, G=G, D=40, DV=24, dtype=DTYPES[dtype])
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append([*with_gradients(lambda t: call(t)[0], tensors), call(tensors)[1]])
        torch.set_num_threads(before)
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other))


@pytest.mark.parametrize("layout", [transposed, sliced])
def test_any_strides(layout):
    tensors = attention_inputs()
    plain = with_gradients(lambda t: call(t)[0], tensors)
    weight = layout(rand(*plain[0].shape, seed=9))
    strided = with_gradients(lambda t: call([layout(x) for x in t])[0], tensors, weight)
    for a, e in zip(strided, plain):
        assert torch.equal(a, e)
    assert torch.equal(call([layout(x) for x in tensors])[1], call(tensors)[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_entry_is_written(dtype, filled_with_nan):  # noqa: F811
    tensors = attention_inputs(B=1, T=sum(LENGTHS), dtype=DTYPES[dtype])
    for t in with_gradients(lambda t: call(t, cu_seqlens=BOUNDS)[0], tensors):
        assert t.isfinite().all()
    indices = call(tensors, 50, cu_seqlens=BOUNDS)[1]
    assert ((indices >= -1) & (indices <= torch.arange(sum(LENGTHS))[None, :, None, None])).all()


def test_empty():
    for B, T, DV in ((0, 5, 3), (2, 0, 3), (2, 5, 0)):
        tensors = attention_inputs(B=B, T=T, DV=DV)
        o, *grads = with_gradients(lambda t: call(t)[0], tensors)
        assert o.shape == (B, T, 4, DV)
        assert [g.shape for g in grads] == [t.shape for t in tensors]
        assert all((g == 0).all() for g in grads)
        assert torch.equal(call(tensors)[1], selection(*tensors[:2], 4))


@pytest.mark.parametrize("which", ["all", 0, 1, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_gradcheck(which, packed):
    tensors = attention_inputs(B=1 if packed else 2, T=18 if which == "all" else 9, D=3, DV=2)
    for index, t in enumerate(tensors):
        t.requires_grad_(which in ("all", index))
    cu = torch.tensor([0, 4, 4, tensors[0].shape[1]]) if packed else None
    function = lambda *t: call(t, cu_seqlens=cu)[0]
    assert torch.autograd.gradcheck(function, tensors, atol=1e-7, rtol=1e-6)


def test_what_has_no_gradient():
    tensors = [t.requires_grad_() for t in attention_inputs()]
    o, indices = call(tensors)
    assert not indices.requires_grad
    (grad,) = torch.autograd.grad(o.sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="attention_topk_backward is not implemented"):
        grad.sum().backward()


def test_compiles_whole():
    tensors = attention_inputs(dtype=torch.float32)

    def model(t):
        o, indices = call([x * 1.5 for x in t])
        return o.sin() * (indices >= 0).sum()

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for a, e in zip(with_gradients(compiled, tensors), with_gradients(model, tensors)):
        torch.testing.assert_close(a, e)


def test_meta_tensors():
    o, indices = call([t.to("meta") for t in attention_inputs()], 7)
    assert o.is_meta and o.shape == (2, 20, 4, 3)
    assert indices.is_meta and indices.shape == (2, 20, 4, 7) and indices.dtype == torch.int32


def test_errors_name_the_argument():
    q, k, v = attention_inputs()
    wrong = {
        r"k is \[2, 20, 2, 4\], but must be \[B, T, G, DK\] with DK = 5": (q, k[..., :4], v),
        "v is Float, but must be Double like q": (q, k, v.float()),
        "q has 3 heads, but must have a multiple of the 2": (q[:, :, :3], k, v),
    }
    for message, tensors in wrong.items():
        with pytest.raises(ValueError, match=f"^attention_topk: .*{message}"):
            call(tensors)
    for kwargs, message in {
        "kappa": ({"kappa": 0}, "kappa is 0, but must be at least 1"),
        "block": ({"block": -2}, "block is -2, but must be at least 1"),
        "scale": ({"scale": math.inf}, "scale is inf, but must be finite"),
    }.values():
        with pytest.raises(ValueError, match=f"^attention_topk: {message}$"):
            call((q, k, v), **kwargs)
        if "scale" not in kwargs:
            with pytest.raises(ValueError, match=f"^attention_topk: {message}$"):
                call([t.to("meta") for t in (q, k, v)], **kwargs)
    with pytest.raises(ValueError, match=r"^attention_topk: cu_seqlens\[1\] is 19, but must be T = 20$"):
        call(attention_inputs(B=1), cu_seqlens=torch.tensor([0, 19]))
    with pytest.raises(ValueError, match=r"^attention_topk_backward: mix is Float, but must be Double"):
        ops.attention_topk_backward(v, v.float(), v[..., 0], q[:, :, :2], k, v, None, None, [True] * 3)


MEASURE = """
import sys, torch
torch.ops.load_library(sys.argv[1])

def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024

def select(T, train):
    tensors = [torch.rand(1, T, 1, 64).to(getattr(torch, sys.argv[2])).requires_grad_(train) for _ in range(3)]
    o, indices = torch.ops.hopmix.attention_topk(*tensors, 32)
    assert (indices[:, -1] >= 0).all() and (indices <= torch.arange(T)[None, :, None, None]).all()
    if train:
        o.sum().backward()

select(1000, True)
for T, train in ((16384, True), (65536, False)):  # the smaller first: what it frees would hide it
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
    before = peak()
    select(T, train)
    print((peak() - before) / (T * 64 * 4))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_grows_with_tokens(dtype):
    """In tensors of float32; a matrix of the scores of 65536 tokens would be 1024 of them."""
    run = [sys.executable, "-c", MEASURE, str(LIBRARY), dtype]
    training, forward = map(float, subprocess.run(run, check=True, capture_output=True, text=True).stdout.split())
    assert 1 < forward < 12 and 1 < training < 24
