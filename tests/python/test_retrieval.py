"""neighborhood and what reads by lists: order, doubles, empty rows, where they are something known."""

import pytest
import torch

import references
from common import DTYPES, assert_close, bounds, ops, rand, sliced, with_gradients
from registry import BY_NAME, lists, over

retrieval = over(lambda op: "indices" in [t.name for t in op.inputs] and op.leaves)
GATHER, RECURRENCE, GLR = (BY_NAME[name] for name in ("gather_attention", "retrieved_recurrence", "retrieved_glr"))
HOPS = RECURRENCE.options["hops"]


def some_lists(*shape, strict=False, lengths=None):
    return lists(strict)(shape, torch.int32, 0, {"lengths": lengths or [shape[1]]})


@retrieval
def test_lists_shared_by_the_heads_of_a_key(op):
    """One for each head of k rather than of q."""
    for dtype, B, T, H, G, D in (("float64", 2, 65, 4, 2, 20), ("float32", 1, 100, 6, 2, 5), ("bfloat16", 2, 64, 4, 1, 64)):
        tensors = op.make(DTYPES[dtype], B=B, T=T, H=H, G=G, D=D, W=9)
        op.compare(tensors | {"indices": tensors["indices"][:, :, :G].contiguous()}, DTYPES[dtype])


def test_lists_may_hold_the_token_itself():
    """Of gather_attention; those of recurrences may not, which the tests of errors see."""
    GATHER.compare(GATHER.make() | {"indices": some_lists(2, 20, 4, 5)}, torch.float64)


@pytest.mark.parametrize("kappa", [1, 4, 32, 100])
def test_prefixes_shorter_than_kappa(kappa):
    """All visible positions and -1 behind them, as a full layer retrieves: the first rows are attention to all."""
    T = 20
    q, k, v, _ = GATHER.make(B=1, T=T).values()
    indices = torch.arange(kappa, dtype=torch.int32).repeat(1, T, 4, 1)
    indices = indices.masked_fill(indices > torch.arange(T)[None, :, None, None], -1)
    y = ops.gather_attention(q, k, v, indices)
    full = ops.sparse_attention(q, k, v, "dense", True)
    assert_close(y[:, :kappa], full[:, :kappa], torch.float64)
    assert T <= kappa or not torch.allclose(y[:, kappa:], full[:, kappa:])


@retrieval
def test_rows_without_entries_are_zero_and_pass_nothing(op):
    tensors = op.make()
    tensors["indices"] = torch.full_like(tensors["indices"], -1)
    run, leaves = op.of_leaves(tensors)
    y, dq, dk, dv, *gates = with_gradients(run, leaves)
    v = tensors["v"].repeat_interleave(2, dim=2)
    if op is GATHER:
        assert all((t == 0).all() for t in (y, dv))
    elif op is RECURRENCE:
        assert torch.equal(y[..., 0, :], v) and (y[..., 1:, :] == 0).all()
    else:  # y = d_self v, by way of z - d v
        assert_close(y, tensors["d_self"][..., None] * v, torch.float64)
    assert all((t == 0).all() for t in (dq, dk, *gates[:1]))
    (nothing,) = GATHER.call({**{n: tensors[n] for n in "qkv"}, "indices": tensors["indices"][..., :0]})
    assert nothing.eq(0).all()  # a width of 0 too


def test_retrieved_recurrence_is_glr_on_the_nilpotent_system():
    """B = gate P (x) R, R the shift of hops + 1 blocks: node i (hops + 1) + r reads (i', r - 1)."""
    T, H, DV, blocks = 20, 2, 3, HOPS + 1
    q, k, v, gate, indices = RECURRENCE.make(T=T, H=H, G=H, DV=DV).values()
    P = references.list_weights(q, k, indices)
    x = torch.zeros(2, T, blocks, H, DV, dtype=torch.float64)
    x[:, :, 0] = v
    row_ptr, cols, beta = [0], [], []
    for i in range(T):
        for r in range(blocks):
            for j in range(i if r > 0 else 0):
                cols.append(j * blocks + r - 1)
                beta.append(gate[:, i] * P[:, :, i, j])
            row_ptr.append(len(cols))
    beta = torch.stack(beta, dim=-1)
    expected = ops.glr(
        torch.ones(2, H, T * blocks, dtype=torch.float64), torch.zeros_like(beta), beta,
        x.flatten(1, 2), torch.tensor(row_ptr), torch.tensor(cols, dtype=torch.int32),
    )  # fmt: skip
    expected = expected.unflatten(1, (T, blocks)).transpose(2, 3)
    assert_close(ops.retrieved_recurrence(q, k, v, gate, indices, HOPS), expected, torch.float64)


def test_retrieved_glr_on_a_pattern_is_glr_attention():
    """Lists that hold the rows of window(3), at every head."""
    T = 30
    *tensors, _ = GLR.make(T=T).values()
    tensors[3] = tensors[3] * 3 - 1.5  # gates of either sign
    indices = torch.arange(T)[:, None] - torch.tensor([3, 2, 1])
    indices = indices.clamp(min=-1).int().expand(2, 4, T, 3).transpose(1, 2)
    y = ops.retrieved_glr(*tensors, indices)
    assert torch.equal(y, ops.glr_attention(*tensors, "window(3)"))


@pytest.mark.parametrize("widths", [[1], [6], [1, 1], [4, 1, 1], [6, 1, 1, 1], [1, 3], [2, 3], [3, 2, 2]], ids=str)
def test_neighborhood_is_its_definition(widths):
    for T in (1, 2, 64, 65):
        indices = some_lists(2, T, 3, 6)
        for cumulative in (False, True):
            expected = references.neighborhood(indices, widths, cumulative)
            assert torch.equal(ops.neighborhood(indices, widths, cumulative), expected)


def test_neighborhood_of_packed_sequences_with_strides():
    lengths = [4, 0, 16, 1]
    indices = some_lists(1, 21, 4, 5, lengths=lengths)
    packed = ops.neighborhood(sliced(indices), [3, 2], True, cu_seqlens=bounds(lengths))
    pieces = [ops.neighborhood(part, [3, 2], True) for part in indices.split(lengths, dim=1)]
    assert torch.equal(packed, torch.cat(pieces, dim=1))


def test_neighborhood_feeds_gather_attention():
    """What it gives is accepted, and its order and doubles are gone: attention to the set."""
    tensors = GATHER.make(T=40)
    links = ops.neighborhood(some_lists(2, 40, 4, 5), [3, 1, 1], True)
    assert links.shape == (2, 40, 4, 9) and links.dtype == torch.int32
    valid = links >= 0
    assert (links[..., 1:] > links[..., :-1])[valid[..., 1:]].all()
    assert (valid[..., :-1] | ~valid[..., 1:]).all()  # -1 only at the end
    GATHER.compare(tensors | {"indices": links}, torch.float64)
