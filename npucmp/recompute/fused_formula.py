"""Formulas of an operator of a graph: its own, or for a fused operator those of its originals in order."""

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
    """The lines of an operator in order. `doubt` is why other lines may apply."""

    lines: tuple[FormulaLine, ...]
    doubt: str = ""

    @property
    def kind(self) -> str:
        """The kind of the plan: a chain of copies is exact, any other chain has noise."""
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
            raise RefusedRecord("a fused operator has several results")
        return _chained(self.lines, m, g)


def plan_of(operator: Operator) -> Plan:
    """Return the plan of an operator. Raises NotInTable if a formula is missing. If the names of originals are not
    types (Caffe's "bn_conv1"), its own formula is tried; folded constants are then in its weights."""
    parts = operator.attributes.get("parts") or tuple(type_of_name(name) for name in operator.originals)
    if len(parts) < 2:
        return Plan((_line(operator.op_type),))
    lines = [line_of(kind) for kind in parts]
    known = [line for line in lines if line is not None]
    if len(known) == len(lines):
        return Plan(tuple(known))
    return Plan((_line(operator.op_type),), f"it was fused from {len(parts)} operators, some of them unknown")


def _line(kind: str) -> FormulaLine:
    line = line_of(kind)
    if line is None:
        raise NotInTable(f"numpy cannot replay the operator {kind[:40]}")
    return line


def _chained(lines: tuple[FormulaLine, ...], m: Steps, g: OperatorInputs) -> list[Any]:
    """Apply each formula to the result before it, and to the next inputs. A constant that was folded into weights
    leaves its bias as an input; without the bias it is unknown."""
    inputs = g.all
    made: Any = None
    for at, line in enumerate(lines):
        needs = line.reads - (at > 0)
        later = sum(one.reads - 1 for one in lines[at + 1 :] if not one.folds)
        if line.folds and at and len(inputs) - later < needs:
            if len(inputs) - later < 1:
                raise MissingTensor("its folded constants are not among its inputs")
            g.doubt("constants were folded into its weights")
            made = m.add(made, _along(g, inputs.pop(0), made))
            continue
        if len(inputs) < needs:
            raise MissingTensor("its fused constants are not among its inputs")
        taken: list[Array] = [*([made] if at else []), *inputs[:needs]]
        del inputs[:needs]
        with m.outside():
            made = _one(line, m, replace(g, inputs=dict(enumerate(taken)), attributes=_own(g, at)))
    if inputs:
        raise RefusedRecord(f"it has {len(inputs)} more inputs than its originals read")
    return [made]


def _own(g: OperatorInputs, at: int) -> dict[str, Any]:
    """Return the attributes of a part, without the places of inputs, which apply to the whole."""
    return {key: value for key, value in g.attributes.items() if key not in ("inputs", "input_names")}


def _along(g: OperatorInputs, bias: Array, made: Array) -> Array:
    order = g.order(made.ndim)
    channel = order.find("C")
    if bias.size != made.shape[channel]:
        raise RefusedRecord(f"a bias of {bias.size} does not fit {list(made.shape)}")
    return bias.reshape([-1 if axis == channel else 1 for axis in range(made.ndim)])


def _one(line: FormulaLine, m: Steps, g: OperatorInputs) -> Any:
    found = line.formula(m, g)[0]
    if isinstance(found, Alternatives):
        g.doubt("versions of the operator differ")
        return found.among[0]
    return found
