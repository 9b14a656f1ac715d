"""Linear attention, ssd, gla, the delta rules, their log-linear forms: where they are something known, gates of any
strength, rounding over time, a single token in place."""

import itertools
import math

import pytest
import torch

from common import DTYPES, assert_close, ops, rand, sliced, transposed, with_gradients
from references import fenwick_buckets, levels
from registry import BY_NAME, over

STEP = BY_NAME["matrix_step_"]
PLAIN = ("linear_attention", "ssd", "gla", "delta_rule", "gated_delta_rule", "kda")
LOG_LINEAR = ("log_linear_attention", "log_linear_delta_rule")
states = over(lambda op: op.name in PLAIN)
decaying = over(lambda op: op.name in (*PLAIN, *LOG_LINEAR) and any(t.name == "log_decay" for t in op.inputs))


def everything(name, tensors):
    return with_gradients(lambda t: getattr(ops, name)(*t[:-1], initial_state=t[-1]), tensors)


def assert_near(actual, expected, dtype=torch.float64, roundings=32):
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, dtype, roundings=roundings)


def test_two_steps_by_hand():
    """S_1 = k_1 u_1^T with u_1 = 1/2 (4 - 0) = 2; then the decay 1/2 comes before the error: S' = 1 at k = 1, so
    u_2 = 1/4 (5 - 1) = 1 and S_2 = 1 + 1."""
    one = lambda *x: torch.tensor(x).double().view(1, 2, 1, -1)
    gate = torch.tensor([0.0, 0.5]).double().log().view(1, 2, 1)
    beta = torch.tensor([0.5, 0.25]).double().view(1, 2, 1)
    o, state = ops.gated_delta_rule(one(1, 1), one(1, 1), one(4, 5), gate, beta)
    for x in (*o.flatten(), state):
        assert abs(x - 2) < 1e-15


@pytest.mark.parametrize("name,plain", [("ssd", "linear_attention"), ("gla", "linear_attention"), ("gated_delta_rule", "delta_rule"), ("kda", "delta_rule")])
def test_without_decay(name, plain):
    tensors = list(BY_NAME[plain].make(T=150).values())
    shape = (2, 150, 4, 5) if name in ("gla", "kda") else (2, 150, 4)
    gated = lambda t: getattr(ops, name)(*t[:3], torch.zeros(shape).double(), *t[3:-1], initial_state=t[-1])
    assert_near(with_gradients(gated, tensors), everything(plain, tensors))


@pytest.mark.parametrize("channels,heads", [("gla", "ssd"), ("kda", "gated_delta_rule")])
def test_one_decay_for_all_channels(channels, heads):
    for dtype in (torch.float32, torch.float64):
        tensors = list(BY_NAME[heads].make(dtype, T=150, D=20).values())
        spread = lambda t: [*t[:3], t[3][..., None].expand(*t[3].shape, 20), *t[4:]]
        actual = with_gradients(lambda t: getattr(ops, channels)(*spread(t)[:-1], initial_state=t[-1]), tensors)
        assert_near(actual, everything(heads, tensors), dtype)


@pytest.mark.parametrize("name", ["gated_delta_rule", "kda"])
def test_without_writing_the_state_decays(name):
    q, k, v, g, beta, state = BY_NAME[name].make(T=100).values()
    o, last = getattr(ops, name)(q, k, v, g, beta * 0, None, state)
    decayed = g.cumsum(1).exp().reshape(*g.shape[:3], -1, 1) * state[:, None]
    expected = 5**-0.5 * torch.einsum("bthkv,bthk->bthv", decayed, q)
    assert_near((last, o), (decayed[:, -1], expected))


def test_on_orthonormal_keys_the_delta_rule_is_linear_attention():
    q, k, v, beta, _ = BY_NAME["delta_rule"].make(B=1, T=64, H=1, G=1, D=64, DV=10).values()
    k = torch.linalg.qr(k[0, :, 0])[0].view_as(k)
    assert_near(ops.delta_rule(q, k, v, torch.ones_like(beta)), ops.linear_attention(q, k, v))


