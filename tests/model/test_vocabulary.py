"""One table of operators: what it says, that all of it is asked for, and that nobody else knows an operator by name."""

from __future__ import annotations

import ast
import re
import time
from collections import Counter
from pathlib import Path
from typing import Iterator

import pytest

from npucmp.model.optypes import TABLE, TRAITS, op_type

PACKAGE = Path(__file__).parent.parent.parent / "npucmp"
OPTYPES = PACKAGE / "model" / "optypes.py"
KNOWS = OPTYPES, PACKAGE / "model" / "arguments.py"  # what operators are, and what their arguments are called
REVIEWED = {  # (module, word): why it may stand there
    **{("model/relation.py", word): "how the parts of ranks make a tensor" for word in ("sum", "mean", "max", "norm")},
    ("align/partial_sums.py", "norm"): "how the parts of ranks make a tensor, and what makes one of them",
    ("align/placement.py", "mean"): "how the parts of ranks make a tensor",
    ("align/placement_search.py", "mean"): "how the parts of ranks make a tensor",
    ("dump/graphs/onnx.py", "Placeholder"): "what a GraphDef calls an input of the graph",
    ("dump/graphs/graphdef.py", "Copy"): "what tfdbg puts in, known by its name as well",
    ("comparability/settings.py", "top_k"): "a sampling setting of an engine",
    ("commands/compare.py", "layer_norm"): "an example in a help text",
    ("commands/show.py", "layer_norm"): "an example in a help text",
    ("workflows/fusion_diff.py", "TransData"): "an example in a note for the user",
    ("recompute/arguments.py", "float"): "a type of Python, as records name it",
    ("recompute/arguments.py", "slice"): "a type of Python, as records name it",
    ("recompute/numpy_results.py", "sum"): "what a window does with its values",
    ("health/rule.py", "BatchNorm"): "a word of a sentence for the user",
    ("health/rule.py", "ReLU"): "a word of a sentence for the user",
    ("health/rules/outputs.py", "DivNoNan"): "a remedy",
    ("health/rules/activations.py", "ReLU"): "a word of a sentence for the user",
    ("health/rules/losses.py", "log_softmax"): "a remedy",
    ("health/rules/modes.py", "BatchNorm"): "a word of a sentence for the user",
    ("align/weights/conventions/bert.py", "LayerNorm"): "a part of the name of a parameter",
    ("align/weights/conventions/megatron.py", "layer_norm_"): "a part of the name of a parameter",
    ("align/weights/parts.py", "Conv1D"): "the layout of a weight, in words",
    ("report/parity.py", "top_k"): "a setting of a sampler, in words",
}
CALLED = {  # modules that make calls again, or name them to a tool: they know functions by name
    "dump/readers/msprobe_config.py": "which calls msprobe leaves out",
    "recompute/table.py": "which function a call is",
    "recompute/numpy_table.py": "which formula an operator of a graph is",
    "recompute/call_table.py": "which formula a function is",
    "recompute/numpy_calls.py": "functions that are treated by their names",
    "recompute/rounding_noise.py": "which of torch's primitives round",
    "recompute/npu_formulas.py": "formulas of the vendor's own",
    "recompute/data_flow.py": "places of arguments in a signature",
    "recompute/torch_bind_call.py": "functions that write into their arguments, or are taken by their formula",
    "recompute/numpy_case.py": "which functions a script has to call otherwise",
    "recompute/torch_forward.py": "functions whose bias may be added after rounding",
    "recompute/torch_hypotheses.py": "places of arguments in a signature",
}
KINDS = {"sum", "dropout", "index_add", "scatter_add"}  # of the table's lines: how a call is treated


def key(spelling: str) -> str:
    return spelling.replace("_", "").lower()


SPELLINGS = Counter(key(one) for row in TABLE for one in (row.name, *row.spellings.split()))


def test_every_spelling_is_in_one_row_only() -> None:
    assert [one for one, times in SPELLINGS.items() if times > 1] == []


