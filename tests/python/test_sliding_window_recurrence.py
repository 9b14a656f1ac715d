"""sliding_window_recurrence against its definition, its state across cuts, its gradients."""

import pytest
import torch

from operators import BOUNDS, DTYPES, assert_close, ops, rand, sliced, transposed, with_gradients


def recur(a, x, block):
    """By the definition: every token runs a recurrence of its own, from where its window begins."""
    ys = []
    for t in range(x.shape[1]):
        y = torch.zeros_like(x[:, 0])
        for i in range(max(0, t // block - 1) * block, t + 1):
            y = a[:, i] * y + x[:, i]
        ys.append(y)
    return torch.stack(ys, dim=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [1, 7, 16, 1000])
@pytest.mark.parametrize("T,E", [(1, 3), (2, 20), (63, 64), (100, 130)])
def test_sliding_window_recurrence_matches_the_definition(T, E, block, dtype):
    dtype = DTYPES[dtype]
    tensors = [rand(2, T, E, dtype=dtype), rand(2, T, E, dtype=dtype, seed=1)]
    weight = rand(2, T, E, dtype=dtype, seed=2)
    actual = with_gradients(lambda t: ops.sliding_window_recurrence(*t, block)[0], tensors, weight)
    expected = with_gradients(lambda t: recur(*t, block), [t.double() for t in tensors], weight)
    for a, e in zip(actual, expected):
        assert_close(a, e, dtype)


def test_with_a_block_as_long_as_the_text_it_is_the_linear_recurrence():
    a, x = rand(2, 50, 5), rand(2, 50, 5, seed=1)
    expected, last = ops.linear_recurrence(a, x)
    y, state = ops.sliding_window_recurrence(a, x, 50)
    assert torch.equal(y, expected) and torch.equal(state, torch.stack([last, last], dim=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_state_carries_over_every_two_cuts(dtype):
    a, x = rand(2, 20, 5, dtype=DTYPES[dtype]), rand(2, 20, 5, dtype=DTYPES[dtype], seed=1)
    y, last = ops.sliding_window_recurrence(a, x, 6)
    for first in range(21):
        for second in range(first, 21):
            state, parts = None, []
            for i, j in ((0, first), (first, second), (second, 20)):
                part, state = ops.sliding_window_recurrence(a[:, i:j], x[:, i:j], 6, state, i)
                parts.append(part)
            assert torch.equal(torch.cat(parts, dim=1), y) and torch.equal(state, last)


@pytest.mark.parametrize("start", [0, 2, 4])
def test_sliding_window_recurrence_gradcheck(start):
    for B, N, cu in ((2, 2, None), (1, 3, torch.tensor([0, 4, 4, 9]))):
        for which in range(4):
            tensors = [rand(B, 9, 3), rand(B, 9, 3, seed=1), rand(N, 2, 3)]
            for index, t in enumerate(tensors):
                t.requires_grad_(which in (3, index))
            assert torch.autograd.gradcheck(
                lambda a, x, s: ops.sliding_window_recurrence(a, x, 4, s, start, cu), tensors, atol=1e-7, rtol=1e-6
            )


def test_sliding_window_recurrence_packed_equals_separate():
    a, x, s = rand(1, 70, 5), rand(1, 70, 5, seed=1), rand(7, 2, 5)
    y, state = ops.sliding_window_recurrence(a, x, 8, s, 3, BOUNDS)
    for n, (i, j) in enumerate(zip(BOUNDS[:-1], BOUNDS[1:])):
        alone, end = ops.sliding_window_recurrence(a[:, i:j], x[:, i:j], 8, s[n : n + 1], 3)
        assert torch.equal(y[:, i:j], alone) and torch.equal(state[n : n + 1], end)


def test_sliding_window_recurrence_strides_and_empty():
    a, x, s = rand(2, 9, 5), rand(2, 9, 5, seed=1), rand(2, 2, 5)
    plain = ops.sliding_window_recurrence(a, x, 4, s, 1)
    for layout in (transposed, sliced):
        strided = ops.sliding_window_recurrence(layout(a), layout(x), 4, layout(s), 1)
        assert all(torch.equal(p, q) for p, q in zip(plain, strided))
    y, state = ops.sliding_window_recurrence(a[:, :0], x[:, :0], 4, s, 1)
    assert y.shape == (2, 0, 5) and torch.equal(state, s)


def test_sliding_window_recurrence_compiles_whole():
    model = lambda t: sum(o.sin().sum() for o in ops.sliding_window_recurrence(*t[:2], 4, t[2], 6)).reshape(1)
    tensors = [rand(2, 9, 3), rand(2, 9, 3, seed=1), rand(2, 2, 3)]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for a, e in zip(with_gradients(compiled, tensors), with_gradients(model, tensors)):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize(
    "block,state,start,message",
    [
        (0, None, 0, "block is 0, but must be at least 1"),
        (4, None, -1, "start is -1, but must be at least 0"),
        (4, rand(2, 3, 5), 0, "initial_state is [2, 3, 5], but must be [N, 2, E]"),
    ],
)
def test_sliding_window_recurrence_errors(block, state, start, message):
    with pytest.raises(ValueError) as error:
        ops.sliding_window_recurrence(rand(2, 9, 5), rand(2, 9, 5), block, state, start)
    assert str(error.value).splitlines()[0] == "sliding_window_recurrence: " + message
