"""The operators under test, their inputs and their dense references.

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
NAMES = ("glr", "glr_normalized", "glr_attention", "glr_softmax", "sparse_attention")
EXPLICIT = ("glr", "glr_normalized")  # coefficients are inputs, one a read
WITH_QUERIES = tuple(name for name in NAMES if name not in EXPLICIT)

LENGTHS = [0, 1, 33, 0, 35, 1, 0]
BOUNDS = torch.tensor([0] + LENGTHS).cumsum(0)


def rand(*shape, dtype=torch.float64, seed=0, low=-1.0, high=1.0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    values = torch.rand(*shape, generator=generator, dtype=torch.float64) * (high - low) + low
    return values.to(dtype)


def reads_of(spec, lengths):
    """Reads of sequences of these lengths, one after another."""
    return sum(len(ops.pattern(spec, n)[1]) for n in lengths)


def inputs(name, B=2, T=20, H=4, G=2, D=5, DV=3, spec="k^2+1", lengths=None, dtype=torch.float64):
    """The differentiable inputs of an operator, in order."""
    r = lambda seed, *shape, **limits: rand(*shape, dtype=dtype, seed=seed, **limits)
    if name in EXPLICIT:
        nnz = reads_of(spec, lengths or [T])
        low, high = (-0.2, 0.2) if name == "glr" else (-6, -2)  # its rows stay below 1 or near it
        return [r(1, B, H, T), r(2, B, H, nnz), r(3, B, H, nnz, low=low, high=high), r(4, B, T, H, D)]
    qkv = [r(1, B, T, H, D, low=-2, high=2), r(2, B, T, G, D, low=-2, high=2), r(3, B, T, G, DV)]
    if name == "sparse_attention":
        return qkv
    return qkv + [r(4, B, T, H), r(5, B, T, H), r(6, B, T, H)]


def arguments(name, pattern):
    """What follows the inputs: the pattern, as a tuple of tensors or a string, and the rest without a default."""
    pattern = pattern if isinstance(pattern, tuple) else (pattern,)
    return pattern + ((True,) if name == "sparse_attention" else ())


def outputs(name, tensors, pattern, **kwargs):
    """A tuple, of one tensor if the operator gives one."""
    result = getattr(ops, name)(*tensors, *arguments(name, pattern), **kwargs)
    return result if isinstance(result, tuple) else (result,)


def joined(y, *log_z):
    """[B, T, H, D], or [B, T, H, D + 1] with log z as the last column."""
    return torch.cat([y, *(z.unsqueeze(-1).to(y.dtype) for z in log_z)], dim=-1) if log_z else y


def call(name, tensors, pattern, **kwargs):
    """All that the operator gives as one tensor, output_width(...) wide."""
    return joined(*outputs(name, tensors, pattern, **kwargs))


def output_width(name, D, DV):
    return {"glr": D, "glr_normalized": D + 1}.get(name, DV)


def mask_of(pattern, T):
    row_ptr, cols = pattern
    mask = torch.zeros(T, T, dtype=torch.bool)
    for i in range(T):
        mask[i, cols[row_ptr[i] : row_ptr[i + 1]].long()] = True
    return mask


def softmax_weights(q, k, mask, scale):
    """[B, H, T, T]; empty rows are 0."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5)
    some = mask.any(-1, keepdim=True)
    return scores.masked_fill(~mask & some, -torch.inf).softmax(-1) * mask


def solve(A, B, x):
    """(I - B)^{-1} A x with A, B [B, H, T, T] and x [B, T, H, D]."""
    eye = torch.eye(x.shape[1], dtype=x.dtype)
    y = torch.linalg.solve_triangular(
        eye - B, A @ x.transpose(1, 2), upper=False, unitriangular=True
    )
    return y.transpose(1, 2)


def reference(name, tensors, pattern, scale=None, gate_on_read=False):
    T = tensors[3 if name in EXPLICIT else 0].shape[1]
    mask = mask_of(pattern, T)
    if name in EXPLICIT:
        diag, alpha, beta, x = tensors
        if name == "glr_normalized":
            diag, alpha, beta = diag.exp(), alpha.exp(), beta.exp()
        row, col = mask.nonzero(as_tuple=True)
        A, B = torch.diag_embed(diag), torch.zeros(*diag.shape, T, dtype=diag.dtype)
        A[..., row, col], B[..., row, col] = alpha, beta
        if name == "glr":
            return solve(A, B, x)
        z = solve(A, B, torch.ones_like(x[..., :1]))
        return joined(solve(A, B, x) / z, z[..., 0].log())
    q, k, v = tensors[:3]
    v = v.repeat_interleave(q.shape[2] // v.shape[2], dim=2)
    if name == "sparse_attention":
        P = softmax_weights(q, k, mask | torch.eye(T, dtype=torch.bool), scale)
        return torch.einsum("bhij,bjhd->bihd", P, v)
    gates = [t.transpose(1, 2) for t in tensors[3:]]
    if name == "glr_attention":
        gate, d, d_self = gates
        B = gate[..., None] * softmax_weights(q, k, mask, scale)
        return solve(B * d[:, :, None, :] + torch.diag_embed(d_self), B, v)
    d, d_self, g = gates
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(q.shape[2] // k.shape[2], dim=2))
    scores = (scores * (scale or q.shape[-1] ** -0.5)).masked_fill(~mask, -torch.inf)
    direct = torch.where(torch.eye(T, dtype=torch.bool), d_self[..., None], scores + d[:, :, None, :])
    recurrent = scores + (g[:, :, None, :] if gate_on_read else g[..., None])
    A, B = torch.cat([direct, recurrent], dim=-1).softmax(-1).split(T, dim=-1)
    return solve(A, B, v)


def assert_close(actual, expected, dtype, what=""):
    """Sixteen roundings relative to the largest value; for bfloat16 sums are float32, and the output rounds once."""
    assert actual.shape == expected.shape and actual.dtype == dtype, what
    if actual.numel() == 0:
        return
    accumulation = torch.float64 if dtype == torch.float64 else torch.float32
    allowed = 16 * torch.finfo(accumulation).eps * expected.abs().max().clamp(min=1)
    if dtype == torch.bfloat16:
        allowed = allowed + 2.0**-8 * expected.abs()
    error = (actual.double() - expected).abs()
    assert (error <= allowed).all(), f"{what}: error {error.max()} where {allowed.max()} is allowed"


def with_gradients(function, tensors, weight=None):
    """The output and the gradients of sum(output * weight)."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    y = function(leaves)
    weight = rand(*y.shape, seed=9) if weight is None else weight
    grads = torch.autograd.grad(y, leaves, weight.to(y.dtype))
    return [y.detach(), *grads]


def transposed(t):
    return t.transpose(0, -1).contiguous().transpose(0, -1)


def sliced(t):
    return torch.stack([t, t + 1], dim=-1)[..., 0]


def bounds(values, B=1, dtype=torch.int64):
    return lambda name: call(
        name, inputs(name, B=B), "k^2+1", cu_seqlens=torch.tensor(values, dtype=dtype)
    )