@pytest.mark.lint
def test_traits_are_declared_told_and_asked_for() -> None:
    in_table = {trait for row in TABLE for trait in row.traits.split(", ") if trait}
    assert in_table <= set(TRAITS)
    asked = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "has":
                asked |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    assert asked == set(TRAITS)


# Source: the lists that npucmp/model/optypes.py names; what a framework has no operator for is left out
SAME = {
    "add": "torch.add Tensor.add __add__ aten::add.Tensor mint.add ops.add Add AddV2",
    "sub": "torch.sub aten::sub.Tensor mint.sub Sub",
    "mul": "torch.mul aten::mul.Tensor mint.mul Mul Muls",
    "div": "torch.div aten::div.Tensor mint.div Div RealDiv tf.raw_ops.RealDiv",
    "neg": "torch.neg aten::neg Neg",
    "exp": "torch.exp aten::exp mint.exp Exp",
    "log": "torch.log aten::log mint.log Log",
    "pow": "torch.pow aten::pow.Tensor_Scalar Pow",
    "rsqrt": "torch.rsqrt aten::rsqrt Rsqrt",
    "tanh": "torch.tanh aten::tanh mint.nn.functional.tanh Tanh",
    "sigmoid": "torch.sigmoid aten::sigmoid mint.sigmoid Sigmoid",
    "relu": "torch.nn.functional.relu aten::relu mint.nn.functional.relu ReLU Relu Relu6",
    "gelu": "Functional.gelu aten::gelu mint.nn.functional.gelu GeLU Gelu FastGelu GeluV2",
    "silu": "torch.nn.functional.silu aten::silu mint.nn.functional.silu SiLU Swish",
    "softmax": "Functional.softmax aten::_softmax aten::softmax.int mint.nn.functional.softmax Softmax SoftmaxV2",
    "log_softmax": "torch.log_softmax aten::_log_softmax LogSoftmax LogSoftmaxV2",
    "layer_norm": "Functional.layer_norm aten::native_layer_norm LayerNorm LayerNormV3 LayerNormalization",
    "rms_norm": "NPU.npu_rms_norm RmsNorm RMSNorm",
    "batch_norm": "torch.batch_norm aten::native_batch_norm BatchNorm BatchNorm2d BatchNormalization BNInfer",
    "fused_batch_norm_v3": "FusedBatchNormV3",
    "group_norm": "torch.group_norm aten::native_group_norm GroupNorm",
    "matmul": "torch.matmul aten::mm mint.matmul MatMul MatMulV2 MatMulV3 Gemm __matmul__",
    "bmm": "torch.bmm aten::bmm BatchMatMul BatchMatMulV2",
    "linear": "Functional.linear aten::linear mint.nn.functional.linear Dense",
    "conv2d": "torch.conv2d aten::convolution Conv2D Conv",
    "max_pool2d": "torch.max_pool2d aten::max_pool2d_with_indices MaxPool MaxPoolV3",
    "sum": "torch.sum aten::sum.dim_IntList mint.sum ReduceSum ReduceSumD",
    "mean": "torch.mean aten::mean.dim mint.mean ReduceMean ReduceMeanD",
    "clamp": "torch.clamp aten::clamp Clip ClipByValue ClipByValueV2",
    "masked_fill": "Tensor.masked_fill aten::masked_fill.Scalar MaskedFill",
    "where": "torch.where aten::where.self Select SelectV2",
    "gather": "torch.gather aten::gather GatherD GatherV2 GatherElements",
    "cat": "torch.cat aten::cat mint.cat Concat ConcatV2 ConcatD",
    "transpose": "torch.transpose aten::permute Transpose TransposeD",
    "cast": "Tensor.to aten::_to_copy Cast",
    "topk": "torch.topk aten::topk TopK TopKV2",
    "all_reduce": "Distributed.all_reduce AllReduce HcomAllReduce",
}


