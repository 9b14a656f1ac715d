"""short_convolution against PyTorch's depthwise convolution, across cuts, its gradients, its errors."""

import pytest
import torch
import torch.nn.functional as F

from operators import BOUNDS, DTYPES, assert_close, ops, rand, sliced, transposed, with_gradients


def convolve(x, weight, bias=None, silu=False):
    """By PyTorch's own, which pads both sides."""
    E, W = weight.shape
    y = F.conv1d(x.transpose(1, 2), weight.unsqueeze(1), bias, padding=W - 1, groups=E)
    y = y[..., : x.shape[1]].transpose(1, 2)
    return F.silu(y) if silu else y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("silu", [False, True], ids=["plain", "silu"])
@pytest.mark.parametrize("T,E,W", [(1, 3, 4), (2, 20, 4), (63, 64, 1), (65, 100, 3), (1000, 20, 4), (300, 48, 9)])
def test_short_convolution_is_pytorchs(T, E, W, silu, dtype):
    dtype = DTYPES[dtype]
    tensors = [rand(2, T, E, dtype=dtype), rand(E, W, dtype=dtype, seed=1), rand(E, dtype=dtype, seed=2)]
    weight = rand(2, T, E, dtype=dtype, seed=3)
    actual = with_gradients(lambda t: ops.short_convolution(*t, silu), tensors, weight)
    expected = with_gradients(lambda t: convolve(*t, silu), [t.double() for t in tensors], weight)
    for a, e in zip(actual, expected):
        assert_close(a, e, dtype)
    assert_close(ops.short_convolution(*tensors[:2]), convolve(*(t.double() for t in tensors[:2])), dtype)


@pytest.mark.parametrize("which", ["all", 0, 1, 2])
def test_short_convolution_gradcheck(which):
    for B, cu in ((2, None), (1, torch.tensor([0, 4, 4, 9]))):
        tensors = [rand(B, 9, 3), rand(3, 4, seed=1), rand(3, seed=2)]
        for index, t in enumerate(tensors):
            t.requires_grad_(which in ("all", index))
        assert torch.autograd.gradcheck(
            lambda *t: ops.short_convolution(*t, True, cu), tensors, atol=1e-7, rtol=1e-6
        )


def test_a_cut_needs_the_inputs_before_it():
    x, w, b = rand(2, 20, 5), rand(5, 4, seed=1), rand(5, seed=2)
    y = ops.short_convolution(x, w, b, True)
    for cut in range(20):
        seen = min(cut, 3)
        assert torch.equal(ops.short_convolution(x[:, cut - seen :], w, b, True)[:, seen:], y[:, cut:])


def test_short_convolution_packed_equals_separate():
    x, w, b = rand(1, 70, 5), rand(5, 4, seed=1), rand(5, seed=2)
    y = ops.short_convolution(x, w, b, True, BOUNDS)
    for first, last in zip(BOUNDS[:-1], BOUNDS[1:]):
        assert torch.equal(y[:, first:last], ops.short_convolution(x[:, first:last], w, b, True))


def test_short_convolution_strides_and_empty():
    tensors = [rand(2, 9, 5), rand(5, 4, seed=1), rand(5, seed=2)]
    plain = with_gradients(lambda t: ops.short_convolution(*t), tensors)
    for layout in (transposed, sliced):
        strided = with_gradients(lambda t: ops.short_convolution(layout(t[0]), layout(t[1]), sliced(t[2])), tensors)
        assert all(torch.equal(p, q) for p, q in zip(plain, strided))
    x, w, b = tensors
    for empty in (x[:0], x[:, :0]):
        y, dx, dw, db = with_gradients(lambda t: ops.short_convolution(*t, True), [empty, w, b])
        assert y.shape == dx.shape == empty.shape
        assert torch.equal(dw, torch.zeros_like(w)) and torch.equal(db, torch.zeros_like(b))


def test_short_convolution_compiles_whole():
    model = lambda t: ops.short_convolution(t[0] * 1.5, t[1], t[2], True).sin()
    tensors = [rand(2, 9, 3), rand(3, 4, seed=1), rand(3, seed=2)]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for a, e in zip(with_gradients(compiled, tensors), with_gradients(model, tensors)):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize(
    "x,weight,bias,message",
    [
        (rand(2, 9, 5), rand(4, 4), None, "weight is [4, 4], but must be [E, W] with E = 5 as in x"),
        (rand(2, 9, 5), rand(5, 33), None, "weight is [5, 33], but must be [E, W] with W from 1 to 32"),
        (rand(2, 9, 5), rand(5, 0), None, "weight is [5, 0], but must be [E, W] with W from 1 to 32"),
        (rand(2, 9, 5), rand(5, 4), rand(3), "bias is [3], but must be [E] with E = 5 as in x"),
    ],
)
def test_short_convolution_errors(x, weight, bias, message):
    with pytest.raises(ValueError) as error:
        ops.short_convolution(x, weight, bias)
    assert str(error.value).splitlines()[0] == "short_convolution: " + message
