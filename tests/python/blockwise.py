"""The blockwise operators under test and their definitions, dense and token by token."""

import torch

from operators import inputs, ops, reference, softmax_weights

NAMES = ("dense_recurrence", "chacal", "block_chacal", "attention")
INPUTS = {"dense_recurrence": 6, "chacal": 3, "block_chacal": 3, "attention": 3}
GAMMA = 0.9


def block_inputs(name, **sizes):
    return inputs("glr_attention" if name == "dense_recurrence" else "sparse_attention", **sizes)


def tail(name):
    return (GAMMA,) if name in ("chacal", "block_chacal") else ()


def call(name, tensors, **kwargs):
    return getattr(ops, name)(*tensors, *tail(name), **kwargs)


def repeat_heads(q, k, v):
    groups = q.shape[2] // k.shape[2]
    return k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)


def chacal(q, k, v, gamma, scale=None):
    """Y = (1 - gamma) A (I - gamma A)^{-1} V."""
    T = q.shape[1]
    k, v = repeat_heads(q, k, v)
    A = softmax_weights(q, k, torch.ones(T, T, dtype=torch.bool).tril(), scale)
    system = torch.eye(T, dtype=q.dtype) - gamma * A
    W = torch.linalg.solve_triangular(system, v.transpose(1, 2), upper=False)
    return ((1 - gamma) * A @ W).transpose(1, 2)


def block_chacal_head(q, k, v, gamma, b, scale):
    """One head [T, D], token by token."""
    keys, values, y = [], [], []  # the summaries of finished blocks
    for first in range(0, len(q), b):
        if keys:
            a = (scale * torch.stack(keys) @ q[first]).softmax(0)
            s, r = a @ torch.stack(keys), a @ torch.stack(values)
        W = []
        for i in range(first, min(first + b, len(q))):
            seen = torch.cat([k[first : i + 1], s[None]]) if keys else k[first : i + 1]
            A = (scale * seen @ q[i]).softmax(0)
            others = sum((A[j] * W[j] for j in range(len(W))), torch.zeros_like(v[0]))
            if keys:
                others = others + A[-1] * r
            own = A[len(W)]
            W.append((v[i] + gamma * others) / (1 - gamma * own))  # W_i = v_i + gamma (others + own W_i)
            y.append((1 - gamma) * (others + own * W[-1]))
        keys.append(k[first : first + b].mean(0))
        values.append(torch.stack(W).mean(0))
    return torch.stack(y)


def block_chacal(q, k, v, gamma, b=None, scale=None):
    T, H, D = q.shape[1:]
    b = b or next(b for b in range(1, T + 1) if b**3 >= T)
    k, v = repeat_heads(q, k, v)
    heads = lambda n: [
        block_chacal_head(q[n, :, h], k[n, :, h], v[n, :, h], gamma, b, scale or D**-0.5) for h in range(H)
    ]
    return torch.stack([torch.stack(heads(n), 1) for n in range(len(q))])


def dense(name, tensors, scale=None, block=None):
    if name == "dense_recurrence":
        return reference("glr_attention", tensors, ops.pattern("dense", tensors[0].shape[1]), scale)
    if name == "attention":
        return chacal(*tensors, 0.0, scale)
    if name == "chacal":
        return chacal(*tensors, GAMMA, scale)
    return block_chacal(*tensors, GAMMA, block, scale)


def assert_near(actual, expected, dtype, what="", gamma=GAMMA):
    """Sixteen roundings relative to the largest value. Chains of reads multiply them by up to 1 / (1 - gamma). In
    bfloat16 the factors of every product are rounded (2^-9 each: weights, W or h, the other's gradient), so is
    the result."""
    assert actual.shape == expected.shape and actual.dtype == dtype, what
    if actual.numel() == 0:
        return
    accumulation = torch.float64 if dtype == torch.float64 else torch.float32
    allowed = 16 / (1 - gamma) * torch.finfo(accumulation).eps * expected.abs().max().clamp(min=1)
    if dtype == torch.bfloat16:
        allowed = allowed + 2.0**-8 * expected.abs() + 2.0**-8 * expected.abs().max()
    error = (actual.double() - expected).abs()
    assert (error <= allowed).all(), f"{what}: error {error.max()}, largest value {expected.abs().max()}"
