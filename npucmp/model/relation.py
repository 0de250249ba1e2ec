"""A relation: how the tensors of several ranks and micro batches make one logical tensor.

Along each axis of a layout (tensor parallel, data parallel, micro batches …) the ranks hold a tensor by a placement:

    whole              every rank holds all of it; the copies must be equal
    shard(d)           each rank holds a contiguous part along dimension d
    shard(d, in 3 blocks)  the dimension is a row of blocks, and each rank holds a part of every block: fused qkv and
                       gate_up, batch x heads. Blocks of unequal size: shard(d, in blocks 2:1:1)
    grouped(d, in blocks 2:1:1)  each rank holds a part of the first block and a copy of the others: query heads beside
                       the key and value heads that several ranks share
    rows(0)            the rows of the ranks side by side in another order: tokens that experts get
    zigzag(d)          of 2k chunks, rank r of k holds chunks r and 2k-1-r: context parallelism
    zigzag(d, in 4 blocks)  the same within each block: sequences of a batch one behind the other
    sum, mean, max     the tensor is the sum, mean or largest element of what the ranks hold
    norm               it is the root of the sum of their squares: norms of parts
    local              each rank computes with indices or masks of its own; what it makes of them is compared
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple, Optional, Sequence


class Placement(NamedTuple):
    """How the ranks along one axis hold a tensor. `blocks` are the relative sizes of the blocks of a shard; for rows,
    the number of each row among those of the ranks."""

    kind: str
    dim: int = 0
    blocks: tuple[int, ...] = (1,)

    @property
    def is_partial(self) -> bool:
        """Whether each rank holds all positions, and none the values."""
        return self.kind in ("sum", "mean", "max", "norm")

    @property
    def is_split(self) -> bool:
        return self.kind in ("shard", "grouped", "zigzag", "rows")

    @property
    def has_copies(self) -> bool:
        """Whether ranks along the axis hold equal values."""
        return self.kind in ("whole", "grouped")

    def joined_length(self, length: int, size: int) -> Optional[int]:
        """The length along `dim` of what `size` ranks make of parts of a length; None if the blocks do not fit."""
        if self.kind != "grouped":
            return length * size
        unit, rest = divmod(length, sum(self.blocks))
        return None if rest else unit * (self.blocks[0] * size + sum(self.blocks[1:]))

    @property
    def words(self) -> str:
        if not self.is_split:
            return self.kind
        if len(self.blocks) == 1 or self.kind == "rows":
            return f"{self.kind}({self.dim})"
        if len({*self.blocks}) == 1:
            return f"{self.kind}({self.dim}, in {len(self.blocks)} blocks)"
        return f"{self.kind}({self.dim}, in blocks {':'.join(map(str, self.blocks))})"


WHOLE = Placement("whole")
SUM = Placement("sum")
MEAN = Placement("mean")
MAX = Placement("max")
NORM = Placement("norm")
LOCAL = Placement("local")
OPEN = Placement("open")
STATED = "stated"  # by the user


class TensorRelation:
    """A relation of one tensor. By default no rank shares it and nothing is summed."""

    __slots__ = ()

    @property
    def words(self) -> str:
        """The relation as tensors.csv has it; "" for the tensor itself."""
        return ""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that share the tensor."""
        return ()

    @property
    def operators(self) -> tuple[tuple[int, str], ...]:
        """The operator of each rank that shares it, by (rank, name)."""
        return ()

    @property
    def placements(self) -> tuple[Placement, ...]:
        """How ranks hold it along each axis of a layout."""
        return ()

    @property
    def parts(self) -> dict[int, Optional[float]]:
        """The error of the part of each rank that has one of its own; None if it is not known."""
        return {}

    @property
    def decided_by(self) -> str:
        return ""

    @property
    def is_partial(self) -> bool:
        """Whether ranks hold terms of it."""
        return any(one.is_partial for one in self.placements)

    @property
    def is_split(self) -> bool:
        """Whether each rank has a part of the tensor."""
        return any(one.is_split for one in self.placements)

    @property
    def is_local(self) -> bool:
        """Whether it depends on its own run or rank and is not compared."""
        return LOCAL in self.placements

    @property
    def absence(self) -> str:
        """Why no tensor of the target is compared with this tensor of the golden; "" if one is."""
        return ""

    @property
    def unreduced(self) -> bool:
        """Whether the tensor differs, and the sum of what the ranks hold agrees."""
        return False

    @property
    def rounding(self) -> float:
        """How much larger the rounding of a sum over ranks is than that of the sum."""
        return 1.0

    @property
    def tolerance(self) -> tuple[Optional[float], Optional[float]]:
        """The rtol and atol of single elements that it decides; None for those of the types."""
        return None, None

    @property
    def is_read_again(self) -> bool:
        """Whether the values of a root are read again: no other evidence of the relation says where it differs."""
        return False


class _RankFields(NamedTuple):
    ranks: tuple[int, ...]
    placements: tuple[Placement, ...]
    operators: tuple[tuple[int, str], ...] = ()
    scale: float = 1.0
    decided_by: str = ""
    error: Optional[float] = None
    rounding: float = 1.0
    rank_errors: tuple[tuple[int, float], ...] = ()
    unreduced: bool = False
    of_rank: str = ""


