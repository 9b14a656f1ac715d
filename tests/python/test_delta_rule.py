"""delta_rule, gated_delta_rule and kda against their definition, and where they are something known."""

import subprocess
import sys

import pytest
import torch

from delta import NAMES, assert_near, call, delta_inputs, delta_rule, results, state_dtype
from operators import BOUNDS, DTYPES, LENGTHS, LIBRARY, ops, rand, sliced, transposed

SIZES = [(1, 3, 5), (2, 20, 3), (63, 64, 20), (64, 20, 64), (65, 100, 64), (100, 64, 100), (200, 5, 33)]
DECAYING = ("gated_delta_rule", "kda")
KINDS = ["q", "k", "v", "log_decay", "beta", "initial_state"]


def kinds(name):
    return [k for k in KINDS if name != "delta_rule" or k != "log_decay"]


def compare(name, tensors, dtype, **kwargs):
    actual = results(lambda t: call(name, t, **kwargs), tensors)
    expected = results(lambda t: delta_rule(name, t, **kwargs), [t.double() for t in tensors])
    for what, a, e in zip(["o", "state", *kinds(name)], actual, expected):
        wide = what in ("state", "initial_state")
        roundings = 64 if wide and dtype == torch.bfloat16 else 32
        if wide and dtype == torch.bfloat16:  # float32 of products of bfloat16
            assert a.dtype == torch.float32
            a = a.bfloat16()
        assert_near(a, e, dtype, what, roundings)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("T,D,DV", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_matches_the_definition(name, T, D, DV, dtype):
    dtype = DTYPES[dtype]
    compare(name, delta_inputs(name, T=T, D=D, DV=DV, dtype=dtype), dtype)


@pytest.mark.parametrize("name", NAMES)
def test_a_thousand_tokens_and_a_scale(name):
    compare(name, delta_inputs(name, B=1, T=1000, H=1, G=1, D=20, DV=16), torch.float64, scale=0.7)


def test_two_steps_by_hand():
    """S_1 = k_1 u_1^T with u_1 = 1/2 (4 - 0) = 2; then the decay 1/2 comes before the error: S' = 1 at k = 1, so
    u_2 = 1/4 (5 - 1) = 1 and S_2 = 1 + 1."""
    one = lambda *x: torch.tensor(x).double().view(1, 2, 1, -1)
    gate = torch.tensor([0.0, 0.5]).double().log().view(1, 2, 1)
    beta = torch.tensor([0.5, 0.25]).double().view(1, 2, 1)
    o, state = ops.gated_delta_rule(one(1, 1), one(1, 1), one(4, 5), gate, beta)
    for x in (*o.flatten(), state):
        assert abs(x - 2) < 1e-15


@pytest.mark.parametrize("name", DECAYING)
def test_without_decay_it_is_the_delta_rule(name):
    q, k, v, g, beta, state = delta_inputs(name, T=100)
    gated = results(lambda t: call(name, [*t[:3], g * 0, *t[3:]]), [q, k, v, beta, state])
    plain = results(lambda t: ops.delta_rule(*t[:4], None, t[4]), [q, k, v, beta, state])
    for a, e in zip(gated, plain):
        assert_near(a, e, torch.float64)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kda_with_one_decay_for_all_channels_is_the_gated_delta_rule(dtype):
    tensors = delta_inputs("gated_delta_rule", T=150, D=20, dtype=DTYPES[dtype])
    spread = lambda t: [*t[:3], t[3][..., None].expand(*t[3].shape, 20), *t[4:]]
    channels = results(lambda t: call("kda", spread(t)), tensors)
    heads = results(lambda t: call("gated_delta_rule", t), tensors)
    for what, a, e in zip(["o", "state", *KINDS], channels, heads):
        assert_near(a, e.double(), DTYPES[dtype], what)


@pytest.mark.parametrize("name", DECAYING)
def test_without_writing_the_state_decays(name):
    q, k, v, g, beta, state = delta_inputs(name, T=100)
    o, last = call(name, [q, k, v, g, beta * 0, state])
    decayed = g.cumsum(1).exp().reshape(*g.shape[:3], -1, 1) * state[:, None]
    assert_near(last, decayed[:, -1], torch.float64)
    assert_near(o, 5**-0.5 * torch.einsum("bthkv,bthk->bthv", decayed, q), torch.float64)


def test_on_orthonormal_keys_it_is_linear_attention():
    q, k, v, beta, _ = delta_inputs("delta_rule", B=1, T=64, H=1, G=1, D=64, DV=10)
    k = torch.linalg.qr(k[0, :, 0])[0].view_as(k)
    o, state = ops.delta_rule(q, k, v, torch.ones_like(beta))
    scores = torch.einsum("bihd,bjhd->bhij", q, k).tril() / 8
    assert_near(o, torch.einsum("bhij,bjhd->bihd", scores, v), torch.float64)
    assert_near(state, torch.einsum("bihk,bihv->bhkv", k, v), torch.float64)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", DECAYING)
@pytest.mark.parametrize(
    "gates", ["one strong", "every one strong", "mixed", "to the end", "infinite", "small behind strong"]
)
def test_gates_of_any_strength(gates, name, dtype):
    dtype = DTYPES[dtype]
    tensors = delta_inputs(name, T=150, dtype=dtype)
    g = torch.zeros_like(tensors[3]) if gates != "mixed" else torch.where(tensors[3] < -0.25, -100.0, 0.0).to(dtype)
    if gates == "one strong":
        g[:, 70] = -50
    elif gates == "every one strong":
        g[:] = -100
    elif gates == "to the end":
        g[:] = torch.tensor(1e-12).log()
    elif gates == "infinite":
        g[:, [0, 5, 6, 149]] = -torch.inf
    elif gates == "small behind strong":
        g = tensors[3].clone() * 1e-3
        g[:, ::16] = -300
    tensors[3] = g
    actual = results(lambda t: call(name, t), tensors)
    expected = results(lambda t: delta_rule(name, t), [t.double() for t in tensors])
    assert all(t.isfinite().all() for t in actual)
    for what, a, e in zip(["o", "state", *KINDS], actual, expected):
        assert_near(a, e, dtype, what)
    # What a strong gate cuts off has a gradient that is small, not the rounding of a large one.
    small = expected[5].abs() < 1e-20
    assert (actual[5][small].abs() < 1e-15).all()


@pytest.mark.parametrize("name", NAMES)
def test_negative_eigenvalues(name):
    """beta in (0, 2): I - beta k k^T has an eigenvalue down to -1."""
    tensors = delta_inputs(name, T=300, dtype=torch.float32)
    tensors[-2] = tensors[-2] * 2
    compare(name, tensors, torch.float32)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_through_one_output_alone(name):
    tensors = delta_inputs(name, T=70)
    for which in ((0,), (1,)):
        actual = results(lambda t: call(name, t), tensors, which)
        expected = results(lambda t: delta_rule(name, t), tensors, which)
        for a, e in zip(actual, expected):
            assert_near(a, e, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_state_carries_over_every_cut(name, dtype):
    """Cuts move the chunks' edges, so this is also that results do not depend on them."""
    *inputs, state = delta_inputs(name, T=140, D=20, dtype=DTYPES[dtype])
    o, last = call(name, [*inputs, state])
    for cut in (0, 1, 17, 63, 64, 65, 70, 139, 140):
        first, between = call(name, [*(t[:, :cut] for t in inputs), state])
        second, end = call(name, [*(t[:, cut:] for t in inputs), between])
        assert between.dtype == state_dtype(DTYPES[dtype])
        assert_near(torch.cat([first, second], dim=1), o.double(), DTYPES[dtype])
        near = dict(roundings=2**16) if dtype == "bfloat16" else {}  # float32 of products of bfloat16
        assert_near(end, last.double(), state.dtype, **near)


@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_then_token_by_token(name):
    *inputs, state = delta_inputs(name, T=75)
    o, last = call(name, [*inputs, state])
    _, state = call(name, [*(t[:, :70] for t in inputs), state])
    for t in range(70, 75):
        step, state = call(name, [*(x[:, t : t + 1] for x in inputs), state])
        assert_near(step[:, 0], o[:, t], torch.float64)
    assert_near(state, last, torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    bounds = torch.tensor([0, 4, 4, 9])
    for B, N, cu in ((2, 2, None), (1, 3, bounds)):
        tensors = delta_inputs(name, B=B, T=9, H=2, G=1, D=3, DV=2, N=N)
        for which in range(len(tensors) + 1):
            for index, t in enumerate(tensors):
                t.requires_grad_(which in (len(tensors), index))
            function = lambda *t: call(name, t, cu_seqlens=cu)
            assert torch.autograd.gradcheck(function, tensors, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_no_token_sees_the_future(name):
    *inputs, _ = delta_inputs(name, T=130, D=20, dtype=torch.float32)
    o, _ = getattr(ops, name)(*inputs)
    for cut in (1, 30, 64, 100, 129):
        later = [t.clone() for t in inputs]
        for t, factor in zip(later, (1e4, 1, 1e30)):
            t[:, cut:] *= factor
        changed, _ = getattr(ops, name)(*later)
        assert torch.equal(changed[:, :cut], o[:, :cut]) and not torch.equal(changed[:, cut:], o[:, cut:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_equal_separate_ones(name, dtype):
    tensors = delta_inputs(name, B=1, T=sum(LENGTHS), N=len(LENGTHS), dtype=DTYPES[dtype])

    def separately(t):
        parts = [
            call(name, [*(x[:, a:b] for x in t[:-1]), t[-1][n : n + 1]])
            for n, (a, b) in enumerate(zip(BOUNDS[:-1], BOUNDS[1:]))
        ]
        return [torch.cat(x, dim) for x, dim in zip(zip(*parts), (1, 0))]

    packed = results(lambda t: call(name, t, cu_seqlens=BOUNDS), tensors)
    for a, e in zip(packed, results(separately, tensors)):
        assert torch.equal(a, e)


@pytest.mark.parametrize("name", NAMES)
def test_strides_do_not_matter(name):
    tensors = delta_inputs(name, T=70)
    plain = results(lambda t: call(name, t), tensors)
    for layout in (transposed, sliced):
        strided = results(lambda t: call(name, [layout(x) for x in t]), tensors)
        assert all(torch.equal(a, e) for a, e in zip(strided, plain))


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_for_any_number_of_threads(name):
    tensors = delta_inputs(name, T=200, H=6, G=2, dtype=torch.float32)
    before, all_results = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        all_results.append(results(lambda t: call(name, t), tensors))
    torch.set_num_threads(before)
    for other in all_results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(all_results[0], other))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_written(name, dtype):
    tensors = delta_inputs(name, B=1, T=sum(LENGTHS), N=len(LENGTHS), dtype=DTYPES[dtype])
    torch.use_deterministic_algorithms(True)  # new memory holds NaN
    try:
        assert torch.empty(3).isnan().all()
        for t in results(lambda t: call(name, t, cu_seqlens=BOUNDS), tensors):
            assert t.isfinite().all()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", NAMES)
def test_empty(name):
    for B, T, DV in ((0, 5, 3), (2, 0, 3), (2, 5, 0)):
        tensors = delta_inputs(name, B=B, T=T, DV=DV)
        o, state, *grads = results(lambda t: call(name, t), tensors)
        assert o.shape == (B, T, 4, DV) and state.shape == (B, 4, 5, DV)
        assert [g.shape for g in grads] == [t.shape for t in tensors]
        if T == 0:
            assert torch.equal(state, tensors[-1])


@pytest.mark.parametrize("name", NAMES)
def test_only_asked_gradients(name):
    tensors = delta_inputs(name, T=70)
    whole = results(lambda t: call(name, t), tensors)[2:]
    for index in range(len(tensors)):
        leaves = [t.clone().requires_grad_(i == index) for i, t in enumerate(tensors)]
        outputs = call(name, leaves)
        weights = [rand(*t.shape, seed=9) for t in outputs]
        (grad,) = torch.autograd.grad(outputs, leaves[index], weights)
        assert torch.equal(grad, whole[index])


@pytest.mark.parametrize("name", NAMES)
def test_errors(name):
    tensors = delta_inputs(name)
    beta = len(tensors) - 2
    for index, new, message in (
        (beta, tensors[beta][..., :2], r"beta is \[2, 20, 2\], but must be \[B, T, H\] with H = 4 as in q"),
        (beta, tensors[beta].float(), "beta is Float, but must be Double like q"),
        (beta + 1, tensors[-1][:, :, :4], r"initial_state is .*DK = 5 as in q"),
        (1, tensors[1][..., :3], r"k is .*DK = 5 as in q"),
    ):
        spoiled = [new if i == index else t for i, t in enumerate(tensors)]
        with pytest.raises(ValueError, match=f"^{name}: {message}"):
            call(name, spoiled)


MEASURE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
torch.set_num_threads(1)

def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024

def train(T, name):
    q, k, v = (torch.nn.functional.normalize(torch.rand(1, T, 4, 64), dim=-1).requires_grad_() for _ in range(3))
    g, beta = -0.1 * torch.rand(1, T, 4, *[64] * (name == "kda")), torch.rand(1, T, 4)
    getattr(torch.ops.hopmix, name)(q, k, v, g.requires_grad_(), beta.requires_grad_())[0].sum().backward()

train(64, sys.argv[3])
open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
before = peak()
train(int(sys.argv[2]), sys.argv[3])
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", DECAYING)
def test_training_memory_is_linear_in_time(name):
    """A state of every token would be 64 times a tensor; q, k, v, o and their gradients are eight, of kda with its
    decays ten."""
    used = {}
    for T in (4096, 16384):
        run = [sys.executable, "-c", MEASURE, str(LIBRARY), str(T), name]
        used[T] = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
        assert used[T] < (15 if name == "kda" else 12) * T * 4 * 64 * 4
    assert used[16384] < 5 * used[4096]
