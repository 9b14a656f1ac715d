"""The linear maps under test: their inputs and what torch makes of them."""

import torch
import torch.nn.functional as F

from operators import ops, rand


def linear_inputs(shape=(2, 9), K=5, N=4, bias=True, dtype=torch.float64):
    """x, weight and, if asked for, bias."""
    tensors = [rand(*shape, K, seed=1, dtype=dtype), rand(N, K, seed=2, dtype=dtype)]
    return tensors + ([rand(N, seed=3, dtype=dtype)] if bias else [])


def mlp_inputs(shape=(2, 9), K=5, M=7, N=4, dtype=torch.float64):
    """x, up, up_bias, down, down_bias."""
    sizes = [(*shape, K), (M, K), (M,), (N, M), (N,)]
    return [rand(*size, seed=i, dtype=dtype) for i, size in enumerate(sizes)]


def rope_inputs(B=2, T=9, H=3, D=6, each_row=False, dtype=torch.float64):
    """x, cos, sin."""
    angles = rand(B if each_row else 1, T, D // 2, seed=2, low=-3, high=3)
    return [rand(B, T, H, D, seed=1, dtype=dtype), angles.cos().to(dtype), angles.sin().to(dtype)]


def parts(x, weights, widths):
    return [y.contiguous() for y in F.linear(x, torch.cat(weights)).split(widths, -1)]


def mlp(x, up, up_bias, down, down_bias):
    return F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)


def rope(x, cos, sin):
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.complex(cos, sin).unsqueeze(2)
    return torch.view_as_real(turned).flatten(-2)


def operator_calls():
    """(mark, operator, arguments) of all operators of linear maps."""
    leaves = lambda tensors: [t.clone().requires_grad_() for t in tensors]
    for bias in (True, False):
        tensors = linear_inputs(bias=bias)
        yield f"linear-{bias}", ops.linear.default, tuple(leaves(tensors))
        yield f"linear_backward-{bias}", ops.linear_backward.default, (
            ops.linear(*tensors), *tensors[:2], [True, False, bias],
        )  # fmt: skip
    x, weight = linear_inputs(bias=False)
    weights, widths = [weight, rand(3, 5, seed=7)], [1, 3, 3]
    yield "linear_parts", ops.linear_parts.default, (*leaves([x]), leaves(weights), widths)
    yield "linear_parts_backward", ops.linear_parts_backward.default, (
        ops.linear_parts(x, weights, widths), x, weights, widths, True, True,
    )  # fmt: skip
    tensors = mlp_inputs()
    y, hidden = ops._mlp(*tensors, True)
    yield "mlp", ops.mlp.default, tuple(leaves(tensors))
    yield "_mlp", ops._mlp.default, (*tensors, True)
    yield "mlp_backward", ops.mlp_backward.default, (y, hidden, *tensors, [True, False, True, True, True])
    x, cos, sin = rope_inputs()
    yield "rope", ops.rope.default, (*leaves([x]), cos, sin)
    yield "_rope", ops._rope.default, (x, cos, sin, True)
