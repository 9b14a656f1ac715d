"""Linear maps, the MLP and rotary positions against torch: values, gradients, strides, tracing, errors."""

import pytest
import torch
import torch.nn.functional as F

import linear
from operators import DTYPES, assert_close, ops, rand, sliced, transposed

OPERATORS = {
    "linear": (ops.linear, F.linear, linear.linear_inputs),
    "mlp": (ops.mlp, linear.mlp, linear.mlp_inputs),
    "rope": (ops.rope, linear.rope, lambda **sizes: linear.rope_inputs(**sizes)),
}


def with_gradients(function, tensors, differentiable=None, rounded=False):
    """The result and the gradients of the first inputs, from a random gradient of the result, if `rounded` to bfloat16."""
    leaves = [t.detach().clone().requires_grad_(differentiable is None or i < differentiable)
              for i, t in enumerate(tensors)]  # fmt: skip
    y = function(*leaves)
    weight = rand(*y.shape, seed=9, dtype=torch.bfloat16 if rounded else y.dtype).to(y.dtype)
    grads = torch.autograd.grad(y, [t for t in leaves if t.requires_grad], weight)
    return [y.detach(), *grads]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape,K,N",
    [((5,), 3, 4), ((2, 3), 20, 1), ((1,), 64, 100), ((2, 65), 100, 20), ((2, 3, 50), 20, 64), ((1000,), 64, 3), ((), 20, 7)],
    ids=lambda v: "x".join(map(str, v)) if isinstance(v, tuple) else str(v),
)
def test_linear_matches_torch(shape, K, N, dtype):
    for bias in (True, False):
        tensors = linear.linear_inputs(shape, K, N, bias, DTYPES[dtype])
        actual = with_gradients(ops.linear, tensors)
        expected = with_gradients(F.linear, [t.double() for t in tensors], rounded=dtype == "bfloat16")
        for a, e in zip(actual, expected, strict=True):
            assert a.shape == e.shape
            assert_close(a, e, DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("T", [0, 1, 2, 63, 64, 65, 100, 1000])
def test_mlp_matches_torch(T, dtype):
    dtype = DTYPES[dtype]
    tensors = linear.mlp_inputs((1, T), 20, 50, 20, dtype=torch.float64)
    tensors = [(t / 4).to(dtype) for t in tensors]
    actual = with_gradients(ops.mlp, tensors)
    expected = with_gradients(linear.mlp, [t.double() for t in tensors], rounded=dtype == torch.bfloat16)
    for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
        # What is kept for the backward is rounded to bfloat16 as the layer between would be.
        if dtype == torch.bfloat16 and a.numel() > 0:
            assert (a.double() - e).abs().max() <= 2**-6 * max(1, e.abs().max()), index
        else:
            assert_close(a, e, dtype, f"result {index}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("each_row", [False, True])
def test_rope_matches_complex_numbers(each_row, dtype):
    tensors = linear.rope_inputs(T=65, D=20, each_row=each_row, dtype=DTYPES[dtype])
    actual = with_gradients(ops.rope, tensors, differentiable=1)
    expected = with_gradients(linear.rope, [t.double() for t in tensors], 1, rounded=dtype == "bfloat16")
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, DTYPES[dtype])


@pytest.mark.parametrize("widths", [[4, 3], [1, 3, 3], [4, 0, 3], [2, 2, 1, 1, 1]])
def test_parts_are_slices_of_one_product(widths):
    x, weight = linear.linear_inputs((2, 70), bias=False)
    tensors = [x, weight, rand(3, 5, seed=7)]
    joined = lambda function: lambda x, *weights: torch.cat(function(x, list(weights), widths), -1)
    parts = ops.linear_parts(x, tensors[1:], widths)
    assert [p.shape[-1] for p in parts] == widths and all(p.is_contiguous() for p in parts)
    actual, expected = (with_gradients(joined(f), tensors) for f in (ops.linear_parts, linear.parts))
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, torch.float64)


def test_unread_parts_have_no_gradient():
    x, weight = (t.requires_grad_() for t in linear.linear_inputs((2, 70), bias=False))
    first, _ = ops.linear_parts(x, [weight], [1, 3])
    dx, dw = torch.autograd.grad(first.sum(), [x, weight])
    assert_close(dx, weight[:1].detach().expand_as(x), torch.float64)
    assert (dw[1:] == 0).all() and (dw[0] != 0).all()


@pytest.mark.parametrize("name", OPERATORS)
def test_gradcheck(name):
    function, _, make = OPERATORS[name]
    tensors = make()
    tensors = [t.requires_grad_(name != "rope" or i == 0) for i, t in enumerate(tensors)]
    assert torch.autograd.gradcheck(function, tensors)


