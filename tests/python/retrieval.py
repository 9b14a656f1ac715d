"""The operators on what was retrieved: their inputs and their definitions, set by set and dense."""

import torch

from operators import ops, rand, solve

NAMES = ("gather_attention", "retrieved_recurrence", "retrieved_glr")
GATES = {"gather_attention": 0, "retrieved_recurrence": 1, "retrieved_glr": 3}
HOPS = 3


def lists(B=2, T=20, L=4, W=5, strict=False, lengths=None, seed=0):
    """[B, T, L, W]: positions up to the row (below it if strict), some twice, -1 among them; every seventh row is empty."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.cat([torch.arange(n) for n in lengths or [T]])
    most = (place if strict else place + 1)[None, :, None, None]
    draws = torch.rand(B, T, L, W, generator=generator)
    indices = (draws * (most + 1)).floor() - 1
    indices[:, place % 7 == 6] = -1
    return indices.int()


def retrieval_inputs(name, B=2, T=20, H=4, G=2, D=5, DV=3, dtype=torch.float64, **kwargs):
    """The differentiable inputs, and indices: one list a query head unless L says otherwise."""
    r = lambda seed, *shape, **limits: rand(*shape, dtype=dtype, seed=seed, **limits)
    tensors = [r(1, B, T, H, D, low=-2, high=2), r(2, B, T, G, D, low=-2, high=2), r(3, B, T, G, DV)]
    tensors += [r(4 + n, B, T, H) for n in range(GATES[name])]
    kwargs.setdefault("L", H)
    return tensors, lists(B, T, strict=name != "gather_attention", **kwargs)


def call(name, tensors, indices, **kwargs):
    tail = (HOPS,) if name == "retrieved_recurrence" else ()
    return getattr(ops, name)(*tensors, indices, *tail, **kwargs)


def shape(name, B, T, H, DV):
    return (B, T, H, HOPS + 1, DV) if name == "retrieved_recurrence" else (B, T, H, DV)


def weights(q, k, indices, scale=None):
    """P [B, H, T, T]: softmax over the entries of each row, an entry as often as it stands there."""
    B, T, H, D = q.shape
    k = k.repeat_interleave(H // k.shape[2], dim=2)
    indices = indices.repeat_interleave(H // indices.shape[2], dim=2).transpose(1, 2).long()
    count = torch.zeros(B, H, T, T + 1, dtype=q.dtype)
    where = torch.where(indices >= 0, indices, T)
    count = count.scatter_add(-1, where, torch.ones(where.shape, dtype=q.dtype))[..., :T]
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or D**-0.5)
    some = (count > 0).any(-1, keepdim=True)
    top = scores.masked_fill(count == 0, -torch.inf).amax(-1, keepdim=True).detach()
    shifted = torch.where(count > 0, scores - torch.where(some, top, 0.0), -torch.inf)
    mass = count * shifted.exp()
    return mass / torch.where(some, mass.sum(-1, keepdim=True), 1.0)


def dense(name, tensors, indices, scale=None):
    q, k, v, *gates = tensors
    P = weights(q, k, indices, scale)
    v = v.repeat_interleave(q.shape[2] // v.shape[2], dim=2)
    if name == "gather_attention":
        return torch.einsum("bhij,bjhd->bihd", P, v)
    if name == "retrieved_recurrence":
        z = [v]
        for _ in range(HOPS):
            z.append(gates[0][..., None] * torch.einsum("bhij,bjhd->bihd", P, z[-1]))
        return torch.stack(z, dim=3)
    gate, d, d_self = (t.transpose(1, 2) for t in gates)
    system = gate[..., None] * P
    return solve(system * d[:, :, None, :] + torch.diag_embed(d_self), system, v)


def first(row, k):
    """N^(k): the first k entries that are not -1."""
    return {t for t in [t for t in row if t >= 0][:k]}


def exact(rows, i, widths):
    """N^(k1..km)(i) by its recursion; rows[t] is what was retrieved for t."""
    if len(widths) == 1:
        return first(rows[i], widths[0])
    return set().union(*(first(rows[t], widths[-1]) for t in exact(rows, i, widths[:-1])))


def neighborhood(indices, widths, cumulative):
    """[B, T, H, W] by the definition, for one sequence a batch element."""
    W = torch.tensor(widths).cumprod(0)
    W = int(W.sum() if cumulative else W[-1])
    out = torch.full((*indices.shape[:3], W), -1, dtype=torch.int32)
    for b in range(indices.shape[0]):
        for h in range(indices.shape[2]):
            rows = indices[b, :, h].tolist()
            for i in range(len(rows)):
                parts = range(1 if cumulative else len(widths), len(widths) + 1)
                found = sorted(set().union(*(exact(rows, i, widths[:m]) for m in parts)))
                out[b, i, h, : len(found)] = torch.tensor(found, dtype=torch.int32)
    return out
