"""linear_attention, ssd and gla: S_t = decay_t S_{t-1} + k_t v_t^T, o_t = scale q_t S_t, and their definition."""

import torch

from operators import ops, rand

NAMES = ("linear_attention", "ssd", "gla")


def outer_inputs(name, B=2, T=20, H=4, G=2, D=5, DV=3, dtype=torch.float64, strongest=2.0):
    """The differentiable inputs but the initial state; log decays in [-strongest, 0], most of them weak."""
    r = lambda seed, *shape: rand(*shape, dtype=dtype, seed=seed)
    qkv = [r(1, B, T, H, D), r(2, B, T, G, D), r(3, B, T, G, DV)]
    if name == "linear_attention":
        return qkv
    shape = (B, T, H) if name == "ssd" else (B, T, H, D)
    return qkv + [(-strongest * rand(*shape, seed=4, low=0) ** 4).to(dtype)]


def initial(N=2, H=4, D=5, DV=3, dtype=torch.float64):
    return rand(N, H, D, DV, seed=5, dtype=torch.float64 if dtype == torch.float64 else torch.float32)


def definition(q, k, v, log_decay=None, scale=None, initial_state=None):
    """Token by token."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for x in (k, v))
    B, T, H, D = q.shape
    S = q.new_zeros(B, H, D, v.shape[-1]) if initial_state is None else initial_state
    o = []
    for t in range(T):
        if log_decay is not None:
            decay = log_decay[:, t].exp()
            S = decay.reshape(B, H, -1, 1) * S
        S = S + k[:, t, :, :, None] * v[:, t, :, None, :]
        o.append(scale * (q[:, t, :, :, None] * S).sum(2))
    return torch.stack(o, dim=1) if o else v.new_zeros(B, 0, H, v.shape[-1]), S


def call(name, tensors, **kwargs):
    return getattr(ops, name)(*tensors, **kwargs)


def run(function, tensors, state, seed=9):
    """(o, state, the gradients of the inputs and of the initial state) under a loss on o and on the final state."""
    leaves = [t.detach().clone().requires_grad_() for t in (*tensors, state)]
    outputs = function(leaves[:-1], leaves[-1])
    weights = [rand(*o.shape, seed=seed + i).to(o.dtype) for i, o in enumerate(outputs)]
    return [*(o.detach() for o in outputs), *torch.autograd.grad(outputs, leaves, weights)]
