"""What a record may call, and with what: everything else is refused, and nothing is looked up by a dump's name."""

import pytest

from npucmp.dump.readers.msprobe_record import call_of
from npucmp.model import Call, Slot, SpelledArgument
from npucmp.recompute.arguments import RefusedRecord, arguments_of, floats_in
from npucmp.recompute.table import CallRow, row_of

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


@pytest.mark.parametrize("key", ["device", "generator", "out", "inplace", "group"])
def test_what_the_environment_gives_is_left_out(key):
    assert read(**{key: SpelledArgument("function", "<lambda>")}).kwargs == {}


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


@pytest.mark.parametrize("equation, fits", [("bij,bjk->bik", True), ("...ij->ij", True), ("os.system('x')", False)])
def test_an_equation_is_letters_and_signs(equation, fits):
    row = row_of(Call("Torch", "einsum"))
    if fits:
        assert read(SpelledArgument("str", equation), row=row).args == [equation]
    else:
        with pytest.raises(RefusedRecord):
            read(SpelledArgument("str", equation), row=row)


@pytest.mark.parametrize("prefix, name", [
    ("Torch", "load"), ("Torch", "ops"), ("Tensor", "__reduce__"), ("Tensor", "__class__"), ("Functional", "__dict__"),
    ("Torch", "hub"), ("os", "system"), ("Torch", "nn.functional.linear"), ("", "linear"), ("Tensor", "apply_"),
])  # fmt: skip
def test_other_names_are_in_no_table(prefix, name):
    assert row_of(Call(prefix, name)) is None


@pytest.mark.parametrize("prefix, name, call, kind, inplace", [
    ("Functional", "linear", "nn.functional.linear", "sum", False),
    ("Functional", "softmax", "nn.functional.softmax", "noise", False),
    ("Tensor", "__iadd__", "Tensor.__iadd__", "noise", True),
    ("Tensor", "add_", "Tensor.add_", "noise", True),
    ("Torch", "where", "where", "exact", False),
    ("NPU", "npu_rms_norm", "npu_rms_norm", "npu", False),
    ("Distributed", "all_reduce", "all_reduce", "ranks", False),
    ("MintFunctional", "layer_norm", "nn.functional.layer_norm", "noise", False),
])  # fmt: skip
def test_lines_of_the_table(prefix, name, call, kind, inplace):
    row = row_of(Call(prefix, name))
    assert (row.call, row.kind, row.inplace) == (call, kind, inplace)


def test_every_line_names_something_that_torch_has():
    """Under one of its prefixes: some are methods of tensors alone, and some functions."""
    pytest.importorskip("torch")
    from npucmp.recompute.table import _rows
    from npucmp.recompute.torch_bind_call import function_of

    lacking, there = set(), set()
    for (_, name), row in _rows().items():
        if row.kind not in ("random", "ranks"):
            try:
                function_of(row)
                there.add(name)
            except RefusedRecord:
                lacking.add(name)
    assert not lacking - there


def test_a_record_keeps_nulls_types_and_keywords():
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2]}
    record = {
        "input_args": [tensor, None, [{"type": "int", "value": 3}, tensor]],
        "input_kwargs": {"dim": {"type": "int", "value": -1}},
        "output": [tensor, None],
    }
    assert call_of("Functional.softmax.7.forward", record) == Call(
        "Functional", "softmax", (Slot("input:0"), None, [SpelledArgument("int", 3), Slot("input:2.1")]),
        {"dim": SpelledArgument("int", -1)}, (Slot("output:0"), None),
    )  # fmt: skip
    assert call_of("Module.fc.Linear.parameters_grad", {"weight": tensor}) is None
    assert call_of("Functional.softmax.0.forward", "no record") is None


@pytest.mark.parametrize("name, prefix, known", [
    ("Mint.matmul.0.forward", "Mint", True),
    ("MintFunctional.softmax.0.forward", "MintFunctional", True),
    ("Tensor.__add__.0.forward", "MindSpore.Tensor", True),
    ("Tensor.std.0.forward", "MindSpore.Tensor", False),  # of N, where PyTorch's is of N - 1
    ("Functional.softmax.0.forward", "MindSpore.Functional", False),
])  # fmt: skip
def test_mindspores_own_functions_are_not_pytorchs(name, prefix, known):
    call = call_of(name, {"input_args": [], "output": []}, "mindspore")
    assert call.prefix == prefix and (row_of(call) is not None) == known


def test_floats_are_found_at_any_depth():
    assert floats_in([1, 0.5, (2.5, {"eps": 1e-5}), True, "a"]) == [0.5, 2.5, 1e-5]