def test_linear_attention_is_a_glr_without_recurrence():
    """Y = A X with A_ij = scale q_i . k_j: the generalized linear recurrence on `dense` with B = 0."""
    q, k, v, _ = BY_NAME["linear_attention"].make(T=40, H=2, G=2).values()
    A = torch.einsum("bihd,bjhd->bhij", q, k) * 5**-0.5
    row, col = torch.tril_indices(40, 40, -1)
    beta = torch.zeros(2, 2, len(row), dtype=torch.float64)
    y = ops.glr(A.diagonal(dim1=-2, dim2=-1).contiguous(), A[..., row, col], beta, v, "dense")
    assert_near(ops.linear_attention(q, k, v)[:1], (y,))


@over(lambda op: op.name in (*PLAIN, *LOG_LINEAR) and any(t.name == "beta" for t in op.inputs))
def test_negative_eigenvalues(op):
    """beta in (0, 2): I - beta k k^T has an eigenvalue down to -1."""
    tensors = op.make(torch.float32, T=300)
    op.compare(tensors | {"beta": tensors["beta"] * 2}, torch.float32)


GATES = {
    "one strong": lambda g: g.zero_().index_fill_(1, torch.tensor([70]), -50),
    "one very strong": lambda g: g.mul_(1e-3).index_fill_(1, torch.tensor([37]), -1000),  # must not cost the others their digits
    "every one strong": lambda g: g.fill_(-100),
    "strong or none": lambda g: g.copy_(torch.where(g < -0.25, -100.0, 0.0)),
    "any": lambda g: g.mul_(1000),
    "to the end": lambda g: g.fill_(math.log(1e-12)),
    "none": lambda g: g.zero_(),
    "weak": lambda g: g.fill_(-1e-12),
    "growing": lambda g: g.mul_(-0.02),
    "infinite": lambda g: g.index_fill_(1, torch.tensor([0, 5, 6, 64, 149]), -torch.inf),
    "small behind strong": lambda g: g.mul_(1e-3).index_fill_(1, torch.arange(0, 150, 16), -300),
}


@pytest.mark.parametrize("dtype", DTYPES)
@decaying
def test_gates_of_any_strength(op, dtype):
    for name, change in GATES.items():
        tensors = op.make(DTYPES[dtype], T=150, H=2, G=1)
        change(tensors["log_decay"])
        actual, expected = op.compare(tensors, DTYPES[dtype], what=f"{name}: ")
        assert all(t.isfinite().all() for t in actual), name
        # What a strong gate cuts off has a gradient that is small, not the rounding of a large one.
        if name != "any" and dtype != "bfloat16":
            a, e = actual[len(op.results) + 3], expected[len(op.results) + 3]
            assert (a[e.abs() < 1e-20].abs() < 1e-15).all(), name


@decaying
def test_error_of_the_decay_gradient_does_not_grow_with_time(op):
    """Summed from the end as q dq - k dk it would: every gradient takes in the rounding of all later tokens."""
    errors = []
    for T in (256, 8192):
        tensors = op.make(B=1, T=T, H=1, G=1, D=16, DV=16)
        tensors["log_decay"] = tensors["log_decay"] * (2 if "k" not in op.values else 1)
        run, leaves = op.of_leaves(tensors)
        gradient = lambda dtype: with_gradients(run, [t.to(dtype) for t in leaves])[len(op.results) + 3]
        errors.append((gradient(torch.float32).double() - gradient(torch.float64))[:, :256].abs().max())
    assert errors[1] < 3 * errors[0]


# Log-linear attention


def test_the_level_of_a_pair_is_the_number_of_bits_in_which_they_differ():
    for i in range(70):
        for level, begin, end in fenwick_buckets(i):
            assert all((i ^ j).bit_length() == level for j in range(begin, end))
        assert sum(end - begin for _, begin, end in fenwick_buckets(i)) == i + 1
    assert max(level for level, *_ in fenwick_buckets(69)) == levels(70) - 1 == 7


