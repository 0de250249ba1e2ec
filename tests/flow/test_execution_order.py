"""The order of operators by what they read and write, and operators that one run executed again."""

import pytest

from npucmp.flow.execution_order import NOTE, in_content_order
from npucmp.model import Measurement, Moments, Operator, Pair, Run, Side, TensorRef

UNORDERED, ORDERED = (Run("x", "npy", (), ordered=one) for one in (False, True))
CONSTANT = -1  # in place of a content: a tensor of one value


def moments(content, other=None):
    """Moments of a tensor of each run: the content of a tensor is its hash."""
    if content == CONSTANT or other == CONSTANT:
        return Moments(16, *[Side(minimum=2.0, maximum=2.0, total=32.0)] * 2)
    sides = (
        Side(minimum=0.1, maximum=0.9, total=9.0, hash=one) for one in (content if other is None else other, content)
    )
    return Moments(16, *sides)


def measured(*records):
    """Measurements of records (name, contents read, contents written[, scope]); 0 is a tensor without values."""
    found = []
    for order, (name, read, wrote, *scope) in enumerate(records):
        operator = Operator(name, "relu", "relu", "", order, (), scope=scope[0] if scope else "")
        slots = [*((f"input:{at}", one) for at, one in enumerate(read)),
                 *((f"output:{at}", one) for at, one in enumerate(wrote))]  # fmt: skip
        for slot, content in slots:
            ref = TensorRef(slot, "float32", (4, 4))
            pair = Pair(order, slot, operator, operator, ref, ref)
            found.append(Measurement(pair, moments(content) if content else None))
    return found


def names(measurements):
    return list(dict.fromkeys(one.pair.operator.name for one in measurements))


ORDERS = {
    "an operator follows the producer of its input": (
        [("b", [1], [2]), ("c", [2], [3]), ("a", [9], [1])],
        "a b c",
    ),
    "it follows all producers": ([("c", [1, 2], [3]), ("b", [8], [2]), ("a", [9], [1])], "b a c"),
    "all others keep their order": (
        [("x", [], [7]), ("b", [1], [2]), ("y", [], [6]), ("a", [], [1]), ("z", [7], [5])],
        "x y a b z",
    ),
    "an operator that reads and writes a content passes it on": (
        [("reader", [1], [2]), ("view", [1], [1]), ("a", [9], [1])],
        "a reader view",
    ),
    "it produces the content if no other does": (
        [("reader", [1], [2]), ("view", [1], [1])],
        "view reader",
    ),
    "tensors without content are not the same": (
        [("b", [0], [2]), ("a", [8], [0]), ("c", [3], [2]), ("d", [8], [3])],
        "b a d c",
    ),
    "operators that wait for each other keep their order": ([("b", [1], [2]), ("a", [2], [1])], "b a"),
    "the first of a circle does not wait": (
        [("c", [4], [5]), ("b", [2], [1, 4]), ("a", [1], [2])],
        "b c a",
    ),
    "a circle behind another operator": ([("x", [], [7]), ("b", [1], [2]), ("a", [2], [1])], "x b a"),
    "two circles, one after the other": (
        [("b", [1], [2]), ("d", [3], [4]), ("a", [2], [1]), ("c", [4], [3])],
        "b a d c",
    ),
    "operators of a module whose record comes first stay together": (
        [("a", [9], [3]), ("a.1", [9], [1], "a"), ("b.1", [9], [2], "b"), ("a.2", [1], [3], "a"),
         ("b", [9], [2]), ("z", [8], [9])],
        "z a.1 a.2 a b.1 b",
    ),
    "a module follows its operators, which follow the producers of its inputs": (
        [
            ("m.act", [1], [2], "m"),
            ("m", [5], [2]),
            ("m.fc", [5], [1], "m"),
            ("z", [9], [5]),
        ],
        "z m.fc m.act m",
    ),
    "an operator of a module waits for other inputs of the module": (
        [("m.fc", [3], [1], "m"), ("m", [5, 3], [1]), ("z", [9], [5]), ("y", [9], [3])],
        "z y m.fc m",
    ),
    "operators of a module stay together": (
        [("a.1", [9], [1], "a"), ("b.1", [9], [2], "b"), ("a.2", [1], [3], "a"), ("b.2", [2], [4], "b"),
         ("a", [9], [3]), ("b", [9], [4]), ("z", [8], [9])],
        "z a.1 a.2 b.1 b.2 a b",
    ),
    "modules within modules": (
        [("m", [9], [3]), ("m.n", [9], [2]), ("m.n.fc", [9], [2], "m.n"), ("z", [8], [9])],
        "z m m.n.fc m.n",
    ),
    "an operator of an inner module follows the producers of the outer one": (
        [("fc", [6], [2], "inner"), ("inner", [6], [2], "outer"), ("outer", [9], [2]), ("z", [8], [9])],
        "z fc inner outer",
    ),
    "an operator with an input without a producer follows the others": (
        [("p", [7], [1], "m"), ("q", [9], [2], "m"), ("m", [9], [2]), ("z", [8], [9])],
        "z q p m",
    ),
    "an input of the module has a producer": (
        [("p", [7], [1], "m"), ("q", [9], [2], "m"), ("m", [9, 7], [2]), ("z", [8], [9])],
        "z p q m",
    ),
    "a module in itself is no module": ([("m", [1], [2], "m"), ("a", [9], [1])], "a m"),
    "modules in each other": ([("m", [1], [2], "n"), ("n", [1], [2], "m"), ("a", [9], [1])], "a m n"),
}  # fmt: skip


@pytest.mark.parametrize("records, order", ORDERS.values(), ids=ORDERS)
def test_an_order_follows_from_inputs_and_outputs(records, order):
    given = measured(*records)
    found = in_content_order(UNORDERED, UNORDERED, given)
    assert names(found.measured) == order.split()
    orders = [one.pair.order for one in found.measured]
    assert orders == sorted(orders) and {*orders} == {*range(len(records))}
    assert found.notes == (() if names(given) == order.split() else (NOTE,))
    for runs in ((ORDERED, UNORDERED), (UNORDERED, ORDERED)):
        assert in_content_order(*runs, given) == (given, (), ())


def test_excluded_pairs_take_part():
    """They keep their places among the others, and have no content."""
    given = measured(("b", [1], [2]), ("a", [], [1]), ("x", [0], [0]))
    left_out = [one.pair for one in given if one.pair.operator.name == "x"][::-1]
    extra = left_out[0]._replace(order=1)
    found = in_content_order(UNORDERED, UNORDERED, given[:-2], [*left_out, extra])
    assert names(found.measured) == ["a", "b"]
    assert [(one.order, one.slot) for one in found.left_out] == [(0, "output:0"), (2, "output:0"), (2, "input:0")]
    same = in_content_order(UNORDERED, UNORDERED, measured(("a", [], [1]), ("b", [1], [2])), left_out)
    assert same.left_out is left_out and same.notes == ()
    assert in_content_order(UNORDERED, UNORDERED, []) == ([], (), ())
