"""What one operator alone promises: recurrences by channels, the short convolution, linear maps, the loss of a head."""

import pytest
import torch

from common import DTYPES, assert_close, ops, rand, with_gradients
from registry import BY_NAME


@pytest.mark.parametrize("T,E,block,dtype", [(1, 3, 1, "float64"), (2, 20, 1000, "float32"), (63, 64, 7, "bfloat16"), (100, 130, 16, "float32"), (100, 3, 1, "bfloat16")])
def test_window_of_a_sliding_window_recurrence(T, E, block, dtype):
    """Every token runs a recurrence of its own, from where its window begins."""

    def recur(a, x):
        y = []
        for t in range(T):
            h = torch.zeros_like(x[:, 0])
            for i in range(max(0, t // block - 1) * block, t + 1):
                h = a[:, i] * h + x[:, i]
            y.append(h)
        return torch.stack(y, dim=1)

    tensors = [rand(2, T, E, seed=i, dtype=DTYPES[dtype]) for i in (0, 1)]
    actual = with_gradients(lambda t: ops.sliding_window_recurrence(*t, block)[0], tensors)
    expected = with_gradients(lambda t: recur(*t), [t.double() for t in tensors])
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, DTYPES[dtype])


def test_window_as_long_as_the_text_is_the_linear_recurrence():
    a, x = rand(2, 50, 5), rand(2, 50, 5, seed=1)
    expected, last = ops.linear_recurrence(a, x)
    y, state = ops.sliding_window_recurrence(a, x, 50)
    assert torch.equal(y, expected) and torch.equal(state, torch.stack([last, last], dim=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_window_carries_over_every_two_cuts(dtype):
    a, x = rand(2, 20, 5, dtype=DTYPES[dtype]), rand(2, 20, 5, dtype=DTYPES[dtype], seed=1)
    y, last = ops.sliding_window_recurrence(a, x, 6)
    for first in range(21):
        for second in range(first, 21):
            state, parts = None, []
            for i, j in ((0, first), (first, second), (second, 20)):
                part, state = ops.sliding_window_recurrence(a[:, i:j], x[:, i:j], 6, state, i)
                parts.append(part)
            assert torch.equal(torch.cat(parts, dim=1), y) and torch.equal(state, last)


def test_window_gradients_from_any_start(monkeypatch):
    op = BY_NAME["sliding_window_recurrence"]
    for start in (0, 2, 4):
        op.compare(op.make(), torch.float64, block=4, start=start)


@pytest.mark.parametrize("T,E,S,dtype", [(1, 3, 1, "bfloat16"), (65, 100, 2, "bfloat16"), (200, 20, 16, "float64"), (200, 20, 16, "bfloat16"), (130, 5, 1, "float32")])
def test_states_of_a_selective_scan(T, E, S, dtype):
    op = BY_NAME["selective_scan"]
    op.compare(op.make(DTYPES[dtype], T=T, D=E, S=S), DTYPES[dtype])
    bare = {**op.make(DTYPES[dtype], T=T, D=E, S=S), "D": None, "initial_state": None}
    op.compare(bare, DTYPES[dtype])


def test_scan_of_one_state_is_the_linear_recurrence():
    u, delta, A, *_ = BY_NAME["selective_scan"].make(T=100, D=20, S=1).values()
    one = torch.ones(2, 100, 1, dtype=torch.float64)
    y, state = ops.selective_scan(u, delta, A, one, one)
    expected, last = ops.linear_recurrence(torch.exp(delta * A[:, 0]), delta * u)
    assert_close(y, expected, torch.float64)
    assert_close(state[..., 0], last, torch.float64)


@pytest.mark.parametrize("T,W,dtype", [(1, 4, "bfloat16"), (63, 1, "float32"), (65, 3, "float64"), (300, 9, "bfloat16"), (300, 32, "float32")])
def test_width_of_a_short_convolution(T, W, dtype):
    op = BY_NAME["short_convolution"]
    for silu in (False, True):
        op.compare(op.make(DTYPES[dtype], T=T, D=48, W=W), DTYPES[dtype], silu=silu)


def test_convolution_behind_a_cut_needs_the_inputs_before_it():
    x, w, b = BY_NAME["short_convolution"].make().values()
    y = ops.short_convolution(x, w, b, True)
    for cut in range(20):
        seen = min(cut, 3)
        assert torch.equal(ops.short_convolution(x[:, cut - seen :], w, b, True)[:, seen:], y[:, cut:])


def test_norm_of_the_usual_eps(monkeypatch):
    op = BY_NAME["rms_norm"]
    monkeypatch.setattr(op, "options", {})
    op.compare(op.make(), torch.float64)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3, 50), (0,), (3, 0), (0, 3)], ids=str)