def test_rope_has_every_derivative():
    x, cos, sin = linear.rope_inputs(T=2)
    assert torch.autograd.gradgradcheck(lambda x: ops.rope(x, cos, sin) ** 2, [x.requires_grad_()])


@pytest.mark.parametrize("layout", [transposed, sliced])
@pytest.mark.parametrize("name", OPERATORS)
def test_any_strides(name, layout):
    function, _, make = OPERATORS[name]
    tensors = make()
    odd = [layout(t) if t.dim() > 1 else t for t in tensors]
    assert not odd[0].is_contiguous()
    assert torch.equal(function(*odd), function(*tensors))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_empty_rows(shape):
    for name in ("linear", "mlp"):
        function, _, make = OPERATORS[name]
        y, dx, dw, *_ = with_gradients(function, make(shape=shape))
        assert y.shape == (*shape, 4) and dx.shape == (*shape, 5) and (dw == 0).all()


def test_empty_widths():
    assert ops.linear(torch.ones(3, 0), torch.ones(4, 0), torch.arange(4.0)).equal(torch.arange(4.0).expand(3, 4))
    assert ops.linear(torch.ones(3, 5), torch.ones(0, 5)).shape == (3, 0)


@pytest.mark.parametrize("rows", [1, 60, 2000])
def test_same_bits_for_any_number_of_threads(rows):
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append([])
        for name in ("linear", "mlp"):
            function, _, make = OPERATORS[name]
            results[-1] += with_gradients(function, make(shape=(rows,), K=100, N=130, dtype=torch.float32))
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_compiles_whole():
    def model(x, weight, bias, up, up_bias, down, down_bias, cos, sin):
        y, z = ops.linear_parts(ops.linear(x, weight, bias), [weight], [2, 2])
        y = ops.mlp(torch.cat([y, z], -1), up, up_bias, down, down_bias)
        return ops.rope(y.unsqueeze(2), cos, sin)

    _, cos, sin = linear.rope_inputs(D=4)
    x, weight, bias = linear.linear_inputs(K=4)
    tensors = [x, weight, bias, *linear.mlp_inputs(K=4)[1:], cos, sin]
    plain = with_gradients(model, tensors, differentiable=7)
    traced = with_gradients(torch.compile(model, fullgraph=True, backend="aot_eager"), tensors, differentiable=7)
    for a, b in zip(plain, traced, strict=True):
        assert torch.equal(a, b)


def test_second_derivative_is_an_error():
    x, weight = (t.requires_grad_() for t in linear.linear_inputs(bias=False))
    (grad,) = torch.autograd.grad(ops.linear(x, weight).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="linear_backward is not implemented"):
        grad.sum().backward()


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: ops.linear(torch.ones(2, 3), torch.ones(4, 5)), r"linear: weight is \[4, 5\], but must be \[N, K\] with K = 3 as in x"),
        (lambda: ops.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(5)), r"linear: bias is \[5\], but must be \[N\] with N = 4"),
        (lambda: ops.linear(torch.ones(2, 3), torch.ones(4, 3).double()), r"linear: weight is Double, but must be Float"),
        (lambda: ops.linear_parts(torch.ones(2, 3), [torch.ones(4, 3)], [2, 1]), r"linear_parts: widths add up to 3, but must to the rows of the weights, 4"),
        (lambda: ops.linear_parts(torch.ones(2, 3), [torch.ones(4, 3)], [5, -1]), r"linear_parts: widths\[1\] is -1, but must be at least 0"),
        (lambda: ops.linear_parts(torch.ones(2, 3), [torch.ones(2, 3), torch.ones(2, 3)], [1, 3]), r"linear_parts: widths\[1\] is 3, but must end with the rows of weights\[0\], 1 from there"),
        (lambda: ops.mlp(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4), torch.ones(3, 5), torch.ones(3)), r"mlp: down is \[3, 5\], but must be \[N, M\] with M = 4"),
        (lambda: ops.rope(torch.ones(1, 2, 1, 6), torch.ones(1, 2, 4), torch.ones(1, 2, 4)), r"rope: cos is \[1, 2, 4\], but must be \[1 or B, T, D / 2\] with D = 6"),
        (lambda: ops.rope(torch.ones(3, 2, 1, 6), torch.ones(2, 2, 3), torch.ones(2, 2, 3)), r"rope: cos is \[2, 2, 3\], but must be \[1 or B, T, D / 2\] with B = 3"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
