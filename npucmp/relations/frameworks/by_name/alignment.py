"""Alignment of two runs from two frameworks: modules, projections, functions, and the remaining operators by order."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.align import order
from npucmp.align.content_match import content
from npucmp.align.framework_names import ATB, NeutralOperator, executions, framework_of, has_parts, neutral_operators
from npucmp.align.msprobe_mapping import Api, MsprobeMapping
from npucmp.align.name import longest_increasing
from npucmp.align.shape_match import alike
from npucmp.dump.limits import ReadContext
from npucmp.model import Match, Operator, Run
from npucmp.relations.frameworks.by_name import weight_match
from npucmp.relations.frameworks.by_name.slots import adds_up, partner_of

VIA = "name"
CONFIDENCE = 0.9  # confidence: chosen: of equal paths or names in two frameworks
_NAMED = 3  # candidates in a note: work
_ALIKE = 0.9  # least similarity by content: chosen: of a pair whose position leaves a choice


class CrossFrameworkAlignment(NamedTuple):
    """The matches, and why operators have none: by side ("target", "golden") and the operator's order."""

    matches: list[Match]
    open: Mapping[tuple[str, int], str]


def line_up(
    target: Run, golden: Run, mapped: Sequence[Match], vendor: MsprobeMapping, context: ReadContext
) -> CrossFrameworkAlignment:
    """Match the operators of two runs from two frameworks. The result includes the matches that the user gave."""
    work = _Work(target, golden, mapped, vendor, context)
    work.modules()
    work.projections(weight_match.groups_by_name(*work.unmatched()))
    if work.is_unnamed:
        work.weights(framework_of(golden) == ATB)
    work.functions()
    work.rest()
    return CrossFrameworkAlignment(work.matches, work.open)


