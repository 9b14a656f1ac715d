"""Values of the operators on a pattern: dense references, strides, packed sequences, threads."""

import pytest
import torch

from operators import (
    BOUNDS,
    DTYPES,
    EXPLICIT,
    LENGTHS,
    NAMES,
    WITH_QUERIES,
    assert_close,
    call,
    inputs,
    ops,
    output_width,
    rand,
    reads_of,
    reference,
    sliced,
    transposed,
    with_gradients,
)


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
    weight = rand(B, T, H, output_width(name, D, D + 1), seed=9, dtype=dtype)
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


@pytest.mark.parametrize("name", WITH_QUERIES)
def test_scale_is_used(name):
    tensors = inputs(name)
    expected = reference(name, tensors, ops.pattern("k^2+1", 20), scale=0.7)
    assert_close(call(name, tensors, "k^2+1", scale=0.7), expected, torch.float64)


@pytest.mark.parametrize("name", WITH_QUERIES)
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


@pytest.mark.parametrize("name", WITH_QUERIES)
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
    weight = torch.ones(1, 20, 4, output_width(name, 5, 3))
    for leaf, e in zip(leaves, with_gradients(lambda t: call(name, t, "k^2+1"), one, weight)[1:]):
        assert torch.equal(leaf.grad, e)


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
            if name in EXPLICIT:
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
