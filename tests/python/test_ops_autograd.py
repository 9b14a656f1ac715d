"""The operators as PyTorch traces them: gradcheck, opcheck, compile, meta."""

import pytest
import torch

import blockwise
import delta
import linear
import log_linear
import outer
import retrieval
import topk
from operators import NAMES, arguments, call, inputs, ops, output_width, outputs, rand, with_gradients


INPUTS = {name: len(inputs(name)) for name in NAMES}
GRADCHECKS = [(n, "all", form) for n in NAMES for form in ("list", "spec", "packed")]
GRADCHECKS += [(n, which, "spec") for n in NAMES for which in range(INPUTS[n])]


@pytest.mark.parametrize("name,which,form", GRADCHECKS)
def test_gradcheck(name, which, form):
    lengths = [4, 0, 5] if form == "packed" else None
    kwargs = {"cu_seqlens": torch.tensor([0, 4, 4, 9])} if form == "packed" else {}
    tensors = inputs(name, B=1 if lengths else 2, T=9, D=3, DV=2, lengths=lengths)
    for index, t in enumerate(tensors):
        t.requires_grad_(which in ("all", index))
    pattern = ops.pattern("k^2+1", 9) if form == "list" else "k^2+1"
    function = lambda *t: call(name, t, pattern, **kwargs)
    assert torch.autograd.gradcheck(function, tensors, atol=1e-7, rtol=1e-6)


def test_twice_differentiable_is_an_error():
    tensors = [t.requires_grad_() for t in inputs("glr_attention")]
    y = call("glr_attention", tensors, "k^2+1")
    (grad,) = torch.autograd.grad(y.sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="glr_attention_backward is not implemented"):
        grad.sum().backward()


