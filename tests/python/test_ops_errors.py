"""A wrong argument is a ValueError of one line that names it."""

import pytest
import torch

from operators import bounds, call, inputs, ops, rand


def changed(index, new):
    def build(name):
        tensors = inputs(name)
        tensors[index] = new(tensors[index])
        return call(name, tensors, "k^2+1")

    return build


def indices(change):
    """A call whose row_ptr and cols were spoiled."""

    def build(name):
        row_ptr, cols = ops.pattern("k^2+1", 20)
        return call(name, inputs(name), change(row_ptr.clone(), cols.clone()))

    return build


def put(t, index, value):
    t[index] = value
    return t


ATTENTION = "glr_attention"
ERRORS = {
    "rank": (ATTENTION, changed(0, lambda t: t[0]), r"q is \[20, 4, 5\], but must be \[B, T, H, DK\]"),
    "batch": (ATTENTION, changed(1, lambda t: t[:1]), r"k is \[1, 20, 2, 5\].*B = 2 as in q"),
    "time": (ATTENTION, changed(2, lambda t: t[:, :19]), r"v is \[2, 19, 2, 3\].*T = 20 as in q"),
    "key width": (ATTENTION, changed(1, lambda t: t[..., :2]), r"k is .*DK = 5 as in q"),
    "kv heads": (ATTENTION, changed(2, lambda t: t[:, :, :1]), r"v is .*G = 2 as in k"),
    "gate heads": (ATTENTION, changed(3, lambda t: t[..., :2]), r"gate is \[2, 20, 2\].*H = 4 as in q"),
    "dtype": (ATTENTION, changed(4, lambda t: t.float()), "d is Float, but must be Double like q"),
    "half": (ATTENTION, changed(0, lambda t: t.half()), "q is Half, but must be Float, Double or BFloat16"),
    "head multiple": (
        ATTENTION, lambda name: call(name, inputs(name, H=3, G=2), "k^2+1"),
        "q has 3 heads, but must have a multiple of the 2",
    ),
    "no kv heads": (
        ATTENTION, lambda name: call(name, inputs(name, G=0), "k^2+1"), "multiple of the 0 heads",
    ),
    "no width": (
        ATTENTION, lambda name: call(name, inputs(name, D=0), "k^2+1"), "width of at least 1",
    ),
    "scale": (
        ATTENTION, lambda name: call(name, inputs(name), "k^2+1", scale=float("nan")),
        "scale is nan, but must be finite",
    ),
    "spec": (ATTENTION, lambda name: call(name, inputs(name), "k^^2"), r"pattern 'k\^\^2'"),
    "decreasing spec": ("glr", lambda name: call(name, inputs(name), "5-k"), r"pattern '5-k'"),
    "row_ptr dtype": ("glr", indices(lambda p, c: (p.int(), c)), r"row_ptr is Int \[21\], but must be Long"),
    "row_ptr rank": ("glr", indices(lambda p, c: (p[None], c)), r"row_ptr is Long \[1, 21\]"),
    "row_ptr empty": ("glr", indices(lambda p, c: (p[:0], c)), r"row_ptr is \[0\]"),
    "row_ptr short": (ATTENTION, indices(lambda p, c: (p[:20], c[: p[19]])), "row_ptr has 20 entries"),
    "row_ptr start": ("glr", indices(lambda p, c: (put(p, 0, 1), c)), r"row_ptr\[0\] is 1, but must be 0"),
    "row_ptr falls": ("glr", indices(lambda p, c: (put(p, 5, 0), c)), r"row_ptr\[5\] is 0.*at least row_ptr\[4\]"),
    "row_ptr huge": ("glr", indices(lambda p, c: (put(p, 5, 1 << 60), c)), r"row_ptr\[6\] is"),
    "row_ptr end": ("glr", indices(lambda p, c: (put(p, -1, p[-1] + 1), c)), "but must be the number of cols"),
    "cols dtype": ("glr", indices(lambda p, c: (p, c.long())), r"cols is Long \[65\], but must be Int"),
    "cols future": (ATTENTION, indices(lambda p, c: (p, put(c, 2, 2))), r"cols\[2\] is 2, but row 2 must list tokens from 0 to 1"),
    "cols negative": (ATTENTION, indices(lambda p, c: (p, put(c, 0, -1))), r"cols\[0\] is -1, but row 1"),
    "cols unsorted": (ATTENTION, indices(lambda p, c: (p, put(c, 1, 1))), r"cols\[2\] is 1, but row 2 .*ascending"),
    "too few coefficients": (
        "glr", lambda name: call(name, [*(t[..., :60] if i in (1, 2) else t for i, t in enumerate(inputs(name)))], "k^2+1"),
        "alpha has 60 entries a head, but must have one for each of the pattern's 65 reads",
    ),
    "alpha and beta": ("glr", changed(2, lambda t: t[..., :60]), r"beta is .*nnz = 65 as in alpha"),
    "packed batch": (ATTENTION, bounds([0, 20], B=2), "batch 2, but must have batch 1 when cu_seqlens"),
    "bounds dtype": (ATTENTION, bounds([0, 20], dtype=torch.int32), r"cu_seqlens is Int \[2\], but must be Long"),
    "bounds empty": (ATTENTION, bounds([]), r"cu_seqlens is \[0\]"),
    "bounds start": (ATTENTION, bounds([1, 20]), r"cu_seqlens\[0\] is 1, but must be 0"),
    "bounds fall": (ATTENTION, bounds([0, 12, 8, 20]), r"cu_seqlens\[2\] is 8.*cu_seqlens\[1\] = 12"),
    "bounds end": (ATTENTION, bounds([0, 19]), r"cu_seqlens\[1\] is 19, but must be T = 20"),
    "negative n": ("pattern", lambda name: ops.pattern("2^k", -1), "-1"),
    "state dtype": (
        "linear_recurrence",
        lambda name: ops.linear_recurrence(rand(2, 9, 5).bfloat16(), rand(2, 9, 5).bfloat16(), rand(2, 5).bfloat16()),
        "initial_state is BFloat16, but must be Float for BFloat16 inputs",
    ),
    "state shape": (
        "linear_recurrence", lambda name: ops.linear_recurrence(rand(2, 9, 5), rand(2, 9, 5), rand(3, 5)),
        r"initial_state is \[3, 5\], but must be \[N, E\] with N = 2",
    ),
    "a and x": (
        "linear_recurrence", lambda name: ops.linear_recurrence(rand(2, 9, 5), rand(2, 9, 4)),
        r"x is \[2, 9, 4\], but must be \[B, T, E\] with E = 5 as in a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name,make,message", [pytest.param(*e, id=k) for k, e in ERRORS.items()])
def test_errors_name_the_argument(name, make, message):
    with pytest.raises(ValueError, match=message) as error:
        make(name)
    text = str(error.value)
    assert text.startswith(f"{name}: ") and "\n" not in text


def test_backward_checks_its_indices_too():
    row_ptr, cols = ops.pattern("k^2+1", 20)
    tensors = inputs("sparse_attention")
    y = call("sparse_attention", tensors, (row_ptr, cols))
    with pytest.raises(ValueError, match=r"cols\[0\] is 1000000"):
        ops.sparse_attention_backward(
            y, *tensors, row_ptr, put(cols.clone(), 0, 1000000), True, None, None, [True] * 3
        )
