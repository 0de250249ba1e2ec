"""Framework-neutral identity of an operator: its path in the model, its computation, its execution number.

    MindSpore  Cell.network.module.layers.0.attention.ParallelAttention.forward.0, Mint.cos.0.forward, param:gamma
    PyTorch    Module.module.layers.0.attention.ParallelAttention.forward.0, Torch.cos.0.forward, param:weight
    vLLM       Module.model.layers.0.self_attn.qkv_proj.QKVParallelLinear…, root.model.layers.0.self_attn.qkv_proj
    ATB        2_Prefill_layer/1_LinearOperation

Words around the model ("network_with_loss", "module") are removed if all modules of a run share them and more paths
then match. Sources: documents of msprobe, mindspore.nn and mindspore.mint, vLLM, msit.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.align.shape_match import merge_leading_axes
from npucmp.dump.readers.msprobe_record import module_path, parse_msprobe_name
from npucmp.model import Operator, Run
from npucmp.model.optypes import same_type

if TYPE_CHECKING:
    from npucmp.align.msprobe_mapping import MsprobeMapping, Path

MINDSPORE, TORCH, ATB = "mindspore", "torch", "atb"
_ROOTS = ("Cell", "Module", "root")
_PREFIXES = {
    **dict.fromkeys(("Cell", "Primitive", "Mint", "MintFunctional"), MINDSPORE),
    **dict.fromkeys(("Module", "Torch", "NPU", "Aten", "root"), TORCH),
}
_FRAMEWORKS = {"mindspore": MINDSPORE, "pytorch": TORCH}  # as msprobe's dumps state
PARAMETERS = {
    "gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var",
    "embedding_table": "weight",
}  # fmt: skip
_TABLE = (  # wholes, and their parts in order
    ("qkv_proj qkv query_key_value W_pack w_qkv wqkv Wqkv c_attn in_proj qkv_layer linear_qkv to_qkv",
     ("q_proj k_proj v_proj", "query key value", "wq wk wv", "q k v", "to_q to_k to_v", "linear_q linear_k linear_v")),
    ("gate_up_proj gate_up w_gate_hidden w13 gate_up_layer", ("gate_proj up_proj", "w1 w3", "gate up")),
    ("fused_qkv_a_proj", ("q_a_proj kv_a_proj_with_mqa",)),
)  # fmt: skip
WHOLES = {whole: [one.split() for one in parts] for wholes, parts in _TABLE for whole in wholes.split()}
_DEEPEST = 16  # nested modules that have other names: work


class NeutralOperator(NamedTuple):
    """An operator in framework-neutral terms.

    place  the path of a module in the model; for other operators the path of the module around it
    what   the computation; "" for a module, whose path identifies it; "grad" for the record of a module's gradients
    """

    operator: Operator
    place: Path
    what: str
    phase: str

    @property
    def is_module(self) -> bool:
        return self.what in ("", "grad")

    @property
    def key(self) -> tuple[Path, str, str]:
        return self.place, self.what, self.phase

    @property
    def neutral(self) -> Operator:
        """The operator for the matcher by order: neutral names, and only its first output, with leading axes merged."""
        op, path = self.operator, ".".join(self.place)
        name = f"{path}.{self.what}.{self.phase}"
        own = same_type(op.op_type) if self.is_module else self.what
        found = next((tensor for tensor in op.tensors if tensor.slot == "output:0"), None)
        tensors = (found._replace(shape=merge_leading_axes(found.shape)),) if found is not None else ()
        kind = name if self.is_module else f"{own}.{self.phase}"
        bare = op._replace(name=name, op_type=own, kind=kind, phase=self.phase, scope=path, tensors=tensors)
        return bare._replace(arguments={}, stack=(), unique=False)


def function_prefix(name: str) -> str:
    """The word before a function of PyTorch that computes what a function of mindspore.mint does; "" for others."""
    return {"Mint": "Torch", "MintFunctional": "Functional", "Tensor": "Tensor", "Functional": "Functional"}.get(
        name.partition(".")[0], ""
    )


def framework_of(run: Run) -> str:
    """The framework of a run's names; "" if unknown."""
    if run.format == ATB:
        return ATB
    found = {_PREFIXES.get(operator.name.partition(".")[0], "") for operator in run.operators}
    found |= {_FRAMEWORKS.get(run.detail.partition(" ")[0], "")} if not any(found) else set()
    return next((framework for framework in (MINDSPORE, TORCH) if framework in found), "")


def neutral_operators(
    target: Run, golden: Run, vendor: MsprobeMapping
) -> tuple[list[NeutralOperator], list[NeutralOperator]]:
    """Return the operators of two runs in neutral terms. A vendor's file applies to MindSpore's side, whichever it is,
    else to the target's."""
    from npucmp.align.msprobe_mapping import MsprobeMapping

    own = MINDSPORE if MINDSPORE in (framework_of(target), framework_of(golden)) else framework_of(target)
    left, right = (
        [
            *_neutral_operator(
                run, vendor if framework_of(run) == own and (own == MINDSPORE or run is target) else MsprobeMapping()
            )
        ]
        for run in (target, golden)
    )
    ends = _wrappers(left, right)
    left, right = _without(left, ends[0]), _without(right, ends[1])
    return _rename_modules(left, right), right


