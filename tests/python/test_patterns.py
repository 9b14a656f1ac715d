"""Operators on patterns: every kind of pattern, a list or a spec, and what the normalized recurrences alone promise."""

import itertools

import pytest
import torch

from common import DTYPES, LENGTHS, assert_close, assert_equal, bounds, ops, rand, sliced, with_gradients
from registry import BY_NAME, PATTERNED, over

patterned = over(lambda op: op.name in PATTERNED)
NORMALIZED, SOFTMAX = BY_NAME["glr_normalized"], BY_NAME["glr_softmax"]


@patterned
def test_patterns_of_every_kind(op, monkeypatch):
    for spec in ("dense", "window(4)", "2^k", "cached(k^2+1)", "random(3,1)", "offsets(7,11)", "fenwick"):
        monkeypatch.setitem(op.options, "pattern", spec)
        op.compare(op.make(T=65), torch.float64)


@patterned
def test_a_list_is_its_spec(op):
    """To the bit, packed or not, with any strides, and when the list has rows to spare."""
    options = {n: x for n, x in op.options.items() if n != "pattern"}
    for dtype, lengths in itertools.product(DTYPES.values(), ([65], LENGTHS)):
        tensors = op.make(dtype, lengths=lengths)
        packing = {"cu_seqlens": bounds(lengths)} if len(lengths) > 1 else {}
        run, leaves = op.of_leaves(tensors, **packing)
        expected = with_gradients(run, leaves)
        for rows in (max(lengths), max(lengths) + 30):
            row_ptr, cols = (sliced(t) for t in ops.pattern("k^2+1", rows))
            by_list = lambda t: getattr(ops, op.name)(*t, row_ptr=row_ptr, cols=cols, **options, **packing)
            assert_equal(with_gradients(by_list, leaves), expected)


def test_pattern_is_its_rows():
    row_ptr, cols = ops.pattern("k^2+1", 8)
    assert row_ptr.dtype == torch.int64 and cols.dtype == torch.int32
    rows = [sorted(i - o for o in (1, 2, 5) if o <= i) for i in range(8)]
    assert row_ptr.tolist() == [sum(map(len, rows[:i])) for i in range(9)]
    assert cols.tolist() == sum(rows, [])


def test_a_spec_is_the_same_in_every_call():
    """Whatever lengths came before, and whether its parse was remembered or replaced by those of other specs."""
    whole = ops.pattern("k^2+7", 60)
    for n in (10, 60, 0, 59):
        row_ptr, cols = ops.pattern("k^2+7", n)
        assert torch.equal(row_ptr, whole[0][: n + 1]) and torch.equal(cols, whole[1][: row_ptr[-1]])
        for width in range(1, 20 if n == 60 else 3):
            assert ops.pattern(f"window({width})", 30)[0][-1] == sum(min(i, width) for i in range(30))
    for _ in range(2):
        assert ops.pattern("5-k", 3)[1].numel() == 0
        with pytest.raises(ValueError, match="5-k"):
            ops.pattern("5-k", 10)


def test_a_file_is_read_in_every_call(tmp_path):
    file = tmp_path / "rows.mtx"
    for source in (1, 2):
        file.write_text(f"%%MatrixMarket matrix coordinate pattern general\n3 3 1\n3 {source}\n")
        assert ops.pattern(f"dag({file})", 3)[1].tolist() == [source - 1]


def test_attention_without_reads_is_zero_and_self_can_be_left_out():
    y = ops.sparse_attention(*BY_NAME["sparse_attention"].make().values(), "offsets(7,11)", False)
    assert (y[:, :7] == 0).all() and (y[:, 7:] != 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate_on_the_read_token(dtype):
    tensors = SOFTMAX.make(DTYPES[dtype], T=65)
    (y, *_), _ = SOFTMAX.compare(tensors, DTYPES[dtype], gate_on_read=True)
    assert not torch.equal(y, SOFTMAX.call(tensors)[0])


def test_log_z_is_not_rounded_to_bfloat16():
    tensors = NORMALIZED.make(torch.bfloat16).values()
    _, log_z = ops.glr_normalized(*tensors, "k^2+1")
    _, exact = ops.glr_normalized(*(t.double() for t in tensors), "k^2+1")
    torch.testing.assert_close(log_z.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_absent_terms_have_no_weight_and_no_gradient(dtype):
    diag, alpha, beta, x = NORMALIZED.make(DTYPES[dtype]).values()
    diag[..., :3] = -torch.inf
    alpha[..., ::2] = -torch.inf  # rows 0 to 2 read (), (0), (0, 1): the reads 0, 1, 2
    alpha[..., 1] = beta[..., 5] = -torch.inf
    leaves = [t.requires_grad_() for t in (diag, alpha, beta, x)]
    y, log_z = ops.glr_normalized(*leaves, "k^2+1")
    assert (log_z[:, :3] == -torch.inf).all() and (y[:, :3] == 0).all()
    assert log_z[:, 3:].isfinite().all() and (y[:, 3:] != 0).all()
    (y.sum() + log_z[:, 3:].sum()).backward()
    for t in leaves:
        assert t.grad.isfinite().all()
        assert (t.grad[t == -torch.inf] == 0).all()


def test_ten_thousand_tokens_with_logarithms_of_fifty():
    """log z passes 400,000; z itself leaves the range of float64 within 20 tokens."""
    T = 10_000
    nnz = len(ops.pattern("window(1)", T)[1])
    logs = [torch.full((1, 1, n), 50.0, dtype=torch.float32) for n in (T, nnz, nnz)]
    x = rand(1, T, 1, 3, dtype=torch.float32)
    y, log_z = ops.glr_normalized(*logs, x, "window(1)")
    exact_y, exact_z = ops.glr_normalized(*(t.double() for t in (*logs, x)), "window(1)")
    assert exact_z[0, -1, 0] > 400_000
    torch.testing.assert_close(log_z.double(), exact_z, rtol=1e-7, atol=0)
    torch.testing.assert_close(y.double(), exact_y, rtol=0, atol=1e-5)
    plain = ops.glr(*(t.double().exp() for t in logs), torch.ones(1, T, 1, 1, dtype=torch.float64), "window(1)")
    assert plain[0, 20:].isinf().all()


def test_on_a_window_of_one_the_general_recurrence_is_the_linear_one():
    a, b, x = rand(2, 50, 3), rand(2, 50, 3, seed=1), rand(2, 50, 3, 4, seed=2)
    heads = lambda t: t.transpose(1, 2)
    y = ops.glr(heads(b), torch.zeros(2, 3, 49, dtype=a.dtype), heads(a)[..., 1:], x, "window(1)")
    per_channel = lambda t: t.repeat_interleave(4, dim=2)
    expected, _ = ops.linear_recurrence(per_channel(a), per_channel(b) * x.flatten(2))
    assert_close(y.flatten(2), expected, torch.float64)
