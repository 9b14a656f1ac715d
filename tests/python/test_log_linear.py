"""Log-linear attention and its delta rule against their definition, and where they are something known."""

import subprocess
import sys

import pytest
import torch

from delta import assert_near
from log_linear import (
    KINDS,
    NAMES,
    call,
    definition,
    level_table,
    levels,
    log_linear_inputs,
    recurrence,
    results,
)
from operators import BOUNDS, DTYPES, LENGTHS, LIBRARY, ops, rand, sliced, transposed
from test_blockwise import products  # noqa: F401
from test_ops import filled_with_nan  # noqa: F401

SIZES = [
    (1, 3, 5), (2, 20, 3), (3, 5, 5), (63, 64, 20), (64, 20, 64), (65, 100, 64), (100, 64, 100), (128, 5, 33),
    (129, 20, 7), (450, 5, 3),
]  # fmt: skip


def compare(name, tensors, dtype, reference=definition, **kwargs):
    actual = results(lambda t: call(name, t, **kwargs), tensors)
    expected = results(lambda t: reference(*t, **kwargs), [t.double() for t in tensors])
    for what, a, e in zip(["o", *KINDS[name]], actual, expected):
        assert_near(a, e, dtype, what)


def test_the_level_of_a_pair_is_the_number_of_bits_in_which_they_differ():
    table = level_table(70)
    for i in range(70):
        for j in range(i + 1):
            assert table[i, j] == (i ^ j).bit_length()
    assert table.max() == levels(70) - 1 == 7


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("T,D,DV", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_matches_the_definition(name, T, D, DV, dtype, products):
    B, H = (1, 2) if T >= 100 else (2, 4)
    compare(name, log_linear_inputs(name, B, T, H, H // 2, D, DV, dtype=DTYPES[dtype]), DTYPES[dtype])


@pytest.mark.parametrize("name", NAMES)
def test_a_thousand_tokens_a_scale_and_levels_to_spare(name):
    tensors = log_linear_inputs(name, B=1, T=1000, H=1, G=1, D=4, DV=2, L=13, strongest=0.02)
    compare(name, tensors, torch.float64, recurrence, scale=-0.7)
    unread = results(lambda t: call(name, t), tensors)[-1][..., levels(1000) :]
    assert (unread == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_float32_over_many_chunks(name):
    """Sixteen chunks and more, so that carries run over several bits."""
    compare(name, log_linear_inputs(name, 1, 1100, 2, 1, 8, 8, dtype=torch.float32, strongest=0.02), torch.float32, recurrence)


def test_by_hand():
    """Token 6 = 110 reads itself at level 0, tokens 4 and 5 at level 2, 0 to 3 at level 3; each is one here."""
    T = 7
    one = torch.ones(1, T, 1, 1).double()
    scales = 10.0 ** torch.arange(4).expand(1, T, 1, 4).double()
    o = ops.log_linear_attention(one, one, one, torch.zeros(1, T, 1).double(), scales)
    assert o.flatten().tolist() == [1, 11, 201, 211, 4001, 4011, 4201]


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_factors_give_ssd_and_the_gated_delta_rule(dtype):
    dtype = DTYPES[dtype]
    for name, plain in zip(NAMES, ("ssd", "gated_delta_rule")):
        *tensors, scales = log_linear_inputs(name, T=300, D=20, dtype=dtype)
        actual = results(lambda t: call(name, [*t, torch.ones_like(scales)]), tensors)
        expected = results(lambda t: getattr(ops, plain)(*t)[0], [t.double() for t in tensors])
        for what, a, e in zip(["o", *KINDS[name]], actual, expected):
            assert_near(a, e, dtype, f"{name}: {what}")


def test_without_corrections_the_delta_rule_is_attention():
    """Keys that are orthogonal within a text are never corrected."""
    q, _, v, g, beta, scales = log_linear_inputs("log_linear_delta_rule", 1, 100, 2, 1, 100, 5)
    k = torch.linalg.qr(rand(100, 100, seed=2))[0].view(1, 100, 1, 100)
    corrected = ops.log_linear_delta_rule(q, k, v, g, torch.ones_like(beta), scales)
    assert_near(corrected, ops.log_linear_attention(q, k, v, g, scales), torch.float64)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gates", ["one strong", "every one strong", "mixed", "none", "infinite", "small behind strong"])
@pytest.mark.parametrize("name", NAMES)
def test_gates_of_any_strength(name, gates, dtype):
    dtype = DTYPES[dtype]
    tensors = log_linear_inputs(name, B=1, T=260, H=2, G=1, dtype=dtype)
    g = torch.zeros_like(tensors[3])
    if gates == "one strong":
        g[:, 70] = -50
    elif gates == "every one strong":
        g[:] = -100
    elif gates == "mixed":
        g = torch.where(tensors[3] < -0.25, -100.0, 0.0).to(dtype)
    elif gates == "infinite":
        g[:, [0, 5, 6, 64, 149, 259]] = -torch.inf
    elif gates == "small behind strong":
        g = tensors[3].clone() * 1e-3
        g[:, ::16] = -300
    tensors[3] = g
    actual = results(lambda t: call(name, t), tensors)
    expected = results(lambda t: definition(*t), [t.double() for t in tensors])
    for what, a, e in zip(["o", *KINDS[name]], actual, expected):
        assert a.isfinite().all(), what
        assert_near(a, e.nan_to_num(0), dtype, what)


@pytest.mark.parametrize("name", NAMES)
def test_error_of_the_decay_gradient_does_not_grow_with_time(name):
    errors = []
    for T in (256, 8192):
        tensors = log_linear_inputs(name, 1, T, 1, 1, 16, 16, strongest=4.0)
        run_as = lambda dtype: results(lambda t: call(name, t), [t.to(dtype) for t in tensors])[4]
        errors.append((run_as(torch.float32).double() - run_as(torch.float64))[:, :256].abs().max())
    assert errors[1] < 3 * errors[0]


@pytest.mark.parametrize("name", NAMES)
def test_negative_eigenvalues(name):
    """beta in (0, 2): 1 - beta k k^T has an eigenvalue down to -1."""
    tensors = log_linear_inputs(name, T=200, dtype=torch.float32)
    tensors[-2] = tensors[-2] * (2 if name == "log_linear_delta_rule" else 1)
    compare(name, tensors, torch.float32)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    for B, cu in ((2, None), (1, torch.tensor([0, 4, 4, 9]))):
        tensors = log_linear_inputs(name, B=B, T=9, H=2, G=1, D=3, DV=2)
        for which in range(len(tensors) + 1):
            for index, t in enumerate(tensors):
                t.requires_grad_(which in (len(tensors), index))
            assert torch.autograd.gradcheck(lambda *t: call(name, t, cu_seqlens=cu), tensors, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck_across_chunks(name):
    tensors = log_linear_inputs(name, B=1, T=200, H=1, G=1, D=1, DV=1, strongest=0.02)
    for t in tensors[:-1]:
        t.requires_grad_()
    assert torch.autograd.gradcheck(lambda *t: call(name, t), tensors, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_no_token_sees_the_future(name):
    tensors = log_linear_inputs(name, T=200, D=20, dtype=torch.float32)
    o = call(name, tensors)
    for cut in (1, 30, 64, 100, 128, 199):
        later = [t.clone() for t in tensors]
        for t, factor in zip(later, (1e4, 1 if name == "log_linear_delta_rule" else 1e18, 1e18, 100)):
            t[:, cut:] *= factor
        later[-1][:, cut:] = 1e10
        changed = call(name, later)
        assert torch.equal(changed[:, :cut], o[:, :cut]) and not torch.equal(changed[:, cut:], o[:, cut:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_prefix_is_the_same(name, dtype):
    tensors = log_linear_inputs(name, T=330, D=20, dtype=DTYPES[dtype])
    o = call(name, tensors)
    for cut in (1, 17, 63, 64, 65, 130, 192, 329):
        assert_near(call(name, [t[:, :cut] for t in tensors]), o[:, :cut].double(), DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_equal_separate_ones(name, dtype):
    lengths = [*LENGTHS, 200, 0, 65]
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    tensors = log_linear_inputs(name, B=1, T=sum(lengths), L=levels(200), dtype=DTYPES[dtype])
    cut = lambda t, a, b: [x[:, a:b] for x in t]
    separately = lambda t: torch.cat([call(name, cut(t, a, b)) for a, b in zip(bounds[:-1], bounds[1:])], dim=1)
    packed = results(lambda t: call(name, t, cu_seqlens=bounds), tensors)
    for a, e in zip(packed, results(separately, tensors)):
        assert torch.equal(a, e)


@pytest.mark.parametrize("name", NAMES)
def test_grouped_heads_equal_repeated_ones(name):
    tensors = log_linear_inputs(name, T=150, H=6, G=2)
    repeat = lambda t: [t[0], *(x.repeat_interleave(3, dim=2) for x in t[1:3]), *t[3:]]
    for a, e in zip(results(lambda t: call(name, t), tensors), results(lambda t: call(name, repeat(t)), tensors)):
        assert_near(a, e, torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_strides_do_not_matter(name):
    tensors = log_linear_inputs(name, T=70)
    plain = results(lambda t: call(name, t), tensors)
    for layout in (transposed, sliced):
        strided = results(lambda t: call(name, [layout(x) for x in t]), tensors)
        assert all(torch.equal(a, e) for a, e in zip(strided, plain))


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_for_any_number_of_threads(name):
    tensors = log_linear_inputs(name, T=300, H=6, G=2, dtype=torch.float32)
    before, all_results = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        all_results.append(results(lambda t: call(name, t), tensors))
    torch.set_num_threads(before)
    for other in all_results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(all_results[0], other))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_written(name, dtype, filled_with_nan):
    tensors = log_linear_inputs(name, B=1, T=sum(LENGTHS), L=9, dtype=DTYPES[dtype])
    for t in results(lambda t: call(name, t, cu_seqlens=BOUNDS), tensors):
        assert t.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_empty(name):
    for B, T, DV in ((0, 5, 3), (2, 0, 3), (2, 5, 0)):
        tensors = log_linear_inputs(name, B=B, T=T, DV=DV)
        o, *grads = results(lambda t: call(name, t), tensors)
        assert o.shape == (B, T, 4, DV)
        for g, t in zip(grads, tensors):
            assert g.shape == t.shape and (g == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_only_asked_gradients(name):
    tensors = log_linear_inputs(name, T=150)
    whole = results(lambda t: call(name, t), tensors)[1:]
    for index in range(len(tensors)):
        leaves = [t.clone().requires_grad_(i == index) for i, t in enumerate(tensors)]
        o = call(name, leaves)
        (grad,) = torch.autograd.grad(o, leaves[index], rand(*o.shape, seed=9))
        assert torch.equal(grad, whole[index]), KINDS[name][index]


@pytest.mark.parametrize("name", NAMES)
def test_errors(name):
    tensors = log_linear_inputs(name)
    last = len(tensors) - 1
    for index, new, message in (
        (3, tensors[3][..., :2], r"log_decay is \[2, 20, 2\], but must be \[B, T, H\] with H = 4 as in q"),
        (last, tensors[last].float(), "level_scales is Float, but must be Double like q"),
        (last, tensors[last][:, :, :3], r"level_scales is .*H = 4 as in q"),
        (last, tensors[last][..., :5], "level_scales has L = 5 levels, but must have at least L = 6 for 20 tokens$"),
        (1, tensors[1][..., :3], r"k is .*DK = 5 as in q"),
    ):
        spoiled = [new if i == index else t for i, t in enumerate(tensors)]
        with pytest.raises(ValueError, match=f"^{name}: {message}"):
            call(name, spoiled)
        with pytest.raises(ValueError, match=f"^{name}: {message}"):
            call(name, [t.to("meta") for t in spoiled])


@pytest.mark.parametrize("name", NAMES)
def test_levels_are_those_of_the_longest_packed_sequence(name):
    tensors = log_linear_inputs(name, B=1, T=20, L=4)
    call(name, tensors, cu_seqlens=torch.tensor([0, 8, 16, 20]))
    with pytest.raises(ValueError, match="at least L = 5 for 9 tokens"):
        call(name, tensors, cu_seqlens=torch.tensor([0, 9, 16, 20]))


MEASURE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
torch.set_num_threads(1)

def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024

def train(T):
    q, k, v = (torch.nn.functional.normalize(torch.rand(1, T, 4, 64), dim=-1).requires_grad_() for _ in range(3))
    g, beta = (torch.rand(1, T, 4) * x for x in (-0.1, 1))
    rest = [beta] if sys.argv[2] == "log_linear_delta_rule" else []
    scales = torch.rand(1, T, 4, 16, requires_grad=True)
    getattr(torch.ops.hopmix, sys.argv[2])(q, k, v, g.requires_grad_(), *rest, scales).sum().backward()

train(64)
open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
before = peak()
train(int(sys.argv[3]))
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", NAMES)
def test_training_memory_is_linear_in_time(name):
    """Beside q, k, v, o and their gradients and twice the factors: one head's states, log2(T / 64) / 2 a chunk, which
    is 64 log2(T / 64) / 2 floats a token."""
    used = {}
    for T in (4096, 16384):
        run = [sys.executable, "-c", MEASURE, str(LIBRARY), name, str(T)]
        used[T] = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
        assert used[T] < 15 * T * 4 * 64 * 4
    assert used[16384] < 5 * used[4096]
