"""What does not matter: memory layout, neighbours in a packed batch, threads, how heads share keys, that a size is 0."""

import torch

from common import DTYPES, LENGTHS, assert_equal, bounds, rand, sliced, transposed, with_gradients
from registry import has_gradient, over


def everything(op, tensors, layout=lambda t: t, **options):
    """All results, and the gradients of the inputs as they were before `layout` changed them."""
    fixed = {t.name: layout(tensors[t.name]) for t in op.inputs if not t.gradient}
    names = [t.name for t in op.leaves]
    function = lambda leaves: op.call({**fixed, **{n: layout(t) for n, t in zip(names, leaves)}}, **options)
    if not names:
        return op.call(fixed, **options)
    return with_gradients(function, [tensors[n] for n in names])


@over()
def test_any_strides(op):
    tensors = op.make(T=70)
    for layout in (transposed, sliced):
        assert not any(layout(t).is_contiguous() for t in tensors.values() if min(t.shape, default=0) > 1 and t.dim() > 1)
        assert_equal(everything(op, tensors, layout), everything(op, tensors))
        if has_gradient(op):  # nor do those of the gradient that comes in
            run, leaves = op.of_leaves(tensors)
            leaves = [t.detach().requires_grad_() for t in leaves]
            results = run(leaves)
            weights = [rand(*r.shape, seed=3).to(r.dtype) for r in results]
            plain = torch.autograd.grad(results, leaves, weights, retain_graph=True)
            odd = [layout(w) if w.dim() else w for w in weights]
            assert_equal(torch.autograd.grad(results, leaves, odd), plain)
    strides_of_zero(op)


def strides_of_zero(op):
    """Of a batch that is one element again and again, and of the gradient of a sum."""
    if not has_gradient(op):
        return
    tensors = op.make(T=70, B=1)
    batch = [t for t in op.inputs if 0 in (t.axis("B"), t.axis("N"))]
    again = {t.name: tensors[t.name].expand(3, *tensors[t.name].shape[1:]) for t in batch}
    for one, three, t in zip(op.call(tensors), op.call({**tensors, **again}), op.results, strict=True):
        if 0 not in (t.axis("B"), t.axis("N")):
            continue
        if op.causal:
            assert torch.equal(three, one.expand_as(three))
        else:  # other products may be made of three times the rows
            op.assert_close(three, one.expand_as(three), torch.float64, t)
    run, leaves = op.of_leaves(tensors)
    leaves = [t.detach().requires_grad_() for t in leaves]
    results = run(leaves)
    sums = torch.autograd.grad(sum(r.sum() for r in results), leaves, retain_graph=True)
    assert_equal(sums, torch.autograd.grad(results, leaves, [torch.ones_like(r) for r in results]))


PACKED = [
    (LENGTHS, "float64"),
    (LENGTHS, "float32"),
    (LENGTHS, "bfloat16"),
    ([0, 1, 130, 0, 65, 64, 1], "float32"),  # several chunks
]


@over(lambda op: op.packs)
def test_packed_sequences_equal_separate_ones(op, filled_with_nan):
    """And every entry of the results is written."""
    for lengths, dtype in PACKED:
        compare_packed(op, lengths, dtype)


def compare_packed(op, lengths, dtype):
    tensors = op.make(DTYPES[dtype], lengths=lengths)
    edges = bounds(lengths).tolist()
    reads = bounds([op.reads([n]) for n in lengths]).tolist()

    def separately(leaves):
        given = {**tensors, **dict(zip([t.name for t in op.leaves], leaves))}
        pieces = []
        for n in range(len(lengths)):
            part = op.part(given, slice(*edges[n : n + 2]), slice(*reads[n : n + 2]), slice(n, n + 1))
            pieces.append(op.call(part))
        axes = [t.axis("T") if t.axis("T") is not None else t.axis("N") for t in op.results]
        return [torch.cat(x, dim) for x, dim in zip(zip(*pieces), axes)]

    together = everything(op, tensors, cu_seqlens=bounds(lengths))
    leaves = [tensors[t.name] for t in op.leaves]
    expected = with_gradients(separately, leaves) if leaves else separately([])
    for a, e, t in zip(together, expected, [*op.results, *op.leaves], strict=True):
        assert a.isfinite().all(), t.name
        if t.axis("T") is not None or t.axis("N") is not None or t.axis("R") is not None:
            assert torch.equal(a, e), t.name
        else:  # the gradient of a parameter is a sum over the sequences
            op.assert_close(a, e, DTYPES[dtype], t, factors=2.0**-8)


@over()
def test_same_bits_for_any_number_of_threads(op, set_threads):
    for sizes in op.threads:
        for dtype in (torch.float32, torch.bfloat16) if op.products else (torch.float32,):
            tensors, results = op.make(dtype, **sizes), []
            for threads in (1, 2, 3):
                set_threads(threads)
                results.append(everything(op, tensors))
            for other in results[1:]:
                assert_equal(other, results[0])


@over(lambda op: op.grouped)
def test_grouped_heads_equal_repeated_ones(op):
    """Integers that an operator gives are equal, the rest is close."""
    shared = [t for t in op.inputs if t.axis("G") is not None]
    for dtype in (torch.float64, torch.bfloat16 if op.factors else torch.float32):
        tensors = op.make(dtype, T=150, H=6, G=2)

        def repeated(leaves):
            given = {**tensors, **dict(zip([t.name for t in op.leaves], leaves))}
            return op.call(given | {t.name: given[t.name].repeat_interleave(3, t.axis("G")) for t in shared})

        actual = everything(op, tensors)
        leaves = [tensors[t.name] for t in op.leaves]
        expected = with_gradients(repeated, leaves) if leaves else repeated([])
        for a, e, t in zip(actual, expected, [*op.results, *op.leaves], strict=True):
            if a.is_floating_point():
                op.assert_close(a, e, dtype, t)
            else:
                assert torch.equal(a, e)


@over()
def test_sizes_of_zero(op, filled_with_nan):
    """Shapes as ever; gradients of nothing are 0, and a state that no token changed is the one that came in."""
    for zero in (*op.empty, *("H" if op.grouped else "")):
        tensors = op.make(**{"T": 5, zero: 0})
        sizes = op.default_sizes(**{"T": 5, zero: 0})
        results = everything(op, tensors)
        outputs, grads = results[: len(op.results)], results[len(op.results) :]
        assert [list(r.shape) for r in outputs] == [t.dims(sizes) for t in op.results]
        assert [g.shape for g in grads] == [tensors[t.name].shape for t in op.leaves]
        if all(r.numel() == 0 for r, t in zip(outputs, op.results) if t.gradient):
            assert all((g == 0).all() for g in grads)
        assert all(r.isfinite().all() for r in results)
        if zero == "T" and op.state is not None:
            assert torch.equal(outputs[1], tensors["initial_state"])
            assert (op.call({**tensors, "initial_state": None})[1] == 0).all()
