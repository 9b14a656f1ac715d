"""A wrong argument is a ValueError of one line: the operator, the argument, what it is, what it must be."""

import math

import pytest
import torch

from common import ops, put, rand
from registry import BY_NAME, has_gradient, over


def change(name, **changes):
    """A call with some tensors changed: by functions of the tensor, or to values."""
    op = BY_NAME[name]
    sizes = changes.pop("sizes", {})
    tensors = op.make(**sizes)
    options = {}
    for key, new in changes.items():
        if key in tensors:
            tensors[key] = new(tensors[key]) if callable(new) else new
        else:
            options[key] = new
    return op.call(tensors, **options)


def pattern(spoil, name="glr"):
    """A call whose row_ptr and cols were spoiled."""
    op = BY_NAME[name]
    options = {n: x for n, x in op.options.items() if n != "pattern"}
    row_ptr, cols = spoil(*ops.pattern("k^2+1", 20))
    return getattr(ops, name)(**op.make(), **options, row_ptr=row_ptr, cols=cols)


def packed(name, values, dtype=torch.int64, **sizes):
    op = BY_NAME[name]
    return op.call(op.make(**{"B": 1, **sizes}), torch.tensor(values, dtype=dtype))


PLACE = (1, 3, 2, 4)
spoil = lambda value, place=PLACE: lambda t: put(t, place, value)
heads = lambda n: lambda t: t[:, :, :n]
G, L, C, A, R, TOP = "glr_attention", "glr", "chacal", "attention", "retrieved_recurrence", "attention_topk"
float32 = lambda t: t.float()

