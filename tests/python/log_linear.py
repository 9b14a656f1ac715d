"""log_linear_attention and log_linear_delta_rule: their inputs, their definition and the recurrence with a state a bucket."""

import math

import torch

from operators import ops, rand

NAMES = ("log_linear_attention", "log_linear_delta_rule")
KINDS = {
    "log_linear_attention": ["q", "k", "v", "log_decay", "level_scales"],
    "log_linear_delta_rule": ["q", "k", "v", "log_decay", "beta", "level_scales"],
}


def levels(T):
    return 0 if T == 0 else math.ceil(math.log2(T)) + 1


def log_linear_inputs(name, B=2, T=20, H=4, G=2, D=5, DV=3, L=None, dtype=torch.float64, strongest=0.5):
    """Keys of the delta rule have norm 1."""
    r = lambda seed, *shape, **limits: rand(*shape, dtype=dtype, seed=seed, **limits)
    delta = name == "log_linear_delta_rule"
    k = rand(B, T, G, D, seed=2)
    k = (torch.nn.functional.normalize(k, dim=-1) if delta else k).to(dtype)
    beta = [r(5, B, T, H, low=0, high=1)] if delta else []
    decay = r(4, B, T, H, low=-strongest, high=0)
    return [r(1, B, T, H, D), k, r(3, B, T, G, DV), decay, *beta, r(6, B, T, H, levels(T) if L is None else L)]


def call(name, tensors, scale=None, cu_seqlens=None):
    return getattr(ops, name)(*tensors, scale, cu_seqlens)


def buckets(i):
    """(level, first token, end) of what token i reads, by the definition of the paper: of the prefix [0, i) again and
    again the last 2^b tokens, b the lowest set bit of what is left."""
    parts, end = [(0, i, i + 1)], i
    while end > 0:
        size = end & -end
        parts.append((int(math.log2(size)) + 1, end - size, end))
        end -= size
    return parts


def level_table(T):
    """[T, T] int64: the level at which row i reads column j; -1 where it does not."""
    table = torch.full((T, T), -1)
    for i in range(T):
        for level, begin, end in buckets(i):
            table[i, begin:end] = level
    return table


def pair_weights(q, k, g, beta=None):
    """[B, H, T, T]: what v_j weighs in the output of i without level factors, the states being carried on by
    e^g, or by e^g (1 - beta k k^T)."""
    B, T, H, D = q.shape
    weights = []
    past = q.new_zeros(B, H, 0, D)  # for each j, what the transitions up to i have left of k_j (or beta_j k_j)
    for i in range(T):
        past = g[:, i].exp()[:, :, None, None] * past
        key = k[:, i]
        if beta is not None:
            b = beta[:, i, :, None]
            past = past - torch.einsum("bhjd,bhd->bhj", past, key)[..., None] * (b * key)[:, :, None]
            key = b * key
        past = torch.cat([past, key[:, :, None]], dim=2)
        row = torch.einsum("bhjd,bhd->bhj", past, q[:, i])
        weights.append(torch.nn.functional.pad(row, (0, T - i - 1)))
    return torch.stack(weights, dim=2) if T else q.new_zeros(B, H, 0, 0)


def definition(q, k, v, g, *rest, scale=None):
    """Quadratic: every pair of tokens with the factor of its level."""
    *beta, scales = rest
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    T = q.shape[1]
    table = level_table(T)
    factors = scales.transpose(1, 2)  # [B, H, T, L]
    factors = factors.gather(3, table.clamp(min=0).expand(*factors.shape[:2], T, T)) * (table >= 0)
    return scale * torch.einsum("bhij,bjhd->bihd", factors * pair_weights(q, k, g, *beta), v)


def recurrence(q, k, v, g, *rest, scale=None):
    """Token by token, with a state a bucket."""
    *beta, scales = rest
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    outputs, states = [], {}  # by level
    for i in range(q.shape[1]):
        key = k[:, i, :, :, None]
        write = key * (beta[0][:, i, :, None, None] if beta else 1)
        for level, S in states.items():
            S = g[:, i].exp()[..., None, None] * S
            states[level] = S - write * (key * S).sum(2, keepdim=True) if beta else S
        states[0] = write * v[:, i, :, None]
        assert sorted(states) == sorted(level for level, _, _ in buckets(i))
        outputs.append(sum(scales[:, i, :, l, None] * (q[:, i, ..., None] * S).sum(2) for l, S in states.items()))
        merged = states.pop(0)
        for bit in range(len(states) + 1):  # a binary counter carries
            if bit + 1 not in states:
                break
            merged = merged + states.pop(bit + 1)
        states[bit + 1] = merged
    return scale * torch.stack(outputs, 1)


def results(function, tensors):
    """The output and the gradients of all inputs."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    o = function(leaves)
    grads = torch.autograd.grad(o, leaves, rand(*o.shape, seed=9).to(o.dtype), allow_unused=True, materialize_grads=True)
    return [o.detach(), *grads]