def test_by_hand():
    """Token 6 = 110 reads itself at level 0, tokens 4 and 5 at level 2, 0 to 3 at level 3; each is one here."""
    T = 7
    one = torch.ones(1, T, 1, 1).double()
    scales = 10.0 ** torch.arange(4).expand(1, T, 1, 4).double()
    o = ops.log_linear_attention(one, one, one, torch.zeros(1, T, 1).double(), scales)
    assert o.flatten().tolist() == [1, 11, 201, 211, 4001, 4011, 4201]


def test_log_linear_attention_pair_by_pair():
    """The definition by its quadratic form: every pair of tokens with its decay and the factor of its level."""
    q, k, v, g, scales = BY_NAME["log_linear_attention"].make(T=130, H=2, G=2).values()
    level = torch.tensor([[(i ^ j).bit_length() if j <= i else 0 for j in range(130)] for i in range(130)])
    factors = scales.transpose(1, 2).gather(3, level.expand(2, 2, 130, 130))
    decay = g.cumsum(1).transpose(1, 2)
    weights = factors * (decay[..., :, None] - decay[..., None, :]).exp() * torch.einsum("bihd,bjhd->bhij", q, k)
    expected = 5**-0.5 * torch.einsum("bhij,bjhd->bihd", weights.tril(), v)
    assert_near([ops.log_linear_attention(q, k, v, g, scales)], [expected])


@over(lambda op: op.name in LOG_LINEAR)
def test_levels_to_spare(op):
    """What is read of no level has no gradient."""
    actual, _ = op.compare(op.make(T=130, L=14), torch.float64)
    assert (actual[-1][..., levels(130) :] == 0).all()


@pytest.mark.parametrize("name,plain", [("log_linear_attention", "ssd"), ("log_linear_delta_rule", "gated_delta_rule")])
def test_equal_factors_give_the_plain_operator(name, plain):
    for dtype in DTYPES.values():
        op = BY_NAME[name]
        *tensors, scales = op.make(dtype, T=300, D=20).values()
        actual = with_gradients(lambda t: getattr(ops, name)(*t, torch.ones_like(scales)), tensors)
        expected = with_gradients(lambda t: getattr(ops, plain)(*t)[0], [t.double() for t in tensors])
        for a, e, t in zip(actual, expected, [*op.results, *op.inputs[:-1]], strict=True):
            op.assert_close(a, e, dtype, t)


def test_without_corrections_the_log_linear_delta_rule_is_attention():
    """Keys that are orthogonal within a text are never corrected."""
    q, _, v, g, beta, scales = BY_NAME["log_linear_delta_rule"].make(B=1, T=100, H=2, G=1, D=100, DV=5).values()
    k = torch.linalg.qr(rand(100, 100, seed=2))[0].view(1, 100, 1, 100)
    corrected = ops.log_linear_delta_rule(q, k, v, g, torch.ones_like(beta), scales)
    assert_near([corrected], [ops.log_linear_attention(q, k, v, g, scales)])


# One token, which goes without chunks

TOKENS = [(2, 4, 2, 3, 5), (1, 3, 3, 20, 7), (1, 2, 1, 64, 64), (3, 1, 1, 100, 33), (1, 16, 4, 128, 128)]


def in_place(name, tensors, state, scale=None):
    """matrix_step_ with the gates of an operator."""
    q, k, v, *gates = [t.squeeze(1) for t in tensors]
    beta = gates.pop() if "delta" in name or name == "kda" else None
    return ops.matrix_step_(q, k, v, gates[0] if gates else None, beta, state, scale)


