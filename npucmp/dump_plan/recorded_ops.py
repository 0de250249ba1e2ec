"""The operators of an earlier dump by the names that select them in its tool, and their sizes on a disk.

If a tool dumps more than the selected operators, the additional ones are counted too. Sources: msprobe 26.2, its
configuration and scope.py; CANN's acl.json; MindSpore's dump JSON.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import Iterable, Sequence

from npucmp.model import Operator, Run
from npucmp.model.dtypes import size_of
from npucmp.model.roles import containers

_LEVELS = ("L0", "L1", "mix")
UNSURE = re.compile("[^0-9A-Za-z-]")  # characters that a file name may replace


@dataclass
class Recorded:
    """The operators of one run of a dump, by the names that select them in its tool."""

    run: Run

    def asked(self, operator: Operator) -> str:
        """Return the name that selects an operator, "" if there is none."""
        return operator.name

    def given(self, name: str) -> Sequence[int]:
        """Return the operators, by their order, that a name selects."""
        return self._by_name.get(name, ())

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for operator in self.run.operators:
            if name := self.asked(operator):
                found[name].append(operator.order)
        return found

    def bytes(self, orders: Iterable[int]) -> int:
        """Return the bytes of operators on a disk; npy has no bfloat16, so MindSpore writes float32."""
        widened = {"bfloat16": "float32"} if "mindspore" in (self.run.format, self.run.detail.split(" ")[0]) else {}
        tensors = (tensor for order in orders for tensor in self._by_order[order].tensors)
        return sum(size_of(widened.get(tensor.dtype, tensor.dtype), tensor.stored_shape) for tensor in tensors)

    @cached_property
    def _by_order(self) -> dict[int, Operator]:
        return {operator.order: operator for operator in self.run.operators}


class OfMsprobe(Recorded):
    """The selection of msprobe: every record whose name contains a name of the list.

    With level mix, all operators inside a selected module are dumped too. Gradients of parameters are dumped with the
    backward of their module.
    """

    def asked(self, operator: Operator) -> str:
        owner, found, _ = operator.name.partition(".parameters_grad")
        if found:
            return f"{owner}.backward"
        return operator.name if operator.phase else ""  # other records are written by save()

    def given(self, name: str) -> Sequence[int]:
        found, operators = set(), self.run.operators
        at = self._text.find(name)
        while at >= 0:
            line = bisect_right(self._starts, at) - 1
            operator = operators[line]
            found.add(operator.order)
            for key in (operator.name, f"{operator.phase} {operator.path}"):
                found.update(self._inside.get(key, ()))
            if operator.phase == "backward":
                found.update(self._gradients.get(operator.call.rpartition(".")[0], ()))
            at = self._text.find(name, self._starts[line + 1])
        return sorted(found)

    @cached_property
    def _text(self) -> str:
        """All names, one per line."""
        return "".join(f"{_in_one_line(operator.name)}\n" for operator in self.run.operators)

    @cached_property
    def _starts(self) -> list[int]:
        """The start of each line, and the end of the last one."""
        return [*accumulate((len(operator.name) + 1 for operator in self.run.operators), initial=0)]

    @cached_property
    def _inside(self) -> dict[str, list[int]]:
        """The operators inside each module, if the level includes them."""
        found: dict[str, list[int]] = defaultdict(list)
        if level(self.run) == "mix":
            scopes = {operator.name: operator.scope for operator in self.run.operators if operator.scope}
            for operator in self.run.operators:
                for key in containers(operator, scopes):
                    found[key].append(operator.order)
        return found

    @cached_property
    def _gradients(self) -> dict[str, list[int]]:
        """Gradients of parameters by their module."""
        found: dict[str, list[int]] = defaultdict(list)
        for operator in self.run.operators:
            if ".parameters_grad" in operator.name:
                found[operator.call].append(operator.order)
        return found


class OfMindspore(Recorded):
    """The selection of MindSpore: kernels by a regular expression; parameters are not kernels.

    File names contain kernel names with "_" for "/", or only their last part.
    """

    def asked(self, operator: Operator) -> str:
        return "" if operator.op_type == "Parameter" else f"name-regex(^(.*/)?{UNSURE.sub('.', operator.name)}$)"


def network(run: Run) -> str:
    """Return the key of a network: in runs with equal keys, the same names select the same tensors of the same size."""
    known = blake2b(repr((run.format, run.detail)).encode("utf-8", "backslashreplace"), digest_size=16)
    for operator in run.operators:
        about = operator.name, operator.op_type, operator.phase, operator.order, operator.scope, operator.path
        tensors = [(one.dtype, *one.stored_shape) for one in operator.tensors]
        known.update(repr((about, operator.call, tensors)).encode("utf-8", "backslashreplace"))
    return known.hexdigest()


def _in_one_line(name: str) -> str:
    return name.replace("\n", " ")


def level(run: Run) -> str:
    """Return msprobe's word for what was recorded: modules (L0), APIs (L1), or both (mix)."""
    word = run.detail.rpartition(" · ")[2].partition(" ")[0]
    if word in _LEVELS:
        return word
    kinds = {bool(operator.path) for operator in run.operators if operator.phase}
    return "mix" if len(kinds) > 1 else "L0" if True in kinds else "L1"
