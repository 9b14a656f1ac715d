"""The operators as PyTorch sees them: against dense references, autograd, tracing, strides, packed sequences, errors.

The library is build/lib/libhopmix_ops.so, or what the environment variable HOPMIX_LIB names.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("HOPMIX_LIB", ROOT / "build/lib/libhopmix_ops.so")).resolve()
torch.ops.load_library(str(LIBRARY))
ops = torch.ops.hopmix

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
NAMES = ("glr", "glr_attention", "sparse_attention")


# ---- Inputs -------------------------------------------------------------------------------------


def rand(*shape, dtype=torch.float64, seed=0, low=-1.0, high=1.0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    values = torch.rand(*shape, generator=generator, dtype=torch.float64) * (high - low) + low
    return values.to(dtype)


def reads_of(spec, lengths):
    """Reads of sequences of these lengths, one after another."""
    return sum(len(ops.pattern(spec, n)[1]) for n in lengths)


def inputs(name, B=2, T=20, H=4, G=2, D=5, DV=3, spec="k^2+1", lengths=None, dtype=torch.float64):
    """The differentiable inputs of an operator, in order."""
    r = lambda seed, *shape, **limits: rand(*shape, dtype=dtype, seed=seed, **limits)
    if name == "glr":
        nnz = reads_of(spec, lengths or [T])
        return [r(1, B, H, T), r(2, B, H, nnz), r(3, B, H, nnz, low=-0.2, high=0.2), r(4, B, T, H, D)]
    qkv = [r(1, B, T, H, D, low=-2, high=2), r(2, B, T, G, D, low=-2, high=2), r(3, B, T, G, DV)]
    if name == "sparse_attention":
        return qkv
    return qkv + [r(4, B, T, H), r(5, B, T, H), r(6, B, T, H)]


def arguments(name, pattern):
    """What follows the inputs: the pattern, as a tuple of tensors or a string, and the rest without a default."""
    pattern = pattern if isinstance(pattern, tuple) else (pattern,)
    return pattern + ((True,) if name == "sparse_attention" else ())


def call(name, tensors, pattern, **kwargs):
    return getattr(ops, name)(*tensors, *arguments(name, pattern), **kwargs)


# ---- References ---------------------------------------------------------------------------------


def mask_of(pattern, T):
    row_ptr, cols = pattern
    mask = torch.zeros(T, T, dtype=torch.bool)
    for i in range(T):
        mask[i, cols[row_ptr[i] : row_ptr[i + 1]].long()] = True
    return mask


def softmax_weights(q, k, mask, scale):
    """[B, H, T, T]; empty rows are 0."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5)
    some = mask.any(-1, keepdim=True)
    return scores.masked_fill(~mask & some, -torch.inf).softmax(-1) * mask


def solve(A, B, x):
    """(I - B)^{-1} A x with A, B [B, H, T, T] and x [B, T, H, D]."""
    eye = torch.eye(x.shape[1], dtype=x.dtype)
    y = torch.linalg.solve_triangular(
        eye - B, A @ x.transpose(1, 2), upper=False, unitriangular=True
    )
    return y.transpose(1, 2)