@states
def test_one_token(op):
    """Against the definition; matrix_step_ gives its bits. The state that comes in is left alone by one, and written by
    the other."""
    for dtype, (B, H, G, D, DV) in itertools.product(DTYPES.values(), TOKENS):
        tensors = op.make(dtype, B=B, T=1, H=H, G=G, D=D, DV=DV)
        *token, state = tensors.values()
        before = state.clone()
        for given, scale in ((state, None), (state, 0.7), (None, 0.7)):
            actual = op.call({**tensors, "initial_state": given}, scale=scale)
            expected = op.expected({**tensors, "initial_state": given}, scale=scale)
            for a, e, t in zip(actual, expected, op.results, strict=True):
                op.assert_close(a, e, dtype, t, roundings=16, factors=0.0)
            assert torch.equal(state, before) and actual[1].data_ptr() != state.data_ptr()
            for layout in (lambda t: t, sliced):
                here = state.clone() if given is not None else torch.zeros_like(state)
                version = here._version
                assert torch.equal(in_place(op.name, [layout(t) for t in token], here, scale), actual[0].squeeze(1))
                assert torch.equal(here, actual[1]) and here._version > version


@states
def test_one_token_for_any_strides_and_threads(op, set_threads):
    tensors = op.make(torch.float32, B=2, T=1, H=16, G=4, D=184, DV=185)  # enough for threads
    plain = op.call(tensors)
    for layout, count in ((transposed, 1), (sliced, 3), (transposed, 2)):
        set_threads(count)
        other = op.call({n: layout(t) for n, t in tensors.items()})
        assert all(torch.equal(a, b) for a, b in zip(plain, other))


@states
def test_one_token_with_and_without_a_gradient(op):
    """One that asks is enough for a graph, whose results have the same bits."""
    tensors = op.make(T=1, D=20, DV=7)
    plain = op.call(tensors)
    for asks in tensors:
        results = op.call({n: t.clone().requires_grad_(n == asks) for n, t in tensors.items()})
        assert all(r.requires_grad for r in results)
        assert all(torch.equal(a, b) for a, b in zip(plain, results))


def test_in_place_has_no_gradient():
    *tensors, state = BY_NAME["gla"].make(T=1, D=20, DV=7).values()
    for index, name in enumerate(("q", "k", "v", "log_decay")):
        some = [t.detach().requires_grad_(i == index) for i, t in enumerate(tensors)]
        with pytest.raises(ValueError, match=f"matrix_step_: {name} requires a gradient"):
            in_place("gla", some, state.clone())
        with torch.no_grad():
            assert not in_place("gla", some, state.clone()).requires_grad
    with pytest.raises(ValueError, match="matrix_step_: state requires a gradient"):
        in_place("gla", tensors, state.requires_grad_())


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda a: a.update(state=a["state"].transpose(2, 3)), "state has strides"),
        (lambda a: a.update(state=a["state"].double()), "state is Double, but must be Float"),
        (lambda a: a.update(state=a["state"][:, :3].contiguous()), "state is .*must be"),
        (lambda a: a.update(k=a["k"][:, :, :3]), "k is .*DK = 6"),
        (lambda a: a.update(beta=a["beta"][:1]), "beta is .*must be"),
        (lambda a: a.update(log_decay=a["log_decay"].unsqueeze(2)), "log_decay is .*must be"),
        (lambda a: a.update(scale=math.inf), "scale is inf"),
    ],
)
def test_in_place_errors_leave_the_state(change, message):
    arguments = STEP.make(torch.float32, D=6, DV=6) | {"scale": None}
    arguments["log_decay"] = arguments["log_decay"][..., 0]
    state, before = arguments["state"], arguments["state"].clone()
    change(arguments)
    with pytest.raises(ValueError, match=f"matrix_step_: .*({message})"):
        ops.matrix_step_(**arguments)
    assert torch.equal(state, before)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_autograd_notices_a_state_that_was_overwritten(mode):
    *tensors, state = BY_NAME["ssd"].make(torch.float32, T=1).values()
    kept = state.clone().requires_grad_() * 1
    loss = kept.square().sum()
    with mode():
        in_place("ssd", tensors, kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():  # a state that was made there has no versions
        assert in_place("ssd", tensors, state.clone()).isfinite().all()
