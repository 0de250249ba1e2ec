"""What a fused operator of a graph computes: its originals, one after the other."""

import numpy as np
import pytest

from npucmp.model import Operator
from npucmp.recompute.arguments import MissingTensor, NotInTable, RefusedRecord
from npucmp.recompute.noisy_ops import Steps
from npucmp.recompute.numpy_inputs import OperatorInputs
from npucmp.recompute.numpy_table import plan_of

X = np.random.default_rng(1).normal(size=(2, 3))
W = np.random.default_rng(2).normal(size=(3, 4))
B = np.arange(4.0)


def operator(op_type, *originals, **attributes):
    return Operator("a", op_type, "a", "", 0, (), originals=originals, attributes=attributes)


def computed(which, *inputs, shape, **attributes):
    given = OperatorInputs(dict(enumerate(inputs)), attributes, (shape,), {}, "tfdbg")
    return plan_of(which).results(Steps(2.0**-11, 2.0**-24, 1 << 20), given)[0], given


def test_constants_that_were_folded_away():
    """With a bias among the inputs the weights hold them, and nobody is guilty; without one nobody knows them."""
    which = operator("MatMulV2", "dense/MatMul", "bn/FusedBatchNormV3", "Relu")
    got, given = computed(which, X, W, B, shape=(2, 4))
    assert np.allclose(got, np.maximum(X @ W + B, 0))
    assert given.doubts == ["constants were folded into its weights"]
    with pytest.raises(MissingTensor, match="its folded constants"):
        computed(which, X, W, shape=(2, 4))
    with pytest.raises(MissingTensor, match="fused constants"):
        computed(operator("MatMul", "MatMul", "add"), X, W, shape=(2, 4))
    with pytest.raises(RefusedRecord, match="1 more inputs"):
        computed(operator("MatMul", "MatMul", "Relu"), X, W, B, shape=(2, 4))


def test_originals_that_say_nothing_leave_its_own_formula_in_doubt():
    got, given = computed(operator("MatMulV2", "scale_conv1", "conv1", "bn_conv1"), X, W, B, shape=(2, 4))
    assert np.allclose(got, X @ W + B)
    assert given.doubts == ["it was fused from 3 operators, some of them unknown"]
    with pytest.raises(NotInTable, match="cannot replay the operator Unheard"):
        plan_of(operator("Unheard", "a", "b"))