def operator_calls():
    """(operator, arguments) for every operator and overload."""
    pattern = ops.pattern("k^2+1", 9)
    bounds = torch.tensor([0, 4, 4, 9])
    yield "pattern", ops.pattern.default, ("k^2+1", 9), {}
    yield "_pattern", ops._pattern.default, (torch.empty(0), "k^2+1", 9), {}
    for name in NAMES:
        op = getattr(ops, name)
        backward = getattr(ops, name + "_backward")
        for packed in (False, True):
            lengths = [4, 0, 5] if packed else [9]
            cu = bounds if packed else None
            tensors = inputs(name, B=1 if packed else 2, T=9, D=3, DV=2, lengths=lengths)
            leaves = [t.clone().requires_grad_() for t in tensors]
            results = outputs(name, tensors, pattern, cu_seqlens=cu)  # serve as their gradients
            first = results if name == "sparse_attention" else (*results, results[0])
            settings = {"glr": (), "glr_normalized": (), "glr_softmax": (None, True)}.get(name, (None,))
            needs = [i != 1 for i in range(len(tensors))]
            for overload, given in (("default", pattern), ("spec", "k^2+1")):
                args = arguments(name, given)
                mark = f"{name}.{overload}" + ("-packed" if packed else "")
                yield mark, getattr(op, overload), (*leaves, *args), {"cu_seqlens": cu}
                yield mark.replace(".", "_backward."), getattr(backward, overload), (
                    *first, *tensors, *args, *settings, cu, needs,
                ), {}  # fmt: skip
    for name in blockwise.NAMES:
        for packed in (False, True):
            cu = bounds if packed else None
            tensors = blockwise.block_inputs(name, B=1 if packed else 2, T=9, D=3, DV=2)
            leaves = [t.clone().requires_grad_() for t in tensors]
            rest = {"chacal": (0.9, 0.7), "block_chacal": (0.9, 2, None)}.get(name, (None,))
            inner, backward = getattr(ops, "_" + name), getattr(ops, name + "_backward")
            y, *kept = inner(*tensors, *rest, cu)
            kept = [y, *kept] if name == "attention" else kept
            mark = name + ("-packed" if packed else "")
            needs = [i != 1 for i in range(len(tensors))]
            yield mark, getattr(ops, name).default, (*leaves, *rest, cu), {}
            yield "_" + mark, inner.default, (*tensors, *rest, cu), {}
            yield mark + "_backward", backward.default, (y, kept, *tensors, *rest, cu, needs), {}
    for packed in (False, True):
        for dtype in (torch.float64, torch.bfloat16):
            cu, mark = bounds if packed else None, f"-{dtype}" + ("-packed" if packed else "")
            tensors = topk.attention_inputs(B=1 if packed else 2, T=9, dtype=dtype)
            leaves = [t.clone().requires_grad_() for t in tensors]
            for block in (1, 4):
                rest = (3, 0.7, False, cu, block)
                yield f"attention_topk{mark}-{block}", ops.attention_topk.default, (*leaves, *rest), {}
            yield "_attention_topk" + mark, ops._attention_topk.default, (*tensors, *rest), {}
            o, _, mix, lse = ops._attention_topk(*tensors, *rest)
            yield "attention_topk_backward" + mark, ops.attention_topk_backward.default, (
                o, mix if dtype == torch.bfloat16 else o, lse, *tensors, 0.7, cu, [True, False, True],
            ), {}  # fmt: skip
    for name in delta.NAMES:
        for packed in (False, True):
            tensors = delta.delta_inputs(name, B=1 if packed else 2, T=9, N=3 if packed else 2)
            cu = bounds if packed else None
            *leaves, state = [t.clone().requires_grad_() for t in tensors]
            mark = name + ("-packed" if packed else "")
            yield mark, getattr(ops, name).default, (*leaves, None, state, cu), {}
            needs = [i != 1 for i in range(len(tensors))]
            yield mark + "_backward", getattr(ops, name + "_backward").default, (
                *delta.call(name, tensors, cu_seqlens=cu), *tensors[:-1], None, tensors[-1], cu, needs,
            ), {}  # fmt: skip
    for name in outer.NAMES:
        for packed in (False, True):
            tensors = outer.outer_inputs(name, B=1 if packed else 2, T=9)
            state, cu = outer.initial(3 if packed else 2), bounds if packed else None
            leaves = [t.clone().requires_grad_() for t in (*tensors, state)]
            mark = name + ("-packed" if packed else "")
            yield mark, getattr(ops, name).default, (*leaves[:-1], None, leaves[-1], cu), {}
            o, end = outer.call(name, tensors, initial_state=state, cu_seqlens=cu)
            needs = [i != 1 for i in range(len(leaves))]
            yield mark + "_backward", getattr(ops, name + "_backward").default, (
                o, end, *tensors, None, state, cu, needs,
            ), {}  # fmt: skip
    for name in retrieval.NAMES:
        for packed in (False, True):
            lengths, cu = ([4, 0, 5], bounds) if packed else (None, None)
            tensors, indices = retrieval.retrieval_inputs(name, B=1 if packed else 2, T=9, D=3, DV=2, lengths=lengths)
            leaves = [t.clone().requires_grad_() for t in tensors]
            rest = (2, 0.7) if name == "retrieved_recurrence" else (None,)
            inner, backward = getattr(ops, "_" + name), getattr(ops, name + "_backward")
            (y,) = inner(*tensors, indices, *rest, cu)
            mark, kept = name + ("-packed" if packed else ""), [y] if name == "retrieved_glr" else []
            needs = [i != 1 for i in range(len(tensors))] + [False]
            yield mark, getattr(ops, name).default, (*leaves, indices, *rest, cu), {}
            yield "_" + mark, inner.default, (*tensors, indices, *rest, cu), {}
            yield mark + "_backward", backward.default, (y, kept, *tensors, indices, *rest, cu, needs), {}
    yield "neighborhood", ops.neighborhood.default, (retrieval.lists(), [3, 2], True), {}
    yield "neighborhood-packed", ops.neighborhood.default, (
        retrieval.lists(B=1, T=9, lengths=[4, 0, 5]), [3, 1], False, bounds,
    ), {}  # fmt: skip
    for name in log_linear.NAMES:
        for packed in (False, True):
            cu = bounds if packed else None
            tensors = log_linear.log_linear_inputs(name, B=1 if packed else 2, T=9)
            leaves = [t.clone().requires_grad_() for t in tensors]
            inner, backward = getattr(ops, "_" + name), getattr(ops, name + "_backward")
            mark = name + ("-packed" if packed else "")
            needs = [i != 1 for i in range(len(tensors))]
            yield mark, getattr(ops, name).default, (*leaves, None, cu), {}
            yield "_" + mark, inner.default, (*tensors, None, cu), {}
            (o,) = inner(*tensors, None, cu)
            yield mark + "_backward", backward.default, (o, [], *tensors, None, cu, needs), {}
    a, x, s = (t.requires_grad_() for t in (rand(2, 9, 5), rand(2, 9, 5, seed=1), rand(2, 5)))
    yield "linear_recurrence", ops.linear_recurrence.default, (a, x), {}
    yield "linear_recurrence-state", ops.linear_recurrence.default, (a, x, s), {}
    a, x, s = (t.requires_grad_() for t in (rand(1, 9, 5), rand(1, 9, 5, seed=1), rand(3, 5)))
    yield "linear_recurrence-packed", ops.linear_recurrence.default, (a, x, s, bounds), {}
    a, x, s = (t.detach() for t in (a, x, s))
    yield "linear_recurrence_backward", ops.linear_recurrence_backward.default, (
        a, s, x, a, x, s, bounds, [True, False, True],
    ), {}  # fmt: skip
    x, w = rand(2, 9, 5).requires_grad_(), rand(5, seed=1).requires_grad_()
    yield "rms_norm", ops.rms_norm.default, (x, w, 1e-3), {}
    x, w = x.detach(), w.detach()
    yield "rms_norm_backward", ops.rms_norm_backward.default, (x, x, w, 1e-3, [True, False]), {}
    head, targets = (rand(9, 5), rand(7, 5, seed=1), rand(7)), torch.arange(9) % 7
    for mark, bias in (("", head[2]), ("-no-bias", None)):
        tensors = (*head[:2], bias)
        leaves = [t if t is None else t.clone().requires_grad_() for t in tensors]
        yield "head_loss" + mark, ops.head_loss.default, (*leaves, targets, rand(9)), {}
        inner = ops._head_loss(*tensors, targets, None, [True, False, True])
        yield "_head_loss" + mark, ops._head_loss.default, (*tensors, targets, None, [True, False, True]), {}
        yield "head_loss_backward" + mark, ops.head_loss_backward.default, (inner[0], inner[3:], *tensors), {}
    for mark, B, N, cu in (("", 2, 2, None), ("-packed", 1, 3, bounds)):
        a, x, s = rand(B, 9, 5), rand(B, 9, 5, seed=1), rand(N, 2, 5)
        leaves = [t.clone().requires_grad_() for t in (a, x, s)]
        yield "sliding_window_recurrence" + mark, ops.sliding_window_recurrence.default, (*leaves[:2], 4, leaves[2], 3, cu), {}
        yield "sliding_window_recurrence_backward" + mark, ops.sliding_window_recurrence_backward.default, (
            x, s, x, a, x, 4, s, 3, cu, [True, False, True],
        ), {}  # fmt: skip
        tensors = [a, x.abs(), -rand(5, 3).abs(), rand(B, 9, 3), rand(B, 9, 3, seed=1), rand(5), rand(N, 5, 3)]
        leaves = [t.clone().requires_grad_() for t in tensors]
        yield "selective_scan" + mark, ops.selective_scan.default, (*leaves, cu), {}
        yield "_selective_scan" + mark, ops._selective_scan.default, (*tensors, cu), {}
        y, state, kept = ops._selective_scan(*tensors, cu)
        yield "selective_scan_backward" + mark, ops.selective_scan_backward.default, (
            y, state, kept, *tensors, cu, [i != 1 for i in range(7)],
        ), {}  # fmt: skip
    for name, x, cu in (("short_convolution", rand(2, 9, 5), None), ("short_convolution-packed", rand(1, 9, 5), bounds)):
        w, b = rand(5, 4, seed=1), rand(5, seed=2)
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        yield name, ops.short_convolution.default, (*leaves, True, cu), {}
        yield name + "_backward", ops.short_convolution_backward.default, (x, x, w, b, True, cu, [True, False, True]), {}
    for mark, op, args in linear.operator_calls():
        yield mark, op, args, {}
    # Of one token: without a derivative.
    token = [rand(2, heads, 5, dtype=torch.float64) for heads in (4, 2, 2)]
    gates = (rand(2, 4, seed=1, low=-1, high=0), rand(2, 4, seed=2, low=0, high=1))
    channels = rand(2, 4, 5, seed=3, low=-1, high=0)
    for name, (decay, beta) in {"head": gates, "channel": (channels, None), "none": (None, None)}.items():
        yield f"matrix_step_ {name}", ops.matrix_step_.default, (*token, decay, beta, rand(2, 4, 5, 5)), {}
    held = [token[0], rand(2, 9, 2, 5), rand(2, 9, 2, 3)]
    own = {"own_k": rand(2, 2, 5), "own_v": rand(2, 2, 3)}
    yield "attention_step", ops.attention_step.default, tuple(held), own
    yield "attention_step listed", ops.attention_step.default, (*held, torch.tensor([3, 0, 8], dtype=torch.int32)), {}


