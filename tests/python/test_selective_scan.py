"""selective_scan against its definition, its state across cuts, its gradients, what it contains."""

import subprocess
import sys

import pytest
import torch

from operators import BOUNDS, DTYPES, LIBRARY, assert_close, ops, rand, sliced, transposed, with_gradients


def scan(u, delta, A, B, C, D=None, h=None):
    """By the definition."""
    h = torch.zeros(u.shape[0], *A.shape, dtype=A.dtype) if h is None else h
    ys = []
    for t in range(u.shape[1]):
        x = (delta[:, t] * u[:, t]).unsqueeze(2) * B[:, t].unsqueeze(1)
        h = torch.exp(delta[:, t].unsqueeze(2) * A) * h + x
        ys.append((h * C[:, t].unsqueeze(1)).sum(2))
    y = torch.stack(ys, dim=1)
    return (y if D is None else y + D * u), h


def inputs(B, T, E, S, dtype=torch.float64, N=None):
    """u, delta, A, B, C, D, initial_state; parameters and states in the type of sums."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return [
        rand(B, T, E, dtype=dtype), rand(B, T, E, dtype=dtype, seed=1, low=0.01, high=1),
        rand(E, S, dtype=wide, seed=2, low=-3, high=-0.1), rand(B, T, S, dtype=dtype, seed=3),
        rand(B, T, S, dtype=dtype, seed=4), rand(E, dtype=wide, seed=5), rand(N or B, E, S, dtype=wide, seed=6),
    ]  # fmt: skip


def weighted(function, weights):
    """Both outputs as one number a call, for gradients through both."""
    return lambda t: sum((o * w.to(o.dtype)).sum().double() for o, w in zip(function(*t), weights)).reshape(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("T,E,S", [(1, 3, 1), (2, 20, 3), (63, 64, 4), (65, 100, 2), (200, 20, 16)])
def test_selective_scan_matches_the_definition(T, E, S, dtype):
    dtype = DTYPES[dtype]
    for count in (5, 6, 7):  # without D, without an initial state
        tensors = inputs(2, T, E, S, dtype)[:count]
        exact = [t.double() for t in tensors]
        for a, e in zip(ops.selective_scan(*tensors), scan(*exact)):
            assert_close(a, e, a.dtype)
    weights = [w.bfloat16().double() for w in (rand(2, T, E, seed=7), rand(2, E, S, seed=8))]  # exact in every type
    actual = with_gradients(weighted(ops.selective_scan, weights), tensors, torch.ones(1))[1:]
    expected = with_gradients(weighted(scan, weights), exact, torch.ones(1))[1:]
    for a, e in zip(actual, expected):
        assert_close(a, e, a.dtype)


@pytest.mark.parametrize("which", ["all", *range(7)])
def test_selective_scan_gradcheck(which):
    for B, N, cu in ((2, 2, None), (1, 3, torch.tensor([0, 4, 4, 9]))):
        tensors = inputs(B, 9, 3, 2, N=N)
        for index, t in enumerate(tensors):
            t.requires_grad_(which in ("all", index))
        assert torch.autograd.gradcheck(lambda *t: ops.selective_scan(*t, cu), tensors, atol=1e-7, rtol=1e-6)


def test_initial_state_without_d_gets_its_gradient():
    *tensors, _, h = inputs(2, 9, 3, 2)
    run = lambda f: with_gradients(lambda t: f(*t[:5], None, t[5])[0], [*tensors, h])
    for a, e in zip(run(ops.selective_scan), run(scan)):
        assert_close(a, e, torch.float64)


def test_gradient_through_the_final_state_alone():
    tensors = inputs(2, 70, 3, 2)
    tensors = tensors[:4] + tensors[6:]  # C and D have nothing to do with it
    last = lambda f: lambda t: f(*t[:4], torch.ones_like(t[3]), None, t[4])[1]
    for a, e in zip(with_gradients(last(ops.selective_scan), tensors), with_gradients(last(scan), tensors)):
        assert_close(a, e, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_state_carries_over_every_cut(dtype):
    *in_time, A, B, C, D, h = inputs(2, 70, 5, 3, DTYPES[dtype])
    y, last = ops.selective_scan(*in_time, A, B, C, D, h)
    for cut in range(71):
        part = lambda s, h: ops.selective_scan(*(t[:, s] for t in in_time), A, B[:, s], C[:, s], D, h)
        first, state = part(slice(0, cut), h)
        second, end = part(slice(cut, 70), state)
        assert torch.equal(torch.cat([first, second], dim=1), y) and torch.equal(end, last)


def test_selective_scan_packed_equals_separate():
    u, delta, A, B, C, D, h = inputs(1, 70, 5, 3, N=7)
    y, state = ops.selective_scan(u, delta, A, B, C, D, h, BOUNDS)
    for n, (i, j) in enumerate(zip(BOUNDS[:-1], BOUNDS[1:])):
        alone, end = ops.selective_scan(u[:, i:j], delta[:, i:j], A, B[:, i:j], C[:, i:j], D, h[n : n + 1])
        assert torch.equal(y[:, i:j], alone) and torch.equal(state[n : n + 1], end)


def test_selective_scan_strides_and_empty():
    tensors = inputs(2, 9, 5, 3)
    plain = ops.selective_scan(*tensors)
    for layout in (transposed, sliced):
        strided = [t if t.dim() == 1 else layout(t) for t in tensors]
        assert all(torch.equal(p, q) for p, q in zip(plain, ops.selective_scan(*strided)))
    u, delta, A, B, C, D, h = tensors
    y, state = ops.selective_scan(u[:, :0], delta[:, :0], A, B[:, :0], C[:, :0], D, h)
    assert y.shape == (2, 0, 5) and torch.equal(state, h)
    y, *grads = with_gradients(lambda t: ops.selective_scan(*t)[0], [u[:0], delta[:0], A, B[:0], C[:0], D, h[:0]])
    assert y.shape == (0, 9, 5) and torch.equal(grads[2], torch.zeros_like(A))


def test_with_one_state_it_is_the_linear_recurrence():
    u, delta, A, *_ = inputs(2, 100, 20, 1)
    one = torch.ones(2, 100, 1, dtype=torch.float64)
    y, state = ops.selective_scan(u, delta, A, one, one)
    expected, last = ops.linear_recurrence(torch.exp(delta * A[:, 0]), delta * u)
    assert_close(y, expected, torch.float64)
    assert_close(state[..., 0], last, torch.float64)


def test_on_a_window_of_one_the_general_recurrence_is_the_linear_one():
    a, b, x = rand(2, 50, 3), rand(2, 50, 3, seed=1), rand(2, 50, 3, 4, seed=2)
    heads = lambda t: t.transpose(1, 2)
    y = ops.glr(heads(b), torch.zeros(2, 3, 49, dtype=a.dtype), heads(a)[..., 1:], x, "window(1)")
    per_channel = lambda t: t.repeat_interleave(4, dim=2)
    expected, _ = ops.linear_recurrence(per_channel(a), per_channel(b) * x.flatten(2))
    assert_close(y.flatten(2), expected, torch.float64)


def test_selective_scan_compiles_whole():
    model = lambda t: sum(o.sin().sum() for o in ops.selective_scan(*t)).reshape(1)
    tensors = inputs(2, 9, 3, 2)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for a, e in zip(with_gradients(compiled, tensors), with_gradients(model, tensors)):
        torch.testing.assert_close(a, e)


MEASURE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
torch.set_num_threads(1)

def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024

def train(T, E=256, S=16):
    u, delta, B, C = (torch.rand(1, T, n, requires_grad=True) for n in (E, E, S, S))
    A, D = torch.rand(E, S).neg().requires_grad_(), torch.ones(E, requires_grad=True)
    torch.ops.hopmix.selective_scan(u, delta, A, B, C, D)[0].sum().backward()

train(64)
for T in (8192, 16384):
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
    before = peak()
    train(T)
    print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_training_memory_grows_with_tokens_not_states():
    run = [sys.executable, "-c", MEASURE, str(LIBRARY)]
    text = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    for T, used in zip((8192, 16384), map(int, text.split())):
        # u, delta, B, C, y, three gradients as large as the first two, a state in 64; every state would be 16 tensors.
        assert used < 8 * T * 256 * 4


@pytest.mark.parametrize(
    "index,tensor,message",
    [
        (1, rand(2, 9, 4), "delta is [2, 9, 4], but must be [B, T, E] with E = 5 as in u"),
        (2, rand(5, 0), "A is [5, 0], but must be [E, S] with S at least 1"),
        (2, rand(5, 3).float(), "A is Float, but must be Double for Double inputs"),
        (3, rand(2, 9, 4), "B is [2, 9, 4], but must be [B, T, S] with S = 3 as in A"),
        (5, rand(4), "D is [4], but must be [E] with E = 5 as in u"),
        (6, rand(3, 5, 3), "initial_state is [3, 5, 3], but must be [N, E, S] with N = 2 as in u"),
    ],
)
def test_selective_scan_errors(index, tensor, message):
    tensors = inputs(2, 9, 5, 3)
    tensors[index] = tensor
    with pytest.raises(ValueError) as error:
        ops.selective_scan(*tensors)
    assert str(error.value).splitlines()[0] == "selective_scan: " + message
