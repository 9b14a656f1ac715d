"""Gradients: finite differences, only those that are asked for, once and not twice."""

import pytest
import torch

from common import LENGTHS, assert_equal, bounds, weight, with_gradients
from registry import has_gradient, over


@over(has_gradient)
def test_gradcheck(op):
    """On a packed batch where the operator takes one."""
    lengths = [4, 0, 5] if op.packs else [9]
    tensors = op.make(H=2, G=1, D=3, DV=2, lengths=lengths)
    run, leaves = op.of_leaves(tensors, cu_seqlens=bounds(lengths) if op.packs else None)
    function = lambda *t: tuple(run(t))
    assert torch.autograd.gradcheck(function, [t.requires_grad_() for t in leaves], atol=1e-7, rtol=1e-6)


@over(has_gradient)
def test_only_the_gradients_asked_for(op):
    """To the bits of all together; without any the results are the same and have no graph."""
    run, leaves = op.of_leaves(op.make(T=70))
    together = with_gradients(run, leaves)
    results, grads = together[: -len(leaves)], together[-len(leaves) :]
    for index, grad in enumerate(grads):
        some = [t.detach().requires_grad_(i == index) for i, t in enumerate(leaves)]
        with_graph = [(r, weight(r, 9 + i)) for i, r in enumerate(run(some)) if r.requires_grad]
        (alone,) = torch.autograd.grad([r for r, _ in with_graph], some[index], [w for _, w in with_graph])
        assert torch.equal(alone, grad), op.leaves[index].name
    wanted = [t.detach().requires_grad_() for t in leaves]
    for plain in (run([t.detach() for t in leaves]), torch.no_grad()(run)(wanted)):
        assert not any(r.requires_grad for r in plain)
        assert_equal(plain, results)


@over(has_gradient)
def test_gradients_can_be_taken_again(op):
    """What the first gave away may have been written to."""
    run, leaves = op.of_leaves(op.make())
    leaves = [t.requires_grad_() for t in leaves]
    total = sum(r.sum() for r in run(leaves))
    first = torch.autograd.grad(total, leaves, retain_graph=True)
    kept = [g.clone() for g in first]
    for g in first:
        if g.is_contiguous():  # not an expanded view
            g.zero_()
    assert_equal(torch.autograd.grad(total, leaves), kept)


@over(has_gradient)
def test_second_derivative(op):
    """An error, unless the operator has one."""
    run, leaves = op.of_leaves(op.make(T=2))
    leaves = [t.requires_grad_() for t in leaves]
    if op.twice:
        assert torch.autograd.gradgradcheck(lambda *t: tuple(r**2 for r in run(t)), leaves)
        return
    grads = torch.autograd.grad(sum(r.sum() for r in run(leaves)), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match=f"{op.name}_backward is not implemented"):
        sum(g.sum() for g in grads).backward()


DROPS_TANGENTS = ("head_loss",)


@over(has_gradient)
def test_a_tangent_is_not_dropped(op):
    """There is no forward-mode derivative: an error, not a zero. A single token goes by a way of its own."""
    if op.name in DROPS_TANGENTS:
        pytest.xfail("drops it without a word")
    for T in (1, 20):
        tensors = op.make(T=T)
        with torch.autograd.forward_ad.dual_level():
            name = op.leaves[-1].name
            dual = torch.autograd.forward_ad.make_dual(tensors[name], torch.ones_like(tensors[name]))
            with pytest.raises(RuntimeError, match="jvp|forward AD"):
                op.call({**tensors, name: dual})


@over(lambda op: op.packs and has_gradient(op))
def test_every_entry_is_written(op, filled_with_nan):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        run, leaves = op.of_leaves(op.make(dtype, lengths=LENGTHS), cu_seqlens=bounds(LENGTHS))
        for t in with_gradients(run, leaves):
            assert t.isfinite().all()
