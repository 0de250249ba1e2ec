"""Names of the arguments of a call that the dump records by position. Besides optypes.py, only this module knows
operators by name.

Source: the signatures of torch.nn.functional, torch and torch_npu 2.x and of mindspore.ops and mint 2.x. The tables
contain only names that have the same position in all spellings of a row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Iterable, Iterator

from npucmp.model.dump import Operator, Scalar
from npucmp.model.finding import Pair
from npucmp.model.optypes import is_gradient, op_type, op_type_of

PLACES = {  # canonical name of optypes.py → the arguments by position; - if spellings disagree
    "dropout": "input p training inplace",
    "batch_norm": "input - - - - training momentum eps",
    "instance_norm": "input - - - - use_input_stats momentum eps",
    "layer_norm": "input normalized_shape weight bias eps",
    "group_norm": "input num_groups weight bias eps",
    "softmax": "input dim",
    "log_softmax": "input dim",
    "cross_entropy": "input target weight size_average ignore_index reduce reduction label_smoothing",
    "mse_loss": "input target size_average reduce reduction",
    "embedding": "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse",
    "conv1d": "input weight bias stride padding dilation groups",
    "conv2d": "input weight bias stride padding dilation groups",
    "conv3d": "input weight bias stride padding dilation groups",
    "max_pool2d": "input kernel_size stride padding dilation ceil_mode",
    "attention": "query key value attn_mask dropout_p is_causal scale",
}
OWN = {  # of one spelling only
    "npu_rms_norm": "self gamma epsilon",
    "rms_norm": "input normalized_shape weight eps",
    "npu_fusion_attention": "query key value head_num input_layout",
    "flash_attention_score": "query key value head_num real_shift drop_mask padding_mask attn_mask prefix",
    "FlashAttentionScore": "query key value real_shift drop_mask padding_mask attn_mask prefix",
}
KERNELS = {"LayerNorm": "x gamma beta begin_norm_axis begin_params_axis eps"}  # of MindSpore, as in its dumps
PREFIXED = {  # of one spelling with a prefix, where signatures of frameworks differ in their order
    ("Primitive", "layer_norm"): "input weight bias",
    ("Primitive", "batch_norm"): "input weight bias running_mean running_var",
    ("Functional", "batch_norm"): "input running_mean running_var weight bias",
    ("Torch", "batch_norm"): "input weight bias running_mean running_var",
}
TENSORS = {
    "gamma": "weight",
    "beta": "bias",
    "atten_mask": "attn_mask",
    "actual_seq_kvlen": "actual_seq_klen",
    "real_shift": "pse",
    "x": "input",
    "self": "input",
    "input_x": "input",
}
SYNONYMS = {
    "epsilon": "eps",
    "variance_epsilon": "eps",
    "axis": "dim",
    "axes": "dim",
    "is_training": "training",
    "keepdims": "keepdim",
    "keep_dims": "keepdim",
    "drop_prob": "p",
}


def by_name(operator: Operator, slot: str) -> str:
    """A slot with the name of its argument, if the dump has it by position and the signature is known: "input:4 (eps)".

    Kernels have an order of their own. Inputs of modules and gradients are not in these signatures.
    """
    role, _, word = slot.partition(":")
    if operator.path or role != "input" or not word.isdecimal() or len(word) > 4:
        return slot
    kernel = tuple(KERNELS.get(operator.op_type, "").split())
    names = places(operator.op_type) if operator.phase == "forward" else kernel
    known = names[int(word)] if int(word) < len(names) else "-"
    return slot if known == "-" else f"{slot} ({known})"


def named_arguments(operator: Operator) -> dict[str, Scalar]:
    """The arguments of an operator by name ("eps"), or by slot if the name is unknown ("input:3"). Elements of a list
    have the name of the list and their index ("stride.0")."""
    return {argument_name(operator, slot): value for slot, value in operator.arguments.items()}


def argument_name(operator: Operator, slot: str) -> str:
    """The key of an argument in `named_arguments`."""
    names = places(operator.op_type)
    word, dot, rest = (slot.partition(":")[2] or slot).partition(".")
    if word.isdecimal():
        at = int(word)
        name = names[at] if at < len(names) and names[at] != "-" else slot.partition(".")[0]
    else:
        name = SYNONYMS.get(word, word)
    return f"{name}{dot}{rest}"


def tensor_name(operator: Operator, slot: str) -> str:
    """The framework-neutral name of a tensor that an operator reads: by the signature, or by its slot."""
    role, _, word = slot.partition(":")
    if role != "input":
        return slot
    prefixed = PREFIXED.get((operator.name.partition(".")[0], op_type(operator.op_type).name), "").split()
    names = prefixed or KERNELS.get(operator.op_type, "").split() or places(operator.op_type)
    if word.isdecimal() and len(word) < 5:
        known = names[int(word)] if int(word) < len(names) else "-"
        return slot if known == "-" or operator.path else f"{role}:{TENSORS.get(known, known)}"
    return f"{role}:{TENSORS.get(word, SYNONYMS.get(word, word))}"


@lru_cache(maxsize=1 << 12)
def places(spelled: str) -> tuple[str, ...]:
    """The names of an operator's arguments by position."""
    words = OWN.get(spelled) or PLACES.get(op_type(spelled).name, "")
    return tuple(SYNONYMS.get(word, word) for word in words.split())


