"""The delta rules under test and their definition, token by token."""

import torch

from operators import ops, rand

NAMES = ("delta_rule", "gated_delta_rule", "kda")


def state_dtype(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def delta_inputs(name, B=2, T=20, H=4, G=2, D=5, DV=3, N=None, dtype=torch.float64):
    """q, k, v, log_decay if there are gates, beta, the initial state; keys have norm 1."""
    r = lambda seed, *shape, **limits: rand(*shape, dtype=dtype, seed=seed, **limits)
    k = torch.nn.functional.normalize(rand(B, T, G, D, seed=2), dim=-1).to(dtype)
    gates = {"delta_rule": [], "gated_delta_rule": [(B, T, H)], "kda": [(B, T, H, D)]}[name]
    gates = [r(4, *shape, low=-0.5, high=0) for shape in gates]
    state = rand(N or B, H, D, DV, seed=6, dtype=state_dtype(dtype))
    return [r(1, B, T, H, D), k, r(3, B, T, G, DV), *gates, r(5, B, T, H, low=0, high=1), state]


def call(name, tensors, scale=None, cu_seqlens=None):
    *inputs, state = tensors
    return getattr(ops, name)(*inputs, scale, state, cu_seqlens)


def delta_rule(name, tensors, scale=None):
    """(o, state)."""
    q, k, v, *gates, beta, state = tensors
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    outputs = []
    for t in range(q.shape[1]):
        if gates:
            state = gates[0][:, t].exp().reshape(*state.shape[:2], -1, 1) * state
        error = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + k[:, t, :, :, None] * (beta[:, t, :, None] * error)[:, :, None]
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1), state


def results(function, tensors, which=(0, 1)):
    """Outputs and, from those of them in `which`, the gradients of all inputs."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    outputs = function(leaves)
    chosen = [outputs[i] for i in which]
    weights = [rand(*t.shape, seed=9).to(t.dtype) for t in chosen]
    grads = torch.autograd.grad(chosen, leaves, weights, allow_unused=True, materialize_grads=True)
    return [t.detach() for t in outputs] + list(grads)


def assert_near(actual, expected, dtype, what="", roundings=32):
    """Relative to the largest value. In bfloat16 the factors of every product are rounded (2^-9 each: state, U, the
    weights), and so is the result."""
    assert actual.shape == expected.shape and actual.dtype == dtype, what
    if actual.numel() == 0:
        return
    eps = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.bfloat16: 3 * 2.0**-13}[dtype]
    allowed = roundings * eps * expected.abs().max().clamp(min=1)
    if dtype == torch.bfloat16:
        allowed = allowed + 2.0**-8 * expected.abs()
    error = (actual.double() - expected.double()).abs()
    assert (error <= allowed).all(), f"{what}: error {error.max()}, largest value {expected.abs().max()}"