class Relation(_RankFields, TensorRelation):
    """The logical tensor of a golden operator as a function of tensors of the target.

    ranks       that hold it; `operators`: the operator of each, by (rank, name)
    placements  along each axis of more than one rank or micro batch, fastest first
    scale       the factor by which the target's values are larger than the golden's
    decided_by  "agreement", "other layers", "flow", "shape" or STATED
    error       of the assembled tensor, None if it was not computed
    rounding    how much larger the rounding of a sum over ranks is than that of the sum, 1 for other relations
    rank_errors relative error of the part of each rank, by (rank, error); empty for sums, inputs and unknown values
    unreduced   whether the tensor differs, and the sum of what the ranks hold agrees
    of_rank     what the tensor of each rank is a view of, in words: the rows of the same tokens
    """

    __slots__ = ()

    @property
    def parts(self) -> dict[int, Optional[float]]:
        errors = dict(self.rank_errors)
        return {rank: errors.get(rank) for rank in self.ranks} if self.operators else {}

    @property
    def absence(self) -> str:
        if self.is_local:
            return "each rank has a tensor of its own in its place; what is made of them is compared"
        return "the tensors of the ranks in its place are no known parts of it" if OPEN in self.placements else ""

    @property
    def placement(self) -> str:
        """The placements in words, fastest axis first."""
        named = [one.words for one in self.placements if one.kind != "whole"]
        words = " · ".join(named) or "whole"
        return words if self.scale == 1.0 else f"{words}, {self.scale:g} times"

    @property
    def words(self) -> str:
        """The relation as tensors.csv has it: "concat(ranks 0-3, axis 2)", "sum(ranks 0-1)"."""
        ranks = f"ranks {ranks_in_words(self.ranks)}"
        found = [self.of_rank] if self.of_rank else []
        for one in self.placements:
            if one.kind == "shard" and len(one.blocks) == 1:
                found.append(f"concat({ranks}, axis {one.dim})")
            elif one.is_split:
                found.append(f"{one.words[:-1]}, {ranks})")
            elif one.is_partial:
                found.append(f"{one.kind}({ranks})")
        if len(found) == bool(self.of_rank) and len(self.ranks) > 1:
            found.append(f"replica({ranks})")
        if self.scale != 1.0:
            found.append(f"scale({self.scale:g})")
        return " · ".join(dict.fromkeys(found))


class PlacedTensor(NamedTuple):
    """The relation of one golden tensor: one row of placements.csv. `state` is "agrees", "differs", "local", "shape",
    "unknown" or "without a partner"."""

    step: Optional[int]
    operator: str
    slot: str
    state: str
    relation: Optional[Relation] = None


class PlacedCollective(NamedTuple):
    """A collective of the target. On these ranks it runs before an operator of the golden, "" behind the last one."""

    step: Optional[int]
    name: str
    before: str
    ranks: tuple[int, ...]


class LayoutFacts(NamedTuple):
    """How the ranks of a target were put together.

    target, golden  the layouts in words; `ranks` of the target, `axes`: sizes of its axes, `stages`, `micro_batches`
    placed          the relation of every tensor of the golden, in its order
    missing         ranks of the layout that the dump lacks
    stage_of        the pipeline stage of each of `ranks`
    collectives     of all ranks, in the order of the golden's operators
    """

    target: str
    golden: str
    ranks: tuple[int, ...] = ()
    stages: int = 1
    micro_batches: int = 1
    placed: tuple[PlacedTensor, ...] = ()
    missing: tuple[int, ...] = ()
    stage_of: tuple[int, ...] = ()
    collectives: tuple[PlacedCollective, ...] = ()


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Ranks as in --ranks: "0-3", "0,2"."""
    found: list[list[int]] = []
    for rank in sorted({*ranks}):
        if found and rank == found[-1][-1] + 1:
            found[-1].append(rank)
        else:
            found.append([rank])
    return ",".join(str(one[0]) if len(one) == 1 else f"{one[0]}-{one[-1]}" for one in found)


class _AxisOrderFields(NamedTuple):
    axes: tuple[int, ...] = ()
    of_golden: bool = False
    full: tuple[int, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()
    along: int = -1


class AxisOrder(_AxisOrderFields, TensorRelation):
    """The order of axes in which a target tensor is a golden tensor: permute(0,3,1,2) makes NCHW of NHWC.

    axes       the axes of the target in the order of the golden, without axes of length one; () for the same order
    of_golden  the axes are those of the golden in the order of the target, because the golden has more of them
    full       the axes by their numbers in the recorded shape, for reports; () if `axes` has them
    blocks     the places of the golden `along` an axis in the order of the target, if the target has its blocks in
               another order: the gates of a recurrent layer, q, k and v of a fused weight; () for the same
    along      counts the golden's axes from the end, without those of length one; in reports it is the axis itself
    """

    __slots__ = ()

    @property
    def words(self) -> str:
        """The relation as tensors.csv has it; "" for the same order."""
        words = f"permute({','.join(map(str, self.full or self.axes))})" if self.axes else ""
        if self.blocks:  # where the target has each block of the golden
            ends = [0, *accumulate(stop - start for start, stop in self.blocks)]
            places = sorted(zip(self.blocks, ends, ends[1:]))
            ranges = ",".join(f"{start}-{stop - 1}" for _, start, stop in places)
            return " · ".join(filter(None, (words, f"slice(axis {self.along}, {ranges})")))
        return f"{words} of the golden" if self.of_golden and words else words

    @property
    def without_blocks(self) -> AxisOrder:
        """The order of the axes alone."""
        return AxisOrder(self.axes, self.of_golden)


SAME_ORDER = AxisOrder()


class _SliceFields(NamedTuple):
    axis: int
    start: int
    stop: int
    of_golden: bool = False


class SliceRelation(_SliceFields, TensorRelation):
    """A tensor that is a slice of a recorded one: the places from `start` to `stop` along `axis`. `of_golden`: the
    recorded tensor is the golden's."""

    __slots__ = ()

    @property
    def words(self) -> str:
        """The relation as tensors.csv has it."""
        words = f"slice(axis {self.axis}, {self.start}-{self.stop - 1})"
        return f"{words} of the golden" if self.of_golden else words