# Operator, call, message.
ERRORS = {
    "rank": (G, lambda: change(G, q=lambda t: t[0]), "q is [20, 4, 5], but must be [B, T, H, DK]"),
    "batch": (G, lambda: change(G, k=lambda t: t[:1]), "k is [1, 20, 2, 5], but must be [B, T, G, DK] with B = 2 as in q"),
    "time": (G, lambda: change(G, v=lambda t: t[:, :19]), "v is [2, 19, 2, 3], but must be [B, T, G, DV] with T = 20 as in q"),
    "key width": (G, lambda: change(G, k=lambda t: t[..., :2]), "k is [2, 20, 2, 2], but must be [B, T, G, DK] with DK = 5 as in q"),
    "kv heads": (G, lambda: change(G, v=heads(1)), "v is [2, 20, 1, 3], but must be [B, T, G, DV] with G = 2 as in k"),
    "gate heads": (G, lambda: change(G, gate=heads(2)), "gate is [2, 20, 2], but must be [B, T, H] with H = 4 as in q"),
    "dtype": (G, lambda: change(G, d=float32), "d is Float, but must be Double like q"),
    "half": (G, lambda: change(G, q=lambda t: t.half()), "q is Half, but must be Float, Double or BFloat16"),
    "head multiple": (G, lambda: change(G, sizes=dict(H=3)), "q has 3 heads, but must have a multiple of the 2"),
    "no kv heads": (G, lambda: change(G, sizes=dict(G=0)), "multiple of the 0 heads"),
    "no width": (G, lambda: change(G, sizes=dict(D=0)), "width of at least 1"),
    "scale": (G, lambda: change(G, scale=math.nan), "scale is nan, but must be finite"),
    "spec": (G, lambda: change(G, pattern="k^^2"), "pattern 'k^^2'"),
    "decreasing spec": (L, lambda: change(L, pattern="5-k"), "pattern '5-k'"),
    "spec with half a character": (G, lambda: change(G, pattern="2^k|é"), "unexpected token 'é'"),
    "long file name": (G, lambda: change(G, pattern=f"dag({'x' * 5000})"), "File name too long"),
    "folder": (G, lambda: change(G, pattern="dag(/)"), "cannot read '/': Is a directory"),
    "endless file": (G, lambda: change(G, pattern="dag(/dev/zero)"), "cannot read '/dev/zero': it has no end"),
    "row_ptr dtype": (L, lambda: pattern(lambda p, c: (p.int(), c)), "row_ptr is Int [21], but must be Long"),
    "row_ptr rank": (L, lambda: pattern(lambda p, c: (p[None], c)), "row_ptr is Long [1, 21]"),
    "row_ptr empty": (L, lambda: pattern(lambda p, c: (p[:0], c)), "row_ptr is [0]"),
    "row_ptr short": (G, lambda: pattern(lambda p, c: (p[:20], c[: p[19]]), G), "row_ptr has 20 entries"),
    "row_ptr start": (L, lambda: pattern(lambda p, c: (put(p, 0, 1), c)), "row_ptr[0] is 1, but must be 0"),
    "row_ptr falls": (L, lambda: pattern(lambda p, c: (put(p, 5, 0), c)), "row_ptr[5] is 0, but must be at least row_ptr[4]"),
    "row_ptr huge": (L, lambda: pattern(lambda p, c: (put(p, 5, 1 << 60), c)), "row_ptr[6] is"),
    "row_ptr end": (L, lambda: pattern(lambda p, c: (put(p, -1, p[-1] + 1), c)), "but must be the number of cols"),
    "cols dtype": (L, lambda: pattern(lambda p, c: (p, c.long())), "cols is Long [65], but must be Int"),
    "cols future": (G, lambda: pattern(lambda p, c: (p, put(c, 2, 2)), G), "cols[2] is 2, but row 2 must list tokens from 0 to 1"),
    "cols negative": (G, lambda: pattern(lambda p, c: (p, put(c, 0, -1)), G), "cols[0] is -1, but row 1"),
    "cols unsorted": (G, lambda: pattern(lambda p, c: (p, put(c, 1, 1)), G), "cols[2] is 1, but row 2 must list tokens from 0 to 1 in ascending"),
    "too few coefficients": (
        L, lambda: change(L, alpha=lambda t: t[..., :60], beta=lambda t: t[..., :60]),
        "alpha has 60 entries a head, but must have one for each of the pattern's 65 reads",
    ),
    "alpha and beta": (L, lambda: change(L, beta=lambda t: t[..., :60]), "beta is [2, 4, 60], but must be [B, H, nnz] with nnz = 65 as in alpha"),
    "packed batch": (G, lambda: packed(G, [0, 20], B=2), "batch 2, but must have batch 1 when cu_seqlens"),
    "bounds dtype": (G, lambda: packed(G, [0, 20], torch.int32), "cu_seqlens is Int [2], but must be Long"),
    "bounds empty": (G, lambda: packed(G, []), "cu_seqlens is [0]"),
    "bounds start": (G, lambda: packed(G, [1, 20]), "cu_seqlens[0] is 1, but must be 0"),
    "bounds fall": (G, lambda: packed(G, [0, 12, 8, 20]), "cu_seqlens[2] is 8, but must be at least cu_seqlens[1] = 12"),
    "bounds end": (G, lambda: packed(G, [0, 19]), "cu_seqlens[1] is 19, but must be T = 20"),
    "negative n": ("pattern", lambda: ops.pattern("2^k", -1), "-1"),
    # What one operator alone has.
    **{
        f"gamma {gamma} of {name}": (name, lambda name=name, gamma=gamma: change(name, gamma=gamma), "must be at least 0 and below 1")
        for name in (C, "block_chacal") for gamma in (1.0, -0.1, math.nan)
    },
    **{
        f"gamma that rounds to 1, {name}, {dtype}": (
            name, lambda name=name, dtype=dtype: BY_NAME[name].call(BY_NAME[name].make(dtype), gamma=1 - 1e-9),
            "gamma rounds to 1 in float32, but must be below 1",
        )
        for name in (C, "block_chacal") for dtype in (torch.float32, torch.bfloat16)
    },
    "block": ("block_chacal", lambda: change("block_chacal", block=0), "block is 0, but must be at least 1"),
    "kappa": (TOP, lambda: change(TOP, kappa=0), "kappa is 0, but must be at least 1"),
    "block of topk": (TOP, lambda: change(TOP, block=-2), "block is -2, but must be at least 1"),
    "infinite scale": (TOP, lambda: change(TOP, scale=math.inf), "scale is inf, but must be finite"),
    "state dtype": (
        "linear_recurrence",
        lambda: ops.linear_recurrence(rand(2, 9, 5).bfloat16(), rand(2, 9, 5).bfloat16(), rand(2, 5).bfloat16()),
        "initial_state is BFloat16, but must be Float for BFloat16 inputs",
    ),
    "state shape": ("linear_recurrence", lambda: change("linear_recurrence", initial_state=rand(3, 5)), "initial_state is [3, 5], but must be [N, E] with N = 2"),
    "a and x": ("linear_recurrence", lambda: change("linear_recurrence", x=rand(2, 20, 4)), "x is [2, 20, 4], but must be [B, T, E] with E = 5 as in a"),
    "no block": ("sliding_window_recurrence", lambda: change("sliding_window_recurrence", block=0), "block is 0, but must be at least 1"),
    "start": ("sliding_window_recurrence", lambda: change("sliding_window_recurrence", start=-1), "start is -1, but must be at least 0"),
    "two states": (
        "sliding_window_recurrence", lambda: change("sliding_window_recurrence", initial_state=rand(2, 3, 5)),
        "initial_state is [2, 3, 5], but must be [N, 2, E]",
    ),
    **{
        f"scan {n}": ("selective_scan", lambda n=n, t=t: change("selective_scan", **{n: t}, sizes=dict(S=3)), message)
        for n, t, message in (
            ("delta", rand(2, 20, 4), "delta is [2, 20, 4], but must be [B, T, E] with E = 5 as in u"),
            ("A", rand(5, 0), "A is [5, 0], but must be [E, S] with S at least 1"),
            ("A", rand(5, 3).float(), "A is Float, but must be Double for Double inputs"),
            ("B", rand(2, 20, 4), "B is [2, 20, 4], but must be [B, T, S] with S = 3 as in A"),
            ("D", rand(4), "D is [4], but must be [E] with E = 5 as in u"),
            ("initial_state", rand(3, 5, 3), "initial_state is [3, 5, 3], but must be [N, E, S] with N = 2 as in u"),
        )
        for n in [n if n != "A" or t.dtype == torch.float64 else n]
    },
    **{
        f"convolution {n} {list(t.shape)}": ("short_convolution", lambda n=n, t=t: change("short_convolution", **{n: t}), message)
        for n, t, message in (
            ("weight", rand(4, 4), "weight is [4, 4], but must be [E, W] with E = 5 as in x"),
            ("weight", rand(5, 33), "weight is [5, 33], but must be [E, W] with W from 1 to 32"),
            ("weight", rand(5, 0), "weight is [5, 0], but must be [E, W] with W from 1 to 32"),
            ("bias", rand(3), "bias is [3], but must be [E] with E = 5 as in x"),
        )
    },
    "norm weight": ("rms_norm", lambda: change("rms_norm", weight=rand(4)), "weight is [4], but must be [E] with E = 5 as in x"),
    "norm rank": ("rms_norm", lambda: change("rms_norm", x=rand(9, 5)), "x is [9, 5], but must be [B, T, E]"),
    "norm eps": ("rms_norm", lambda: change("rms_norm", eps=-1.0), "eps is -1, but must be finite and at least 0"),
    "norm dtype": ("rms_norm", lambda: change("rms_norm", weight=float32), "weight is Float, but must be Double like x"),
    "log decay": ("kda", lambda: change("kda", log_decay=heads(2)), "log_decay is [2, 20, 2, 5], but must be [B, T, H, DK] with H = 4 as in q"),
    "beta": ("kda", lambda: change("kda", beta=heads(2)), "beta is [2, 20, 2], but must be [B, T, H] with H = 4 as in q"),
    "beta dtype": ("delta_rule", lambda: change("delta_rule", beta=float32), "beta is Float, but must be Double like q"),
    "state width": (
        "gated_delta_rule", lambda: change("gated_delta_rule", initial_state=heads(4)),
        "initial_state is [2, 4, 4, 3], but must be [N, H, DK, DV] with DK = 5 as in q",
    ),
    "states": ("gla", lambda: change("gla", initial_state=rand(3, 4, 5, 3)), "initial_state is [3, 4, 5, 3], but must be [N, H, DK, DV]"),
    "state of floats": ("ssd", lambda: change("ssd", initial_state=float32), "initial_state is Float, but must be Double for Double inputs"),
    "scales dtype": (
        "log_linear_attention", lambda: change("log_linear_attention", level_scales=float32), "level_scales is Float, but must be Double like q",
    ),
    "scales heads": (
        "log_linear_attention", lambda: change("log_linear_attention", level_scales=heads(3)),
        "level_scales is [2, 20, 3, 6], but must be [B, T, H, L] with H = 4 as in q",
    ),
    **{
        f"levels of {name}": (
            name, lambda name=name: change(name, sizes=dict(L=5)), "level_scales has L = 5 levels, but must have at least L = 6 for 20 tokens",
        )
        for name in ("log_linear_attention", "log_linear_delta_rule")
    },
    "levels of the longest": (
        "log_linear_attention", lambda: packed("log_linear_attention", [0, 9, 16, 20], L=4), "at least L = 5 for 9 tokens",
    ),
    # Lists.
    "future": ("gather_attention", lambda: change("gather_attention", indices=spoil(4)), "indices[1, 3, 2, 4] is 4, but token 3 of its sequence must list positions from 0 to 3, or -1"),
    "below -1": ("gather_attention", lambda: change("gather_attention", indices=spoil(-2)), "indices[1, 3, 2, 4] is -2"),
    "huge": ("gather_attention", lambda: change("gather_attention", indices=spoil(2**31 - 1)), "indices[1, 3, 2, 4] is 2147483647"),
    "self": (R, lambda: change(R, indices=spoil(3)), "indices[1, 3, 2, 4] is 3, but token 3 of its sequence must list positions from 0 to 2"),
    "self in glr": ("retrieved_glr", lambda: change("retrieved_glr", indices=spoil(3)), "indices[1, 3, 2, 4] is 3"),
    "first": ("retrieved_glr", lambda: change("retrieved_glr", indices=spoil(0, (0, 0, 0, 0))), "indices[0, 0, 0, 0] is 0, but token 0 of its sequence must list positions from 0 to -1"),
    "lists dtype": ("gather_attention", lambda: change("gather_attention", indices=lambda t: t.long()), "indices is Long, but must be Int"),
    "lists rank": ("gather_attention", lambda: change("gather_attention", indices=lambda t: t[0]), "indices is [20, 4, 5], but must be [B, T, lists, W]"),
    "lists time": ("gather_attention", lambda: change("gather_attention", indices=lambda t: t[:, :19]), "indices is [2, 19, 4, 5], but must be [B, T, lists, W] with T = 20 as in q"),
    "lists heads": ("gather_attention", lambda: change("gather_attention", indices=heads(3)), "indices is [2, 20, 3, 5], but must have a list for each of the 4 heads of q or of the 2 of k"),
    "sequence before": ("gather_attention", lambda: packed("gather_attention", [0, 12, 20]), "of its sequence must list positions from 0 to"),
    "hops": (R, lambda: change(R, hops=0), "hops is 0, but must be at least 1"),
    "gate": (R, lambda: change(R, gate=heads(3)), "gate is [2, 20, 3], but must be [B, T, H] with H = 4 as in q"),
    **{
        f"widths {widths if len(widths) < 9 else 'too many'}": ("neighborhood", lambda widths=widths: change("neighborhood", widths=widths, cumulative=False, sizes=dict(W=5)), message)
        for widths, message in (
            ([], "widths is [], but must have a width for each hop"),
            ([0], "widths is [0], but each must be from 1 to the 5 that indices lists"),
            ([2, 6], "widths is [2, 6], but each must be from 1 to the 5"),
            ([5] * 14, "their product must be below 2^31"),
        )
    },
    "neighbour itself": ("neighborhood", lambda: change("neighborhood", indices=spoil(3, (0, 2, 1, 0))), "indices[0, 2, 1, 0] is 3"),
    "neighbours of two": ("neighborhood", lambda: packed("neighborhood", [0, 20], B=2), "batch 2, but must have batch 1"),
    # Linear maps.
    "linear": ("linear", lambda: ops.linear(torch.ones(2, 3), torch.ones(4, 5)), "weight is [4, 5], but must be [N, K] with K = 3 as in x"),
    "linear bias": ("linear", lambda: ops.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(5)), "bias is [5], but must be [N] with N = 4"),
    "linear dtype": ("linear", lambda: ops.linear(torch.ones(2, 3), torch.ones(4, 3).double()), "weight is Double, but must be Float"),
    "widths sum": ("linear_parts", lambda: ops.linear_parts(torch.ones(2, 3), [torch.ones(4, 3)], [2, 1]), "widths add up to 3, but must to the rows of the weights, 4"),
    "widths negative": ("linear_parts", lambda: ops.linear_parts(torch.ones(2, 3), [torch.ones(4, 3)], [5, -1]), "widths[1] is -1, but must be at least 0"),
    "widths end": (
        "linear_parts", lambda: ops.linear_parts(torch.ones(2, 3), [torch.ones(2, 3), torch.ones(2, 3)], [1, 3]),
        "widths[1] is 3, but must end with the rows of weights[0], 1 from there",
    ),
    "mlp": ("mlp", lambda: ops.mlp(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4), torch.ones(3, 5), torch.ones(3)), "down is [3, 5], but must be [N, M] with M = 4"),
    "rope width": ("rope", lambda: ops.rope(torch.ones(1, 2, 1, 6), torch.ones(1, 2, 4), torch.ones(1, 2, 4)), "cos is [1, 2, 4], but must be [1 or B, T, D / 2] with D = 6"),
    "rope batch": ("rope", lambda: ops.rope(torch.ones(3, 2, 1, 6), torch.ones(2, 2, 3), torch.ones(2, 2, 3)), "cos is [2, 2, 3], but must be [1 or B, T, D / 2] with B = 3"),
    # The loss of a head: 40 rows of width 5, 3 classes.
    "loss rank": ("head_loss", lambda: change("head_loss", x=rand(5)), "x is [5], but must be [N, D]"),
    "loss weight": ("head_loss", lambda: change("head_loss", weight=rand(3, 4)), "weight is [3, 4], but must be [V, D] with D = 5 as in x"),
    "loss bias": ("head_loss", lambda: change("head_loss", bias=rand(6)), "bias is [6], but must be [V] with V = 3 as in weight"),
    "loss targets": ("head_loss", lambda: change("head_loss", targets=lambda t: t[:3]), "targets is [3], but must be [N] with N = 40 as in x"),
    "loss targets dtype": ("head_loss", lambda: change("head_loss", targets=lambda t: t.int()), "targets is Int, but must be Long [N]"),
    "loss class": ("head_loss", lambda: change("head_loss", targets=spoil(3, 1)), "targets[1] is 3, but must be from 0 to V - 1 = 2"),
    "loss class below": ("head_loss", lambda: change("head_loss", targets=spoil(-1, 0)), "targets[0] is -1, but must be from 0 to V - 1 = 2"),
    "loss weights": ("head_loss", lambda: change("head_loss", row_weights=float32), "row_weights is Float, but must be Double for Double inputs"),
    "loss weights gradient": ("head_loss", lambda: change("head_loss", row_weights=lambda t: t.requires_grad_()), "row_weights requires a gradient, but has none"),
    # A token of a decoder: B = 2, S = 20.
    "slot": ("attention_step", lambda: change("attention_step", slots=torch.tensor([0, 20]).int()), "slots[1] is 20, but must be from 0 to 19"),
    "slot below": ("attention_step", lambda: change("attention_step", slots=torch.tensor([-1]).int()), "slots[0] is -1"),
    "slots of nothing": (
        "attention_step", lambda: change("attention_step", k=lambda t: t[:, :0], v=lambda t: t[:, :0], slots=torch.tensor([0]).int()),
        "slots has 1 entries, but k has no slots to read (S = 0)",
    ),
    "slots dtype": ("attention_step", lambda: change("attention_step", slots=torch.tensor([0])), "slots is Long"),
    "own key alone": ("attention_step", lambda: change("attention_step", own_v=None), "own_k and own_v must be given together"),
    "kv heads of a step": ("attention_step", lambda: change("attention_step", k=rand(2, 20, 3, 5)), "v is"),
    "kv of a step": ("attention_step", lambda: change("attention_step", v=rand(2, 19, 2, 3)), "S = 20"),
    "scale of a step": ("attention_step", lambda: change("attention_step", scale=math.nan), "scale is nan"),
    "gradient of a step": ("attention_step", lambda: change("attention_step", own_v=lambda t: t.requires_grad_()), "own_v requires a gradient"),
}  # fmt: skip