class _Work:
    """The matches found so far and the unmatched operators."""

    def __init__(
        self, target: Run, golden: Run, mapped: Sequence[Match], vendor: MsprobeMapping, context: ReadContext
    ) -> None:
        self.open: dict[tuple[str, int], str] = {}
        self.vendor, self.context = vendor, context
        self.matches = [self._with_slots(one) for one in mapped]
        self.left, self.right = neutral_operators(target, golden, vendor)
        self.own = {one.operator.order: one for one in self.left}
        self.is_unnamed = ATB in (framework_of(target), framework_of(golden))  # its names have no module path
        self.is_fused = has_parts(*({one.place for one in operators} for operators in (self.left, self.right)))
        bare_left = neutral_operators(target, golden, MsprobeMapping())[0]
        self.from_mapping = {one.operator.order for one, bare in zip(self.left, bare_left)
                     if one.key != bare.key} if vendor != MsprobeMapping() else set()  # fmt: skip

    def _with_slots(self, match: Match) -> Match:
        """Move the golden's tensors to the slots that the user's mapping gives them, if it gives any."""
        api = self.vendor.apis.get(match.target.name)
        if api is None or not api.slots:
            return match
        return match._replace(golden=partner_of(match.target, match.golden, self.context, api), settled=True)

    def unmatched(self) -> tuple[list[NeutralOperator], list[NeutralOperator]]:
        taken = {match.target.order for match in self.matches}
        used = {order for match in self.matches for order in (match.golden.order, *match.inside)}
        return (
            [one for one in self.left if one.operator.order not in taken],
            [one for one in self.right if one.operator.order not in used],
        )

    def add(self, target: Operator, golden: Operator, via: str, confidence: float, slots: Optional[Api] = None) -> None:
        api = self.vendor.api(target)
        via = "mapping" if target.order in self.from_mapping or api else via
        partner = partner_of(target, golden, self.context, api or slots)
        self.matches.append(Match(target, partner, via, confidence, (), True))

    def modules(self) -> None:
        """Match modules of one path, execution by execution, if their outputs are alike."""
        left, right = self.unmatched()
        known = executions([one for one in right if one.is_module])
        for key, calls in executions([one for one in left if one.is_module]).items():
            for one, other in zip(calls, known.get(key, ())):
                why = self._unlike(one.operator, other.operator)
                if why:
                    self._leave(one.operator, other.operator, why)
                else:
                    self.add(one.operator, other.operator, VIA, CONFIDENCE)

    def _unlike(self, target: Operator, golden: Operator) -> str:
        """The reason why two modules of one path are not partners; "" if they are."""
        sides = [[one for one in op.tensors if one.slot.startswith("output")] for op in (target, golden)]
        if not all(sides) or any(not one.slot or one.problem for op in (target, golden) for one in op.tensors):
            return ""
        if any(one.slot.startswith("grad") for one in target.tensors):
            return ""
        first = [operators[0].shape for operators in sides]
        if not alike(first[0], first[1]):
            return f"it writes {[*first[1]]}, this operator {[*first[0]]}"
        if not self.is_fused:
            return ""
        more = [one for operators in sides for one in operators[min(map(len, sides)) :] if alike(one.shape, first[0])]
        if more and not adds_up(target, golden):  # the residual beside the stream
            return f"it writes {len(sides[1])} tensors of this shape, this operator {len(sides[0])}"
        reads = [next((one.shape for one in op.tensors if one.slot == "input:0"), ()) for op in (target, golden)]
        if all(reads) and reads[0][-1:] != reads[1][-1:] and len(reads[0]) > 1 < len(reads[1]):
            return f"it reads {[*reads[1]]}, this operator {[*reads[0]]}"
        return ""

    def weights(self, is_golden: bool) -> None:
        """Match operators by their weights. If `is_golden`, the golden run's names have no module paths."""
        turn = -1 if is_golden else 1
        weights, others = [weight_match.weights_of(side, self.context) for side in self.unmatched()][::turn]
        for found in weight_match.same(weights, others, self.context):
            one, other = found[::turn]
            if _writes_alike(one.owner, other.owner):
                slots = Api("", "", {one.tensor.slot: other.tensor.slot})
                self.add(
                    one.operator_with_weight,
                    other.operator_with_weight,
                    weight_match.VIA,
                    weight_match.CONFIDENCE,
                    slots,
                )
        left = [{each.operator.order for each in side} for side in self.unmatched()][::turn]
        weights, others = (
            [each for each in side if each.owner.operator.order in orders]
            for side, orders in zip((weights, others), left)
        )
        self.projections(weight_match.fused(weights, others, is_golden, self.context))

    def projections(self, groups: Iterable[weight_match.FusedGroup]) -> None:
        """Match fused products with their parts."""
        found, unsure = weight_match.matches_of([*groups], self.context)
        self.matches += found
        for group in unsure:
            here, there = ("golden", "target") if group.turned else ("target", "golden")
            names, why = ", ".join(part.name for part in group.parts), weight_match.why_not(group)
            self.open[here, group.whole.order] = f"it may consist of {names}, but {why}"
            for part in group.parts:
                self.open[there, part.order] = f"it may be a part of {group.whole.name}, but {why}"

    def functions(self) -> None:
        """Match functions of one kind in one module, if both sides have equally many and their outputs are alike one by
        one."""
        left, right = ([one for one in calls if not one.is_module] for calls in self.unmatched())
        known = executions(right)
        for key, calls in executions(left).items():
            others = known.get(key, [])
            alike = len(calls) == len(others) and key[0] and all(map(_writes_alike, calls, others))
            for one, other in zip(calls, others if alike else ()):
                self.add(one.operator, other.operator, VIA, CONFIDENCE)

    def rest(self) -> None:
        """Match the remaining operators by order between matches: those of one type and shape that are equally many on
        both sides, or have the same values."""
        left, right = (
            [one for one in operators if (side, one.operator.order) not in self.open]
            for side, operators in zip(("target", "golden"), self.unmatched())
        )
        stretches = self._stretches()
        groups: dict[object, tuple[list[NeutralOperator], list[NeutralOperator]]] = defaultdict(lambda: ([], []))
        of: dict[tuple[int, int], object] = {}  # by side and order
        for side, operators in enumerate((left, right)):
            for one in operators:
                key = of[side, one.operator.order] = stretches.key(one, side)
                groups[key][side].append(one)
        found = order.match(
            [one.neutral for one in left], [one.neutral for one in right], self.matches, context=self.context
        )
        theirs = {one.operator.order: one for one in right}
        no_choice = {key: _is_no_choice(*rivals) for key, rivals in groups.items()}
        for match in found:
            one, other = self.own[match.target.order], theirs[match.golden.order]
            key = of[0, one.operator.order]
            sure = key == of[1, other.operator.order] and no_choice[key] and self._is_near_by(one, other)
            if sure or content([match.target], [match.golden], self.context).like[0, 0] > _ALIKE:
                self.add(one.operator, other.operator, order.VIA, match.confidence)
        taken = self.unmatched()
        free = [{one.operator.order for one in operators} for operators in taken]
        for side, operators in enumerate((left, right)):
            for one in operators:
                if one.operator.order not in free[side]:
                    continue
                rivals = groups[of[side, one.operator.order]][1 - side]
                names = [each.operator.name for each in rivals if each.operator.order in free[1 - side]]
                if names:
                    words = " or ".join(names[:_NAMED]) + (f" or {len(names) - _NAMED} more" if names[_NAMED:] else "")
                    where = ("target", "golden")[side], one.operator.order
                    self.open.setdefault(where, f"its partner is ambiguous: {words}; name it with --mapping")

    def _is_near_by(self, one: NeutralOperator, other: NeutralOperator) -> bool:
        """Return whether one operator is in the module of the other or in a module inside it. Without module paths,
        always True."""
        here, there = sorted((one.place, other.place), key=len)
        return self.is_unnamed or (here == there[: len(here)] and one.is_module == other.is_module)

    def _stretches(self) -> _Stretches:
        known = sorted((m.target.order, m.golden.order) for m in self.matches if m.target.phase != "backward")
        chain = [known[at] for at in longest_increasing([there for _, there in known])]
        return _Stretches([[at[side] for at in chain] for side in (0, 1)])

    def _leave(self, target: Operator, golden: Operator, why: str) -> None:
        self.open[("target", target.order)] = f"{golden.name} has the same path, but {why}"
        self.open[("golden", golden.order)] = f"{target.name} has the same path, but they are not alike"


