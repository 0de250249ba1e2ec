"""Match operators that a compiler fused, by the tensors of the original network that the graph names.

A fused operator has no partner of its own. Its outputs are compared with the outputs of the reference that its
descriptors name, its inputs with the tensors that they correspond to. The partner is therefore synthetic: an operator
with these tensors, under the name that the graph gives to the producer of the first output. Names may be escaped on
either side. An inserted operator that passes its input on (TransData, Cast) is compared with that tensor.

Without a graph, a fused operator may still be recognised by its name, which the compiler built from the original names
("conv1bn1relu1"); the last paragraph has the details.

In a GE graph, `_datadump_origin_name` and `_datadump_origin_output_index` of an output name the output of the original
operator; the origin of an input is that of its producer:

    many to one                 outputs: the original that the descriptor names, which need not be the last of the list.
    (conv + bn + relu)          Inputs: the original outputs, past Cast and TransData
    one or many to many         outputs with an origin as above; tensors written inside the group are `unknown`, never
    (_datadump_is_multiop)      `missing`. Inputs of the first operator as above; later operators are judged by the
                                error of the inputs of the first ones
    one L1 fusion               each operator by itself, as above
    (_L1_fusion_sub_graph_no)
    one scope of the unified    as one operator with all names: outputs that are read outside the scope, inputs from
    buffer (fusion_scope)       outside. Only in a graph that was written before they were merged
    inserted TransData, Cast    the tensor that they pass on
    the same in both runs       by name, all tensors

A weight or a network input, which no dumped operator wrote, is compared with the tensor that the other run read, of the
same type if one exists. The originals inside a chain count as compared through the fused operator; operators that only
one run inserted count as compared too. So BORN means that the inputs of the chain match and its output does not.
`fusion_switch.cfg` switches off the passes of the BORN operators, without passes that fused the same originals in the
golden run too. If no operator is BORN, it has the passes of WORSENED operators; if the error is born in an operator
that no pass made, it has none. `fusion_result.json` decides between graph and unified buffer; without it, the name of
the pass does (`Tbe…`, `…UbFusion…`, and the names in CANN's list of UB fusions).

If no graph describes the fusion, the original operators of a fused operator are guessed from names and order. The
compiler builds its name from the names of the originals, or keeps the name of the first one. In the second case, the
run without fusion executed further operators right after that operator which the fused run does not have. The chain
ends with the last of them whose output has the shape of the fused output. If the next fused operator has an unknown
name, no such operators are added, because it may contain them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import takewhile
from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.readers.folders import from_newest
from npucmp.dump.readers.names import fed_tensor, file_name_of, made_of
from npucmp.model import Match, Operator, Run, TensorRef


class Reference(NamedTuple):
    """One tensor of the golden run and its operator."""

    operator: Operator
    tensor: TensorRef


CONFIDENCE = 0.8  # confidence: chosen: of an operator whose name consists of several names
Written = Mapping[str, Sequence[Reference]]  # "{escaped operator}:{index}" or "… {dtype}" → executions, oldest first


def match(target: Sequence[Operator], golden: Sequence[Operator], so_far: Sequence[Match]) -> list[Match]:
    """Match operators of a GE graph with synthetic partners; the newest executions with the newest."""
    if not any(tensor.origin for operator in target for tensor in operator.tensors):
        return []
    written = _network_names(golden)
    own = {file_name_of(operator.name): operator for operator in golden}
    keys, made = _by_key(golden), {file_name_of(operator.name) for operator in target}
    matches = []
    for operator, back in from_newest(target, _name):
        if not any(tensor.origin for tensor in operator.tensors) or _is_itself(operator, own):
            continue
        found = _partner(operator, written, back, made) or _partial_partner(operator, written, keys, back)
        if found is not None:
            covered = [one.order for name in operator.originals for one in keys.get(file_name_of(name), ())]
            via = "name" if file_name_of(found.name) == file_name_of(operator.name) else "fused"
            matches.append(Match(operator, found, via, 1.0, tuple(covered)))
    compared = {order for match in matches if _writes(match.golden) for order in (match.golden.order, *match.inside)}
    return [
        match
        if _writes(match.golden)
        else match._replace(inside=tuple(order for order in match.inside if order in compared))
        for match in matches
    ]


def _writes(operator: Operator) -> bool:
    return any(tensor.is_output for tensor in operator.tensors)


def _is_itself(operator: Operator, own: Mapping[str, Operator]) -> bool:
    """Return whether the name alone finds the partner: the golden run executed the same operator of the same graph, or
    an operator that neither compiler changed. The latter may read other tensors if two implementations of a network
    differ."""
    partner = own.get(file_name_of(operator.name))
    if partner is None or partner.originals != operator.originals or partner.inserted != operator.inserted:
        return False
    origins = [tensor.origin for tensor in partner.tensors]
    is_untouched = not operator.originals and not operator.inserted
    return any(origins) and (is_untouched or all(tensor.origin in origins for tensor in operator.tensors))


def _by_key(operators: Sequence[Operator]) -> dict[str, list[Operator]]:
    found: dict[str, list[Operator]] = defaultdict(list)
    for operator in operators:
        found[file_name_of(operator.name)].append(operator)
    return found


def _network_names(golden: Sequence[Operator]) -> Written:
    """The golden tensors by their names in the network. The golden run of a GE graph is fused itself.

    For a tensor without a dumped producer (weights, fed inputs), the first consumer provides it, for each dtype
    separately.
    """
    found: dict[str, list[Reference]] = defaultdict(list)
    read: dict[str, dict[tuple[str, str], list[Reference]]] = defaultdict(lambda: defaultdict(list))
    for operator in golden:
        for tensor in operator.tensors:
            if tensor.slot.startswith("output") and not operator.inserted:
                own = fed_tensor(operator.name) or f"{operator.name}:{tensor.slot.partition(':')[2]}"
                found[_key(tensor.origin or own)].append(Reference(operator, tensor))
            elif tensor.origin:
                read[_key(tensor.origin)][operator.name, tensor.slot].append(Reference(operator, tensor))
    for key, readers in read.items():
        if key not in found:
            found[key] = next(iter(readers.values()))
            for executions in readers.values():
                found.setdefault(f"{key} {executions[0].tensor.dtype}", executions)
    return found


def _key(tensor: str) -> str:
    name, _, index = tensor.rpartition(":")
    return f"{file_name_of(name)}:{index}"


def _name(operator: Operator) -> tuple[str, ...]:
    """A key for an operator. Inserted operators of two models share names, but pass different tensors on."""
    return operator.name, *(tensor.origin for tensor in operator.tensors if tensor.is_output)


def _partner(operator: Operator, written: Written, back: int, made: set[str]) -> Optional[Operator]:
    tensors, writers, names = [], [], []
    for tensor in operator.tensors:
        reference = _reference(tensor, written, back)
        if reference is None:
            continue
        tensors.append(reference.tensor.in_slot(tensor.slot)._replace(source=tensor.source, origin=""))
        if tensor.is_output:
            writers.append(reference.operator)
            names.append(tensor.origin.rpartition(":")[0])
    if not writers:
        return None
    latest = max(writers, key=lambda writer: writer.order)
    if len(writers) == 1 and len(operator.originals) < 2:
        tensors += _undumped_inputs(operator, latest, {tensor.slot for tensor in tensors}, made)
    return latest._replace(tensors=tuple(tensors), name=names[0])


def _undumped_inputs(operator: Operator, writer: Operator, known: set[str], made: set[str]) -> list[TensorRef]:
    """The inputs of an operator with one original that have no dumped producer, as that original read them: same slot,
    same shape. FX graphs have no names for them."""
    own = {tensor.slot: tensor for tensor in writer.tensors}
    fed_tensor = [
        (one, own[one.slot])
        for one in operator.tensors
        if one.slot in own and one.slot not in known and one.source and not one.is_output
    ]
    return [
        other._replace(source=one.source, origin="")
        for one, other in fed_tensor
        if one.shape == other.shape and not other.origin and file_name_of(one.source.rpartition(":")[0]) not in made
    ]


def _partial_partner(
    operator: Operator, written: Written, keys: Mapping[str, Sequence[Operator]], back: int
) -> Optional[Operator]:
    """A partner for one of several operators that together compute the originals, but not the last: its inputs are
    compared."""
    chain = [one for name in operator.originals for one in keys.get(file_name_of(name), ())[-1 - back :][:1]]
    read = [(tensor, _reference(tensor, written, back)) for tensor in operator.tensors if not tensor.is_output]
    tensors = [found.tensor.in_slot(t.slot)._replace(source=t.source, origin="") for t, found in read if found]
    return chain[-1]._replace(tensors=tuple(tensors)) if chain and tensors else None


def _reference(tensor: TensorRef, written: Written, back: int) -> Optional[Reference]:
    key = _key(tensor.origin) if tensor.origin else ""
    executions = written.get(f"{key} {tensor.dtype}") or written.get(key, ())
    return executions[-1 - back] if back < len(executions) else None


def match_parts(target: Sequence[Operator], golden: Sequence[Operator], so_far: Sequence[Match]) -> list[Match]:
    """Match operators whose names consist of at least two names of the golden run with the last of these operators."""
    keys = _by_key(golden)
    lengths = sorted({len(key) for key in keys if key}, reverse=True)
    matches = []
    for operator, back in from_newest(target, _name):
        parts = made_of(file_name_of(operator.name), keys, lengths) if operator.unique else []
        if len(parts) < 2 or any(back >= len(keys[part]) for part in parts):
            continue
        chain = sorted((keys[part][-1 - back] for part in parts), key=lambda one: one.order)
        own = {tensor.slot for tensor in operator.tensors if tensor.is_output}
        wrote = [tensor for tensor in chain[-1].tensors if tensor.is_output]
        both = [tensor for tensor in wrote if tensor.slot in own]
        last = chain[-1]._replace(tensors=tuple(both or wrote))
        matches.append(Match(operator, last, "fused", CONFIDENCE, tuple(one.order for one in chain)))
    return matches


def guess_fusion(fused: Run, plain: Run) -> tuple[Run, list[str], list[str]]:
    """Return (the fused run with originals and origins of its outputs, operators found by name, operators found by
    order)."""
    golden = [operator for operator in plain.operators if not operator.inserted]
    keys = {file_name_of(operator.name): at for at, operator in enumerate(golden)}
    own = [operator for operator in fused.operators if not operator.inserted]
    parts = {one.order: _parts(file_name_of(one.name), keys) for one in own}
    claimed = {part for found in parts.values() for part in found}
    operators: list[Operator] = []
    by_name: list[str] = []
    by_order: list[str] = []
    strange = {one.order for one, after in zip(own, own[1:]) if not parts[after.order]}
    for operator in fused.operators:
        places = sorted(keys[part] for part in parts.get(operator.order, ()))
        chain = _with_between(operator, golden, places, claimed)
        tail = (
            _followers(operator, golden[places[-1] + 1 :], claimed) if places and operator.order not in strange else []
        )
        if len(chain) + len(tail) > 1:
            (by_order if tail else by_name).append(operator.name)
            operator = _made_of(operator, [*chain, *tail])
        operators.append(operator)
    return replace(fused, operators=tuple(operators)), by_name, by_order


def _with_between(
    operator: Operator, golden: Sequence[Operator], places: Sequence[int], claimed: set[str]
) -> list[Operator]:
    """The operators at these places, and the unclaimed ones between them whose output has the shape of the fused
    output, for example a batch norm between a convolution and its ReLU."""
    if not places:
        return []
    wrote = _output_shapes(operator)[:1]
    return [
        one
        for at, one in enumerate(golden[places[0] : places[-1] + 1], places[0])
        if at in places or (file_name_of(one.name) not in claimed and _output_shapes(one)[:1] == wrote)
    ]


def _parts(name: str, keys: Mapping[str, int]) -> list[str]:
    """The names that a name consists of; none if it does not consist of names, or if more than one split exists."""
    if name in keys:
        return [name]
    lengths = {len(key) for key in keys if key}
    ways, ends = {len(name): 1}, {}  # by start: number of splits, end of the first name of one split
    for start in range(len(name) - 1, -1, -1):
        found = [
            start + length for length in lengths if start + length in ways and name[start : start + length] in keys
        ]
        if found:
            ways[start], ends[start] = sum(ways[end] for end in found), found[0]
    if ways.get(0) != 1:
        return []
    starts = [0]
    while ends[starts[-1]] < len(name):
        starts.append(ends[starts[-1]])
    return [name[start : ends[start]] for start in starts]


def _followers(operator: Operator, after: Sequence[Operator], claimed: set[str]) -> list[Operator]:
    """The operators that were executed right after the end of a chain and belong to no other chain."""
    found = list(takewhile(lambda one: file_name_of(one.name) not in claimed, after))
    while found and _output_shapes(found[-1]) != _output_shapes(operator):
        found.pop()
    return found


def _output_shapes(operator: Operator) -> list[tuple[int, ...]]:
    return [tensor.shape for tensor in operator.tensors if tensor.is_output]


def _made_of(operator: Operator, chain: list[Operator]) -> Operator:
    last = chain[-1].name
    tensors = tuple(
        tensor._replace(origin=f"{last}:{tensor.slot.partition(':')[2]}") if tensor.is_output else tensor
        for tensor in operator.tensors
    )
    return operator._replace(tensors=tensors, originals=tuple(one.name for one in chain))
