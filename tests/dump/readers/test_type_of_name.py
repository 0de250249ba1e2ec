"""The operator type that the name of a node shows."""

from __future__ import annotations

import pytest

from npucmp.dump.readers.names import type_of_name


@pytest.mark.parametrize(
    "name, op_type",
    [
        ("layer1/MatMul_3", "MatMul"),
        ("layer1_MatMul_3", "MatMul"),
        ("layer1.linear_backward_0", "linear_backward"),
        ("block/MatMul_b", "MatMul"),
        ("matmul_t", "matmul"),
        ("dropout_c", "dropout"),
        ("dropout_1_2", "dropout"),
        ("block1_dropout_out", "dropout"),
        ("multinomial_x", "multinomial"),
        ("h_c", "c"),
        ("exp_avg", "avg"),
        ("conv1_bias", "bias"),
        ("random_projection.weight", "weight"),
        ("7", "7"),
    ],
)
def test_the_last_part_that_is_an_operator(name, op_type):
    """Letters behind a type distinguish operators; only a random operator is found before other words."""
    assert type_of_name(name) == op_type