class _Stretches:
    """Numbers of the stretches between matches that keep the order of both runs."""

    def __init__(self, ends: Sequence[Sequence[int]]) -> None:
        self.ends = ends

    def key(self, one: NeutralOperator, side: int) -> object:
        """Return the key under which operators are counted: one type, one shape of output, one stretch. Backward
        operators follow their forward operators, not this order."""
        neutral = one.neutral
        written = neutral.tensors[0].shape if neutral.tensors else ()
        at = bisect_right(self.ends[side], one.operator.order) if one.phase != "backward" else -1
        return at, neutral.op_type, one.phase, written


def _is_no_choice(operators: Sequence[NeutralOperator], others: Sequence[NeutralOperator]) -> bool:
    """Return whether both sides have equally many candidates, or all on the longer side have equal records."""
    longer = max(operators, others, key=len)
    return len(operators) == len(others) or len({*map(_record, longer)}) == 1


def _record(one: NeutralOperator) -> object:
    """The recorded statistics and checksums of an operator. Operators with equal records are interchangeable."""
    tensors = one.operator.tensors
    has_content = all(each.identity or (each.statistics and None not in each.statistics) for each in tensors)
    return (
        repr([(each.slot, each.shape, each.statistics, each.checksum) for each in tensors]) if has_content else id(one)
    )


def _writes_alike(one: NeutralOperator, other: NeutralOperator) -> bool:
    here, there = one.neutral.tensors, other.neutral.tensors
    return not here or not there or alike(here[0].shape, there[0].shape)
