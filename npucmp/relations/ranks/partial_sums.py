"""Where a partial sum may stand: the legality of placements, decided before any value is compared.

A sum over an axis of ranks is made where a tensor is contracted, reduced or looked up along what the ranks have split,
and by the gradient of what all ranks hold and use on their own parts. It is handed on by sums of partial sums, by
scaling, and by views. It may never enter an addend of a whole tensor, a norm, an activation, or an optimizer.
Gradients follow the types of the forward pass: the gradient of a split tensor is split, that of a partial sum is whole.
"""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

from npucmp.model.relation import Placement
from npucmp.relations.held_values import HeldTensor, RankOperator
from npucmp.relations.ranks.rank_mesh import Mesh
from npucmp.relations.ranks.rank_run import Origin

Placements = Optional[Sequence[Placement]]
_HANDS_ON = ("sums", "views", "shifts", "hands on", "copies", "masks", "picks", "saves nothing")

_SQUARES = ("pow", "square", "mul")  # make a sum of squares of the norms of parts


def hands_on(operator: RankOperator) -> bool:
    """Whether an operator makes a partial sum of a partial sum."""
    return operator.type.has(*_HANDS_ON) and not operator.type.has("normalises", "bounds")


def partial_axes(placements: Placements) -> set[int]:
    """The axes along which a tensor is a sum, a mean, a norm or a maximum."""
    return {axis for axis, one in enumerate(placements or ()) if one.is_partial}


def norm_axes(placements: Placements) -> frozenset[int]:
    """The axes along which a number is the norm of the ranks' norms."""
    return frozenset(axis for axis, one in enumerate(placements or ()) if one.kind == "norm")


def norms_of_output(golden: RankOperator, inputs: Sequence[Placements]) -> frozenset[int]:
    """The axes along which an output may be the norm of the norms of parts."""
    if golden.type.name != "norm" or len(inputs) != 1:
        return frozenset()
    return frozenset(split_axes(inputs[0])) | norm_axes(inputs[0])


def split_axes(placements: Placements) -> set[int]:
    return {axis for axis, one in enumerate(placements or ()) if one.is_split}


def splits_rows(placements: Placements, axes: Sequence[int]) -> bool:
    """Whether ranks along some of these axes have rows of their own."""
    return any(axis in axes and one.is_split and not one.dim for axis, one in enumerate(placements or ()))


def reduced_axes(mesh: Mesh, origins: Mapping[tuple[int, ...], Origin]) -> set[int]:
    """The axes over which the collectives before a tensor communicated; all, if a group is not recorded."""
    by_rank = {one.rank: at for at, one in mesh.cells.items()}
    found: set[int] = set()
    for origin in origins.values():
        groups = origin.operator.groups if origin.operator is not None else []
        if not groups:
            return {*range(len(mesh.sizes))}
        for group in groups:
            places = [by_rank[rank] for rank in group if rank in by_rank]
            found |= {axis for axis in range(len(mesh.sizes)) if len({at[axis] for at in places}) > 1}
    return found


def sums_of_input(
    golden: RankOperator, place: HeldTensor, linked: Placements, others: Mapping[str, Placements], is_linear: bool
) -> set[int]:
    """The axes along which an input may be a partial sum. `linked` is the placement of the output that it reads,
    `others` those that the other inputs read. `is_linear`: a gradient may be a linear map of partial sums that arrive,
    to be reduced later."""
    axes = partial_axes(linked)
    if not axes or not (hands_on(golden) or (golden.is_backward and is_linear)):
        return set()
    if golden.is_backward:
        return axes
    numbers = any(isinstance(value, (int, float)) and value for value in golden.op.arguments.values())
    partial = [axes <= partial_axes(one) for one in others.values()]
    if golden.type.name in ("add", "sub"):  # a whole addend would count once for each rank
        is_legal = (not numbers and all(partial)) or _is_mean_of_addends(linked, [*others.values()])
    elif golden.type.has("masks"):  # so would a value that is put in
        is_legal = not numbers
    elif golden.type.has("quotient"):
        is_legal = place.slot == golden.inputs[0].slot
    else:  # a product of two partial sums is none
        is_legal = not any(axes & partial_axes(one) for one in others.values())
    return axes if is_legal else set()


def _is_mean_of_addends(mean: Placements, addends: Sequence[Placements]) -> bool:
    """Whether addends count once in the mean over ranks of what they are added to: all ranks add them, or parts of
    means of them."""
    own = {one.kind for one in mean or () if one.is_partial}
    return own == {"mean"} and all(
        one is not None and {each.kind for each in one} <= {"whole", "mean"} for one in addends
    )


def sums_of_output(golden: RankOperator, output: HeldTensor, inputs: Sequence[Placements], mesh: Mesh) -> set[int]:
    """The axes along which an output of a forward operator may be a partial sum. A module reduces what it computes, but
    for a product alone, and for one number, as a loss is."""
    if golden.op.path and output.size > 1 and not golden.type.has("contracts"):
        return set()
    if not golden.inputs:
        return {*mesh.split_axes}
    found: set[int] = set()
    for one in inputs:
        found |= split_axes(one)
        if hands_on(golden) or golden.type.has("contracts"):
            found |= partial_axes(one)
        elif golden.type.name in _SQUARES:
            found |= norm_axes(one)
    return found


def sums_of_gradient(
    own: Placements, others: Sequence[Placements], arrived: Sequence[Placements], mesh: Mesh
) -> set[int]:
    """The axes along which the gradient of a forward tensor may be a partial sum: it is whole there, and what it is
    used with is not."""
    if own is None:
        return {*mesh.split_axes}
    found: set[int] = set()
    for one in others:
        found |= split_axes(one) | partial_axes(one)
    for one in arrived:
        found |= partial_axes(one) | split_axes(one)
    return {axis for axis in found if own[axis].kind == "whole"}
