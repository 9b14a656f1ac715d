"""The operators as PyTorch traces them: schemas, meta tensors, opcheck, compile."""

import pytest
import torch
import torch._inductor.config
from torch.utils._python_dispatch import TorchDispatchMode

import registry
from common import bounds, ops, with_gradients
from registry import OPERATORS, has_gradient, over


def test_the_registry_follows_the_schemas():
    """Every tensor of a schema is in it, in the same order, so that no input goes untested."""
    other = ("cu_seqlens", "row_ptr", "cols")
    for op in OPERATORS:
        if op.name != "linear_parts":  # which takes a list
            tensors = [a.name for a in op.schemas[0].arguments if "Tensor" in str(a.type) and a.name not in other]
            assert [t.name for t in op.inputs] == tensors


@over()
def test_meta_tensors(op):
    """Shapes and types of the results, without their values."""
    for dtype in (torch.float64, torch.bfloat16):
        for lengths in ([20],) if not op.packs else ([20], [4, 0, 16]):
            tensors = op.make(dtype, lengths=lengths)
            packing = {"cu_seqlens": bounds(lengths)} if len(lengths) > 1 else {}
            on_meta = lambda given: {n: t.to("meta") for n, t in given.items()}
            meta = op.call(on_meta(tensors), **on_meta(packing))
            sizes = op.default_sizes(lengths=lengths)
            for actual, expected, t in zip(meta, op.call(tensors, **packing), op.results, strict=True):
                assert actual.is_meta and actual.dtype == expected.dtype
                assert list(actual.shape) == list(expected.shape) == t.dims(sizes)
                assert actual.stride() == expected.stride()


class Recorder(TorchDispatchMode):
    """Notes the calls of hopmix operators, the inner ones and those of the backward too."""

    def __init__(self):
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "hopmix":
            self.calls.append((function, args, kwargs or {}))
        return function(*args, **(kwargs or {}))


def tree(value, function):
    return torch.utils._pytree.tree_map(lambda t: function(t) if isinstance(t, torch.Tensor) else t, value)


def calls(op, packed, dtype=torch.float64, as_list=False):
    """The operator as it is called, and all that it calls."""
    lengths = [4, 0, 5] if packed else [9]
    tensors = op.make(dtype, H=2, G=1, D=3, DV=2, lengths=lengths)
    options = dict(op.options)
    if as_list:
        pattern = options.pop("pattern")
        options |= dict(zip(("row_ptr", "cols"), ops.pattern(pattern, max(lengths))))
    if packed:
        options["cu_seqlens"] = bounds(lengths)
    function = op.function or getattr(ops, op.name)
    given = {n: t.requires_grad_() if t.is_floating_point() and n in [x.name for x in op.leaves] else t for n, t in tensors.items()}
    with Recorder() as inner:
        results = registry.as_tuple(function(**given, **options))
        if op.leaves:
            # Packed, not every gradient is asked for.
            leaves = [given[t.name] for i, t in enumerate(op.leaves) if not (packed and i == 1)]
            chosen = [r for r in results if r.requires_grad]
            torch.autograd.grad(chosen, leaves, [torch.ones_like(r) for r in chosen])
    overload = [getattr(getattr(ops, op.name), o) for o in getattr(ops, op.name).overloads()]
    public = next((o for o in overload if {a.name for a in o._schema.arguments} >= {*given, *options}), None)
    if op.name == "linear_parts":
        widths = [1, len(given["first"]) - 1, 3]
        yield ops.linear_parts.default, (given["x"], [given["first"], given["second"]], widths), {}
    else:
        yield public, (), {**given, **options}
    seen = set()
    for function, args, kwargs in inner.calls:
        if function.name() not in seen:
            seen.add(function.name())
            yield function, tree(args, lambda t: t.detach().clone()), tree(kwargs, lambda t: t.detach().clone())


CHECKED = set()
EVERY = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
QUICK = ("test_schema", "test_faketensor")  # of inner operators that were traced once already


@over()
def test_opcheck(op):
    """The operator, the inner one and the backward, as one call of it and its gradient use them."""
    variants = [dict(packed=False)]
    variants += [dict(packed=True)] * op.packs
    variants += [dict(packed=True, as_list=True)] * (op.name in registry.PATTERNED)
    variants += [dict(packed=False, dtype=torch.bfloat16)] * (op.name == "attention_topk")  # which keeps more then
    for options in variants:
        for function, args, kwargs in list(calls(op, **options)):
            assert torch.Tag.pt2_compliant_tag in function.tags
            tests = QUICK if function.name() in CHECKED and function._schema.name != f"hopmix::{op.name}" else EVERY
            CHECKED.add(function.name())
            results = torch.library.opcheck(function, args, kwargs, test_utils=tests)
            assert set(results.values()) == {"SUCCESS"} and len(results) == len(tests)


def test_opcheck_of_pattern():
    for op, args in ((ops.pattern.default, ("k^2+1", 9)), (ops._pattern.default, (torch.empty(0), "k^2+1", 9))):
        CHECKED.add(op.name())
        assert set(torch.library.opcheck(op, args).values()) == {"SUCCESS"}


def test_every_operator_is_checked(request):
    """Runs behind the tests above; alone it has nothing to say."""
    registered = {
        schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("hopmix::")
    }
    public = {name.split("::")[1].split(".")[0] for name in registered}
    assert {n for n in public if not n.startswith("_") and not n.endswith("_backward")} - {"pattern"} == set(registry.NAMES)
    ran = {i.name for i in request.session.items}
    if {f"test_opcheck[{name}]" for name in registry.NAMES} <= ran:
        assert CHECKED == registered
    else:
        pytest.skip("not all of test_opcheck was asked for")


@over(has_gradient)
def test_compiles_whole(op):
    torch._dynamo.reset()
    tensors = op.make(torch.float32)
    run, leaves = op.of_leaves(tensors)
    model = lambda leaves: [r.sin() for r in run([t * 1.5 for t in leaves])]
    compare_compiled(model, leaves, "aot_eager")


def test_compiles_with_the_pattern_made_inside():
    """By way of its two tensors; one operator goes through the C++ compiler too, which is slow."""
    torch._dynamo.reset()
    op = registry.BY_NAME["glr_attention"]
    leaves = list(op.make(torch.float32).values())

    def model(leaves):
        return [ops.glr_attention(*[t * 1.5 for t in leaves], *ops.pattern("k^2+1", 20)).sin()]

    compare_compiled(model, leaves, "aot_eager")
    compare_compiled(model, leaves, "inductor")


def test_compiles_what_has_no_gradient():
    torch._dynamo.reset()
    op = registry.BY_NAME["gather_attention"]
    *leaves, indices = op.make(torch.float32).values()

    def model(leaves):
        o, best = ops.attention_topk(*leaves, 4)
        links = ops.neighborhood(indices, [2, 1], True)
        return [ops.gather_attention(*leaves, links) + o * (best >= 0).sum()]

    compare_compiled(model, leaves, "aot_eager")


def compare_compiled(model, leaves, backend):
    # What was compiled for another build of the library, with other inner operators, is not for this one.
    with torch._inductor.config.patch(force_disable_caches=True):
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        for a, e in zip(with_gradients(compiled, leaves), with_gradients(model, leaves), strict=True):
            torch.testing.assert_close(a, e)
