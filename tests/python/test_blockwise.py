"""What the blockwise operators (dense_recurrence, chacal, block_chacal, attention) have in common."""

import pytest
import torch

from blockwise import INPUTS, NAMES, assert_near, block_inputs, call, dense, tail
from operators import (
    BOUNDS, DTYPES, LENGTHS, ops, rand, sliced, transposed, with_gradients
)  # fmt: skip
from test_ops import filled_with_nan  # noqa: F401

SIZES = [
    (2, 1, 4, 3), (2, 2, 2, 20), (1, 63, 2, 20), (2, 64, 4, 64), (2, 65, 4, 20), (1, 100, 2, 100),
    (1, 1000, 1, 20),
]  # fmt: skip


def width(name, T):
    """block_chacal's literal definition takes a second for 100 tokens."""
    return name != "block_chacal" or T <= 100


@pytest.fixture(params=[True, False], ids=["onednn", "loops"])
def products(request):
    """Products by oneDNN, and by the loops that stand in for it."""
    with torch.backends.mkldnn.flags(enabled=request.param):
        yield


CASES = [(name, *s) for name in NAMES for s in SIZES if width(name, s[1])]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name,B,T,H,D", CASES)
def test_matches_the_definition(name, B, T, H, D, dtype, products):
    dtype = DTYPES[dtype]
    tensors = block_inputs(name, B=B, T=T, H=H, G=max(1, H // 2), D=D, DV=D + 1, dtype=dtype)
    weight = rand(B, T, H, D + 1, seed=9, dtype=dtype)
    actual = with_gradients(lambda t: call(name, t), tensors, weight)
    expected = with_gradients(lambda t: dense(name, t), [t.double() for t in tensors], weight)
    for index, (a, e) in enumerate(zip(actual, expected)):
        assert_near(a, e, dtype, "y" if index == 0 else f"gradient of input {index - 1}")


@pytest.mark.parametrize("scale", [0.7, 0.0, -0.4])
@pytest.mark.parametrize("name", NAMES)
def test_scale_is_used(name, scale):
    tensors = block_inputs(name, T=40)
    actual = with_gradients(lambda t: call(name, t, scale=scale), tensors)
    # The references take 0 for "not given".
    expected = with_gradients(lambda t: dense(name, t, scale=scale or 1e-300), tensors)
    for a, e in zip(actual, expected):
        assert_near(a, e, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_huge_logits_stay_finite(name, dtype):
    tensors = block_inputs(name, T=300, dtype=DTYPES[dtype])
    tensors[0], tensors[1] = tensors[0] * 100, tensors[1] * 100  # logits beyond +-10^4
    for t in with_gradients(lambda t: call(name, t), tensors):
        assert t.isfinite().all()


@pytest.mark.parametrize("size", [1e10, 1e12, 1e17])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_logits_beyond_all_digits_still_weigh(name, dtype, size, products):
    """Neighbouring floats are then further apart than exp can tell: which token is read is chance, but it is one."""
    tensors = block_inputs(name, T=300, dtype=DTYPES[dtype])
    tensors[0] = tensors[0] * size
    tensors[2] = torch.ones_like(tensors[2])
    if name == "dense_recurrence":
        tensors[3:] = [torch.full_like(t, x) for t, x in zip(tensors[3:], (0.5, 0.0, 1.0))]
    y, *grads = with_gradients(lambda t: call(name, t), tensors)
    # z_0 = 1 and z_i = 1 + z_j / 2 for some j, or averages of ones.
    low, high = (1.5, 2.0) if name == "dense_recurrence" else (1.0, 1.0)
    assert (y[:, 1:] >= low - 0.01).all() and (y <= high + 0.01).all()
    assert all(g.isfinite().all() for g in grads)
    largest = 0 if len(tensors) == 3 else grads[3].abs().max()
    assert largest <= 2.1 * 300 * 3, "a weight above 1 would grow from token to token"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_number_is_not_hidden(name, dtype, which, bad, products):
    """Nor does it reach an earlier token."""
    at, T = 131, 300  # inside a block of each operator
    tensors = block_inputs(name, T=T, dtype=DTYPES[dtype])
    before = call(name, tensors)
    tensors[which] = tensors[which].clone()
    tensors[which][:, at] = bad
    after = call(name, tensors)
    assert torch.equal(after[:, :at], before[:, :at])
    first = at + 1 if name == "dense_recurrence" and which == 1 else at
    if which == 1 and bad == float("inf"):  # k . q is -inf, a weight of 0, for some queries
        assert not after[:, first:].isfinite().all()
    else:
        assert not after[:, first].isfinite().any(), "the first token that reads it"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_no_token_sees_the_future(name, dtype):
    tensors = block_inputs(name, T=300, dtype=DTYPES[dtype])
    before = call(name, tensors)
    for cut in (1, 15, 16, 127, 128, 200, 256, 299):
        changed = [t.clone() for t in tensors]
        for t in changed:
            t[:, cut:] *= 1e4
        after = call(name, changed)
        assert torch.equal(before[:, :cut], after[:, :cut])
        assert not torch.equal(before[:, cut:], after[:, cut:])


@pytest.mark.parametrize("name", NAMES)
def test_empty_batch_and_empty_time(name):
    for B, T, DV in ((0, 5, 3), (2, 0, 3), (2, 5, 0)):
        tensors = block_inputs(name, B=B, T=T, DV=DV)
        y, *grads = with_gradients(lambda t: call(name, t), tensors)
        assert y.shape == (B, T, 4, DV)
        assert [g.shape for g in grads] == [t.shape for t in tensors]
        assert all((g == 0).all() for g in grads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_grouped_heads_equal_repeated_ones(name, dtype):
    dtype = DTYPES[dtype]
    tensors = block_inputs(name, H=6, G=2, dtype=dtype)
    repeat = lambda t: [t[0], *(x.repeat_interleave(3, dim=2) for x in t[1:3]), *t[3:]]
    grouped = with_gradients(lambda t: call(name, t), tensors)
    for a, e in zip(grouped, with_gradients(lambda t: call(name, repeat(t)), tensors)):
        assert_near(a, e.double(), dtype)


@pytest.mark.parametrize("layout", [transposed, sliced])
@pytest.mark.parametrize("name", NAMES)
def test_any_strides(name, layout):
    tensors = block_inputs(name)
    plain = with_gradients(lambda t: call(name, t), tensors)
    weight = layout(rand(*plain[0].shape, seed=9))
    strided = with_gradients(lambda t: call(name, [layout(x) for x in t]), tensors, weight)
    for a, e in zip(strided, plain):
        assert torch.equal(a, e)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_equal_separate_ones(name, dtype):
    tensors = block_inputs(name, B=1, T=sum(LENGTHS), dtype=DTYPES[dtype])

    def separately(tensors):
        edges = list(zip(BOUNDS[:-1], BOUNDS[1:]))
        return torch.cat([call(name, [t[:, a:b] for t in tensors]) for a, b in edges], dim=1)

    packed = with_gradients(lambda t: call(name, t, cu_seqlens=BOUNDS), tensors)
    for a, e in zip(packed, with_gradients(separately, tensors)):
        assert torch.equal(a, e)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_same_bits_for_any_number_of_threads(name, dtype):
    before = torch.get_num_threads()
    for B, T, H, G in ((2, 300, 6, 2), (1, 300, 1, 1), (1, 4000, 1, 1)):
        tensors = block_inputs(name, B=B, T=T, H=H, G=G, D=20, DV=24, dtype=DTYPES[dtype])
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(with_gradients(lambda t: call(name, t), tensors))
        torch.set_num_threads(before)
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_written(name, dtype, filled_with_nan):  # noqa: F811
    tensors = block_inputs(name, B=1, T=sum(LENGTHS), dtype=DTYPES[dtype])
    for t in with_gradients(lambda t: call(name, t, cu_seqlens=BOUNDS), tensors):
        assert t.isfinite().all()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "name,which", [(n, w) for n in NAMES for w in ["all", *range(INPUTS[n])]]
)
def test_gradcheck(name, which, packed):
    tensors = block_inputs(name, B=1 if packed else 2, T=18 if which == "all" else 9, D=3, DV=2)
    for index, t in enumerate(tensors):
        t.requires_grad_(which in ("all", index))
    cu = torch.tensor([0, 4, 4, tensors[0].shape[1]]) if packed else None
    function = lambda *t: call(name, t, cu_seqlens=cu)
    assert torch.autograd.gradcheck(function, tensors, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_twice_differentiable_is_an_error(name):
    tensors = [t.requires_grad_() for t in block_inputs(name)]
    (grad,) = torch.autograd.grad(call(name, tensors).sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match=f"{name}_backward is not implemented"):
        grad.sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager"])
@pytest.mark.parametrize("name", NAMES)
def test_compiles_whole(name, backend):
    tensors = block_inputs(name, dtype=torch.float32)
    model = lambda t: call(name, [x * 1.5 for x in t]).sin()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for a, e in zip(with_gradients(compiled, tensors), with_gradients(model, tensors)):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("name", NAMES)
def test_meta_tensors(name):
    y = call(name, [t.to("meta") for t in block_inputs(name)])
    assert y.is_meta and y.shape == (2, 20, 4, 3)


@pytest.mark.parametrize("name", NAMES)
def test_errors_name_the_argument(name):
    tensors = block_inputs(name)
    wrong = {
        r"k is \[2, 20, 2, 4\], but must be \[B, T, G, DK\] with DK = 5": {1: tensors[1][..., :4]},
        "v is Float, but must be Double like q": {2: tensors[2].float()},
        "q has 3 heads, but must have a multiple of the 2": {0: tensors[0][:, :, :3]},
    }
    for message, change in wrong.items():
        given = [change.get(i, t) for i, t in enumerate(tensors)]
        if name == "dense_recurrence" and 0 in change:
            given[3:] = [t[..., :3] for t in given[3:]]
        with pytest.raises(ValueError, match=f"^{name}: .*{message}"):
            call(name, given)
    with pytest.raises(ValueError, match=f"^{name}: scale is nan, but must be finite$"):
        call(name, tensors, scale=float("nan"))
    with pytest.raises(ValueError, match=rf"^{name}: cu_seqlens\[1\] is 19, but must be T = 20$"):
        call(name, block_inputs(name, B=1), cu_seqlens=torch.tensor([0, 19]))
    backward = getattr(ops, name + "_backward")
    arguments = {"dense_recurrence": (None,), "chacal": (0.9, None), "block_chacal": (0.9, None, None), "attention": (None,)}[name]
    y = call(name, tensors)
    with pytest.raises(ValueError, match=rf"^{name}_backward: kept has 5 tensors"):
        backward(y, [y] * 5, *tensors, *arguments, None, [True] * INPUTS[name])
