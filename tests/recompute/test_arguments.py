"""What a record may call, and with what: everything else is refused, and nothing is looked up by a dump's name."""

import pytest

from npucmp.model import Call, Slot, SpelledArgument
from npucmp.recompute.arguments import RefusedRecord, arguments_of
from npucmp.recompute.table import CallRow

SOFTMAX = CallRow("nn.functional.softmax", "noise")


def read(*args, row=SOFTMAX, **kwargs):
    return arguments_of(Call("Functional", "softmax", args, kwargs), row, lambda slot: f"<{slot}>", lambda name: name)


def test_plain_arguments_come_through():
    found = read(Slot("input:0"), SpelledArgument("float", 1e-5), SpelledArgument("int", -1), SpelledArgument("bool",
    True), None,
                 [SpelledArgument("int", 2), SpelledArgument("int", 3)], SpelledArgument("slice", [0, None, 2]),
                 SpelledArgument("ellipsis", "..."), dim=SpelledArgument("int", -1),
                 dtype=SpelledArgument("torch.dtype", "torch.bfloat16"))  # fmt: skip
    assert found.args == ["<input:0>", 1e-5, -1, True, None, (2, 3), slice(0, None, 2), Ellipsis]
    assert found.kwargs == {"dim": -1, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    "word, why",
    [
        (SpelledArgument("int", 1 << 40), "integer"),
        (SpelledArgument("int", 1.5), "integer"),
        (SpelledArgument("int", float("inf")), "integer"),
        (SpelledArgument("int", "7"), "of type"),
        (SpelledArgument("float", "__import__('os')"), "of type"),
        (SpelledArgument("str", "../../etc/passwd"), "not a choice"),
        (SpelledArgument("str", "mean"), "not a choice"),
        (SpelledArgument("function", "<function f>"), "of type"),
        (SpelledArgument("module", "os"), "of type"),
        (SpelledArgument("torch.dtype", "torch.load"), "element type"),
        (SpelledArgument("slice", [0, 1 << 50, 1]), "integer"),
        (SpelledArgument("torch.Size", [1 << 35]), "integer"),
        ({"a": SpelledArgument("int", 1)}, "object"),
    ],
)
def test_what_is_refused(word, why):
    with pytest.raises(RefusedRecord, match=why):
        read(word)


def test_nesting_and_number_are_bounded():
    deep = SpelledArgument("int", 1)
    for _ in range(9):
        deep = [deep]
    with pytest.raises(RefusedRecord, match="nested"):
        read(deep)
    with pytest.raises(RefusedRecord, match="more than"):
        read([SpelledArgument("int", 1)] * 300)


def test_a_keyword_is_a_plain_name():
    with pytest.raises(RefusedRecord, match="keyword"):
        read(**{"a b": SpelledArgument("int", 1)})


def test_every_line_names_something_that_torch_has():
    """Under one of its prefixes: some are methods of tensors alone, and some functions."""
    pytest.importorskip("torch")
    from npucmp.recompute.table import _rows
    from npucmp.recompute.torch_functions import formula_of_row

    lacking, there = set(), set()
    for (_, name), row in _rows().items():
        if row.kind not in ("random", "ranks", "npu"):
            try:
                formula_of_row(row)
                there.add(name)
            except RefusedRecord:
                lacking.add(name)
    assert not lacking - there