def draws_numbers(operator: Operator) -> bool:
    """Return whether an operator draws random numbers or a mask: a random operator that its recorded arguments do not
    switch off, or a fused one whose arguments give a share that it drops."""
    if is_gradient(operator):
        return False
    arguments = named_arguments(operator)
    if op_type_of(operator).has("random"):
        is_off = arguments.get("training") is False or (op_type_of(operator).has("drops") and arguments.get("p") == 0)
        return not is_off
    dropped, kept = arguments.get("dropout_p", 0), arguments.get("keep_prob", 1)
    return (isinstance(dropped, (int, float)) and dropped > 0) or (isinstance(kept, (int, float)) and kept < 1)


def _respelled(target: Operator, golden: Operator) -> dict[str, str]:
    """Target slot → golden slot, for arguments that one side passes by keyword and the other by position."""
    if target.arguments.keys() == golden.arguments.keys():
        return {}
    alone = {argument_name(golden, slot): slot for slot in golden.arguments if slot not in target.arguments}
    named = {slot: argument_name(target, slot) for slot in target.arguments if slot not in golden.arguments}
    return {slot: alone[name] for slot, name in named.items() if name in alone}


def differing_arguments(target: Operator, golden: Operator) -> Iterable[tuple[str, object, object]]:
    """Yield (slot, target's value, golden's value). Devices are expected to differ; NaN equals NaN.

    An argument on one side that is a tensor on the other is not reported here. An argument is not reported as absent if
    the inputs of the operator were not recorded, or if one side passes it by keyword and the other by position.
    """
    if target.arguments is golden.arguments or not (target.arguments or golden.arguments):
        return
    recorded = all(
        one.reads_recorded and (one.arguments or any(not tensor.is_output for tensor in one.tensors))
        for one in (target, golden)
    )
    tensors = {tensor.slot for operator in (target, golden) for tensor in operator.tensors}
    respelled = _respelled(target, golden)
    for slot in {**target.arguments, **golden.arguments}:
        if slot in respelled.values():
            continue
        a, b = target.arguments.get(slot, "absent"), golden.arguments.get(respelled.get(slot, slot), "absent")
        if "absent" in (a, b) and (slot in tensors or not recorded):
            continue
        if repr(a) != repr(b) and not slot.endswith("device"):
            yield slot, a, b


def moves_other_axes(pair: Pair) -> bool:
    """Whether the arguments of an operator that moves axes name other axes in the two runs. Negative axes count from
    the end, and two axes are exchanged in either order."""
    orders = []
    for operator in (pair.target_op, pair.golden_op):
        output = next((one for one in operator.tensors if one.is_output), None) if operator is not None else None
        if operator is None or output is None:
            return False
        axes = [axis % max(1, len(output.shape)) for axis in _integers(list(operator.arguments.values()))]
        orders.append(sorted(axes) if len(axes) == 2 else axes)
    return orders[0] != orders[1]


def _integers(values: object) -> Iterator[int]:
    """Yield the whole numbers in nested sequences, in order."""
    for value in values if isinstance(values, (list, tuple)) else (values,):
        if isinstance(value, (list, tuple)):
            yield from _integers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield value
