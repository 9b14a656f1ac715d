"""rms_norm against its definition, its gradients, its errors."""

import pytest
import torch

from operators import DTYPES, assert_close, ops, rand, sliced, transposed, with_gradients


def norm(x, weight, eps=1e-6):
    """By the definition."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("T,E", [(1, 3), (2, 20), (63, 64), (65, 100), (100, 130), (1000, 20)])
def test_rms_norm_matches_the_definition(T, E, dtype):
    dtype = DTYPES[dtype]
    tensors = [rand(2, T, E, dtype=dtype), rand(E, dtype=dtype, seed=1)]
    weight = rand(2, T, E, dtype=dtype, seed=2)
    actual = with_gradients(lambda t: ops.rms_norm(*t), tensors, weight)
    expected = with_gradients(lambda t: norm(*t), [t.double() for t in tensors], weight)
    for a, e in zip(actual, expected):
        assert_close(a, e, dtype)


@pytest.mark.parametrize("which", ["all", 0, 1])
def test_rms_norm_gradcheck(which):
    tensors = [rand(2, 9, 3), rand(3, seed=1)]
    for index, t in enumerate(tensors):
        t.requires_grad_(which in ("all", index))
    assert torch.autograd.gradcheck(
        lambda *t: ops.rms_norm(*t, 1e-2), tensors, atol=1e-7, rtol=1e-6
    )


def test_rms_norm_strides_and_empty():
    x, w = rand(2, 9, 5), rand(5, seed=1)
    plain = with_gradients(lambda t: ops.rms_norm(*t), [x, w])
    for layout in (transposed, sliced):
        strided = with_gradients(lambda t: ops.rms_norm(layout(t[0]), sliced(t[1])), [x, w])
        assert all(torch.equal(p, q) for p, q in zip(plain, strided))
    assert ops.rms_norm(x[:, :0], w).shape == (2, 0, 5)
    y, dx, dw = with_gradients(lambda t: ops.rms_norm(*t), [x[:0], w])
    assert y.shape == dx.shape == (0, 9, 5) and torch.equal(dw, torch.zeros(5, dtype=dw.dtype))


def test_rms_norm_compiles_whole():
    model = lambda t: ops.rms_norm(t[0] * 1.5, t[1]).sin()
    tensors = [rand(2, 9, 3), rand(3, seed=1)]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for a, e in zip(with_gradients(compiled, tensors), with_gradients(model, tensors)):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize(
    "x,weight,eps,message",
    [
        (rand(2, 9, 5), rand(4), 1e-6, "weight is [4], but must be [E] with E = 5 as in x"),
        (rand(9, 5), rand(5), 1e-6, "x is [9, 5], but must be [B, T, E]"),
        (rand(2, 9, 5), rand(5), -1.0, "eps is -1, but must be finite and at least 0"),
        (rand(2, 9, 5), rand(5).float(), 1e-6, "weight is Float, but must be Double like x"),
    ],
)
def test_rms_norm_errors(x, weight, eps, message):
    with pytest.raises(ValueError) as error:
        ops.rms_norm(x, weight, eps)
    assert str(error.value).splitlines()[0] == "rms_norm: " + message
