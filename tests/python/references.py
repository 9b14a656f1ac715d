"""The operators by their definitions, in plain PyTorch: dense, or token by token. Arguments are named as in the schemas."""

import math

import torch
import torch.nn.functional as F

from common import ops

# Sparse and dense attention, generalized linear recurrences


def visible(T, pattern=None, row_ptr=None, cols=None):
    """[T, T]: what a row reads."""
    row_ptr, cols = ops.pattern(pattern, T) if pattern is not None else (row_ptr, cols)
    mask = torch.zeros(T, T, dtype=torch.bool)
    for i in range(T):
        mask[i, cols[row_ptr[i] : row_ptr[i + 1]].long()] = True
    return mask


def triangle(T, include_self=True):
    return torch.ones(T, T, dtype=torch.bool).tril(0 if include_self else -1)


def heads(q, *others):
    """Keys and values repeated for the query heads of their group."""
    return [t.repeat_interleave(q.shape[2] // t.shape[2], dim=2) for t in others]


def scores(q, k, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return torch.einsum("bihd,bjhd->bhij", q, k) * scale


def softmax_weights(q, k, mask, scale=None):
    """[B, H, T, T]; empty rows are 0."""
    some = mask.any(-1, keepdim=True)
    return scores(q, k, scale).masked_fill(~mask & some, -torch.inf).softmax(-1) * mask


def mix(P, v):
    return torch.einsum("bhij,bjhd->bihd", P, v)


def solve(A, B, x):
    """(I - B)^{-1} A x with A, B [B, H, T, T] and x [B, T, H, D]."""
    eye = torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve_triangular(eye - B, A @ x.transpose(1, 2), upper=False, unitriangular=True).transpose(1, 2)


def dense_pair(alpha_diag, alpha, beta, pattern):
    row, col = visible(alpha_diag.shape[-1], **pattern).nonzero(as_tuple=True)
    A, B = torch.diag_embed(alpha_diag), torch.zeros(*alpha_diag.shape, alpha_diag.shape[-1], dtype=alpha_diag.dtype)
    A[..., row, col], B[..., row, col] = alpha, beta
    return A, B


def glr(alpha_diag, alpha, beta, x, **pattern):
    return solve(*dense_pair(alpha_diag, alpha, beta, pattern), x)


def glr_normalized(log_alpha_diag, log_alpha, log_beta, x, **pattern):
    A, B = dense_pair(log_alpha_diag.exp(), log_alpha.exp(), log_beta.exp(), pattern)
    z = solve(A, B, torch.ones_like(x[..., :1]))
    return solve(A, B, x) / z, z[..., 0].log()


def recurrence_of(P, v, gate, d, d_self):
    gate, d, d_self = (t.transpose(1, 2) for t in (gate, d, d_self))
    B = gate[..., None] * P
    return solve(B * d[:, :, None, :] + torch.diag_embed(d_self), B, v)


def glr_attention(q, k, v, gate, d, d_self, scale=None, **pattern):
    k, v = heads(q, k, v)
    return recurrence_of(softmax_weights(q, k, visible(q.shape[1], **pattern), scale), v, gate, d, d_self)


def dense_recurrence(q, k, v, gate, d, d_self, scale=None):
    k, v = heads(q, k, v)
    return recurrence_of(softmax_weights(q, k, triangle(q.shape[1], False), scale), v, gate, d, d_self)


def glr_softmax(q, k, v, d, d_self, g, scale=None, gate_on_read=False, **pattern):
    T = q.shape[1]
    k, v = heads(q, k, v)
    d, d_self, g = (t.transpose(1, 2) for t in (d, d_self, g))
    logits = scores(q, k, scale).masked_fill(~visible(T, **pattern), -torch.inf)
    direct = torch.where(torch.eye(T, dtype=torch.bool), d_self[..., None], logits + d[:, :, None, :])
    recurrent = logits + (g[:, :, None, :] if gate_on_read else g[..., None])
    A, B = torch.cat([direct, recurrent], dim=-1).softmax(-1).split(T, dim=-1)
    return solve(A, B, v)


def sparse_attention(q, k, v, include_self=True, scale=None, **pattern):
    k, v = heads(q, k, v)
    mask = visible(q.shape[1], **pattern) | (torch.eye(q.shape[1], dtype=torch.bool) & include_self)
    return mix(softmax_weights(q, k, mask, scale), v)


def attention(q, k, v, scale=None):
    k, v = heads(q, k, v)
    return mix(softmax_weights(q, k, triangle(q.shape[1]), scale), v)


def chacal(q, k, v, gamma, scale=None):
    """Y = (1 - gamma) A (I - gamma A)^{-1} V."""
    k, v = heads(q, k, v)
    A = softmax_weights(q, k, triangle(q.shape[1]), scale)
    W = torch.linalg.solve_triangular(torch.eye(q.shape[1], dtype=q.dtype) - gamma * A, v.transpose(1, 2), upper=False)
    return ((1 - gamma) * A @ W).transpose(1, 2)


def block_chacal(q, k, v, gamma, block=None, scale=None):
    """chacal within a block, whose tokens also read the mean of earlier blocks that their block's first query makes."""
    T, D = q.shape[1], q.shape[-1]
    block = block or next(b for b in range(1, T + 1) if b**3 >= T)
    scale = D**-0.5 if scale is None else scale
    k, v = heads(q, k, v)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    keys, values, y = [], [], []  # the summaries of finished blocks
    for first in range(0, T, block):
        Q, K, V = (t[:, :, first : first + block] for t in (q, k, v))
        n = Q.shape[2]
        mask, seen, passed = triangle(n), K, 0.0
        if keys:
            a = (scale * Q[:, :, :1] @ torch.stack(keys, -1)).softmax(-1)
            seen = torch.cat([a @ torch.stack(keys, -2), K], 2)
            mask = F.pad(mask, (1, 0), value=True)
        A = (scale * Q @ seen.transpose(-1, -2)).masked_fill(~mask, -torch.inf).softmax(-1)
        if keys:
            passed = A[..., :1] * (a @ torch.stack(values, -2))
        own = A[..., -n:]
        W = torch.linalg.solve_triangular(torch.eye(n, dtype=q.dtype) - gamma * own, V + gamma * passed, upper=False)
        y.append((1 - gamma) * (own @ W + passed))
        keys.append(K.mean(2))
        values.append(W.mean(2))
    return torch.cat(y, 2).transpose(1, 2)


def selection(q, k, kappa, scale=1.0, include_self=True, block=1):
    """[B, T, H, kappa]; the scores must be numbers. A stable sort keeps the earlier of equal ones first."""
    T = q.shape[1]
    all_scores = scores(q.double(), *heads(q, k.double()), scale).transpose(1, 2)
    all_scores = all_scores.masked_fill(~triangle(T, include_self)[None, :, None], -torch.inf)
    best = F.pad(all_scores, (0, -T % block), value=-torch.inf).unflatten(-1, (-1, block)).amax(-1)
    order = F.pad(best.sort(dim=-1, descending=True, stable=True).indices, (0, kappa))[..., :kappa]
    blocks = (torch.arange(T) + include_self + block - 1) // block
    places = torch.arange(kappa) < blocks[:, None]
    return torch.where(places[None, :, None], order, -1).int()


def attention_topk(q, k, v, kappa, scale=None, include_self=True, block=1):
    """The selection is tested on its own, on scores without rounding."""
    return attention(q, k, v, scale), None


def attention_step(q, k, v, slots=None, own_k=None, own_v=None, scale=None):
    if slots is not None:
        k, v = k[:, slots.long()], v[:, slots.long()]
    if own_k is not None:
        k, v = torch.cat([k, own_k[:, None]], 1), torch.cat([v, own_v[:, None]], 1)
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[2], 2) for t in (k, v))
    logits = torch.einsum("bhd,bshd->bhs", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.einsum("bhs,bshd->bhd", logits.softmax(-1), v)


# Matrix states


def matrix_state(q, k, v, log_decay=None, beta=None, scale=None, initial_state=None):
    """S_t = decay_t S_{t-1} + k_t u_t^T, o_t = scale q_t S_t; u_t is v_t, or with beta what beta_t corrects of it."""
    B, T, H, D = q.shape
    k, v = heads(q, k, v)
    scale = D**-0.5 if scale is None else scale
    S = q.new_zeros(B, H, D, v.shape[-1]) if initial_state is None else initial_state
    o = []
    for t in range(T):
        if log_decay is not None:
            S = log_decay[:, t].exp().reshape(B, H, -1, 1) * S
        key, value = k[:, t, :, :, None], v[:, t, :, None]
        S = S + key * (value if beta is None else beta[:, t, :, None, None] * (value - (key * S).sum(2, keepdim=True)))
        o.append(scale * (q[:, t, :, :, None] * S).sum(2))
    return torch.stack(o, dim=1) if o else v.new_zeros(B, 0, H, v.shape[-1]), S


def matrix_step_(q, k, v, log_decay, beta, state, scale=None):
    token = [None if t is None else t.unsqueeze(1) for t in (q, k, v, log_decay, beta)]
    o, state = matrix_state(*token, scale, state)
    return o.squeeze(1), state


def levels(T):
    return 0 if T == 0 else math.ceil(math.log2(T)) + 1


def fenwick_buckets(i):
    """(level, first token, end) of what token i reads, by the definition of the paper: of the prefix [0, i) again and
    again the last 2^b tokens, b the lowest set bit of what is left."""
    parts, end = [(0, i, i + 1)], i
    while end > 0:
        size = end & -end
        parts.append((int(math.log2(size)) + 1, end - size, end))
        end -= size
    return parts


def log_linear(q, k, v, log_decay, level_scales, beta=None, scale=None):
    """Token by token, with a state a bucket, merged as a binary counter carries."""
    k, v = heads(q, k, v)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    outputs, states = [], {}  # by level
    for i in range(q.shape[1]):
        key = k[:, i, :, :, None]
        write = key * (1 if beta is None else beta[:, i, :, None, None])
        for level, S in states.items():
            S = log_decay[:, i].exp()[..., None, None] * S
            states[level] = S if beta is None else S - write * (key * S).sum(2, keepdim=True)
        states[0] = write * v[:, i, :, None]
        assert sorted(states) == sorted(level for level, _, _ in fenwick_buckets(i))
        read = sum(level_scales[:, i, :, l, None, None] * S for l, S in states.items())
        outputs.append(scale * (q[:, i, ..., None] * read).sum(2))
        merged = states.pop(0)
        for bit in range(len(states) + 1):
            if bit + 1 not in states:
                break
            merged = merged + states.pop(bit + 1)
        states[bit + 1] = merged
    return torch.stack(outputs, 1)


# Retrieval


def list_weights(q, k, indices, scale=None):
    """P [B, H, T, T]: softmax over the entries of each row, an entry as often as it stands there."""
    H, T = q.shape[2], q.shape[1]
    indices = indices.repeat_interleave(H // indices.shape[2], dim=2).transpose(1, 2).long()
    count = torch.zeros(*indices.shape[:3], T + 1, dtype=q.dtype)
    where = torch.where(indices >= 0, indices, T)
    count = count.scatter_add(-1, where, torch.ones(where.shape, dtype=q.dtype))[..., :T]
    logits = scores(q, *heads(q, k), scale)
    some = (count > 0).any(-1, keepdim=True)
    top = logits.masked_fill(count == 0, -torch.inf).amax(-1, keepdim=True).detach()
    mass = count * torch.where(count > 0, logits - torch.where(some, top, 0.0), -torch.inf).exp()
    return mass / torch.where(some, mass.sum(-1, keepdim=True), 1.0)


def gather_attention(q, k, v, indices, scale=None):
    return mix(list_weights(q, k, indices, scale), *heads(q, v))


def retrieved_recurrence(q, k, v, gate, indices, hops, scale=None):
    P, z = list_weights(q, k, indices, scale), heads(q, v)
    for _ in range(hops):
        z.append(gate[..., None] * mix(P, z[-1]))
    return torch.stack(z, dim=3)


def retrieved_glr(q, k, v, gate, d, d_self, indices, scale=None):
    return recurrence_of(list_weights(q, k, indices, scale), *heads(q, v), gate, d, d_self)


def neighborhood(indices, widths, cumulative):
    """Of one sequence a batch element: N^(k1..km)(i) by its recursion."""

    def first(row, k):
        return {t for t in [t for t in row if t >= 0][:k]}

    def exact(rows, i, widths):
        if len(widths) == 1:
            return first(rows[i], widths[0])
        return set().union(*(first(rows[t], widths[-1]) for t in exact(rows, i, widths[:-1])))

    products = torch.tensor(widths).cumprod(0)
    out = torch.full((*indices.shape[:3], int(products.sum() if cumulative else products[-1])), -1, dtype=torch.int32)
    for b in range(indices.shape[0]):
        for h in range(indices.shape[2]):
            rows = indices[b, :, h].tolist()
            for i in range(len(rows)):
                parts = range(1 if cumulative else len(widths), len(widths) + 1)
                found = sorted(set().union(*(exact(rows, i, widths[:m]) for m in parts)))
                out[b, i, h, : len(found)] = torch.tensor(found, dtype=torch.int32)
    return out


# Recurrences by channels, convolution, norm, linear maps


def linear_recurrence(a, x, initial_state=None):
    state = torch.zeros_like(x[:, 0]) if initial_state is None else initial_state
    y = []
    for t in range(x.shape[1]):
        state = a[:, t] * state + x[:, t]
        y.append(state)
    return torch.stack(y, dim=1), state


def sliding_window_recurrence(a, x, block, initial_state=None, start=0):
    """Two recurrences: one begun a block ago, one begun with this block, which takes its place at the next edge."""
    older, newer = torch.zeros_like(x[:, :2]).unbind(1) if initial_state is None else initial_state.unbind(1)
    y = []
    for t in range(x.shape[1]):
        if (start + t) % block == 0:
            older, newer = newer, torch.zeros_like(newer)
        older, newer = a[:, t] * older + x[:, t], a[:, t] * newer + x[:, t]
        y.append(older)
    return torch.stack(y, dim=1), torch.stack([older, newer], dim=1)


def selective_scan(u, delta, A, B, C, D=None, initial_state=None):
    h = torch.zeros(u.shape[0], *A.shape, dtype=A.dtype) if initial_state is None else initial_state
    y = []
    for t in range(u.shape[1]):
        x = (delta[:, t] * u[:, t]).unsqueeze(2) * B[:, t].unsqueeze(1)
        h = torch.exp(delta[:, t].unsqueeze(2) * A) * h + x
        y.append((h * C[:, t].unsqueeze(1)).sum(2))
    y = torch.stack(y, dim=1)
    return (y if D is None else y + D * u), h


def short_convolution(x, weight, bias=None, silu=False):
    """By PyTorch's own, which pads both sides."""
    E, W = weight.shape
    y = F.conv1d(x.transpose(1, 2), weight.unsqueeze(1), bias, padding=W - 1, groups=E)
    y = y[..., : x.shape[1]].transpose(1, 2)
    return F.silu(y) if silu else y


def rms_norm(x, weight, eps=1e-6):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def linear_parts(x, weights, widths):
    return tuple(y.contiguous() for y in F.linear(x, torch.cat(weights)).split(widths, -1))


def mlp(x, up, up_bias, down, down_bias):
    return F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)


def rope(x, cos, sin):
    turned = torch.view_as_complex(x.contiguous().unflatten(-1, (-1, 2))) * torch.complex(cos, sin).unsqueeze(2)
    return torch.view_as_real(turned).flatten(-2)


def head_loss(x, weight, bias, targets, row_weights=None):
    """(loss, losses, guesses) by way of all logits."""
    logits = F.linear(x, weight, bias)
    losses = F.cross_entropy(logits, targets, reduction="none")
    loss = losses.mean() if row_weights is None else (losses * row_weights).sum()
    return loss, losses, logits.argmax(-1)
