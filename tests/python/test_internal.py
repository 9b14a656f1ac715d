"""What only a call of a backward operator can show. Inner signatures are used nowhere else, and here by name."""

import pytest
import torch

from common import ops, put
from registry import BY_NAME


def call_backward(name, **changes):
    """With arguments of the right kinds, but for the changes."""
    op = BY_NAME[name]
    tensors = op.make()
    y = op.call(tensors)[0]
    row_ptr, cols = ops.pattern("k^2+1", 20)
    known = {**tensors, **op.options, "row_ptr": row_ptr, "cols": cols, "scale": None, "cu_seqlens": None, "block": None}
    known |= {"grad_y": y, "grad_o": y, "kept": []} | changes
    function = getattr(ops, name + "_backward").default
    needs = lambda argument: [True] * 3 + [False] * (argument.N - 3)
    return function(*(needs(a) if a.name == "needs" else known[a.name] for a in function._schema.arguments))


def test_backward_checks_its_indices_too():
    """A traced graph may have them changed in between."""
    _, cols = ops.pattern("k^2+1", 20)
    with pytest.raises(ValueError, match=r"sparse_attention_backward: cols\[0\] is 1000000"):
        call_backward("sparse_attention", cols=put(cols, 0, 1000000))
    place = (0, 0, 0, 0)
    with pytest.raises(ValueError, match=r"gather_attention_backward: indices\[0, 0, 0, 0\] is 1000000"):
        call_backward("gather_attention", indices=put(BY_NAME["gather_attention"].make()["indices"], place, 1000000))


@pytest.mark.parametrize("name", ["dense_recurrence", "chacal", "block_chacal", "attention"])
def test_backward_checks_what_was_kept(name):
    y = torch.zeros(2, 20, 4, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=rf"^{name}_backward: kept has 5 tensors"):
        call_backward(name, kept=[y] * 5)