def _neutral_operator(run: Run, vendor: MsprobeMapping) -> Iterator[NeutralOperator]:
    classes = _classes(run)
    forward = {operator.call: operator.scope for operator in run.operators if operator.phase == "forward"}
    for operator in run.operators:
        phase = operator.phase or "forward"
        path = _segments(operator.path)
        scope = forward.get(operator.call, operator.scope) if phase == "backward" else operator.scope
        around = _scope(scope) or _scope(operator.scope) or ()
        if path is None:
            to = vendor.function_path(around, operator, classes)
            yield NeutralOperator(operator, to[:-1], same_type(to[-1]), phase)
        else:
            gradients = "grad" if ".parameters_grad" in operator.name else ""
            yield NeutralOperator(operator, vendor.path(path, classes), gradients, phase)


def _segments(path: str) -> Optional[Path]:
    """The path of a module without the leading word that marks a module; None for an operator that is not a module."""
    first, *rest = path.split(".")
    return None if not path else tuple(rest) if first in _ROOTS else (first, *rest)


def _scope(scope: str) -> Optional[Path]:
    """The path of the module of a record, from its name."""
    if not scope:
        return None
    found = module_path(parse_msprobe_name(scope)) or (scope if scope.partition(".")[0] == "root" else "")
    return _segments(found)


def _classes(run: Run) -> dict[Path, str]:
    """The class of each recorded module by its path."""
    found: dict[Path, str] = {}
    for name in {*(op.name for op in run.operators if op.path), *(op.scope for op in run.operators)}:
        path = _scope(name)
        if path is not None:
            found.setdefault(path, parse_msprobe_name(name).op_type)
    return found


def _wrappers(left: Sequence[NeutralOperator], right: Sequence[NeutralOperator]) -> tuple[int, int]:
    """The number of leading words to remove on each side: as few as possible to make the most paths equal."""
    sides = [{one.place for one in operators if one.place} for operators in (left, right)]
    most = [_common_prefix(paths) for paths in sides]
    ends = [(i, j) for i in range(most[0] + 1) for j in range(most[1] + 1)]
    cut = [[{path[i:] for path in paths} for i in range(end + 1)] for paths, end in zip(sides, most)]
    return max(ends, key=lambda at: (len((cut[0][at[0]] & cut[1][at[1]]) - {()}), -sum(at)), default=(0, 0))


def _common_prefix(paths: set[Path]) -> int:
    """The number of leading words that all paths share."""
    if not paths:
        return 0
    first, last = min(paths), max(paths)
    return next((at for at, (a, b) in enumerate(zip(first, last)) if a != b), min(map(len, paths)))


def _without(operators: list[NeutralOperator], words: int) -> list[NeutralOperator]:
    return [one._replace(place=one.place[words:]) for one in operators]


def _rename_modules(left: list[NeutralOperator], right: Sequence[NeutralOperator]) -> list[NeutralOperator]:
    """Rename target modules to the golden's names, for example attention to self_attention. A module is renamed if it
    and a golden module are the only ones of one class without a namesake, within modules that match. Its contents move
    with it."""
    theirs = _by_class(right)
    around = {one.place[:end] for one in right for end in range(len(one.place))}
    for _ in range(_DEEPEST):
        mine = _by_class(left)
        known = {place for places in theirs.values() for place in places}
        own = {place for places in mine.values() for place in places}
        moved = {}
        for key, places in mine.items():
            here, there = [*places - known], [*theirs.get(key, set()) - own]
            if len(here) == len(there) == 1 and key[0] in around:
                moved[here[0]] = there[0]
        if not moved:
            break
        left = [one._replace(place=_rename_path(one.place, moved)) for one in left]
    return left


def _by_class(operators: Sequence[NeutralOperator]) -> dict[tuple[Path, str], set[Path]]:
    """Paths of modules by the path above them and their class."""
    found: dict[tuple[Path, str], set[Path]] = defaultdict(set)
    for one in operators:
        if one.is_module and one.place:
            found[one.place[:-1], same_type(one.operator.op_type)].add(one.place)
    return found


def _rename_path(place: Path, moved: Mapping[Path, Path]) -> Path:
    ends = (end for end in range(len(place), 0, -1) if place[:end] in moved)
    return next(((*moved[place[:end]], *place[end:]) for end in ends), place)


def parameter(slot: str, names: Mapping[str, str] = PARAMETERS) -> str:
    """A slot with PyTorch's name of a parameter."""
    role, colon, name = slot.partition(":")
    return f"{role}:{names.get(name, name)}" if colon and role in ("param", "grad") else slot


def executions(operators: Sequence[NeutralOperator]) -> dict[tuple[Path, str, str], list[NeutralOperator]]:
    """The operators by key, in order."""
    found: dict[tuple[Path, str, str], list[NeutralOperator]] = defaultdict(list)
    for one in operators:
        found[one.key].append(one)
    return found


def has_parts(target: set[Path], golden: set[Path]) -> bool:
    """Return whether one side has a whole where the other has its parts, by the paths of their modules."""
    ends = [{path[-1] for path in paths if path} for paths in (target, golden)]
    return any(
        whole in here and whole not in there and any(there.issuperset(parts) for parts in WHOLES[whole])
        for here, there in (ends, ends[::-1])
        for whole in WHOLES
    )


def differ_in_framework(target: Run, golden: Run) -> bool:
    """Return whether the names of two runs are those of two frameworks."""
    frameworks = framework_of(target), framework_of(golden)
    if frameworks[0] != frameworks[1] and (all(frameworks) or ATB in frameworks):
        return True
    if not all(frameworks):
        return False
    left, right = ({tuple(one.path.split(".")) for one in run.operators if one.path} for run in (target, golden))
    return has_parts(left, right)
