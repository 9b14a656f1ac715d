"""Gradients: finite differences, only those that are asked for, once and not twice."""

import pytest
import torch

from common import assert_equal, bounds, weight, with_gradients
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
    """To the bits of all together; without any the results are the same and have no graph. They can be taken again, even
    if what the first time gave was written to."""
    run, leaves = op.of_leaves(op.make(T=70))
    together = with_gradients(run, leaves)
    results, grads = together[: -len(leaves)], together[-len(leaves) :]
    for index, grad in enumerate(grads):
        some = [t.detach().requires_grad_(i == index) for i, t in enumerate(leaves)]
        with_graph = [(r, weight(r, 9 + i)) for i, r in enumerate(run(some)) if r.requires_grad]
        for _ in range(2):
            outputs, weights = zip(*with_graph)
            (alone,) = torch.autograd.grad(outputs, some[index], weights, retain_graph=True)
            assert torch.equal(alone, grad), op.leaves[index].name
            alone.zero_()
    wanted = [t.detach().requires_grad_() for t in leaves]
    for plain in (run([t.detach() for t in leaves]), torch.no_grad()(run)(wanted)):
        assert not any(r.requires_grad for r in plain)
        assert_equal(plain, results)


@over(has_gradient)
def test_other_derivatives_are_errors(op):
    """The second, unless the operator has one, and forward mode: never a zero. A single token goes by a way of its own."""
    run, leaves = op.of_leaves(op.make(T=2))
    leaves = [t.requires_grad_() for t in leaves]
    if op.twice:
        assert torch.autograd.gradgradcheck(lambda *t: tuple(r**2 for r in run(t)), leaves)
    else:
        grads = torch.autograd.grad(sum(r.sum() for r in run(leaves)), leaves, create_graph=True)
        with pytest.raises(RuntimeError, match=f"{op.name}_backward is not implemented"):
            sum(g.sum() for g in grads).backward()
    for T in (1, 20):
        tensors = op.make(T=T)
        name = op.leaves[-1].name
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(tensors[name], torch.ones_like(tensors[name]))
            with pytest.raises(RuntimeError, match="jvp|forward AD"):
                op.call({**tensors, name: dual})


@over()
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_functional_transforms_are_right_or_errors(op):
    """torch.func.grad, jacrev and jacfwd do not see through autograd in C++; vmap goes element by element."""
    tensors = op.make(T=6)
    run, leaves = op.of_leaves(tensors)
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd) if leaves else ():
        with pytest.raises(RuntimeError, match="functorch|forward AD|jvp"):
            transform(lambda x: sum(r.sum() for r in run([x, *leaves[1:]])))(leaves[0])
    names = [t.name for t in op.inputs]
    given = [tensors[n] for n in names]
    expected = op.call(tensors)
    try:
        results = torch.vmap(lambda *two: op.call(dict(zip(names, two))))(*(torch.stack([t, t]) for t in given))
    except RuntimeError as error:
        assert "Batching rule not implemented" in str(error)
        return
    for both, one in zip(results, expected, strict=True):
        assert torch.equal(both[0], one) and torch.equal(both[1], one)
