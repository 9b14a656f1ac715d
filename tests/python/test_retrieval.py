"""neighborhood, gather_attention, retrieved_recurrence and retrieved_glr against their definitions."""

import pytest
import torch

from operators import BOUNDS, DTYPES, LENGTHS, assert_close, ops, rand, sliced, transposed, with_gradients
from retrieval import HOPS, NAMES, call, dense, lists, neighborhood, retrieval_inputs, shape, weights

SIZES = [
    (2, 1, 4, 3), (2, 2, 2, 20), (1, 63, 2, 20), (2, 64, 4, 64), (2, 65, 4, 20), (1, 100, 2, 100),
    (1, 1000, 1, 20),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("B,T,H,D", [pytest.param(*s, id="B%d-T%d-H%d-D%d" % s) for s in SIZES])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_matches_the_dense_definition(name, shared, B, T, H, D, dtype):
    dtype, G = DTYPES[dtype], max(1, H // 2)
    tensors, indices = retrieval_inputs(name, B, T, H, G, D, D + 1, dtype, L=G if shared else H, W=9)
    weight = rand(*shape(name, B, T, H, D + 1), seed=9, dtype=dtype)
    actual = with_gradients(lambda t: call(name, t, indices), tensors, weight)
    expected = with_gradients(lambda t: dense(name, t, indices), [t.double() for t in tensors], weight)
    for index, (a, e) in enumerate(zip(actual, expected)):
        assert_close(a, e, dtype, "y" if index == 0 else f"gradient of input {index - 1}")


@pytest.mark.parametrize("name", NAMES)
def test_scale_is_used(name):
    tensors, indices = retrieval_inputs(name)
    assert_close(call(name, tensors, indices, scale=0.7), dense(name, tensors, indices, 0.7), torch.float64)


@pytest.mark.parametrize("kappa", [1, 4, 32, 100])
def test_prefixes_shorter_than_kappa(kappa):
    """All visible positions and -1 behind them, as a full layer retrieves: the first rows are attention to all."""
    T = 20
    q, k, v = retrieval_inputs("gather_attention", B=1, T=T)[0]
    indices = torch.arange(kappa, dtype=torch.int32).repeat(1, T, 4, 1)
    indices = indices.masked_fill(indices > torch.arange(T)[None, :, None, None], -1)
    y = ops.gather_attention(q, k, v, indices)
    full = ops.sparse_attention(q, k, v, "dense", True)
    assert_close(y[:, :kappa], full[:, :kappa], torch.float64)
    assert T <= kappa or not torch.allclose(y[:, kappa:], full[:, kappa:])


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_entries_are_zero_and_pass_nothing(name):
    tensors, indices = retrieval_inputs(name)
    empty = torch.full_like(indices, -1)
    y, *grads = with_gradients(lambda t: call(name, t, empty), tensors)
    if name == "gather_attention":
        assert all((t == 0).all() for t in (y, *grads))
    elif name == "retrieved_recurrence":
        v = tensors[2].repeat_interleave(2, dim=2)
        assert torch.equal(y[..., 0, :], v) and (y[..., 1:, :] == 0).all()
        assert all((grads[n] == 0).all() for n in (0, 1, 3))
    else:  # y = d_self v, by way of z - d v
        v, d_self = tensors[2].repeat_interleave(2, dim=2), tensors[5]
        assert_close(y, d_self[..., None] * v, torch.float64)
        assert all((grads[n] == 0).all() for n in (0, 1, 3))
    assert ops.gather_attention(*tensors[:3], empty[..., :0]).eq(0).all()  # a width of 0 too


@pytest.mark.parametrize("name", NAMES)
def test_later_tokens_do_not_change_a_bit(name):
    tensors, indices = retrieval_inputs(name, T=65)
    changed = [torch.cat([t[:, :40], torch.full_like(t[:, 40:], 1e18)], dim=1) for t in tensors]
    others = torch.cat([indices[:, :40], torch.zeros_like(indices[:, 40:])], dim=1)
    assert torch.equal(call(name, changed, others)[:, :40], call(name, tensors, indices)[:, :40])


@pytest.mark.parametrize("name", NAMES)
def test_huge_logits_stay_finite(name):
    tensors, indices = retrieval_inputs(name, T=65)
    tensors[0], tensors[1] = tensors[0] * 100, tensors[1] * 100
    for t in with_gradients(lambda t: call(name, t, indices), tensors):
        assert t.isfinite().all()


@pytest.mark.parametrize("layout", [transposed, sliced])
@pytest.mark.parametrize("name", NAMES)
def test_any_strides(name, layout):
    tensors, indices = retrieval_inputs(name)
    plain = with_gradients(lambda t: call(name, t, indices), tensors)
    weight = layout(rand(*plain[0].shape, seed=9))
    odd = layout(indices)
    assert not odd.is_contiguous()
    strided = with_gradients(lambda t: call(name, [layout(x) for x in t], odd), tensors, weight)
    for a, e in zip(strided, plain):
        assert torch.equal(a, e)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_equal_separate_ones(name, dtype):
    """Positions count from the start of their sequence."""
    T = sum(LENGTHS)
    tensors, indices = retrieval_inputs(name, B=1, T=T, dtype=DTYPES[dtype], lengths=LENGTHS)

    def separately(t):
        pieces, start = [], 0
        for n in LENGTHS:
            here = slice(start, start + n)
            pieces.append(call(name, [x[:, here] for x in t], indices[:, here]))
            start = here.stop
        return torch.cat(pieces, dim=1)

    packed = with_gradients(lambda t: call(name, t, indices, cu_seqlens=BOUNDS), tensors)
    for a, e in zip(packed, with_gradients(separately, tensors)):
        assert torch.equal(a, e)


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_for_any_number_of_threads(name):
    tensors, indices = retrieval_inputs(name, B=1, T=1100, H=2, G=1, D=20, DV=64, dtype=torch.float32, L=1)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(with_gradients(lambda t: call(name, t, indices), tensors))
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_written(name, dtype):
    tensors, indices = retrieval_inputs(name, B=1, T=sum(LENGTHS), dtype=DTYPES[dtype], lengths=LENGTHS)
    torch.use_deterministic_algorithms(True)  # new memory holds NaN
    try:
        for t in with_gradients(lambda t: call(name, t, indices, cu_seqlens=BOUNDS), tensors):
            assert t.isfinite().all()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", NAMES)
def test_empty_batch_and_empty_time(name):
    for B, T in ((0, 5), (2, 0)):
        tensors, indices = retrieval_inputs(name, B=B, T=T)
        y, *grads = with_gradients(lambda t: call(name, t, indices), tensors)
        assert y.shape == shape(name, B, T, 4, 3)
        assert [g.shape for g in grads] == [t.shape for t in tensors]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shared", [False, True])
def test_gradcheck(name, shared):
    lengths = [4, 0, 5] if shared else None
    kwargs = {"cu_seqlens": torch.tensor([0, 4, 4, 9])} if shared else {}
    tensors, indices = retrieval_inputs(
        name, B=1 if shared else 2, T=9, D=3, DV=2, L=2 if shared else 4, W=3, lengths=lengths
    )
    for t in tensors:
        t.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *t: call(name, t, indices, **kwargs), tensors, atol=1e-7, rtol=1e-6
    )


@pytest.mark.parametrize("name", NAMES)
def test_compiles_whole(name):
    tensors, indices = retrieval_inputs(name, dtype=torch.float32)
    torch._dynamo.reset()

    def model(t):
        links = ops.neighborhood(indices, [2, 1], True) if name == "gather_attention" else indices
        return call(name, [x * 1.5 for x in t], links).sin()

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for a, e in zip(with_gradients(compiled, tensors), with_gradients(model, tensors)):
        torch.testing.assert_close(a, e)


def test_only_gradients_that_are_asked_for():
    for name in NAMES:
        tensors, indices = retrieval_inputs(name)
        needs = [index == 1 for index in range(len(tensors) + 1)]
        y = call(name, tensors, indices)
        kept = [y] if name == "retrieved_glr" else []
        rest = (HOPS, None) if name == "retrieved_recurrence" else (None,)
        grads = getattr(ops, name + "_backward")(y, kept, *tensors, indices, *rest, None, needs)
        assert [g.numel() > 0 for g in grads] == needs


def test_retrieved_recurrence_is_glr_on_the_nilpotent_system():
    """B = gate P (x) R, R the shift of hops + 1 blocks: node i (hops + 1) + r reads (i', r - 1)."""
    T, H, DV, blocks = 20, 2, 3, HOPS + 1
    (q, k, v, gate), indices = retrieval_inputs("retrieved_recurrence", T=T, H=H, G=H, DV=DV)
    P = weights(q, k, indices)
    x = torch.zeros(2, T, blocks, H, DV, dtype=torch.float64)
    x[:, :, 0] = v
    row_ptr, cols, beta = [0], [], []
    for i in range(T):
        for r in range(blocks):
            for j in range(i if r > 0 else 0):
                cols.append(j * blocks + r - 1)
                beta.append(gate[:, i] * P[:, :, i, j])
            row_ptr.append(len(cols))
    beta = torch.stack(beta, dim=-1)
    expected = ops.glr(
        torch.ones(2, H, T * blocks, dtype=torch.float64), torch.zeros_like(beta), beta,
        x.flatten(1, 2), torch.tensor(row_ptr), torch.tensor(cols, dtype=torch.int32),
    )  # fmt: skip
    expected = expected.unflatten(1, (T, blocks)).transpose(2, 3)
    assert_close(ops.retrieved_recurrence(q, k, v, gate, indices, HOPS), expected, torch.float64)


def test_retrieved_glr_on_a_pattern_is_glr_attention():
    """Lists that hold the rows of window(3), at every head."""
    T = 30
    tensors, _ = retrieval_inputs("retrieved_glr", T=T)
    tensors[3] = tensors[3] * 3 - 1.5  # gates of either sign
    indices = torch.arange(T)[:, None] - torch.tensor([3, 2, 1])
    indices = indices.clamp(min=-1).int().expand(2, 4, T, 3).transpose(1, 2)
    y = ops.retrieved_glr(*tensors, indices)
    assert torch.equal(y, ops.glr_attention(*tensors, "window(3)"))


WIDTHS = [[1], [6], [1, 1], [4, 1, 1], [6, 1, 1, 1], [1, 3], [2, 3], [3, 2, 2]]


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_neighborhood_is_its_definition(widths, cumulative):
    for T in (1, 2, 64, 65):
        indices = lists(T=T, L=3, W=6)
        assert torch.equal(ops.neighborhood(indices, widths, cumulative), neighborhood(indices, widths, cumulative))


def test_neighborhood_of_packed_sequences():
    lengths = [4, 0, 16, 1]
    indices = lists(B=1, T=21, lengths=lengths)
    bounds = torch.tensor([0, 4, 4, 20, 21])
    packed = ops.neighborhood(sliced(indices), [3, 2], True, cu_seqlens=bounds)
    pieces = [ops.neighborhood(part, [3, 2], True) for part in indices.split(lengths, dim=1)]
    assert torch.equal(packed, torch.cat(pieces, dim=1))


def test_neighborhood_feeds_gather_attention():
    """What it gives is accepted, and its order and doubles are gone: attention to the set."""
    tensors, _ = retrieval_inputs("gather_attention", T=40)
    links = ops.neighborhood(lists(T=40), [3, 1, 1], True)
    assert links.shape == (2, 40, 4, 9) and links.dtype == torch.int32
    valid = links >= 0
    assert (links[..., 1:] > links[..., :-1])[valid[..., 1:]].all()
    assert (valid[..., :-1] | ~valid[..., 1:]).all()  # -1 only at the end
    y = ops.gather_attention(*tensors, links)
    assert_close(y, dense("gather_attention", tensors, links), torch.float64)


def put(t, place, value):
    t = t.clone()
    t[place] = value
    return t


PLACE = (1, 3, 2, 4)
ERRORS = {
    "future": ("gather_attention", lambda i: put(i, PLACE, 4), r"indices\[1, 3, 2, 4\] is 4, but token 3 of its sequence must list positions from 0 to 3, or -1"),
    "below -1": ("gather_attention", lambda i: put(i, PLACE, -2), r"indices\[1, 3, 2, 4\] is -2"),
    "huge": ("gather_attention", lambda i: put(i, PLACE, 2**31 - 1), r"indices\[1, 3, 2, 4\] is 2147483647"),
    "self": ("retrieved_recurrence", lambda i: put(i, PLACE, 3), r"indices\[1, 3, 2, 4\] is 3, but token 3 of its sequence must list positions from 0 to 2"),
    "self in glr": ("retrieved_glr", lambda i: put(i, PLACE, 3), r"indices\[1, 3, 2, 4\] is 3"),
    "first": ("retrieved_glr", lambda i: put(i, (0, 0, 0, 0), 0), r"indices\[0, 0, 0, 0\] is 0, but token 0 .* from 0 to -1"),
    "dtype": ("gather_attention", lambda i: i.long(), "indices is Long, but must be Int"),
    "rank": ("gather_attention", lambda i: i[0], r"indices is \[20, 4, 5\], but must be \[B, T, lists, W\]"),
    "time": ("gather_attention", lambda i: i[:, :19], r"indices is .*T = 20 as in q"),
    "heads": ("gather_attention", lambda i: i[:, :, :3], r"indices is \[2, 20, 3, 5\], but must have a list for each of the 4 heads of q or of the 2 of k"),
}  # fmt: skip


@pytest.mark.parametrize("name,change,message", [pytest.param(*e, id=k) for k, e in ERRORS.items()])
def test_errors_name_the_place(name, change, message):
    tensors, indices = retrieval_inputs(name)
    with pytest.raises(ValueError, match=message) as error:
        call(name, tensors, change(indices))
    assert str(error.value).startswith(f"{name}: ") and "\n" not in str(error.value)


def test_other_errors():
    tensors, indices = retrieval_inputs("retrieved_recurrence")
    with pytest.raises(ValueError, match="hops is 0, but must be at least 1"):
        ops.retrieved_recurrence(*tensors, indices, 0)
    with pytest.raises(ValueError, match=r"gate is \[2, 20, 3\].*H = 4 as in q"):
        ops.retrieved_recurrence(*tensors[:3], tensors[3][..., :3], indices, 2)
    for widths, message in (
        ([], r"widths is \[\], but must have a width for each hop"),
        ([0], r"widths is \[0\], but each must be from 1 to the 5 that indices lists"),
        ([2, 6], r"widths is \[2, 6\], but each must be from 1 to the 5"),
        ([5] * 14, "their product must be below 2\\^31"),
    ):
        with pytest.raises(ValueError, match=message):
            ops.neighborhood(indices, widths, False)
    with pytest.raises(ValueError, match=r"neighborhood: indices\[0, 2, 1, 0\] is 3"):
        ops.neighborhood(put(indices, (0, 2, 1, 0), 3), [2], True)
    with pytest.raises(ValueError, match="batch 2, but must have batch 1"):
        ops.neighborhood(indices, [2], True, cu_seqlens=torch.tensor([0, 20]))
    # In a packed batch a position may not reach into the sequence before.
    tensors, indices = retrieval_inputs("gather_attention", B=1)
    bounds = torch.tensor([0, 12, 20])
    with pytest.raises(ValueError, match=r"indices\[0, 1[2-9], .*, but token \d of its sequence"):
        ops.gather_attention(*tensors, indices, cu_seqlens=bounds)


def test_backward_checks_its_indices_too():
    tensors, indices = retrieval_inputs("gather_attention")
    with pytest.raises(ValueError, match=r"gather_attention_backward: indices\[0, 0, 0, 0\] is 1000000"):
        ops.gather_attention_backward(
            call("gather_attention", tensors, indices), [], *tensors, put(indices, (0, 0, 0, 0), 1000000),
            None, None, [True] * 3 + [False],
        )  # fmt: skip
