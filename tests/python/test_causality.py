"""Time: no token sees the future, a prefix is a sequence, a state carries over a cut, NaN spoils what reads it."""

import torch

from common import DTYPES, with_gradients
from registry import over

CUTS = (1, 15, 16, 63, 64, 100, 128, 256, 299)


def changed(op, tensors, cut, change):
    """With other tokens from `cut` on."""
    reads = op.reads([cut])
    result = dict(tensors)
    for t in op.inputs:
        for symbol, first in (("T", cut), ("R", reads)):
            if t.axis(symbol) is not None:
                old = tensors[t.name]
                size = old.shape[t.axis(symbol)]
                before, after = old.split([first, size - first], dim=t.axis(symbol))
                result[t.name] = torch.cat([before, change(t.name, after)], dim=t.axis(symbol))
    return result


def large(op):
    def change(name, t):
        if not t.is_floating_point():
            return torch.zeros_like(t)  # a list of the first token, again and again
        if name == "beta":
            return 1 - t
        if name == "log_decay":
            return t * 100 if op.unit_keys else torch.full_like(t, 80.0)
        return -t if name == "k" and op.unit_keys else t * 1e4

    return change


def no_number(value):
    return lambda name, t: t * value if t.is_floating_point() else t


def past(op, results, cut):
    return [r.narrow(t.axis("T"), 0, cut) for r, t in zip(results, op.results) if t.axis("T") is not None]


@over(lambda op: op.causal)
def test_no_token_sees_the_future(op):
    """To the bit."""
    for dtype in DTYPES.values():
        tensors = op.make(dtype, T=300)
        changes = [large(op)]
        if not op.spreads and any(t.is_floating_point() for t in tensors.values()):
            changes += [no_number(torch.nan), no_number(torch.inf)]
        before = op.call(tensors)
        for cut in CUTS:
            for change in changes:
                after = op.call(changed(op, tensors, cut, change))
                for b, a in zip(past(op, before, cut), past(op, after, cut), strict=True):
                    assert torch.equal(b, a), cut
                assert not torch.equal(before[0], after[0]), "the future itself has changed"


@over(lambda op: op.causal)
def test_a_prefix_is_the_same(op):
    """Chunks end elsewhere then."""
    for dtype in DTYPES.values():
        options = {"block": 5} if op.name == "block_chacal" else {}  # which depends on the length otherwise
        tensors = op.make(dtype, T=330)
        whole = op.call(tensors, **options)
        for cut in (1, 17, 63, 64, 65, 130, 192, 329):
            part = op.call(op.part(tensors, slice(0, cut), slice(0, op.reads([cut]))), **options)
            for a, e, t in zip(past(op, part, cut), past(op, whole, cut), [t for t in op.results if t.axis("T") is not None]):
                if a.is_floating_point():
                    op.assert_close(a, e, dtype, t, roundings=max(32, op.roundings))
                else:
                    assert torch.equal(a, e)


@over(lambda op: op.state is not None)
def test_state_carries_over_every_cut(op):
    T = 140
    for dtype in DTYPES.values():
        tensors = op.make(dtype, T=T)
        whole, last = op.call(tensors)
        for cut in (*range(0, T, 9), 64, 128, T - 1, T):
            for second in {cut, min(cut + 1, T)}:  # behind the cut, or one token later once more
                state, parts = tensors["initial_state"], []
                for i, j in ((0, cut), (cut, second), (second, T)):
                    part = {**op.part(tensors, slice(i, j)), "initial_state": state}
                    y, state = op.call(part, **op.resume(op.options, i))
                    parts.append(y)
                joined = torch.cat(parts, dim=1)
                if op.cut_bits:
                    assert torch.equal(joined, whole) and torch.equal(state, last)
                else:
                    op.assert_close(joined, whole, dtype, op.results[0])
                    op.assert_close(state, last, dtype, op.results[1])


@over(lambda op: op.state is not None)
def test_a_chain_of_tokens_is_the_sequence(op):
    """As in decoding; each step rounds once more."""
    for dtype in (torch.float32, torch.float64):
        tensors = op.make(dtype, T=100, D=20, DV=33)
        whole, last = op.call(tensors)
        state, parts = tensors["initial_state"], []
        for t in range(100):
            step = {**op.part(tensors, slice(t, t + 1)), "initial_state": state}
            y, state = op.call(step, **op.resume(op.options, t))
            parts.append(y)
        op.assert_close(torch.cat(parts, dim=1), whole, dtype, op.results[0], roundings=100)
        op.assert_close(state, last, dtype, op.results[1], roundings=100)


NEAR = ("dense_recurrence", "chacal", "block_chacal", "attention")  # and attention_topk, in its own tests


@over(lambda op: op.name in NEAR)
def test_what_is_no_number_is_not_hidden(op, products):
    """Nor does it reach an earlier token."""
    at = 131  # inside a block of each operator
    for dtype in DTYPES.values():
        tensors = op.make(dtype, T=300)
        (before,) = op.call(tensors)
        for which in "qkv":
            for bad in (torch.nan, torch.inf):
                spoiled = {**tensors, which: tensors[which].clone()}
                spoiled[which][:, at] = bad
                (after,) = op.call(spoiled)
                assert torch.equal(after[:, :at], before[:, :at])
                first = at + 1 if op.name == "dense_recurrence" and which == "k" else at
                if which == "k" and bad == torch.inf:  # k . q is -inf, a weight of 0, for some queries
                    assert not after[:, first:].isfinite().all()
                else:
                    assert not after[:, first].isfinite().any(), "the first token that reads it"


@over(lambda op: op.name in NEAR)
def test_logits_beyond_all_digits_still_weigh(op, products):
    """Neighbouring floats are then further apart than exp can tell: which token is read is chance, but it is one."""
    for dtype in DTYPES.values():
        for size in (1e10, 1e12, 1e17):
            tensors = op.make(dtype, T=300)
            tensors |= {"q": tensors["q"] * size, "v": torch.ones_like(tensors["v"])}
            low, high, largest = 1.0, 1.0, 0
            if op.name == "dense_recurrence":  # z_0 = 1 and z_i = 1 + z_j / 2 for some j
                tensors |= {n: torch.full_like(tensors[n], x) for n, x in (("gate", 0.5), ("d", 0.0), ("d_self", 1.0))}
                low, high = 1.5, 2.0
            run, leaves = op.of_leaves(tensors)
            y, *grads = with_gradients(run, leaves)
            assert (y[:, 1:] >= low - 0.01).all() and (y <= high + 0.01).all()
            assert all(g.isfinite().all() for g in grads)
            largest = grads[3].abs().max() if op.name == "dense_recurrence" else 0
            assert largest <= 2.1 * 300 * 3, "a weight above 1 would grow from token to token"
