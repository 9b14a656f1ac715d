"""Every operator once: its tensors, its other arguments, its definition, what holds of it.

A signature names the tensor arguments and results with their shapes. `*` marks one in the type of sums (float32 for
bfloat16), `#` one without a gradient. Whether an operator packs sequences, groups heads, has a scale or carries a state
follows from its signature and schema. The tests of properties run over OPERATORS; a new operator is one entry here.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

import references
from common import assert_close, ops, rand, wide, with_gradients

# Makers of inputs: (shape, dtype, seed, sizes) -> tensor


def between(low, high):
    return lambda shape, dtype, seed, sizes: rand(*shape, dtype=dtype, seed=seed, low=low, high=high)


def unit(shape, dtype, seed, sizes):
    """Keys of norm 1, as the delta rules want them."""
    return torch.nn.functional.normalize(rand(*shape, seed=seed), dim=-1).to(dtype)


def mostly_weak(shape, dtype, seed, sizes):
    """Log decays in [-2, 0], most of them near 0."""
    return (-2 * rand(*shape, seed=seed, low=0) ** 4).to(dtype)


def lists(strict=False):
    """Positions up to the row (below it if strict), some twice, -1 among them; every seventh row is empty."""

    def make(shape, dtype, seed, sizes):
        place = torch.cat([torch.arange(n) for n in sizes["lengths"]])[: shape[1]]
        most = (place if strict else place + 1)[None, :, None, None]
        draws = rand(*shape, seed=seed, low=0)
        indices = (draws * (most + 1)).floor() - 1
        indices[:, place % 7 == 6] = -1
        return indices.int()

    return make


def classes(shape, dtype, seed, sizes):
    return (rand(*shape, seed=seed, low=0) * sizes["DV"]).long()


def positions(shape, dtype, seed, sizes):
    """Some slots in any order."""
    return torch.randperm(sizes["S"], generator=torch.Generator().manual_seed(seed))[: shape[0]].int()


VALUES = {
    "log_decay": between(-0.5, 0),
    "beta": between(0, 1),
    "indices": lists(strict=True),
    "targets": classes,
    "row_weights": between(0, 1),
    "slots": positions,
}


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: str
    wide: bool
    gradient: bool

    def axis(self, symbol):
        dims = self.shape.split(",")
        return dims.index(symbol) if symbol in dims else None

    def dims(self, sizes):
        return [eval(d, {}, sizes) for d in self.shape.split(",") if d]  # noqa: S307: 2*D, B*T


def parse(text):
    found = re.findall(r"(\w+)([*#]*)\[([^\]]*)\]", text)
    return [Tensor(name, shape, "*" in marks, "#" not in marks) for name, marks, shape in found]


@dataclass
class Operator:
    name: str
    signature: str
    reference: Callable
    options: dict = field(default_factory=dict)  # the arguments that are no tensors, beside cu_seqlens
    values: dict = field(default_factory=dict)
    roundings: int = 16  # how close to the reference: see assert_close
    factors: float = 0.0
    products: bool = False  # made of matrix products, by oneDNN or by loops that stand in for it
    softmax: bool = False  # of scores q . k
    spreads: bool = False  # a number that is none may reach earlier tokens of its chunk
    cut_bits: bool = True  # a state carried across a cut gives the bits of the whole
    causal: bool = True
    twice: bool = False  # has a second derivative
    resume: Callable = lambda options, cut: options  # the options of a call that goes on behind `cut` tokens
    sizes: dict = field(default_factory=dict)  # others than the usual
    shapes: list = field(default_factory=list)  # more for the comparison with the reference
    empty: tuple = ("B", "T", "DV")  # the sizes that may be 0
    threads: list = field(default_factory=lambda: [dict(B=2, T=300, H=6, G=2, D=20, DV=24)])
    function: Callable = None

    def __post_init__(self):
        given, results = self.signature.split("->")
        self.inputs, self.results = parse(given), parse(results)
        packet = getattr(ops, self.name)
        self.schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
        arguments = {a.name for a in self.schemas[0].arguments}
        self.packs = "cu_seqlens" in arguments
        self.has_scale = "scale" in arguments
        self.grouped = any(t.axis("G") is not None for t in self.inputs)
        self.leaves = [t for t in self.inputs if t.gradient]
        self.unit_keys = self.values.get("k") is unit
        self.state = next((t for t in self.inputs if t.name == "initial_state"), None)
        optional = {a.name for a in self.schemas[0].arguments if "Optional" in str(a.type)}
        self.optional = [t.name for t in self.inputs if t.name in optional]

    def default_sizes(self, B=2, T=20, H=4, G=2, D=5, DV=3, lengths=None, **more):
        lengths = [T] if lengths is None else list(lengths)
        B, T = (1 if len(lengths) > 1 else B), sum(lengths)
        sizes = dict(B=B, T=T, H=H, G=G, D=D, DV=DV, W=4, S=T, N=B if len(lengths) == 1 else len(lengths))
        sizes |= dict(L=references.levels(max(lengths)), R=self.reads(lengths), lengths=lengths)
        return sizes | self.sizes | more

    def reads(self, lengths):
        pattern = self.options.get("pattern")
        return sum(len(ops.pattern(pattern, n)[1]) for n in lengths) if pattern else 0

    def make(self, dtype=torch.float64, **sizes):
        """The tensors by name."""
        sizes = self.default_sizes(**sizes)
        result = {}
        for seed, t in enumerate(self.inputs):
            maker = self.values.get(t.name, VALUES.get(t.name, between(-1, 1)))
            result[t.name] = maker(t.dims(sizes), wide(dtype) if t.wide else dtype, seed + 1, sizes)
        return result

    def call(self, tensors, cu_seqlens=None, **options):
        """A tuple of results."""
        packing = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens}
        function = self.function or getattr(ops, self.name)
        return as_tuple(function(**tensors, **{**self.options, **options}, **packing))

    def expected(self, tensors, **options):
        exact = {n: t.double() if t is not None and t.is_floating_point() else t for n, t in tensors.items()}
        return as_tuple(self.reference(**exact, **{**self.options, **options}))

    def of_leaves(self, tensors, function=None, **options):
        """As a function of the list of the tensors that have a gradient, and that list. Results without one are left out."""
        function = function or self.call
        names = [t.name for t in self.leaves if tensors[t.name] is not None]

        def run(leaves):
            results = function({**tensors, **dict(zip(names, leaves))}, **options)
            return [r for r, t in zip(results, self.results, strict=True) if t.gradient]

        return run, [tensors[n] for n in names]

    def part(self, tensors, where, reads=None, state=None):
        """The tokens `where`, their reads, and of a packed batch the state of one sequence."""
        cut = {"T": where, "R": reads, "N": state}
        result = {}
        for t in self.inputs:
            value = tensors[t.name]
            for symbol, places in cut.items():
                axis = t.axis(symbol)
                if axis is not None and places is not None and value is not None:
                    value = value.narrow(axis, places.start, places.stop - places.start)
            result[t.name] = value
        return result

    def assert_close(self, actual, expected, dtype, tensor, what="", **more):
        settings = dict(roundings=self.roundings, factors=self.factors * (2 if tensor.wide else 1)) | more
        assert_close(actual, expected, dtype, f"{what}{tensor.name}", sums=tensor.wide, **settings)

    def compare(self, tensors, dtype, which=None, what="", **options):
        """Results and gradients against the definition."""
        run, leaves = self.of_leaves(tensors, **options)
        exact, _ = self.of_leaves(tensors, self.expected, **options)
        actual = with_gradients(run, leaves, which)
        expected = with_gradients(exact, [t.double() for t in leaves], which)
        outputs = [t for t in self.results if t.gradient]
        given = [t for t in self.leaves if tensors[t.name] is not None]
        for index, (a, e, t) in enumerate(zip(actual, expected, [*outputs, *given], strict=True)):
            self.assert_close(a, e, dtype, t, what + ("" if index < len(outputs) else "gradient of "))
        return actual, expected


def as_tuple(result):
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)

SPEC = {"pattern": "k^2+1"}
QKV = "q[B,T,H,D] k[B,T,G,D] v[B,T,G,DV] "
GATES = "gate[B,T,H] d[B,T,H] d_self[B,T,H] "
STATE = "initial_state*[N,H,D,DV] -> o[B,T,H,DV] state*[N,H,D,DV]"
WIDE_SCORES = {"q": between(-2, 2), "k": between(-2, 2)}
BLOCKS = dict(
    factors=2.0**-8, products=True, softmax=True, values=WIDE_SCORES,
    threads=[dict(B=2, T=300, H=6, G=2, D=20, DV=24), dict(B=1, T=300, H=1, G=1, D=20, DV=24), dict(B=1, T=4000, H=1, G=1, D=20, DV=24)],
)  # fmt: skip
GAMMA = 0.9  # chains of reads multiply roundings by up to 1 / (1 - gamma)
LISTS = dict(softmax=True, sizes=dict(W=5), threads=[dict(B=1, T=1100, H=2, G=1, D=20, DV=64)])
DELTA = dict(roundings=32, factors=96 * 2.0**-13, products=True, spreads=True, cut_bits=False)
OUTER = dict(factors=2.0**-8, products=True, spreads=True, cut_bits=False)
EVERYWHERE = dict(causal=False)

OPERATORS = [
    Operator(
        "glr", "alpha_diag[B,H,T] alpha[B,H,R] beta[B,H,R] x[B,T,H,D] -> y[B,T,H,D]", references.glr, SPEC,
        values={"beta": between(-0.2, 0.2)}, empty=("B", "T", "D"),
    ),
    Operator(
        "glr_normalized",
        "log_alpha_diag[B,H,T] log_alpha[B,H,R] log_beta[B,H,R] x[B,T,H,D] -> y[B,T,H,D] log_z*[B,T,H]",
        references.glr_normalized, SPEC, values={"log_beta": between(-6, -2)}, empty=("B", "T", "D"),
    ),
    Operator(
        "glr_attention", QKV + GATES + "-> y[B,T,H,DV]", references.glr_attention, SPEC, values=WIDE_SCORES, softmax=True,
    ),
    Operator(
        "glr_softmax", QKV + "d[B,T,H] d_self[B,T,H] g[B,T,H] -> y[B,T,H,DV]", references.glr_softmax, SPEC,
        values=WIDE_SCORES, softmax=True,
    ),
    Operator(
        "sparse_attention", QKV + "-> y[B,T,H,DV]", references.sparse_attention, {**SPEC, "include_self": True},
        values=WIDE_SCORES, softmax=True,
    ),
    Operator("dense_recurrence", QKV + GATES + "-> y[B,T,H,DV]", references.dense_recurrence, roundings=160, **BLOCKS),
    Operator("chacal", QKV + "-> y[B,T,H,DV]", references.chacal, {"gamma": GAMMA}, roundings=160, **BLOCKS),
    Operator("block_chacal", QKV + "-> y[B,T,H,DV]", references.block_chacal, {"gamma": GAMMA}, roundings=160, **BLOCKS),
    Operator("attention", QKV + "-> y[B,T,H,DV]", references.attention, **BLOCKS),
    Operator(
        "attention_topk", QKV + "-> o[B,T,H,DV] indices#[B,T,H,4]", references.attention_topk, {"kappa": 4}, **BLOCKS,
    ),
    Operator("gather_attention", QKV + "indices#[B,T,H,W] -> y[B,T,H,DV]", references.gather_attention, **LISTS),
    Operator(
        "retrieved_recurrence", QKV + "gate[B,T,H] indices#[B,T,H,W] -> y[B,T,H,4,DV]",
        references.retrieved_recurrence, {"hops": 3}, **LISTS,
    ),
    Operator(
        "retrieved_glr", QKV + GATES + "indices#[B,T,H,W] -> y[B,T,H,DV]", references.retrieved_glr, **LISTS,
    ),
    Operator("linear_attention", QKV + STATE, references.matrix_state, **OUTER),
    Operator("ssd", QKV + "log_decay[B,T,H] " + STATE, references.matrix_state, values={"log_decay": mostly_weak}, **OUTER),
    Operator("gla", QKV + "log_decay[B,T,H,D] " + STATE, references.matrix_state, values={"log_decay": mostly_weak}, **OUTER),
    Operator("delta_rule", QKV + "beta[B,T,H] " + STATE, references.matrix_state, values={"k": unit}, **DELTA),
    Operator(
        "gated_delta_rule", QKV + "log_decay[B,T,H] beta[B,T,H] " + STATE, references.matrix_state, values={"k": unit}, **DELTA,
    ),
    Operator("kda", QKV + "log_decay[B,T,H,D] beta[B,T,H] " + STATE, references.matrix_state, values={"k": unit}, **DELTA),
    Operator(
        "log_linear_attention", QKV + "log_decay[B,T,H] level_scales[B,T,H,L] -> o[B,T,H,DV]", references.log_linear, **DELTA,
    ),
    Operator(
        "log_linear_delta_rule", QKV + "log_decay[B,T,H] beta[B,T,H] level_scales[B,T,H,L] -> o[B,T,H,DV]",
        references.log_linear, values={"k": unit}, **DELTA,
    ),
    Operator(
        "linear_recurrence", "a[B,T,D] x[B,T,D] initial_state*[N,D] -> y[B,T,D] state*[N,D]", references.linear_recurrence,
        empty=("B", "T", "D"), shapes=[(2, 100, 1, 1, 130, 1, "float32")],
    ),
    Operator(
        "sliding_window_recurrence", "a[B,T,D] x[B,T,D] initial_state*[N,2,D] -> y[B,T,D] state*[N,2,D]",
        references.sliding_window_recurrence, {"block": 7, "start": 3}, empty=("B", "T", "D"),
        resume=lambda options, cut: {**options, "start": options["start"] + cut},
        shapes=[(2, 100, 1, 1, 130, 1, "float32")],
    ),
    Operator(
        "selective_scan", "u[B,T,D] delta[B,T,D] A*[D,S] B[B,T,S] C[B,T,S] D*[D] initial_state*[N,D,S] -> y[B,T,D] state*[N,D,S]",
        references.selective_scan, values={"delta": between(0.01, 1), "A": between(-3, -0.1)}, sizes=dict(S=4),
        empty=("B", "T", "D"),
    ),
    Operator(
        "short_convolution", "x[B,T,D] weight[D,W] bias[D] -> y[B,T,D]", references.short_convolution, {"silu": True},
        empty=("B", "T", "D"),
    ),
    Operator("rms_norm", "x[B,T,D] weight[D] -> y[B,T,D]", references.rms_norm, {"eps": 1e-3}, empty=("B", "T"), **EVERYWHERE),
    Operator(
        "linear", "x[B,T,D] weight[DV,D] bias[DV] -> y[B,T,DV]", torch.nn.functional.linear, empty=("B", "T", "D", "DV"), **EVERYWHERE,
    ),
    Operator(
        "linear_parts", "x[B,T,D] first[DV,D] second[3,D] -> y[B,T,1] z[B,T,DV-1] w[B,T,3]",
        lambda x, first, second: references.linear_parts(x, [first, second], [1, len(first) - 1, 3]),
        function=lambda x, first, second: ops.linear_parts(x, [first, second], [1, len(first) - 1, 3]),
        empty=("B", "T", "D"), **EVERYWHERE,
    ),
    Operator(
        "mlp", "x[B,T,D] up[DV,D] up_bias[DV] down[H,DV] down_bias[H] -> y[B,T,H]", references.mlp, factors=2.0**-7,
        empty=("B", "T"), **EVERYWHERE,
    ),
    Operator(
        "rope", "x[B,T,H,2*D] cos#[1,T,D] sin#[1,T,D] -> y[B,T,H,2*D]", references.rope, twice=True, empty=("B", "T"), **EVERYWHERE,
    ),
    Operator(
        "head_loss", "x[B*T,D] weight[DV,D] bias[DV] targets#[B*T] row_weights*#[B*T] -> loss*[] losses*#[B*T] guesses#[B*T]",
        references.head_loss, empty=("B", "T"), **EVERYWHERE,
    ),
    Operator(
        "attention_step", "q#[B,H,D] k#[B,S,G,D] v#[B,S,G,DV] slots#[S//2] own_k#[B,G,D] own_v#[B,G,DV] -> y#[B,H,DV]",
        references.attention_step, empty=("B",), values=WIDE_SCORES, **EVERYWHERE,
    ),
    Operator(
        "matrix_step_",
        "q#[B,H,D] k#[B,G,D] v#[B,G,DV] log_decay#[B,H,D] beta#[B,H] state*#[B,H,D,DV] -> o#[B,H,DV] after*#[B,H,D,DV]",
        references.matrix_step_, values={"k": unit}, empty=("B", "DV"), **EVERYWHERE,
        function=lambda state, **rest: (ops.matrix_step_(**rest, state=(after := state.clone(memory_format=torch.contiguous_format))), after),
    ),
    Operator(
        "neighborhood", "indices#[B,T,H,W] -> links#[B,T,H,9]", references.neighborhood,
        {"widths": [3, 2], "cumulative": True}, empty=("B", "T"),
    ),
]  # fmt: skip

NAMES = [op.name for op in OPERATORS]
BY_NAME = {op.name: op for op in OPERATORS}
PATTERNED = [op.name for op in OPERATORS if "pattern" in op.options]


def over(condition=lambda op: True):
    """The operators with a trait, as parameters of a test."""
    chosen = [op for op in OPERATORS if condition(op)]
    return pytest.mark.parametrize("op", chosen, ids=[op.name for op in chosen])


def has_gradient(op):
    return bool(op.leaves)
