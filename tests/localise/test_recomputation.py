"""The decision on an operator of which both runs were recomputed from their own inputs."""

from npucmp.flow.operators import nodes_of
from npucmp.localise.recomputation import Recomputation, RecomputedRows
from npucmp.model import Finding, Measurement, Operator, Pair, ReplayedOutput, ReplayVerdict, TensorRef, Verdict
from tests.localise.step_craft import Op, Tensor, step

CLEAN = ReplayedOutput(0, "output:0", verdict=ReplayVerdict.CLEAN)
GUILTY = CLEAN._replace(verdict=ReplayVerdict.GUILTY, rms_ratio=5.0)


def output(dtypes, slot="output:0"):
    tensors = [TensorRef(slot, dtype, (4,)) if dtype else None for dtype in dtypes]
    op = Operator("f.0", "f", "f", "forward", 0, tuple(filter(None, tensors)))
    return Finding(Measurement(Pair(0, slot, op, op, *tensors)), Verdict.MATCH, "")


# An operator that only propagates its inputs


def node(*tensors, kind="linear", arguments=({}, {}), call="", phase="forward"):
    """One operator whose outputs are off by a hundredth, or as `tensors` say."""
    own = tensors or (Tensor("output:0", error=0.01),)
    (found,) = nodes_of(step(Op(kind, (Tensor("input:0"), *own), call, phase, arguments)))
    return found


def clean(slot="output:0", rel_l2=0.0, **more):
    return CLEAN._replace(slot=slot, rel_l2=rel_l2, **more)


def came_in(target, golden, *tensors, rule="", is_known=True, accused=0, is_setting=False, **more):
    """Whether an operator with these rows of its outputs only propagates its inputs."""
    own = node(*tensors, **more)
    return RecomputedRows(target, golden, is_setting).is_innocent(own, rule, own.outputs[accused], is_known)


SMALL = Tensor("output:0", error=0.001)


def test_an_operator_with_other_arguments_stays_accused():
    for is_setting in (False, True):
        more = {"arguments": ({"eps": 1e-5}, {"eps": 1e-6}), "is_setting": is_setting}
        assert not came_in([clean()], [clean()], SMALL, **more)
        assert came_in([clean()], [clean()], SMALL, **{**more, "arguments": ({"eps": 1e-5},) * 2})


# The recomputation of a run


class Rows:
    """Answers with given rows of the target and the golden."""

    def __init__(self, target=(), golden=(), as_golden=(), sampled=(), setting=()):
        self._sides, self._as_golden, self._sampled, self._setting = (target, golden), as_golden, sampled, setting

    def rows(self, side, operator):
        rows = self._sides[side]
        return rows.get(operator.name, ()) if isinstance(rows, dict) else rows

    def gradients_as_golden(self, target, golden):
        return self._as_golden

    def is_sampled(self, operator):
        return operator.name in self._sampled

    def is_setting(self, operator):
        return operator.name in self._setting


def test_an_operator_of_one_run_is_not_recomputed():
    own = node(call="f.0")
    for lacks in ({"target_op": None}, {"golden_op": None}):
        own.pair = own.pair._replace(**lacks)
        assert Recomputation(Rows([clean()], [clean()])).of(own) is None


FORWARD, BACKWARD = "layer_norm.0.forward", "layer_norm.0.backward"


def gradient(arguments=({}, {}), call="layer_norm.0", forward_call="", outputs=(0.01,), phase="backward"):
    """The backward of a call and its forward, whose outputs have these errors."""
    tensors = [Tensor(f"output:{at}", error=error) for at, error in enumerate(outputs)]
    forward = Op("layer_norm", (Tensor("input:0"), *tensors), forward_call or call, arguments=arguments)
    found = nodes_of(step(forward, Op("layer_norm", (Tensor("input:0"), Tensor("output:0")), call, phase)))
    return found[::-1]


def test_tensors_of_other_ranks_belong_to_no_forward():
    backward, forward = gradient()
    _, other = gradient(call="layer_norm.7")
    guilty = Rows({"layer_norm.7.forward": [GUILTY], FORWARD: [GUILTY]}, {FORWARD: [clean()]})
    (arrived,) = other.outputs
    own = arrived.measurement._replace(pair=arrived.pair._replace(order=-1))
    backward.extra_inputs = [arrived._replace(measurement=own), *backward.extra_inputs]
    found = Recomputation(guilty).forward_of(backward)
    assert found is not None and found[0].operator is forward.operator
    backward.extra_inputs = backward.extra_inputs[:1]
    assert Recomputation(guilty).forward_of(backward) is None
