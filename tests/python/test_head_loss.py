"""head_loss against torch's linear and cross_entropy, its gradients, its errors."""

import pytest
import torch
import torch.nn.functional as F

from operators import DTYPES, assert_close, ops, rand, sliced, transposed


def problem(N, D, V, dtype=torch.float64):
    generator = torch.Generator().manual_seed(N + D + V)
    targets = torch.randint(0, V, (N,), generator=generator)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weights = rand(N, dtype=wide, low=0, high=2 / (N + 1), seed=4)
    tensors = [rand(N, D, dtype=dtype), rand(V, D, dtype=dtype, seed=1), rand(V, dtype=dtype, seed=2)]
    return tensors, targets, weights


def reference(x, weight, bias, targets, row_weights=None):
    """(loss, losses, guesses) by way of all logits."""
    logits = F.linear(x, weight, bias)
    losses = F.cross_entropy(logits, targets, reduction="none")
    loss = losses.mean() if row_weights is None else (losses * row_weights).sum()
    return loss, losses, logits.argmax(-1)


def with_gradients(function, tensors, targets, weights=None, factor=1.0):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    given = leaves if len(leaves) == 3 else [*leaves, None]
    loss, losses, guesses = function(*given, targets, weights)
    grads = torch.autograd.grad(loss * factor if factor != 1 else loss, leaves)
    return loss.detach(), losses.detach(), guesses, *grads


SIZES = [(1, 3, 1), (2, 20, 5), (63, 64, 65), (65, 100, 40), (130, 3, 256), (100, 16, 1000)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("N,D,V", SIZES)
def test_head_loss_matches_torch(N, D, V, dtype, weighted):
    dtype = DTYPES[dtype]
    tensors, targets, weights = problem(N, D, V, dtype)
    given = weights if weighted else None
    actual = with_gradients(ops.head_loss, tensors, targets, given)
    exact = [t.double() for t in tensors]
    expected = with_gradients(reference, exact, targets, given.double() if weighted else None)
    assert torch.equal(actual[2], expected[2])
    for i in (0, 1):
        assert_close(actual[i], expected[i], weights.dtype)
    for a, e in zip(actual[3:], expected[3:]):
        assert_close(a, e, dtype)


@pytest.mark.parametrize("which", ["all", 0, 1, 2])
def test_head_loss_gradcheck(which):
    tensors, targets, weights = problem(9, 3, 7)
    for index, t in enumerate(tensors):
        t.requires_grad_(which in ("all", index))
    loss = lambda *t: ops.head_loss(*t, targets, weights)[0] * 1.5
    assert torch.autograd.gradcheck(loss, tensors, atol=1e-7, rtol=1e-6)


def test_head_loss_without_bias_and_with_a_factor():
    tensors, targets, weights = problem(70, 5, 90)
    actual = with_gradients(ops.head_loss, tensors[:2], targets, weights, factor=-3.0)
    expected = with_gradients(reference, tensors[:2], targets, weights, factor=-3.0)
    for a, e in zip(actual, expected):
        torch.testing.assert_close(a, e)


def test_head_loss_strides_and_empty():
    tensors, targets, weights = problem(70, 5, 90)
    plain = with_gradients(ops.head_loss, tensors, targets, weights)
    for layout in (transposed, sliced):
        odd = lambda x, w, b, t, r: ops.head_loss(layout(x), layout(w), sliced(b), sliced(t), sliced(r))
        assert all(torch.equal(p, s) for p, s in zip(plain, with_gradients(odd, tensors, targets, weights)))
    tensors[0] = tensors[0][:0]
    loss, losses, guesses, dx, dw, db = with_gradients(ops.head_loss, tensors, targets[:0])
    assert loss == 0 and losses.shape == guesses.shape == (0,) and dx.shape == (0, 5)
    assert (dw == 0).all() and (db == 0).all()


def test_head_loss_same_bits_for_any_number_of_threads():
    tensors, targets, weights = problem(300, 20, 500, torch.float32)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(with_gradients(ops.head_loss, tensors, targets, weights))
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_head_loss_gradients_can_be_taken_again():
    tensors, targets, _ = problem(9, 3, 7)
    leaves = [t.requires_grad_() for t in tensors]
    loss = ops.head_loss(*leaves, targets)[0]
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    first[0].zero_()
    twice = torch.autograd.grad(2 * loss, leaves)
    expected = torch.autograd.grad(2 * reference(*leaves, targets)[0], leaves)
    for a, e in zip(twice, expected):
        torch.testing.assert_close(a, e)


def test_head_loss_twice_differentiable_is_an_error():
    tensors, targets, _ = problem(9, 3, 7)
    leaves = [t.requires_grad_() for t in tensors]
    (grad,) = torch.autograd.grad(ops.head_loss(*leaves, targets)[0], leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="head_loss_backward is not implemented"):
        grad.sum().backward()


def test_head_loss_compiles_whole():
    tensors, targets, weights = problem(20, 3, 30)
    model = lambda *t: ops.head_loss(t[0] * 1.5, *t[1:])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for a, e in zip(
        with_gradients(compiled, tensors, targets, weights),
        with_gradients(model, tensors, targets, weights),
    ):
        torch.testing.assert_close(a, e)


X, W, B, T = rand(4, 5), rand(7, 5), rand(7), torch.tensor([0, 6, 3, 1])


@pytest.mark.parametrize(
    "x,weight,bias,targets,weights,message",
    [
        (X[0], W, B, T, None, "x is [5], but must be [N, D]"),
        (X, W[:, :4], B, T, None, "weight is [7, 4], but must be [V, D] with D = 5 as in x"),
        (X, W, B[:6], T, None, "bias is [6], but must be [V] with V = 7 as in weight"),
        (X, W, B, T[:3], None, "targets is [3], but must be [N] with N = 4 as in x"),
        (X, W, B, T.int(), None, "targets is Int, but must be Long [N]"),
        (X, W, B, T + 1, None, "targets[1] is 7, but must be from 0 to V - 1 = 6"),
        (X, W, B, T - 1, None, "targets[0] is -1, but must be from 0 to V - 1 = 6"),
        (X, W, B, T, B[:4].float(), "row_weights is Float, but must be Double for Double inputs"),
        (X, W, B, T, B[:4].requires_grad_(), "row_weights requires a gradient, but has none"),
    ],
)
def test_head_loss_errors(x, weight, bias, targets, weights, message):
    with pytest.raises(ValueError) as error:
        ops.head_loss(x, weight, bias, targets, weights)
    assert str(error.value).splitlines()[0] == "head_loss: " + message
