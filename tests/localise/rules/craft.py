"""Cases by hand, and what is demanded of every rule: where it must fire, where it must not, and that it decides."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest

from npucmp import RULES, Tolerances
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import Precision
from npucmp.judge.tolerance import Limit, judge
from npucmp.localise.rule_context import NOTHING, RuleContext
from npucmp.localise.rules import Rulebook
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Measurement, Operator, Pair, TensorRef
from npucmp.model.dtypes import lookup

SPELLINGS = {  # one operator each, as PyTorch, MindSpore and GE or TensorFlow call it
    "linear": ("linear", "Linear", "Dense", "MatMulV2"),
    "exp": ("exp", "aten::exp", "Exp"),
    "softmax": ("softmax", "aten._softmax.int", "Softmax", "SoftmaxV2"),
    "div": ("__truediv__", "div", "aten::div.Tensor", "RealDiv", "Div"),
    "layer_norm": ("layer_norm", "aten::native_layer_norm", "LayerNorm", "LayerNormV3"),
    "sum": ("sum", "aten::sum.dim_IntList", "ReduceSum", "ReduceSumD"),
    "add": ("__add__", "add", "aten::add.Tensor", "Add", "AddV2", "AddN", "TensorAdd"),
    "relu": ("relu", "ReLU", "aten::relu", "Relu"),
    "clone": ("clone", "aten::clone", "Identity", "TensorMove"),
    "add_": ("add_", "__iadd__", "aten::add_.Tensor", "InplaceAdd"),
    "empty": ("empty", "aten::empty.memory_format", "Empty", "EmptyLike"),
    "all_reduce": ("all_reduce", "AllReduce", "HcomAllReduce"),
}


def drawn(name: str):
    """(normal, noisy) of one test module, the same in whatever order modules are read."""
    random = np.random.default_rng(crc32(name.encode()))

    def normal(*shape: int, size: float = 1.0) -> np.ndarray:
        return size * random.standard_normal(shape)

    def noisy(y: np.ndarray, error: float) -> np.ndarray:
        """Off by that rel_l2, in directions that have nothing to do with y."""
        off = random.standard_normal(y.shape) * np.sqrt(np.mean(y * y))
        return y + error * off

    return normal, noisy


def ones(count: int, *offsets: float) -> tuple[np.ndarray, np.ndarray]:
    """(target, golden) of so many ones, of which the first of the target are off by the offsets."""
    return 1.0 + np.array([*offsets, *[0.0] * (count - len(offsets))]), np.ones(count)


def without_values(finding, **fields):
    """A finding of which no values are known."""
    return finding._replace(measurement=finding.measurement._replace(moments=None), **fields)


def case(op, reads=(), wrote=None, saved=(), *, phase="forward", input_error=None, slot="output:0", arguments=({}, {}),
         round_off=None, path="", name="", node=True, record=True, **more) -> RuleContext:  # fmt: skip
    """One tensor of one operator. Tensors are (target, golden[, dtype[, golden's dtype]]); `input_error` is by default
    the largest error of what is read; values are measured in float64, whatever the types are said to be."""
    tensors = [(f"input:{place}", one) for place, one in enumerate(reads)]
    refs = [tuple(_ref(slot, one, side) for slot, one in [*tensors, (slot, wrote)]) for side in (0, 1)]
    target, golden = (
        Operator(name or f"{op}.0", op, op, phase, 0, refs[side], arguments=arguments[side], path=path)
        for side in (0, 1)
    )
    u = lookup(_types(wrote)[0]).round_off if round_off is None else round_off
    precision = more.pop("precision", Precision(u))
    read = [_finding(target, golden, slot, one, u) for slot, one in tensors]
    forward = [side._replace(phase="forward" if phase == "backward" else phase) for side in (target, golden)]
    kept = [_finding(*forward, slot, one, u) for slot, one in saved]
    own = _finding(target, golden, slot, wrote, u)
    found = OperatorFindings(own.pair, read, [own], kept)
    errors = [one.error or 0.0 for one in (*read, *kept)]
    return RuleContext(
        own,
        found if node else None,
        max(errors, default=0.0) if input_error is None else input_error,
        precision,
        **more,
    )


def _types(tensor) -> tuple[str, str]:
    target = tensor[2] if len(tensor) > 2 else "float32"
    return target, tensor[3] if len(tensor) > 3 else target


def _ref(slot, tensor, side) -> TensorRef:
    return TensorRef(slot, _types(tensor)[side], np.shape(tensor[side]))


def _finding(target, golden, slot, tensor, u):
    pair = Pair(0, slot, target, golden, _ref(slot, tensor, 0), _ref(slot, tensor, 1), "name", 1.0)
    x, y = (np.asarray(one, np.float64) for one in tensor[:2])
    moments = measure_block(x.reshape(-1), y.reshape(-1), bars_for("float64", "float64", 0.0, 0.0))
    return judge(Measurement(pair, moments), Tolerances(), Limit(8 * u, "round_off"))


def decision(case: RuleContext, rules: Rulebook, name: str):
    """What the rules of one kind say together."""
    kind = next(rule.kind for rule in RULES if rule.name == name)
    if kind == "limit":
        return rules.limit(case)
    if kind == "explanation":
        found = rules.explanation(case)
        return found.rule if found else ""
    if kind == "fact" or case.grew_stepwise:
        return name if rules.holds(name, case) else ""
    accused = rules.accusation(case)
    return accused.rule if accused else ""


class TableRule:
    """One rule of the table by itself."""

    def __init__(self, row) -> None:
        self.row, self.why = row, row.why
        self.bound = self.judged = row.decide

    def applies(self, case: RuleContext) -> bool:
        """Whether the rule is for this tensor, and says something of it."""
        if not self.row.when(case):
            return False
        found = self.row.decide(case)
        nothing = {"limit": 0.0, "explanation": NOTHING, "accusation": None, "fact": False}[self.row.kind]
        return found != nothing


def rule(name: str) -> TableRule:
    return TableRule(next(row for row in RULES if row.name == name))


class RuleContract:
    """Each rule has a name, cases in which it must fire, and cases in which it must not."""

    name: str
    fires: dict[str, RuleContext]
    silent: dict[str, RuleContext]

    def said(self, case, rules):
        found = decision(case, rules, self.name)
        return getattr(found, "rule", found)

    @pytest.fixture
    def rules(self):
        return Rulebook()

    def test_it_must_fire(self, rules):
        assert {words: self.said(case, rules) for words, case in self.fires.items()} == dict.fromkeys(
            self.fires, self.name
        )

    def test_it_must_not_fire(self, rules):
        assert self.name not in {words: self.said(case, rules) for words, case in self.silent.items()}.values()

    def test_without_it_the_decision_is_another(self):
        without = Rulebook([self.name])
        assert self.name not in [self.said(case, without) for case in self.fires.values()]
        assert not all(map(self._kept, self.fires.values()))

    def _kept(self, case):
        """Whether another rule decides the same without this one; a limit only if it is as large."""
        with_it, without = (decision(case, one, self.name) for one in (Rulebook(), Rulebook([self.name])))
        return with_it.value <= without.value if isinstance(with_it, Limit) else bool(without)


def spelled(op, make) -> dict[str, RuleContext]:
    """One case under every spelling of its operator: the same tensors, the same verdict."""
    return {spelling: make(spelling) for spelling in SPELLINGS[op]}
