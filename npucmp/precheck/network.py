"""Rows of the network: its operators, their order, the shapes that they write."""

from __future__ import annotations

from collections import Counter
from typing import Iterable, NamedTuple, Optional, Sequence

from npucmp.align.name import longest_increasing
from npucmp.align.worlds import are_apart
from npucmp.model import Operator, Pair, first_of
from npucmp.model.optypes import is_gradient, op_type, op_type_of
from npucmp.model.prechecked import Told
from npucmp.precheck.both import Both, Together
from npucmp.precheck.row import Row, differs, same, unknown

MANY = 0.05  # share of operators without a partner from which on it is another network


class Alone(NamedTuple):
    """Operators of one side without a partner, and of how many."""

    side: str
    operators: "list[Operator]"
    of: int


def operators(both: Both) -> Told:
    """Operators without a partner, in any step and rank; the worst one is told."""
    counts = Counter[str]()
    worst: Optional[tuple[float, Together, list[Alone]]] = None
    for one in both.together:
        if one.alignment is None:
            return differs(one.problem)
        counts[one.target.path] = len(one.alignment.matches)
        alone = _alone(one)
        share = max((len(side.operators) / side.of for side in alone if side.of), default=0.0)
        if share and (worst is None or share > worst[0]):
            worst = share, one, alone
    if worst is not None:
        return _unmatched(*worst)
    for one in both.together:
        moved = _moved(one)
        if moved:
            words = f"{len(moved)} operators run in another order (first: {moved[0].name})"
            return differs(words, "warning", places=len(moved), first=moved[0].name)
    if not counts:
        return unknown("no step and rank is in both")
    matched = sum(counts.values())
    return same(f"{matched:,} operators", places=matched)


def _unmatched(share: float, one: Together, alone: "list[Alone]") -> Told:
    told = [side for side in alone if side.operators]
    words = []
    for side in told:
        kinds = Counter(op_type(operator.op_type).name or operator.op_type for operator in side.operators)
        most = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3))
        words.append(f"{len(side.operators):,} of {side.of:,} operators only in {side.side} ({most}; "
                     f"first: {side.operators[0].name})")  # fmt: skip
    graphs = one.target.format != one.golden.format or _is_graph(one) or are_apart(one.target, one.golden)
    severity = "error" if share > MANY and not graphs else "warning"
    count = sum(len(side.operators) for side in told)
    return differs("; ".join(words), severity, places=count, first=told[0].operators[0].name, value=share, limit=MANY)


def _is_graph(one: Together) -> bool:
    """Whether a compiler made the operators of a side: it fuses and folds them as it likes."""
    return any(operator.originals or operator.inserted for run in one[:2] for operator in run.operators)


def _alone(one: Together) -> "list[Alone]":
    """Without what one side cannot have: phases and modules that the other did not dump, what compilers insert."""
    assert one.alignment is not None
    runs = {"target": one.target, "golden": one.golden}
    comparable = set.intersection(*({_family(operator) for operator in run.operators} for run in runs.values()))
    found = []
    for side, alone in (("target", one.alignment.only_target), ("golden", one.alignment.only_golden)):
        kept = [operator for operator in alone if _family(operator) in comparable and _counts(operator)]
        found.append(Alone(side, kept, sum(map(_counts, runs[side].operators))))
    return found


def _family(operator: Operator) -> "tuple[str, bool]":
    return operator.phase, bool(operator.path)


def _counts(operator: Operator) -> bool:
    """Whether it computes something of the network: no record of gradients alone, nothing of the compiler's own."""
    if operator.inserted or op_type_of(operator).has("constant"):
        return False
    return any(not tensor.slot.startswith("grad:") for tensor in operator.tensors)


def _moved(one: Together) -> "list[Operator]":
    """Operators of the forward pass that stand elsewhere in the order of the golden run, where both have an order."""
    if not (one.target.ordered and one.golden.ordered) or one.target.format != one.golden.format or _is_graph(one):
        return []
    matches = [match for match in one.matches if match.target.phase == "forward" and match.via == "name"]
    kept = {*longest_increasing([match.golden.order for match in matches])}
    return [match.target for at, match in enumerate(matches) if at not in kept]


def shapes(both: Both) -> Told:
    """Outputs of partners that have another shape; one ratio throughout is the batch or the length."""
    count, odd = 0, list[Pair]()
    for one in both.together:
        outputs = [pair for pair in one.pairs if is_output(pair) and not is_gradient(pair.operator)]
        count += len(outputs)
        odd += [pair for pair in outputs if _squeezed(_shape(pair.target)) != _squeezed(_shape(pair.golden))]
    if not count:
        return unknown("no operator has a partner with outputs")
    if not odd:
        return same(f"{count:,} outputs", places=count)
    first = odd[0]
    target, golden = _shape(first.target), _shape(first.golden)
    words = _ratio(odd) or f"first: {first.operator.name} {list(target)} against {list(golden)}"
    told = f"{len(odd):,} of {count:,} outputs have another shape: {words}"
    return differs(told, places=len(odd), first=first.operator.name, target=str(list(target)), golden=str(list(golden)))


def is_output(pair: Pair) -> bool:
    """An output that both sides have."""
    both = pair.target is not None and pair.golden is not None
    return both and pair.slot.startswith("output:") and not pair.is_inside


def _shape(tensor: object) -> "tuple[int, ...]":
    return getattr(tensor, "shape", ())


def _squeezed(shape: "tuple[int, ...]") -> "tuple[int, ...]":
    return tuple(size for size in shape if size != 1)


def _ratio(odd: "Sequence[Pair]") -> str:
    """What all differences have in common, if it is one axis in one ratio."""
    axes, sizes = Counter[int](), Counter[tuple[int, int]]()
    ratios = set[tuple[int, float]]()
    for pair in odd:
        target, golden = _shape(pair.target), _shape(pair.golden)
        differing = [at for at, (a, b) in enumerate(zip(target, golden)) if a != b]
        if len(target) != len(golden) or not differing:
            return ""
        for at in differing:
            if not golden[at]:
                return ""
            axes[at] += 1
            sizes[target[at], golden[at]] += 1
            ratios.add((0, round(target[at] / golden[at], 6)))
    if len({ratio for _, ratio in ratios}) > 1:
        return ""
    a, b = min(sizes, key=lambda pair: (-sizes[pair], pair))
    axis = axes.most_common(1)[0][0]
    names = {0: "batch size", 1: "sequence length"}
    if len(axes) == 1:
        only = ["first", "second", "third"][axis] if axis < 3 else f"axis {axis}"
        return f"only the {only} axis differs, {a} against {b} ({names.get(axis, 'one axis')})"
    return f"one axis by the same ratio throughout, {a} against {b}, most often {names.get(axis, f'axis {axis}')}"


def words_of(names: "Iterable[str]") -> str:
    return first_of(list(names), 3)


ROWS = (
    Row("network.operators", "error", "operators by type, name and order", "compare model code and versions of both",
        operators),
    Row("network.shapes", "error", "shapes of outputs", "run both with the same batch size, length and configuration",
        shapes),
)  # fmt: skip