@pytest.mark.parametrize("operator", dict.fromkeys(name for name, *_ in ERRORS.values()))
def test_messages(operator, subtests):
    for what, (name, call, message) in ERRORS.items():
        if name == operator:
            with subtests.test(what):
                with pytest.raises(ValueError) as error:
                    call()
                text = str(error.value)
                assert text.startswith(f"{name}: ") and "\n" not in text
                assert message in text


@over(lambda op: op.name != "linear_parts")
def test_errors_of_every_operator(op):
    """Types and ranks of all inputs but the first, heads, scale and the bounds of a packed batch."""
    tensors = op.make()
    for t in op.inputs[1:]:
        value = tensors[t.name]
        other = value.float() if value.is_floating_point() else value.to(torch.int16)
        for wrong, what in ((other, "Float" if value.is_floating_point() else "Short"), (value.unsqueeze(0), "is [1, ")):
            with pytest.raises(ValueError) as error:
                op.call({**tensors, t.name: wrong})
            text = str(error.value)
            assert text.startswith(f"{op.name}: ") and t.name in text and what in text and "\n" not in text
    if op.grouped and has_gradient(op):
        if "indices" not in tensors:
            with pytest.raises(ValueError, match=f"^{op.name}: q has 3 heads, but must have a multiple of the 2"):
                op.call(op.make(H=3, G=2))
        with pytest.raises(ValueError, match=f"^{op.name}: scale is nan, but must be finite$"):
            op.call(tensors, scale=math.nan)
    if op.packs:
        with pytest.raises(ValueError, match=rf"^{op.name}: cu_seqlens\[1\] is 19, but must be T = 20$"):
            op.call(op.make(B=1), torch.tensor([0, 19]))
        with pytest.raises(ValueError, match=f"^{op.name}: .*batch 2, but must have batch 1"):
            op.call(tensors, torch.tensor([0, 20]))


@pytest.mark.parametrize("name", ["attention_topk", "log_linear_attention", "log_linear_delta_rule"])
def test_errors_on_meta_tensors(name):
    """What needs no values is found there too."""
    op = BY_NAME[name]
    meta = {n: t.to("meta") for n, t in op.make(L=5).items()}
    options, message = {
        "attention_topk": ({"kappa": 0}, "kappa is 0, but must be at least 1"),
    }.get(name, ({}, "level_scales has L = 5 levels, but must have at least L = 6 for 20 tokens"))
    with pytest.raises(ValueError, match=f"^{name}: {message}$"):
        op.call(meta, **options)
    with pytest.raises(ValueError, match=f"^{name}: k is .*DK = 5 as in q"):
        op.call({**meta, "k": meta["k"][..., :3]})


def test_gamma_below_one_in_float64():
    for name in ("chacal", "block_chacal"):
        assert BY_NAME[name].call(BY_NAME[name].make(), gamma=1 - 1e-9)[0].isfinite().all()


def test_levels_that_suffice():
    op = BY_NAME["log_linear_attention"]
    op.call(op.make(B=1, L=4), torch.tensor([0, 8, 16, 20]))