class _WeightFields(NamedTuple):
    words: str = ""
    operators: tuple[tuple[int, str], ...] = ()
    rtol: float = 0.0
    atol: float = 0.0


class WeightRelation(_WeightFields, TensorRelation):
    """How tensors of a checkpoint make a parameter of the other one (relations/weights/).

    words      the relation as tensors.csv has it, "" for a tensor of its own
    operators  the tensors that hold it, by (rank, name)
    rtol, atol the difference of single elements that the types allow, |x-y| ≤ rtol·|y| + atol
    """

    __slots__ = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that hold it; () for one rank."""
        ranks = tuple(dict.fromkeys(rank for rank, _ in self.operators))
        return ranks if len(ranks) > 1 else ()

    @property
    def tolerance(self) -> tuple[Optional[float], Optional[float]]:
        return self.rtol, self.atol


class WeightFacts(NamedTuple):
    """How the tensors of two checkpoints correspond. `lines`: each relation in words; `only_target`: parameters that
    only the target holds; `states`: tensors and numbers of the states of their trainings."""

    lines: tuple[str, ...] = ()
    only_target: tuple[str, ...] = ()
    states: int = 0


class _TokenFields(NamedTuple):
    tokens: int
    requests: int
    steps: int = 1
    is_own: bool = False


class TokenRelation(_TokenFields, TensorRelation):
    """A tensor whose rows are those of the same tokens: `tokens` of `requests`, selected from `steps` steps. `is_own`:
    the tensor depends on the layout of its own run (a mask, lengths, a cache) and is not compared; all that is made of
    it is."""

    __slots__ = ()

    @property
    def words(self) -> str:
        """The relation as tensors.csv has it: "tokens(18 of 3 requests, 5 steps)"."""
        steps = f", {self.steps} steps" if self.steps > 1 else ""
        return f"tokens({self.tokens} of {self.requests} request{'s' if self.requests != 1 else ''}{steps})"

    @property
    def is_local(self) -> bool:
        return self.is_own


class _BlockFields(NamedTuple):
    tokens: int = 0
    requests: int = 0
    is_own: bool = False


class BlockRelation(_BlockFields, TensorRelation):
    """A pool of a paged cache, of which the blocks are read that the table of its own run names: those of `tokens` of
    `requests`. `is_own`: the tensor says where blocks lie and is not compared."""

    __slots__ = ()

    @property
    def words(self) -> str:
        """The relation as tensors.csv has it: "blocks(24 tokens of 1 request)"."""
        return f"blocks({self.tokens} tokens of {self.requests} request{'s' if self.requests != 1 else ''})"

    @property
    def is_read_again(self) -> bool:
        return True

    @property
    def is_local(self) -> bool:
        return self.is_own


class TokenFacts(NamedTuple):
    """How the tokens of two runs correspond.

    tokens, requests  of the golden that have a row in the target
    lengths  of the requests, without padding; `padding`: where the golden has it, "" without padding
    target, golden  the layouts in words; `steps` of the target
    problem  the reason why there is no index, or why a part of the golden has no row; "" if all tokens have one
    """

    tokens: int
    requests: int
    lengths: tuple[int, ...]
    target: str
    golden: str
    padding: str = ""
    steps: int = 1
    problem: str = ""


class TokenBits(NamedTuple):
    """The tokens of an output whose bits are equal in both runs: one row of batch_invariance.csv.

    originated  tokens that differ although the inputs of the operator have equal bits at all tokens of the request up
                to it; None without recorded inputs
    error       the largest relative error of a token
    """

    step: Optional[int]
    operator: str
    golden_operator: str
    op_type: str
    slot: str
    tokens: int
    equal: int
    originated: Optional[int]
    error: float