@pytest.mark.parametrize(
    "op,args,kwargs", [pytest.param(*rest, id=name) for name, *rest in operator_calls()]
)
def test_opcheck(op, args, kwargs):
    assert torch.Tag.pt2_compliant_tag in op.tags
    results = torch.library.opcheck(op, args, kwargs)
    assert set(results.values()) == {"SUCCESS"} and len(results) >= 4


def test_every_operator_is_checked():
    checked = {op.name() for _, op, _, _ in operator_calls()}
    registered = {
        schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("hopmix::")
    }
    assert checked == registered


# One of them goes through the C++ compiler too, which is slow.
COMPILED = [(name, form, "aot_eager") for name in NAMES for form in ("list", "spec")]
COMPILED += [("glr_attention", "spec", "inductor")]


@pytest.mark.parametrize("name,form,backend", COMPILED)
def test_compiles_whole(name, form, backend):
    torch._dynamo.reset()  # `model` below is one piece of code, and may be traced only so often
    tensors = inputs(name, dtype=torch.float32)

    def model(t):
        pattern = ops.pattern("k^2+1", 20) if form == "list" else "k^2+1"
        return call(name, [x * 1.5 for x in t], pattern).sin()

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for a, e in zip(with_gradients(compiled, tensors), with_gradients(model, tensors)):
        torch.testing.assert_close(a, e)


def test_meta_tensors():
    for name in NAMES:
        y = call(name, [t.to("meta") for t in inputs(name)], "k^2+1")
        assert y.is_meta and y.shape == (2, 20, 4, output_width(name, 5, 3))
