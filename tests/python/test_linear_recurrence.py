"""linear_recurrence against its definition, its state across cuts, its gradients."""

import pytest
import torch

from operators import BOUNDS, DTYPES, assert_close, ops, rand, sliced, transposed, with_gradients


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
