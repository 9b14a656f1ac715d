"""linear_attention, ssd and gla against their definition: values, gradients, states, decays of any strength."""

import subprocess
import sys

import pytest
import torch

from blockwise import assert_near
from operators import BOUNDS, DTYPES, LIBRARY, assert_close, ops, rand, sliced, transposed
from outer import NAMES, call, definition, initial, outer_inputs, run
from test_blockwise import products  # noqa: F401
from test_ops import filled_with_nan  # noqa: F401

SIZES = [
    (2, 1, 1, 1, 3, 4), (1, 2, 4, 2, 20, 20), (1, 63, 2, 2, 20, 21), (2, 64, 2, 1, 64, 64), (1, 65, 4, 2, 20, 7),
    (1, 100, 2, 2, 100, 64), (1, 1000, 1, 1, 20, 33),
]  # fmt: skip
DECAYS = [name for name in NAMES if name != "linear_attention"]


def compare(name, tensors, state, dtype, **kwargs):
    actual = run(lambda t, s: call(name, t, initial_state=s, **kwargs), tensors, state)
    exact = run(
        lambda t, s: definition(*t, initial_state=s, **kwargs), [t.double() for t in tensors], state.double()
    )
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    types = [dtype, wide, *(dtype for _ in tensors), wide]
    for index, (a, e, t) in enumerate(zip(actual, exact, types)):
        assert a.dtype == t
        # States and their gradients are float32 sums of products with bfloat16 operands.
        assert_near(a.to(dtype), e, dtype, f"result {index}", gamma=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("B,T,H,G,D,DV", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_matches_the_definition(name, B, T, H, G, D, DV, dtype, products):
    dtype = DTYPES[dtype]
    tensors = outer_inputs(name, B, T, H, G, D, DV, dtype)
    compare(name, tensors, initial(B, H, D, DV, dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["strong", "one", "none", "forgets", "weak", "grows"])
@pytest.mark.parametrize("name", DECAYS)
def test_decays_of_any_strength(name, kind, dtype):
    dtype = DTYPES[dtype]
    tensors = outer_inputs(name, T=130, H=2, G=1, D=20, DV=5, dtype=dtype, strongest=1000.0)
    if kind == "one":  # a single strong gate, which must not cost the others their digits
        tensors[3] = (tensors[3] * 1e-3).index_fill(1, torch.tensor([37]), -1000.0)
    elif kind == "none":
        tensors[3] = torch.zeros_like(tensors[3])
    elif kind == "weak":
        tensors[3] = torch.full_like(tensors[3], -1e-12)
    elif kind == "grows":
        tensors[3] = tensors[3] * -2e-5
    elif kind == "forgets":  # e^-inf = 0
        tensors[3] = tensors[3].clone()
        tensors[3][:, 5::7] = -torch.inf
    compare(name, tensors, initial(2, 2, 20, 5, dtype), dtype)


@pytest.mark.parametrize("name", DECAYS)
def test_gradient_of_strong_decays_by_finite_differences(name):
    tensors = outer_inputs(name, B=1, T=70, H=1, G=1, D=2, DV=2, strongest=30.0)
    tensors[3].requires_grad_()
    function = lambda g: call(name, [*tensors[:3], g], initial_state=initial(1, 1, 2, 2))
    assert torch.autograd.gradcheck(function, tensors[3:], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", DECAYS)
def test_error_of_the_decay_gradient_does_not_grow_with_time(name):
    """Summed from the end as q dq - k dk it would: every gradient takes in the rounding of all later tokens."""
    errors = []
    for T in (256, 8192):
        tensors = outer_inputs(name, 1, T, 1, 1, 16, 16, strongest=4.0)
        run_as = lambda dtype: run(
            lambda t, s: call(name, t, initial_state=s), [t.to(dtype) for t in tensors], initial(1, 1, 16, 16, dtype)
        )[5]
        errors.append((run_as(torch.float32).double() - run_as(torch.float64))[:, :256].abs().max())
    assert errors[1] < 3 * errors[0]


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    for B, N, cu in ((2, 2, None), (1, 3, torch.tensor([0, 4, 4, 9]))):
        tensors = [*outer_inputs(name, B, T=9, H=2, G=1, D=3, DV=2), initial(N, 2, 3, 2)]
        for which in range(len(tensors) + 1):
            for index, t in enumerate(tensors):
                t.requires_grad_(which in (len(tensors), index))
            function = lambda *t: call(name, t[:-1], initial_state=t[-1], cu_seqlens=cu)
            assert torch.autograd.gradcheck(function, tensors, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_through_one_output_alone(name):
    tensors, state = outer_inputs(name, T=70), initial()
    for part in (0, 1):
        one = lambda f: run(lambda t, s: (f(t, s)[part],), tensors, state)
        actual = one(lambda t, s: call(name, t, initial_state=s))
        expected = run(
            lambda t, s: (definition(*t, initial_state=s)[part] + 0 * t[0].sum(),), tensors, state
        )
        for a, e in zip(actual, expected):
            assert_near(a, e, torch.float64, gamma=0)


@pytest.mark.parametrize("scale", [0.7, 0.0, -0.4])
@pytest.mark.parametrize("name", NAMES)
def test_scale_is_used(name, scale):
    compare(name, outer_inputs(name), initial(), torch.float64, scale=scale)


@pytest.mark.parametrize("name", NAMES)
def test_no_token_sees_the_future(name):
    tensors = outer_inputs(name, T=150, D=20, dtype=torch.float32)
    before = call(name, tensors)[0]
    for cut in (1, 63, 64, 100):
        changed = [t.clone() for t in tensors]
        for t in changed[:3]:
            t[:, cut:] = 1e18
        for t in changed[3:]:
            t[:, cut:] = 80.0
        after = call(name, changed)[0]
        assert torch.equal(before[:, :cut], after[:, :cut]) and not torch.equal(before, after)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_state_carries_over_every_cut(name, dtype):
    dtype = DTYPES[dtype]
    tensors, state = outer_inputs(name, T=130, dtype=dtype), initial(dtype=dtype)
    whole = [t.double() for t in call(name, tensors, initial_state=state)]
    for cut in (*range(0, 130, 9), 64, 128, 130):
        first, middle = call(name, [t[:, :cut] for t in tensors], initial_state=state)
        second, end = call(name, [t[:, cut:] for t in tensors], initial_state=middle)
        assert_near(torch.cat([first, second], dim=1), whole[0], dtype, gamma=0)
        assert_near(end.to(dtype), whole[1], dtype, gamma=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_equal_separate_ones(name, dtype, filled_with_nan):
    tensors = outer_inputs(name, B=1, T=70, dtype=DTYPES[dtype])
    state = initial(len(BOUNDS) - 1, dtype=DTYPES[dtype])

    def separately(tensors, state):
        parts = [
            call(name, [t[:, first:last] for t in tensors], initial_state=state[n : n + 1])
            for n, (first, last) in enumerate(zip(BOUNDS[:-1], BOUNDS[1:]))
        ]
        return [torch.cat(x, dim=d) for d, x in zip((1, 0), zip(*parts))]

    packed = run(lambda t, s: call(name, t, initial_state=s, cu_seqlens=BOUNDS), tensors, state)
    for a, e in zip(packed, run(separately, tensors, state)):
        assert a.isfinite().all() and torch.equal(a, e)
    assert torch.equal(packed[1][0], state[0])  # the first sequence is empty


@pytest.mark.parametrize("name", NAMES)
def test_grouped_heads_equal_repeated_ones(name):
    tensors, state = outer_inputs(name, T=70, H=6, G=2), initial(H=6)
    repeat = lambda t: [t[0], *(x.repeat_interleave(3, dim=2) for x in t[1:3]), *t[3:]]
    grouped = run(lambda t, s: call(name, t, initial_state=s), tensors, state)
    for a, e in zip(grouped, run(lambda t, s: call(name, repeat(t), initial_state=s), tensors, state)):
        assert_close(a, e, torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_any_strides_and_threads(name):
    tensors, state = outer_inputs(name, T=200, H=6, G=2, dtype=torch.float32), initial(H=6, dtype=torch.float32)
    plain = run(lambda t, s: call(name, t, initial_state=s), tensors, state)
    threads = torch.get_num_threads()
    for layout, count in ((transposed, 1), (sliced, 3)):
        torch.set_num_threads(count)
        other = run(
            lambda t, s: call(name, [layout(x) for x in t], initial_state=layout(s)), tensors, state
        )
        assert all(torch.equal(a, b) for a, b in zip(plain, other))
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", NAMES)
def test_empty(name, filled_with_nan):
    for B, T, DV in ((0, 5, 3), (2, 0, 3), (2, 5, 0)):
        state = initial(B, DV=DV)
        o, end, *grads = run(
            lambda t, s: call(name, t, initial_state=s), outer_inputs(name, B, T, DV=DV), state
        )
        assert o.shape == (B, T, 4, DV) and end.shape == state.shape
        assert all((g == 0).all() for g in grads[:-1])
        if T == 0:
            assert torch.equal(end, state)
    assert (call(name, outer_inputs(name, T=0))[1] == 0).all()


def test_without_decay_all_three_are_linear_attention():
    tensors, state = outer_inputs("linear_attention", T=150), initial()
    plain = run(lambda t, s: call("linear_attention", t, initial_state=s), tensors, state)
    for name, shape in (("ssd", (2, 150, 4)), ("gla", (2, 150, 4, 5))):
        zero = torch.zeros(*shape, dtype=torch.float64)
        other = run(lambda t, s: call(name, [*t, zero], initial_state=s), tensors, state)
        for a, e in zip(other, plain):
            assert_close(a, e, torch.float64)


def test_gla_with_one_decay_for_all_channels_is_ssd():
    tensors, state = outer_inputs("ssd", T=150), initial()
    ssd = run(lambda t, s: ops.ssd(*t, initial_state=s), tensors, state)
    spread = lambda t: [*t[:3], t[3][..., None].expand(*t[3].shape, 5)]
    for a, e in zip(run(lambda t, s: ops.gla(*spread(t), initial_state=s), tensors, state), ssd):
        assert_close(a, e, torch.float64)


def test_linear_attention_is_a_glr_without_recurrence():
    """Y = A X with A_ij = scale q_i . k_j: the generalized linear recurrence on `dense` with B = 0."""
    q, k, v = outer_inputs("linear_attention", T=40, H=2, G=2)
    A = torch.einsum("bihd,bjhd->bhij", q, k) * 5**-0.5
    row, col = torch.tril_indices(40, 40, -1)
    beta = torch.zeros(2, 2, len(row), dtype=torch.float64)
    y = ops.glr(A.diagonal(dim1=-2, dim2=-1).contiguous(), A[..., row, col], beta, v, "dense")
    assert_close(ops.linear_attention(q, k, v)[0], y, torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_errors_name_the_argument(name):
    tensors = outer_inputs(name)
    wrong = {
        "q": (0, tensors[0][..., :4], r"k is \[2, 20, 2, 5\], but must be \[B, T, G, DK\] with DK = 4 as in q"),
        "v": (2, tensors[2][:, :19], r"v is \[2, 19, 2, 3\], but must be \[B, T, G, DV\] with T = 20"),
        "heads": (0, tensors[0][:, :, :3], "q has 3 heads, but must have a multiple of the 2 heads"),
    }
    if name != "linear_attention":
        wrong["decay"] = (3, tensors[3][:, :, :1], "log_decay is .*, but must be .* with H = 4 as in q")
    for index, value, message in wrong.values():
        with pytest.raises(ValueError, match=f"{name}: {message}"):
            call(name, [value if i == index else t for i, t in enumerate(tensors)])
    with pytest.raises(ValueError, match=r"initial_state is \[3, 4, 5, 3\], but must be \[N, H, DK, DV\]"):
        call(name, tensors, initial_state=initial(3))
    with pytest.raises(ValueError, match="initial_state is Float, but must be Double for Double inputs"):
        call(name, tensors, initial_state=initial(dtype=torch.float32))
    with pytest.raises(ValueError, match="scale is inf, but must be finite"):
        call(name, tensors, scale=float("inf"))


@pytest.mark.parametrize("name", NAMES)
def test_compiles_whole(name):
    tensors, state = outer_inputs(name), initial()
    model = lambda t, s: [o.sin() for o in call(name, [x * 1.5 for x in t], initial_state=s)]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for a, e in zip(run(compiled, tensors, state), run(model, tensors, state)):
        torch.testing.assert_close(a, e)


MEASURE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
torch.set_num_threads(1)
name = sys.argv[2]

def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024

def train(T):
    tensors = [torch.rand(1, T, 4, 64).requires_grad_() for _ in range(3)]
    decay = {"linear_attention": [], "ssd": [1, T, 4], "gla": [1, T, 4, 64]}[name]
    tensors += [(-torch.rand(*decay)).requires_grad_()] if decay else []
    getattr(torch.ops.hopmix, name)(*tensors)[0].sum().backward()
    return sum(t.numel() * 4 for t in tensors)

train(1000)
open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
before = peak()
size = train(16384)
print((peak() - before) / size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", NAMES)
def test_memory_of_training_is_a_few_times_the_inputs(name):
    run_it = [sys.executable, "-c", MEASURE, str(LIBRARY), name]
    used = float(subprocess.run(run_it, check=True, capture_output=True, text=True).stdout)
    assert 1 < used < 4