def reference(name, tensors, pattern, scale=None):
    T = tensors[3 if name == "glr" else 0].shape[1]
    mask = mask_of(pattern, T)
    if name == "glr":
        diag, alpha, beta, x = tensors
        row, col = mask.nonzero(as_tuple=True)
        A, B = torch.diag_embed(diag), torch.zeros(*diag.shape, T, dtype=diag.dtype)
        A[..., row, col], B[..., row, col] = alpha, beta
        return solve(A, B, x)
    q, k, v = tensors[:3]
    v = v.repeat_interleave(q.shape[2] // v.shape[2], dim=2)
    if name == "sparse_attention":
        P = softmax_weights(q, k, mask | torch.eye(T, dtype=torch.bool), scale)
        return torch.einsum("bhij,bjhd->bihd", P, v)
    gate, d, d_self = (t.transpose(1, 2) for t in tensors[3:])
    B = gate[..., None] * softmax_weights(q, k, mask, scale)
    return solve(B * d[:, :, None, :] + torch.diag_embed(d_self), B, v)


def assert_close(actual, expected, dtype, what=""):
    """Sixteen roundings relative to the largest value; for bfloat16 sums are float32, and the output rounds once."""
    assert actual.shape == expected.shape and actual.dtype == dtype, what
    if actual.numel() == 0:
        return
    accumulation = torch.float64 if dtype == torch.float64 else torch.float32
    allowed = 16 * torch.finfo(accumulation).eps * expected.abs().max().clamp(min=1)
    if dtype == torch.bfloat16:
        allowed = allowed + 2.0**-8 * expected.abs()
    error = (actual.double() - expected).abs()
    assert (error <= allowed).all(), f"{what}: error {error.max()} where {allowed.max()} is allowed"


def with_gradients(function, tensors, weight=None):
    """The output and the gradients of sum(output * weight)."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    y = function(leaves)
    weight = rand(*y.shape, seed=9) if weight is None else weight
    grads = torch.autograd.grad(y, leaves, weight.to(y.dtype))
    return [y.detach(), *grads]


# ---- Values -------------------------------------------------------------------------------------

SIZES = [
    (2, 1, 4, 3), (2, 2, 2, 20), (1, 63, 2, 20), (2, 64, 4, 64), (2, 65, 4, 20), (1, 100, 2, 100),
    (1, 1000, 1, 20),
]  # fmt: skip


@pytest.mark.parametrize("form", ["list", "spec"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("B,T,H,D", [pytest.param(*s, id="B%d-T%d-H%d-D%d" % s) for s in SIZES])
@pytest.mark.parametrize("name", NAMES)
def test_matches_the_dense_reference(name, B, T, H, D, dtype, form):
    dtype = DTYPES[dtype]
    pattern = ops.pattern("k^2+1", T)
    tensors = inputs(name, B, T, H, max(1, H // 2), D, D + 1, dtype=dtype)
    given = pattern if form == "list" else "k^2+1"
    weight = rand(B, T, H, D if name == "glr" else D + 1, seed=9, dtype=dtype)
    actual = with_gradients(lambda t: call(name, t, given), tensors, weight)
    exact = [t.double() for t in tensors]
    expected = with_gradients(lambda t: reference(name, t, pattern), exact, weight)
    for index, (a, e) in enumerate(zip(actual, expected)):
        assert_close(a, e, dtype, "y" if index == 0 else f"gradient of input {index - 1}")


@pytest.mark.parametrize(
    "spec", ["dense", "window(4)", "2^k", "cached(k^2+1)", "random(3,1)", "offsets(7,11)", "fenwick"]
)
@pytest.mark.parametrize("name", NAMES)
def test_patterns_of_every_kind(name, spec):
    pattern = ops.pattern(spec, 65)
    tensors = inputs(name, T=65, spec=spec)
    actual = with_gradients(lambda t: call(name, t, spec), tensors)
    expected = with_gradients(lambda t: reference(name, t, pattern), tensors)
    for a, e in zip(actual, expected):
        assert_close(a, e, torch.float64)


def test_pattern_is_its_rows():
    row_ptr, cols = ops.pattern("k^2+1", 8)
    assert row_ptr.dtype == torch.int64 and cols.dtype == torch.int32
    offsets = [1, 2, 5]
    rows = [sorted(i - o for o in offsets if o <= i) for i in range(8)]
    assert row_ptr.tolist() == [sum(map(len, rows[:i])) for i in range(9)]
    assert cols.tolist() == sum(rows, [])


@pytest.mark.parametrize("name", ["glr_attention", "sparse_attention"])
def test_scale_is_used(name):
    tensors = inputs(name)
    expected = reference(name, tensors, ops.pattern("k^2+1", 20), scale=0.7)
    assert_close(call(name, tensors, "k^2+1", scale=0.7), expected, torch.float64)


@pytest.mark.parametrize("name", ["glr_attention", "sparse_attention"])
def test_huge_logits_stay_finite(name):
    tensors = inputs(name, T=65)
    tensors[0], tensors[1] = tensors[0] * 100, tensors[1] * 100  # logits beyond +-10^4
    for t in with_gradients(lambda t: call(name, t, "dense"), tensors):
        assert t.isfinite().all()


def test_attention_without_reads_is_zero_and_self_can_be_left_out():
    q, k, v = inputs("sparse_attention", T=20)
    y = ops.sparse_attention(q, k, v, "offsets(7,11)", False)
    assert (y[:, :7] == 0).all() and (y[:, 7:] != 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_empty_batch_and_empty_time(name):
    for B, T in ((0, 5), (2, 0)):
        tensors = inputs(name, B=B, T=T)
        for pattern in ("k^2+1", ops.pattern("k^2+1", T)):
            y, *grads = with_gradients(lambda t: call(name, t, pattern), tensors)
            assert y.shape[:3] == (B, T, 4)
            assert [g.shape for g in grads] == [t.shape for t in tensors]


@pytest.mark.parametrize("name", ["glr_attention", "sparse_attention"])
def test_grouped_heads_equal_repeated_ones(name):
    tensors = inputs(name, H=6, G=2)
    repeat = lambda t: [t[0], *(x.repeat_interleave(3, dim=2) for x in t[1:3]), *t[3:]]
    grouped = with_gradients(lambda t: call(name, t, "k^2+1"), tensors)
    repeated = with_gradients(lambda t: call(name, repeat(t), "k^2+1"), tensors)
    for a, e in zip(grouped, repeated):
        assert_close(a, e, torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_longer_pattern_serve_a_shorter_text(name):
    tensors = inputs(name)
    longer = ops.pattern("k^2+1", 50)
    assert torch.equal(call(name, tensors, longer), call(name, tensors, "k^2+1"))


# ---- Memory layout, packing ---------------------------------------------------------------------


def transposed(t):
    return t.transpose(0, -1).contiguous().transpose(0, -1)


def sliced(t):
    return torch.stack([t, t + 1], dim=-1)[..., 0]


@pytest.mark.parametrize("layout", [transposed, sliced])
@pytest.mark.parametrize("name", NAMES)
def test_any_strides(name, layout):
    tensors = inputs(name)
    odd = [layout(t) for t in tensors]
    assert not any(t.is_contiguous() for t in odd)
    pattern = tuple(sliced(t) for t in ops.pattern("k^2+1", 20))
    plain = with_gradients(lambda t: call(name, t, "k^2+1"), tensors)
    weight = layout(rand(*plain[0].shape, seed=9))
    strided = with_gradients(lambda t: call(name, [layout(x) for x in t], pattern), tensors, weight)
    assert torch.equal(call(name, odd, pattern), plain[0])
    for a, e in zip(strided, plain):
        assert torch.equal(a, e)


@pytest.mark.parametrize("name", NAMES)
def test_expanded_inputs(name):
    one = inputs(name, B=1)
    expanded = [t.expand(3, *t.shape[1:]) for t in one]
    y = call(name, expanded, "k^2+1")
    assert torch.equal(y, call(name, one, "k^2+1").expand_as(y))
    # The gradient of a sum is one number in every place: an expanded tensor too.
    leaves = [t.clone().requires_grad_() for t in one]
    call(name, leaves, "k^2+1").sum().backward()
    weight = torch.ones(1, 20, 4, 5 if name == "glr" else 3)
    for leaf, e in zip(leaves, with_gradients(lambda t: call(name, t, "k^2+1"), one, weight)[1:]):
        assert torch.equal(leaf.grad, e)


LENGTHS = [0, 1, 33, 0, 35, 1, 0]
BOUNDS = torch.tensor([0] + LENGTHS).cumsum(0)


@pytest.mark.parametrize("form", ["list", "spec"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_equal_separate_ones(name, dtype, form):
    T = sum(LENGTHS)
    pattern = ops.pattern("k^2+1", max(LENGTHS)) if form == "list" else "k^2+1"
    tensors = inputs(name, B=1, T=T, lengths=LENGTHS, dtype=DTYPES[dtype])

    def separately(tensors):
        out, token, read = [], 0, 0
        for n in LENGTHS:
            here, reads = slice(token, token + n), slice(read, read + reads_of("k^2+1", [n]))
            if name == "glr":
                diag, alpha, beta, x = tensors
                part = [diag[:, :, here], alpha[:, :, reads], beta[:, :, reads], x[:, here]]
            else:
                part = [t[:, here] for t in tensors]
            out.append(call(name, part, pattern))
            token, read = here.stop, reads.stop
        return torch.cat(out, dim=1)

    packed = with_gradients(lambda t: call(name, t, pattern, cu_seqlens=BOUNDS), tensors)
    for a, e in zip(packed, with_gradients(separately, tensors)):
        assert torch.equal(a, e)


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_for_any_number_of_threads(name):
    tensors = inputs(name, T=200, H=6, G=2, dtype=torch.float32)  # enough to use the threads
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(with_gradients(lambda t: call(name, t, "k^2+1"), tensors))
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


@pytest.fixture
def filled_with_nan():
    """New memory holds NaN, so an entry that no kernel writes shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_written(name, dtype, filled_with_nan):
    tensors = inputs(name, B=1, T=sum(LENGTHS), lengths=LENGTHS, dtype=DTYPES[dtype])
    for t in with_gradients(lambda t: call(name, t, "k^2+1", cu_seqlens=BOUNDS), tensors):
        assert t.isfinite().all()


# ---- Autograd and tracing -----------------------------------------------------------------------


INPUTS = {"glr": 4, "glr_attention": 6, "sparse_attention": 3}
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
            y = call(name, tensors, pattern, cu_seqlens=cu)
            first = (y,) if name == "sparse_attention" else (y, y)
            scale = () if name == "glr" else (None,)
            needs = [i != 1 for i in range(len(tensors))]
            for overload, given in (("default", pattern), ("spec", "k^2+1")):
                args = arguments(name, given)
                mark = f"{name}.{overload}" + ("-packed" if packed else "")
                yield mark, getattr(op, overload), (*leaves, *args), {"cu_seqlens": cu}
                yield mark.replace(".", "_backward."), getattr(backward, overload), (
                    *first, *tensors, *args, *scale, cu, needs,
                ), {}  # fmt: skip
    a, x, s = (t.requires_grad_() for t in (rand(2, 9, 5), rand(2, 9, 5, seed=1), rand(2, 5)))
    yield "linear_recurrence", ops.linear_recurrence.default, (a, x), {}
    yield "linear_recurrence-state", ops.linear_recurrence.default, (a, x, s), {}
    a, x, s = (t.requires_grad_() for t in (rand(1, 9, 5), rand(1, 9, 5, seed=1), rand(3, 5)))
    yield "linear_recurrence-packed", ops.linear_recurrence.default, (a, x, s, bounds), {}
    a, x, s = (t.detach() for t in (a, x, s))
    yield "linear_recurrence_backward", ops.linear_recurrence_backward.default, (
        a, s, x, a, x, s, bounds, [True, False, True],
    ), {}  # fmt: skip


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
        assert y.is_meta and y.shape == (2, 20, 4, 5 if name == "glr" else 3)


# ---- Linear recurrence --------------------------------------------------------------------------


def recur(a, x, state=None):
    """By the definition."""
    state = torch.zeros_like(x[:, 0]) if state is None else state
    ys = []
    for t in range(x.shape[1]):
        state = a[:, t] * state + x[:, t]
        ys.append(state)
    return torch.stack(ys, dim=1), state


@pytest.mark.parametrize("initial", [False, True], ids=["zero", "initial"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("T,E", [(1, 3), (2, 20), (63, 64), (65, 100), (100, 130), (1000, 20)])
def test_linear_recurrence_matches_the_definition(T, E, dtype, initial):
    dtype = DTYPES[dtype]
    state_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    tensors = [rand(2, T, E, dtype=dtype), rand(2, T, E, dtype=dtype, seed=1)]
    tensors += [rand(2, E, dtype=state_dtype)] if initial else []
    weights = rand(2, T, E, dtype=dtype, seed=2), rand(2, E, dtype=state_dtype, seed=3)

    def run(function, tensors):
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        outputs = function(*leaves)
        grad = [w.to(o.dtype) for w, o in zip(weights, outputs)]
        return [*outputs, *torch.autograd.grad(outputs, leaves, grad)]

    expected = run(recur, [t.double() for t in tensors])
    types = [dtype, state_dtype, *(t.dtype for t in tensors)]
    for a, e, expected_type in zip(run(ops.linear_recurrence, tensors), expected, types):
        assert_close(a.detach(), e.detach(), expected_type)


@pytest.mark.parametrize("dtype", DTYPES)
def test_state_carries_over_every_cut(dtype):
    a, x = rand(2, 20, 5, dtype=DTYPES[dtype]), rand(2, 20, 5, dtype=DTYPES[dtype], seed=1)
    y, last = ops.linear_recurrence(a, x)
    for cut in range(21):
        first, state = ops.linear_recurrence(a[:, :cut], x[:, :cut])
        second, end = ops.linear_recurrence(a[:, cut:], x[:, cut:], state)
        assert torch.equal(torch.cat([first, second], dim=1), y) and torch.equal(end, last)


def test_gradient_through_the_final_state_alone():
    tensors = [rand(2, 9, 3), rand(2, 9, 3, seed=1), rand(2, 3)]
    last = lambda t: ops.linear_recurrence(*t)[1]
    expected = with_gradients(lambda t: recur(*t)[1], tensors)
    for a, e in zip(with_gradients(last, tensors), expected):
        assert_close(a, e, torch.float64)
        assert (a != 0).all()


def test_linear_recurrence_gradcheck():
    bounds = torch.tensor([0, 4, 4, 9])
    for B, N, cu in ((2, 2, None), (1, 3, bounds)):
        for which in range(4):
            tensors = [rand(B, 9, 3), rand(B, 9, 3, seed=1), rand(N, 3)]
            for index, t in enumerate(tensors):
                t.requires_grad_(which in (3, index))
            assert torch.autograd.gradcheck(
                lambda *t: ops.linear_recurrence(*t, cu), tensors, atol=1e-7, rtol=1e-6
            )


def test_linear_recurrence_packed_equals_separate():
    a, x, s = rand(1, 70, 5), rand(1, 70, 5, seed=1), rand(7, 5)
    y, state = ops.linear_recurrence(a, x, s, BOUNDS)
    for n, (first, last) in enumerate(zip(BOUNDS[:-1], BOUNDS[1:])):
        alone, end = ops.linear_recurrence(a[:, first:last], x[:, first:last], s[n : n + 1])
        assert torch.equal(y[:, first:last], alone) and torch.equal(state[n : n + 1], end)


def test_linear_recurrence_strides_and_empty():
    a, x, s = rand(2, 9, 5), rand(2, 9, 5, seed=1), rand(2, 5)
    plain = ops.linear_recurrence(a, x, s)
    for layout in (transposed, sliced):
        strided = ops.linear_recurrence(layout(a), layout(x), layout(s))
        assert all(torch.equal(p, q) for p, q in zip(plain, strided))
    y, state = ops.linear_recurrence(a[:, :0], x[:, :0], s)
    assert y.shape == (2, 0, 5) and torch.equal(state, s)


def test_linear_recurrence_compiles_whole():
    model = lambda t: sum(o.sin().sum() for o in ops.linear_recurrence(*t)).reshape(1)
    tensors = [rand(2, 9, 3), rand(2, 9, 3, seed=1), rand(2, 3)]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for a, e in zip(with_gradients(compiled, tensors), with_gradients(model, tensors)):
        torch.testing.assert_close(a, e)


# ---- Errors -------------------------------------------------------------------------------------


def changed(index, new):
    def build(name):
        tensors = inputs(name)
        tensors[index] = new(tensors[index])
        return call(name, tensors, "k^2+1")

    return build


def indices(change):
    """A call whose row_ptr and cols were spoiled."""

    def build(name):
        row_ptr, cols = ops.pattern("k^2+1", 20)
        return call(name, inputs(name), change(row_ptr.clone(), cols.clone()))

    return build


def put(t, index, value):
    t[index] = value
    return t


def bounds(values, B=1, dtype=torch.int64):
    return lambda name: call(
        name, inputs(name, B=B), "k^2+1", cu_seqlens=torch.tensor(values, dtype=dtype)
    )


ATTENTION = "glr_attention"
ERRORS = {
    "rank": (ATTENTION, changed(0, lambda t: t[0]), r"q is \[20, 4, 5\], but must be \[B, T, H, DK\]"),
    "batch": (ATTENTION, changed(1, lambda t: t[:1]), r"k is \[1, 20, 2, 5\].*B = 2 as in q"),
    "time": (ATTENTION, changed(2, lambda t: t[:, :19]), r"v is \[2, 19, 2, 3\].*T = 20 as in q"),
    "key width": (ATTENTION, changed(1, lambda t: t[..., :2]), r"k is .*DK = 5 as in q"),
    "kv heads": (ATTENTION, changed(2, lambda t: t[:, :, :1]), r"v is .*G = 2 as in k"),
    "gate heads": (ATTENTION, changed(3, lambda t: t[..., :2]), r"gate is \[2, 20, 2\].*H = 4 as in q"),
    "dtype": (ATTENTION, changed(4, lambda t: t.float()), "d is Float, but must be Double like q"),
    "half": (ATTENTION, changed(0, lambda t: t.half()), "q is Half, but must be Float, Double or BFloat16"),
    "head multiple": (
        ATTENTION, lambda name: call(name, inputs(name, H=3, G=2), "k^2+1"),
        "q has 3 heads, but must have a multiple of the 2",
    ),
    "no kv heads": (
        ATTENTION, lambda name: call(name, inputs(name, G=0), "k^2+1"), "multiple of the 0 heads",
    ),
    "no width": (
        ATTENTION, lambda name: call(name, inputs(name, D=0), "k^2+1"), "width of at least 1",
    ),
    "scale": (
        ATTENTION, lambda name: call(name, inputs(name), "k^2+1", scale=float("nan")),
        "scale is nan, but must be finite",
    ),
    "spec": (ATTENTION, lambda name: call(name, inputs(name), "k^^2"), r"pattern 'k\^\^2'"),
    "decreasing spec": ("glr", lambda name: call(name, inputs(name), "5-k"), r"pattern '5-k'"),
    "row_ptr dtype": ("glr", indices(lambda p, c: (p.int(), c)), r"row_ptr is Int \[21\], but must be Long"),
    "row_ptr rank": ("glr", indices(lambda p, c: (p[None], c)), r"row_ptr is Long \[1, 21\]"),
    "row_ptr empty": ("glr", indices(lambda p, c: (p[:0], c)), r"row_ptr is \[0\]"),
    "row_ptr short": (ATTENTION, indices(lambda p, c: (p[:20], c[: p[19]])), "row_ptr has 20 entries"),
    "row_ptr start": ("glr", indices(lambda p, c: (put(p, 0, 1), c)), r"row_ptr\[0\] is 1, but must be 0"),
    "row_ptr falls": ("glr", indices(lambda p, c: (put(p, 5, 0), c)), r"row_ptr\[5\] is 0.*at least row_ptr\[4\]"),
    "row_ptr huge": ("glr", indices(lambda p, c: (put(p, 5, 1 << 60), c)), r"row_ptr\[6\] is"),
    "row_ptr end": ("glr", indices(lambda p, c: (put(p, -1, p[-1] + 1), c)), "but must be the number of cols"),
    "cols dtype": ("glr", indices(lambda p, c: (p, c.long())), r"cols is Long \[65\], but must be Int"),
    "cols future": (ATTENTION, indices(lambda p, c: (p, put(c, 2, 2))), r"cols\[2\] is 2, but row 2 must list tokens from 0 to 1"),
    "cols negative": (ATTENTION, indices(lambda p, c: (p, put(c, 0, -1))), r"cols\[0\] is -1, but row 1"),
    "cols unsorted": (ATTENTION, indices(lambda p, c: (p, put(c, 1, 1))), r"cols\[2\] is 1, but row 2 .*ascending"),
    "too few coefficients": (
        "glr", lambda name: call(name, [*(t[..., :60] if i in (1, 2) else t for i, t in enumerate(inputs(name)))], "k^2+1"),
        "alpha has 60 entries a head, but must have one for each of the pattern's 65 reads",
    ),
    "alpha and beta": ("glr", changed(2, lambda t: t[..., :60]), r"beta is .*nnz = 65 as in alpha"),
    "packed batch": (ATTENTION, bounds([0, 20], B=2), "batch 2, but must have batch 1 when cu_seqlens"),
    "bounds dtype": (ATTENTION, bounds([0, 20], dtype=torch.int32), r"cu_seqlens is Int \[2\], but must be Long"),
    "bounds empty": (ATTENTION, bounds([]), r"cu_seqlens is \[0\]"),
    "bounds start": (ATTENTION, bounds([1, 20]), r"cu_seqlens\[0\] is 1, but must be 0"),
    "bounds fall": (ATTENTION, bounds([0, 12, 8, 20]), r"cu_seqlens\[2\] is 8.*cu_seqlens\[1\] = 12"),
    "bounds end": (ATTENTION, bounds([0, 19]), r"cu_seqlens\[1\] is 19, but must be T = 20"),
    "negative n": ("pattern", lambda name: ops.pattern("2^k", -1), "-1"),
    "state dtype": (
        "linear_recurrence",
        lambda name: ops.linear_recurrence(rand(2, 9, 5).bfloat16(), rand(2, 9, 5).bfloat16(), rand(2, 5).bfloat16()),
        "initial_state is BFloat16, but must be Float for BFloat16 inputs",
    ),
    "state shape": (
        "linear_recurrence", lambda name: ops.linear_recurrence(rand(2, 9, 5), rand(2, 9, 5), rand(3, 5)),
        r"initial_state is \[3, 5\], but must be \[N, E\] with N = 2",
    ),
    "a and x": (
        "linear_recurrence", lambda name: ops.linear_recurrence(rand(2, 9, 5), rand(2, 9, 4)),
        r"x is \[2, 9, 4\], but must be \[B, T, E\] with E = 5 as in a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name,make,message", [pytest.param(*e, id=k) for k, e in ERRORS.items()])
def test_errors_name_the_argument(name, make, message):
    with pytest.raises(ValueError, match=message) as error:
        make(name)
    text = str(error.value)
    assert text.startswith(f"{name}: ") and "\n" not in text


def test_backward_checks_its_indices_too():
    row_ptr, cols = ops.pattern("k^2+1", 20)
    tensors = inputs("sparse_attention")
    y = call("sparse_attention", tensors, (row_ptr, cols))
    with pytest.raises(ValueError, match=r"cols\[0\] is 1000000"):
        ops.sparse_attention_backward(
            y, *tensors, row_ptr, put(cols.clone(), 0, 1000000), True, None, None, [True] * 3
        )


# ---- Cost and dependencies ----------------------------------------------------------------------

MEASURE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
torch.set_num_threads(1)

def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024

def train(T):
    q, k, v = (torch.rand(1, T, 8, 64, requires_grad=True) for _ in range(3))
    gates = [torch.rand(1, T, 8, requires_grad=True) for _ in range(3)]
    torch.ops.hopmix.glr_attention(q, k, v, *gates, "k^2+1").sum().backward()

train(64)
open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
before = peak()
train(4096)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_training_memory_grows_with_tokens_not_reads():
    """At T = 4096, k^2+1 has 240,000 reads a head: 8 times 62 MB if each kept a row, 8 times 64 MB for dense scores."""
    run = [sys.executable, "-c", MEASURE, str(LIBRARY)]
    used = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    one_tensor = 4096 * 8 * 64 * 4
    # q, k, v, y, their gradients, and the rows of one head at a time.
    assert 4 * one_tensor < used < 13 * one_tensor


@pytest.mark.parametrize("archive", ["libhopmix_" + layer + ".a" for layer in ("base", "pattern", "analysis", "kernels")])
def test_core_libraries_do_not_need_torch(archive):
    symbols = subprocess.run(
        ["nm", "--demangle", str(LIBRARY.parent / archive)], check=True, capture_output=True, text=True
    ).stdout
    assert "hopmix::" in symbols
    assert not re.findall(r"\b(?:at|c10|torch|caffe2)::\S*", symbols)


def test_examples_of_the_manual_run():
    text = (ROOT / "docs/operators.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= 5
    names = {"torch": torch}
    for example in examples:
        exec(re.sub(r"^torch\.ops\.load_library.*$", "", example, flags=re.MULTILINE), names)
