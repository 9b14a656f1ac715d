"""One token of linear_attention, ssd, gla and the delta rules, as in decoding: it goes without chunks."""

import pytest
import torch

import delta
import outer
from operators import DTYPES, ops, rand, sliced, transposed

NAMES = (*outer.NAMES, *delta.NAMES)
SIZES = [(2, 4, 2, 3, 5), (1, 3, 3, 20, 7), (1, 2, 1, 64, 64), (3, 1, 1, 100, 33), (1, 16, 4, 128, 128)]


def inputs(name, B, T, H, G, D, DV, dtype):
    """The inputs and the initial state."""
    if name in delta.NAMES:
        *tensors, state = delta.delta_inputs(name, B, T, H, G, D, DV, dtype=dtype)
        return tensors, state
    return outer.outer_inputs(name, B, T, H, G, D, DV, dtype), outer.initial(B, H, D, DV, dtype)


def definition(name, tensors, state, scale=None):
    tensors, state = [t.double() for t in tensors], state.double()
    if name in delta.NAMES:
        return delta.delta_rule(name, [*tensors, state], scale)
    return outer.definition(*tensors, scale=scale, initial_state=state)


def call(name, tensors, state=None, scale=None):
    return getattr(ops, name)(*tensors, scale, state)


def assert_step(actual, expected, dtype):
    """Sixteen roundings of the sums, relative to the largest value; only o is rounded to bfloat16."""
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    for a, e, kind in zip(actual, expected, (dtype, sums)):
        assert a.dtype == kind and a.shape == e.shape
        allowed = 16 * torch.finfo(sums).eps * e.abs().max().clamp(min=1) + (kind == torch.bfloat16) * 2.0**-8 * e.abs()
        assert ((a.double() - e).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("B,H,G,D,DV", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_matches_the_definition(name, B, H, G, D, DV, dtype):
    dtype = DTYPES[dtype]
    tensors, state = inputs(name, B, 1, H, G, D, DV, dtype)
    before = state.clone()
    actual = call(name, tensors, state)
    assert_step(actual, definition(name, tensors, state), dtype)
    assert torch.equal(state, before) and actual[1].data_ptr() != state.data_ptr()
    assert_step(call(name, tensors, None, 0.7), definition(name, tensors, state * 0, 0.7), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_a_chain_of_tokens_is_the_sequence(name, dtype):
    dtype = DTYPES[dtype]
    tensors, state = inputs(name, 2, 100, 4, 2, 20, 33, dtype)
    whole = [t.double() for t in call(name, tensors, state)]
    parts = []
    for t in range(100):
        o, state = call(name, [x[:, t : t + 1] for x in tensors], state)
        parts.append(o)
    # A hundred steps round a hundred times.
    for a, e in zip((torch.cat(parts, dim=1), state), whole):
        assert ((a.double() - e).abs() <= 100 * torch.finfo(dtype).eps * e.abs().max()).all()


@pytest.mark.parametrize("name", NAMES)
def test_any_strides_and_threads(name):
    tensors, state = inputs(name, 2, 1, 16, 4, 184, 185, torch.float32)  # enough for threads
    plain = call(name, tensors, state)
    threads = torch.get_num_threads()
    for layout, count in ((transposed, 1), (sliced, 3), (transposed, 2)):
        torch.set_num_threads(count)
        other = call(name, [layout(x) for x in tensors], layout(state))
        assert all(torch.equal(a, b) for a, b in zip(plain, other))
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_with_and_without_a_gradient(name):
    tensors, state = inputs(name, 2, 1, 4, 2, 20, 7, torch.float64)
    leaves = [t.clone().requires_grad_() for t in (*tensors, state)]
    with_graph = call(name, leaves[:-1], leaves[-1])
    weights = [rand(*t.shape, seed=9) for t in with_graph]
    grads = torch.autograd.grad(with_graph, leaves, weights)
    expected = torch.autograd.grad(definition(name, leaves[:-1], leaves[-1]), leaves, weights)
    for a, e in zip(grads, expected):
        assert ((a - e).abs() <= 64 * 2.0**-52 * e.abs().max().clamp(min=1)).all()
    for index in range(len(leaves)):  # one that asks is enough for a graph
        some = [t.detach().requires_grad_(i == index) for i, t in enumerate(leaves)]
        assert all(o.requires_grad for o in call(name, some[:-1], some[-1]))
    for plain in (call(name, tensors, state), torch.no_grad()(call)(name, leaves[:-1], leaves[-1])):
        assert not any(t.requires_grad for t in plain)
        assert all(torch.equal(a, b) for a, b in zip(plain, with_graph))


@pytest.mark.parametrize("name", NAMES)
def test_a_tangent_is_not_dropped(name):
    """There is no forward-mode derivative: an error, not a zero."""
    tensors, state = inputs(name, 1, 1, 2, 1, 5, 3, torch.float64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(state, torch.ones_like(state))
        with pytest.raises(RuntimeError, match="jvp"):
            call(name, tensors, dual)


def in_place(name, tensors, state, scale=None):
    """matrix_step_ with the gates of an operator."""
    q, k, v, *gates = [t.squeeze(1) for t in tensors]
    beta = gates.pop() if name in delta.NAMES else None
    return ops.matrix_step_(q, k, v, gates[0] if gates else None, beta, state, scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("B,H,G,D,DV", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_in_place_is_the_operator_to_the_bit(name, B, H, G, D, DV, dtype):
    tensors, state = inputs(name, B, 1, H, G, D, DV, DTYPES[dtype])
    for scale in (None, 0.7):
        o, after = call(name, tensors, state, scale)
        here, version = state.clone(), state._version
        assert torch.equal(in_place(name, tensors, here, scale), o.squeeze(1))
        assert torch.equal(here, after) and here._version > version
        strided = [sliced(t) for t in tensors]
        assert torch.equal(in_place(name, strided, state.clone(), scale), o.squeeze(1))


def test_in_place_on_meta_tensors():
    tensors, state = inputs("gated_delta_rule", 2, 1, 4, 2, 20, 7, torch.bfloat16)
    o = in_place("gated_delta_rule", [t.to("meta") for t in tensors], state.to("meta"))
    assert o.shape == (2, 4, 7) and o.dtype == torch.bfloat16 and o.is_meta


def test_in_place_has_no_gradient():
    tensors, state = inputs("gla", 2, 1, 4, 2, 20, 7, torch.float64)
    for index, name in ((0, "q"), (1, "k"), (2, "v"), (3, "log_decay")):
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
        (lambda a: a.update(scale=float("inf")), "scale is inf"),
    ],
)
def test_in_place_errors_leave_the_state(change, message):
    (q, k, v, log_decay, beta), state = inputs("gated_delta_rule", 2, 1, 4, 2, 6, 6, torch.float32)
    arguments = dict(zip(("q", "k", "v", "log_decay", "beta"), (t.squeeze(1) for t in (q, k, v, log_decay, beta))))
    arguments |= {"state": state, "scale": None}
    before = state.clone()
    change(arguments)
    with pytest.raises(ValueError, match=f"matrix_step_: .*({message})"):
        ops.matrix_step_(**arguments)
    assert torch.equal(state, before)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_autograd_notices_a_state_that_was_overwritten(mode):
    tensors, state = inputs("ssd", 2, 1, 4, 2, 20, 7, torch.float32)
    kept = state.clone().requires_grad_() * 1
    loss = kept.square().sum()
    with mode():
        in_place("ssd", tensors, kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():  # a state that was made there has no versions
        assert in_place("ssd", tensors, state.clone()).isfinite().all()