@pytest.mark.parametrize("name", SAME)
def test_frameworks_name_one_operator(name: str) -> None:
    assert {one: op_type(one).name for one in SAME[name].split()} == dict.fromkeys(SAME[name].split(), name)


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("SoftmaxGrad", "softmax"),
        ("MaxPoolGradWithArgmax", "max_pool2d"),
        ("native_layer_norm_backward", "layer_norm"),
        ("Conv2DBackpropFilterD", "conv2d"),
        ("Conv2DBackpropInput", "conv2d"),
        ("aten::_softmax_backward_data", "softmax"),
        ("ReluGradV2", "relu"),
    ],
)
def test_gradients_are_told(spelled: str, name: str) -> None:
    found = op_type(spelled)
    assert (found.name, found.has("gradient"), found.parameters) == (name, True, ())


@pytest.mark.parametrize("spelled", ["add_", "__iadd__", "InplaceAdd", "aten::add_.Tensor"])
def test_in_place_spellings_are_told(spelled: str) -> None:
    assert op_type(spelled).name == "add" and op_type(spelled).has("in place")


@pytest.mark.parametrize("spelled", ["add", "__add__", "Add", "SoftmaxGrad", "assignment"])
def test_others_are_not_in_place(spelled: str) -> None:
    assert not op_type(spelled).has("in place")


def test_what_no_row_knows_is_told_by_its_words() -> None:
    found = op_type("npu_scaled_masked_softmax_v9x")
    assert not found.name and found.has("masks") and found.has("smooth")
    assert op_type("Grad").traits == op_type("").traits == frozenset()


@pytest.mark.parametrize(
    "spelled",
    [
        *(part * 10_000 for part in ("a", "_", "d", "v2", ".", "aten::", "grad", "A_", "Add", "\0", "é", "İ", "ẞ")),
        "\ud800", "Ａｄｄ", "add\n", "١٢٣", "𝐚𝐝𝐝", "\u202eadd", "add_\u200b",
    ],
    ids=ascii,
)  # fmt: skip
def test_any_text_will_do_and_is_quick(spelled: str) -> None:
    before = time.perf_counter()
    assert op_type(spelled).traits <= set(TRAITS)
    assert time.perf_counter() - before < 0.1


WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
SEVERAL = re.compile(r"[a-z0-9](_[a-z0-9]|[A-Z])")  # words in one: masked_fill, TransData
OF_OPERATORS = {"op_type", "kind", "op"}  # what is compared with the name of an operator


def literals(tree: ast.AST) -> Iterator[str]:
    """Texts, those within others too, but what stands alone as a statement: documentation."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


def names_of_operators(tree: ast.AST) -> Iterator[str]:
    """Spellings of several words in any text, and of one word where an operator is compared with them."""
    for text in literals(tree):
        yield from (word for word in WORD.findall(text) if SEVERAL.search(word) and key(word) in SPELLINGS)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if OF_OPERATORS & {getattr(one, "attr", getattr(one, "id", "")) for one in sides}:
                yield from (text for one in sides for text in literals(one) if key(text) in SPELLINGS)


@pytest.mark.lint
def test_nobody_else_knows_operators_by_name() -> None:
    found = {
        (file.relative_to(PACKAGE).as_posix(), word)
        for file in PACKAGE.rglob("*.py")
        if file not in KNOWS
        for word in names_of_operators(ast.parse(file.read_text("utf-8")))
        if not (file.name.startswith("torch_") and word in KINDS)
    }
    assert {module for module, _ in found} >= set(CALLED), "no longer needed: strike it off the list"
    found = {(module, word) for module, word in found if module not in CALLED}
    assert found - set(REVIEWED) == set(), "ask npucmp.model.optypes for a trait"
    assert set(REVIEWED) - found == set(), "no longer there: strike it off the list"


@pytest.mark.parametrize(
    "code", ['X = {"TransData"}', 're.compile("(MaskedFill|ReadVariableOp)")', 'op.op_type in ("Cast", "Print")']
)
def test_the_search_finds_such_names(code: str) -> None:
    assert list(names_of_operators(ast.parse(code)))