def test_linear_maps_of_rows_of_any_shape(shape):
    for name, sizes in (("linear", [(20,), (7, 20), (7,)]), ("mlp", [(20,), (9, 20), (9,), (7, 9), (7,)])):
        op = BY_NAME[name]
        x, *rest = [rand(*(shape if i == 0 else ()), *size, seed=i) for i, size in enumerate(sizes)]
        tensors = dict(zip([t.name for t in op.inputs], [x, *rest]))
        actual, _ = op.compare(tensors, torch.float64)
        assert actual[0].shape == (*shape, 7)


def test_linear_of_empty_widths():
    assert ops.linear(torch.ones(3, 0), torch.ones(4, 0), torch.arange(4.0)).equal(torch.arange(4.0).expand(3, 4))
    assert ops.linear(torch.ones(3, 5), torch.ones(0, 5)).shape == (3, 0)


@pytest.mark.parametrize("rows", [1, 60, 2000])
def test_linear_maps_for_any_number_of_threads(rows, set_threads):
    results = []
    for threads in (1, 2, 3):
        set_threads(threads)
        results.append([])
        for name in ("linear", "mlp"):
            op = BY_NAME[name]
            run, leaves = op.of_leaves(op.make(torch.float32, B=1, T=rows, D=100, DV=130))
            results[-1] += with_gradients(run, leaves)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("widths", [[4, 3], [1, 3, 3], [4, 0, 3], [2, 2, 1, 1, 1]], ids=str)
def test_parts_are_slices_of_one_product(widths):
    tensors = [rand(2, 70, 5), rand(4, 5, seed=1), rand(3, 5, seed=2)]
    parts = ops.linear_parts(tensors[0], tensors[1:], widths)
    assert [p.shape[-1] for p in parts] == widths and all(p.is_contiguous() for p in parts)
    actual = with_gradients(lambda t: torch.cat(ops.linear_parts(t[0], t[1:], widths), -1), tensors)
    expected = with_gradients(lambda t: t[0] @ torch.cat(t[1:]).T, tensors)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, torch.float64)


def test_unread_parts_have_no_gradient():
    x, weight = rand(2, 70, 5).requires_grad_(), rand(4, 5, seed=1).requires_grad_()
    first, _ = ops.linear_parts(x, [weight], [1, 3])
    dx, dw = torch.autograd.grad(first.sum(), [x, weight])
    assert_close(dx, weight[:1].detach().expand_as(x), torch.float64)
    assert (dw[1:] == 0).all() and (dw[0] != 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_with_angles_of_each_row(dtype):
    op = BY_NAME["rope"]
    angles = rand(2, 65, 10, seed=2, low=-3, high=3)
    tensors = op.make(DTYPES[dtype], T=65, D=10)
    op.compare(tensors | {"cos": angles.cos().to(DTYPES[dtype]), "sin": angles.sin().to(DTYPES[dtype])}, DTYPES[dtype])


@pytest.mark.parametrize("N,D,V,dtype", [(1, 3, 1, "float64"), (2, 20, 5, "bfloat16"), (63, 64, 65, "float32"), (130, 3, 256, "float64"), (130, 3, 256, "bfloat16"), (100, 16, 1000, "float32"), (100, 16, 1000, "bfloat16")])
def test_losses_and_guesses_of_a_head(N, D, V, dtype):
    op = BY_NAME["head_loss"]
    tensors = op.make(DTYPES[dtype], B=1, T=N, D=D, DV=V)
    for weights in (tensors["row_weights"], None):
        given = {**tensors, "row_weights": weights}
        op.compare(given, DTYPES[dtype])
        (_, losses, guesses), (_, expected, best) = op.call(given), op.expected(given)
        assert torch.equal(guesses, best)
        assert_close(losses, expected, DTYPES[dtype], sums=True)


def test_loss_times_a_factor():
    op = BY_NAME["head_loss"]
    run, leaves = op.of_leaves(op.make(DV=90))
    exact, _ = op.of_leaves(op.make(DV=90), op.expected)
    for a, e in zip(with_gradients(lambda t: run(t)[0] * -3, leaves), with_gradients(lambda t: exact(t)[0] * -3, leaves)):
        assert_close(a, e, torch.float64)


def test_loss_of_no_rows():
    x, weight, bias, targets, _ = BY_NAME["head_loss"].make(T=0).values()
    loss, losses, guesses, dx, dw, db = with_gradients(lambda t: ops.head_loss(*t, targets)[:3], [x, weight, bias])
    assert loss == 0 and losses.shape == guesses.shape == (0,) and dx.shape == (0, 5)
    assert (dw == 0).all() and (db == 0).all()
