"""Which formulas an operator of a graph is: its own, or of a fused one those of its originals, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from npucmp.dump.readers.name_rules import type_of_name
from npucmp.model import Operator
from npucmp.recompute.arguments import MissingTensor, NotInTable, RefusedRecord
from npucmp.recompute.noisy_ops import Steps
from npucmp.recompute.numpy_inputs import Alternatives, Array, OperatorInputs
from npucmp.recompute.numpy_table import FormulaLine, line_of


class Plan(NamedTuple):
    """The lines of an operator, in their order; `doubt` is why they may be others."""

    lines: tuple[FormulaLine, ...]
    doubt: str = ""

    @property
    def kind(self) -> str:
        """Copies of copies are copies; all else of several steps has noise."""
        kinds = {line.kind for line in self.lines}
        return kinds.pop() if len(kinds) == 1 and (len(self.lines) == 1 or kinds == {"exact"}) else "noise"

    @property
    def views(self) -> bool:
        return any(line.views for line in self.lines)

    def results(self, m: Steps, g: OperatorInputs) -> list[Any]:
        if self.doubt:
            g.doubt(self.doubt)
        if len(self.lines) == 1:
            return self.lines[0].formula(m, g)
        if len(g.shapes) > 1:
            raise RefusedRecord("a fused operator with several results")
        return _chained(self.lines, m, g)


def plan_of(operator: Operator) -> Plan:
    """Raises NotInTable where a formula is missing. Where the names of originals say nothing (Caffe's "bn_conv1"), its
    own formula is tried: folded constants are in its weights then."""
    parts = operator.attributes.get("parts") or tuple(type_of_name(name) for name in operator.originals)
    if len(parts) < 2:
        return Plan((_line(operator.op_type),))
    lines = [line_of(kind) for kind in parts]
    known = [line for line in lines if line is not None]
    if len(known) == len(lines):
        return Plan(tuple(known))
    return Plan((_line(operator.op_type),), f"it stands for {len(parts)} operators, not all of which are known")


def _line(kind: str) -> FormulaLine:
    line = line_of(kind)
    if line is None:
        raise NotInTable(f"{kind[:40]} is no operator that numpy can replay")
    return line


def _chained(lines: tuple[FormulaLine, ...], m: Steps, g: OperatorInputs) -> list[Any]:
    """Each takes what the one before made, and then inputs in their order. What was folded into weights leaves its bias
    as an input; without one its constants are nowhere."""
    inputs = g.all
    made: Any = None
    for at, line in enumerate(lines):
        needs = line.reads - (at > 0)
        later = sum(one.reads - 1 for one in lines[at + 1 :] if not one.folds)
        if line.folds and at and len(inputs) - later < needs:
            if len(inputs) - later < 1:
                raise MissingTensor("constants that were folded into it are no inputs of it")
            g.doubt("constants were folded into its weights")
            made = m.add(made, _along(g, inputs.pop(0), made))
            continue
        if len(inputs) < needs:
            raise MissingTensor("constants that it was fused with are no inputs of it")
        taken: list[Array] = [*([made] if at else []), *inputs[:needs]]
        del inputs[:needs]
        with m.outside():
            made = _one(line, m, replace(g, inputs=dict(enumerate(taken)), attributes=_own(g, at)))
    if inputs:
        raise RefusedRecord(f"{len(inputs)} inputs more than its originals read")
    return [made]


def _own(g: OperatorInputs, at: int) -> dict[str, Any]:
    """Attributes of a part: places of inputs are those of the whole."""
    return {key: value for key, value in g.attributes.items() if key not in ("inputs", "input_names")}


def _along(g: OperatorInputs, bias: Array, made: Array) -> Array:
    order = g.order(made.ndim)
    channel = order.find("C")
    if bias.size != made.shape[channel]:
        raise RefusedRecord(f"a bias of {bias.size} for {list(made.shape)}")
    return bias.reshape([-1 if axis == channel else 1 for axis in range(made.ndim)])


def _one(line: FormulaLine, m: Steps, g: OperatorInputs) -> Any:
    found = line.formula(m, g)[0]
    if isinstance(found, Alternatives):
        g.doubt("versions of it differ")
        return found.among[0]
    return found
