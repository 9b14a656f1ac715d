"""attention_topk and its definition: all scores, sorted."""

import torch

from operators import inputs, ops, rand, softmax_weights


def attention_inputs(B=2, T=20, H=4, G=2, D=5, DV=3, dtype=torch.float64):
    return inputs("sparse_attention", B=B, T=T, H=H, G=G, D=D, DV=DV, dtype=dtype)


def whole_inputs(B=2, T=20, H=4, G=2, D=5, DV=3, dtype=torch.float32, largest=1):
    """Whole numbers: their products are exact in every type, and many are equal."""
    q, k, v = attention_inputs(B, T, H, G, D, DV, dtype=torch.float64)
    return [t.to(dtype) for t in ((q * (largest + 0.5) / 2).round(), (k * (largest + 0.5) / 2).round(), v)]


def triangle(T, self=True):
    return torch.ones(T, T, dtype=torch.bool).tril(0 if self else -1)


def attention(q, k, v, scale=None):
    P = softmax_weights(q, k, triangle(q.shape[1]), scale)
    return torch.einsum("bhij,bjhd->bihd", P, v.repeat_interleave(q.shape[2] // v.shape[2], dim=2))


def selection(q, k, kappa, scale=1.0, include_self=True, block=1):
    """[B, T, H, kappa]; the scores must be numbers. A stable sort keeps the earlier of equal ones first."""
    T = q.shape[1]
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("bihd,bjhd->bihj", q.double(), k.double()) * scale
    scores = scores.masked_fill(~triangle(T, include_self)[None, :, None], -torch.inf)
    scores = torch.nn.functional.pad(scores, (0, -T % block), value=-torch.inf)
    best = scores.unflatten(-1, (-1, block)).amax(-1)
    order = best.sort(dim=-1, descending=True, stable=True).indices
    order = torch.nn.functional.pad(order, (0, kappa))[..., :kappa]
    visible = torch.arange(T) + (1 if include_self else 0)
    places = torch.arange(kappa) < ((visible + block - 1) // block)[:, None]
    return torch.where(places[None, :, None], order, -1).int()


def call(tensors, kappa=4, scale=None, **kwargs):
    return ops.attention_topk(*tensors, kappa, scale, **kwargs)
