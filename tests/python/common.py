"""What every test uses: the library, random tensors, how close is close enough, gradients, odd memory layouts.

The library is build/lib/libhopmix_ops.so, or what the environment variable HOPMIX_LIB names.
"""

import os
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("HOPMIX_LIB", ROOT / "build/lib/libhopmix_ops.so")).resolve()
torch.ops.load_library(str(LIBRARY))
ops = torch.ops.hopmix

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
LENGTHS = [0, 1, 33, 0, 35, 1, 0]  # of packed sequences


def bounds(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def rand(*shape, dtype=torch.float64, seed=0, low=-1.0, high=1.0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    values = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
    return values.to(dtype)


def wide(dtype):
    """The type of sums and states."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def assert_close(actual, expected, dtype, what="", roundings=16, factors=0.0, sums=False):
    """Within `roundings` of the type of sums, relative to the largest value. With bfloat16 inputs the result is rounded
    once more unless it has the type of sums, and where an operator rounds the factors of its products to bfloat16 they
    cost `factors` of the largest value."""
    assert actual.shape == expected.shape, what
    assert actual.dtype == (wide(dtype) if sums else dtype), what
    if actual.numel() == 0:
        return
    expected = expected.double()
    largest = expected.abs().max().clamp(min=1)
    allowed = roundings * torch.finfo(wide(dtype)).eps * largest
    if dtype == torch.bfloat16:
        allowed = allowed + factors * largest + (0 if sums else 2.0**-8 * expected.abs())
    error = (actual.double() - expected).abs()
    assert (error <= allowed).all(), f"{what}: error {error.max()} where {allowed.max()} is allowed"


def assert_equal(actual, expected):
    """The same tensors to the bit."""
    for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert torch.equal(a, e), f"tensor {index}"


def weight(result, seed):
    return rand(*result.shape, seed=seed, dtype=torch.bfloat16).to(result.dtype) if result.dim() else torch.ones_like(result)


def with_gradients(function, tensors, which=None, seed=9):
    """The outputs, then the gradients of all tensors under a random weight on every output, or on those in `which`; a loss
    is one already. A weight is a number in bfloat16 too, so that it means the same in every type."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    outputs = function(leaves)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    chosen = [o for i, o in enumerate(outputs) if o.requires_grad and (which is None or i in which)]
    weights = [weight(o, seed + i) for i, o in enumerate(chosen)]
    grads = torch.autograd.grad(chosen, leaves, weights, allow_unused=True, materialize_grads=True)
    return [*(o.detach() for o in outputs), *grads]


def transposed(t):
    return t.transpose(0, -1).contiguous().transpose(0, -1)


def sliced(t):
    return torch.stack([t, t + 1], dim=-1)[..., 0]


def put(t, place, value):
    t = t.clone()
    t[place] = value
    return t
