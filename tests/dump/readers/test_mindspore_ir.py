"""Graphs and orders beside MindSpore's dumps: by full names, whatever of the name a dump kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump.readers.mindspore_ir import Companions, FullNames, IrKernel

SHARED = Path(__file__).parents[4] / "shared" / "data"
NAME = "Default_n_LayerNorm-op0"
TITLE = "# Fullname with scope: (Default/n/LayerNorm-op0)"
CALL = "%0(y) = PrimFunc_LayerNorm({}) {{}}\n  " + TITLE


def companions(folder: Path, text: str = "", order: str = "") -> Companions:
    for name, content in (
        ("graphs/ms_output_trace_code_graph_0.ir", text),
        ("execution_order/ms_execution_order_graph_0.csv", order),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    return Companions(folder)


def node(folder: Path, text: str) -> IrKernel:
    return companions(folder, text).node(NAME)


@pytest.mark.parametrize(
    "inputs, constants",
    [
        ("%1, I64(-1), F32(1e-07)", {"input:1": ("int64", -1), "input:2": ("float32", 1e-07)}),
        (
            "Bool(1), Bool(false), U8(3)",
            {"input:0": ("bool", True), "input:1": ("bool", False), "input:2": ("uint8", 3)},
        ),
        ("Tensor(shape=[2, 3], value=[I64(1), 2]), (I64(1), I64(2)), I32(7)", {"input:2": ("int32", 7)}),
        ("I64(9e9), F32(x), I64(" + "9" * 50 + "), %a(I64(1))", {}),
        ("", {}),
    ],
)
def test_constants(tmp_path, inputs, constants):
    assert node(tmp_path, CALL.format(inputs)).constants == constants


FRAMES = [
    "# In file a.py:3~9, 4~5/    def construct(self, x):/",
    "# In file a.py:5, 10~17/        y = self.f(x)/",
    "# In file a.py:5, 10~15/        y = self.f(x)/<~~This line of code can be shared by multiple nodes.",
    "# In file b.py:1~2, 4~5/    async def f(x):/",
    "# In file b.py(2)/  return x/",
    "# In file : 1/",
]


def test_frames_are_innermost_first_in_the_function_around_them(tmp_path):
    found = node(tmp_path, "\n".join((CALL.format(""), *FRAMES))).stack
    assert found == (
        "File b.py, line 2, in f, \n return x",
        "File a.py, line 5, in construct, \n y = self.f(x)",
    )


@pytest.mark.parametrize("title", [TITLE, ": full_name_with_scope: (Default/n/LayerNorm-op0)", TITLE.lower()])
def test_spellings_of_the_title(tmp_path, title):
    found = node(tmp_path, f"%1([CNode]2) = A(I64(3))\n{title}\n{FRAMES[1]}\n").constants
    assert found == ({} if title == TITLE.lower() else {"input:0": ("int64", 3)})


@pytest.mark.parametrize("text", ["", TITLE, "%0(a) = A(((((\n" + TITLE, f"{FRAMES[0]}\n{TITLE}"])
def test_odd_graphs_tell_nothing(tmp_path, text):
    assert node(tmp_path, text)[1:] == ({}, (), {})


def test_frames_belong_to_one_node(tmp_path):
    text = "\n".join((CALL.format(""), "%1(z) = Add(%0)", FRAMES[1]))
    assert node(tmp_path, text).stack == ()


def test_the_first_node_of_a_name_counts(tmp_path):
    text = "\n".join((CALL.format("I64(1)"), CALL.format("I64(2)")))
    assert node(tmp_path, text).constants == {"input:0": ("int64", 1)}


@given(st.lists(st.sampled_from([CALL.format("I64(1), (%2"), TITLE, *FRAMES]), max_size=6), st.integers(0, 300))
def test_any_part_of_a_graph_is_read(tmp_path_factory, lines, end):
    node(tmp_path_factory.mktemp("any"), "\n".join(lines)[:end])


FULL = ("Default/n/A-op1", "Default/m/B-op0", "Default/n/C.c-op0", "Default/m/C-op0", "Default/k/C-op0")


@pytest.mark.parametrize(
    "op_name, place",
    [
        ("Default_n_A-op1", 0),
        ("A-op1", 0),
        ("Default_n_A-op7", 0),
        ("Default_n_C_c-op0", 2),
        ("Default_m_C-op0", 3),
        ("C-op0", None),
        ("A-op7", None),
        ("D-op0", None),
        ("", None),
    ],
)
def test_full_names(op_name, place):
    assert FullNames(FULL).find(op_name) == place


@pytest.mark.parametrize(
    "graph, op_names, places",
    [
        ("0", ["B-op0", "A-op1"], [1, 0]),
        ("0", ["B-op0", "D-op0"], []),
        ("0", ["B-op0", "Default_m_B-op0"], []),
        ("1", ["B-op0"], []),
        ("0", [], []),
    ],
)
def test_launched(tmp_path, graph, op_names, places):
    assert companions(tmp_path, order="\n".join(("Header", *FULL, ""))).launch_order(graph, op_names) == places


def test_what_is_no_text_costs_a_note(tmp_path):
    found = companions(tmp_path)
    (tmp_path / "graphs" / "ms_output_trace_code_graph_0.ir").write_bytes(b"\xff\xfe")
    assert found.node(NAME) == found.node("other") == IrKernel("", {}, ()) and len(found.notes) == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared dumps are not beside this checkout")
def test_the_graph_of_another_release(tmp_path):
    text = (SHARED / "framework" / "mindspore" / "test_ir_content.ir").read_text()
    frames = companions(tmp_path, text).node("Default_Div-op0").stack
    assert frames[-2:] == (
        "File test_ir.py, line 13, in func, \n return ops.div(x, y)",
        "File test_ir.py, line 19, in construct, \n b = ops.mul(b, self.func(a, b))",
    )


def test_attributes_and_the_shapes_that_operands_are_read_in(tmp_path):
    attributes = (
        'stride: (1, 1, 2, 2), pad_mode: "valid", names: [x, w], groups: I64(2), nesterov: Bool(0), odd: {a: 1}'
    )
    text = "\n".join((
        f"%1(a) = Conv2D(%0, I64(3)) {{instance name: c}} primitive_attrs: {{{attributes}}} cnode_attrs: {{late: 1}}",
        ": (<Float32xDefaultFormat[const vector]{4, 256}>, <Int64x[const vector]{}>) -> (<Float32x[const vector]{9}>)",
        TITLE,
    ))  # fmt: skip
    assert node(tmp_path, text).attributes == {
        "stride": (1, 1, 2, 2), "pad_mode": "valid", "names": ("x", "w"), "groups": 2, "nesterov": False,
        "shape of input:0": (4, 256), "shape of input:1": (),
    }  # fmt: skip
