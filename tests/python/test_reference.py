"""Every operator against its definition: results and the gradients of all inputs."""

import pytest
import torch

from common import DTYPES, with_gradients
from registry import has_gradient, over

SHAPES = [
    # B, T, H, G, D, DV
    (2, 1, 4, 2, 3, 4, "float64"),
    (2, 2, 2, 2, 20, 21, "float32"),
    (1, 63, 2, 1, 20, 20, "bfloat16"),
    (2, 63, 1, 1, 3, 5, "float64"),
    (2, 64, 4, 2, 64, 64, "float32"),
    (1, 64, 2, 1, 20, 65, "bfloat16"),
    (1, 65, 4, 2, 20, 7, "float64"),
    (2, 65, 2, 2, 100, 64, "bfloat16"),
    (1, 100, 2, 2, 100, 101, "float32"),
    (1, 1000, 1, 1, 20, 16, "float32"),
]
WITHOUT_ONEDNN = [(2, 65, 4, 2, 20, 21, "float64"), (1, 100, 2, 1, 64, 65, "float32"), (2, 129, 2, 1, 20, 7, "bfloat16")]


def of_type(shapes, dtype):
    for *sizes, its in shapes:
        if its == dtype:
            yield dict(zip(("B", "T", "H", "G", "D", "DV"), sizes))


@pytest.mark.parametrize("dtype", DTYPES)
@over(has_gradient)
def test_matches_the_reference(op, dtype):
    for sizes in of_type([*SHAPES, *op.shapes], dtype):
        op.compare(op.make(DTYPES[dtype], **sizes), DTYPES[dtype], what=f"{sizes}: ")


@over(lambda op: op.products)
def test_matches_the_reference_without_onednn(op, loops):
    for dtype in DTYPES:
        for sizes in of_type(WITHOUT_ONEDNN, dtype):
            op.compare(op.make(DTYPES[dtype], **sizes), DTYPES[dtype], what=f"{sizes}: ")


@over(lambda op: not has_gradient(op))
def test_matches_the_reference_without_gradients(op):
    for dtype in DTYPES:
        for sizes in of_type(SHAPES[:8], dtype):
            tensors = op.make(DTYPES[dtype], **sizes)
            for actual, expected, t in zip(op.call(tensors), op.expected(tensors), op.results, strict=True):
                if expected.is_floating_point():
                    op.assert_close(actual, expected, DTYPES[dtype], t, f"{sizes}: ")
                else:
                    assert torch.equal(actual, expected), sizes


@over(lambda op: op.has_scale and has_gradient(op))
def test_scale_is_used(op):
    """With 0 all scores are equal."""
    for scale in (0.7, 0.0, -0.4):
        op.compare(op.make(T=40), torch.float64, scale=scale)


@over(lambda op: op.optional and has_gradient(op))
def test_inputs_left_out(op):
    for name in op.optional:
        op.compare({**op.make(T=70), name: None}, torch.float64)


@over(lambda op: sum(t.gradient for t in op.results) > 1)
def test_loss_on_one_result_alone(op):
    """What has nothing to do with it has a gradient of zero."""
    tensors = op.make(T=70)
    for index in range(len(op.results)):
        op.compare(tensors, torch.float64, which=(index,))


@over(lambda op: op.softmax)
def test_huge_logits_stay_finite(op):
    for dtype in DTYPES.values():
        tensors = op.make(dtype, T=300)
        tensors |= {name: tensors[name] * 100 for name in "qk"}  # beyond +-10^4
        run, leaves = op.of_leaves(tensors)
        for t in with_gradients(run, leaves):
            assert t.isfinite().all()
