"""What the normalized recurrences alone promise: absent terms, log z, no overflow, the gate on the read token."""

import pytest
import torch

from operators import DTYPES, assert_close, call, inputs, ops, rand, reference, with_gradients


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate_on_the_read_token(dtype):
    dtype = DTYPES[dtype]
    tensors = inputs("glr_softmax", T=65, dtype=dtype)
    weight = rand(2, 65, 4, 3, seed=9, dtype=dtype)
    function = lambda t: call("glr_softmax", t, "k^2+1", gate_on_read=True)
    exact = lambda t: reference("glr_softmax", t, ops.pattern("k^2+1", 65), gate_on_read=True)
    actual = with_gradients(function, tensors, weight)
    expected = with_gradients(exact, [t.double() for t in tensors], weight)
    for a, e in zip(actual, expected):
        assert_close(a, e, dtype)
    assert not torch.equal(actual[0], call("glr_softmax", tensors, "k^2+1"))


def test_gradcheck_with_the_gate_on_the_read_token():
    tensors = [t.requires_grad_() for t in inputs("glr_softmax", T=9, D=3, DV=2)]
    function = lambda *t: call("glr_softmax", t, "k^2+1", gate_on_read=True)
    assert torch.autograd.gradcheck(function, tensors, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("of", ["y", "log_z"])
def test_a_loss_on_one_output_alone(of):
    tensors = [t.requires_grad_() for t in inputs("glr_normalized", T=9)]
    one = lambda *t: ops.glr_normalized(*t, "k^2+1")[("y", "log_z").index(of)]
    assert torch.autograd.gradcheck(one, tensors, atol=1e-7, rtol=1e-6)


def test_log_z_is_not_rounded_to_bfloat16():
    tensors = inputs("glr_normalized", dtype=torch.bfloat16)
    y, log_z = ops.glr_normalized(*tensors, "k^2+1")
    assert y.dtype == torch.bfloat16 and log_z.dtype == torch.float32
    _, exact = ops.glr_normalized(*(t.double() for t in tensors), "k^2+1")
    assert exact.dtype == torch.float64
    torch.testing.assert_close(log_z.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_absent_terms_have_no_weight_and_no_gradient(dtype):
    diag, alpha, beta, x = inputs("glr_normalized", T=20, dtype=DTYPES[dtype])
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
