"""The combinations of decoders: for each a target and a golden that are arranged differently in two ways."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, NamedTuple, Optional

import numpy as np

from tests.corpus.composed.arrangements import Arrangement, Requests, chunked, decoded, packed, padded, zigzag
from tests.corpus.composed.dumps import Dump, write
from tests.corpus.composed.faults import Fault, draw_fault, kinds
from tests.corpus.composed.forward import Forward, Style
from tests.corpus.composed.networks import Design, Weights, draw_design, draw_weights, run
from tests.corpus.composed.values import Array
from tests.corpus.composed.written import Truth, Written

VOCABULARY = 48  # ids of requests are below that of every design


class Pair(NamedTuple):
    """Both arrangements and styles, in one type."""

    requests: Requests
    target: Arrangement
    golden: Arrangement
    styles: tuple[Style, Style]
    dtype: str
    tp: int
    title: str


def _lengths(draw: np.random.Generator, multiple: int = 1, least: int = 3) -> list[int]:
    """Unequal lengths of two to four requests, 40 tokens at most."""
    count = int(draw.integers(2, 5))
    smallest = -(-least // multiple)
    most = max(smallest + 2, min(12, 40 // count) // multiple + 1)
    lengths = [multiple * int(length) for length in draw.integers(smallest, most, count)]
    if len({*lengths}) == 1:
        lengths[0] += multiple
    return lengths


def _requests(draw: np.random.Generator, multiple: int = 1, least: int = 3) -> Requests:
    return Requests.draw(draw, _lengths(draw, multiple, least), VOCABULARY)


def _style(draw: np.random.Generator) -> Style:
    functions = bool(draw.random() < 0.75)
    attention = str(draw.choice(["module", "npu"])) if functions else "module"
    return Style("transformers", False, attention, "module", functions, *(bool(flag) for flag in draw.random(2) < 0.5))


def _both(draw: np.random.Generator) -> tuple[Style, Style]:
    """One framework on both sides, the target with the classes of a split network."""
    style = _style(draw)
    return style._replace(names="parallel"), style


def _type(draw: np.random.Generator) -> str:
    return "bfloat16" if draw.random() < 0.25 else "float32"


def _order(draw: np.random.Generator, requests: Requests) -> list[int]:
    return [int(request) for request in draw.permutation(len(requests.lengths))]


def _every(requests: Requests) -> range:
    return range(len(requests.lengths))


def _one_card(rows: Array) -> Arrangement:
    return Arrangement([[rows]])


def packed_ranks(draw: np.random.Generator, number: int) -> Pair:
    """Tensor parallel and packed, against one card padded on the right with a mask, or on the left."""
    tp, left = (2, 4)[number % 2], bool(number // 2 % 2)
    requests = _requests(draw)
    target = Arrangement([[packed(requests, _order(draw, requests))]], tp)
    golden = _one_card(padded(requests, _every(requests), left))
    return Pair(requests, target, golden, _both(draw), _type(draw), tp, f"tp{tp} left" if left else f"tp{tp} right")


def decoding_ranks(draw: np.random.Generator, number: int) -> Pair:
    """Tensor parallel, prefill and steps of decoding, against one forward pass on one card."""
    requests = _requests(draw, least=6)
    rows = decoded(requests, _every(requests), int(draw.integers(2, 5)))
    target = Arrangement([[step] for step in rows], 2)
    whole = padded(requests, _every(requests)) if number % 2 else packed(requests, _every(requests))
    title = f"{len(rows)} steps, " + ("padded" if number % 2 else "packed")
    return Pair(requests, target, _one_card(whole), _both(draw), _type(draw), 2, title)


def chunks_and_ranks(draw: np.random.Generator, number: int) -> Pair:
    """Ranks on both sides, a prefill in other chunks."""
    requests = _requests(draw)
    count = sum(requests.lengths)
    first, second = (5, 8) if count < 20 else (8, 12)
    sizes = (2, 4) if number % 2 else (4, 2)
    target = Arrangement([[step] for step in chunked(requests, _every(requests), first)], sizes[0])
    golden = Arrangement([[step] for step in chunked(requests, _every(requests), second)], sizes[1])
    style = _style(draw)._replace(names="parallel")
    return Pair(requests, target, golden, (style, style), _type(draw), 4, f"tp{sizes[0]} tp{sizes[1]}")


def two_decodings(draw: np.random.Generator, number: int) -> Pair:
    """Steps on both sides that hold other tokens."""
    requests = _requests(draw, least=6)
    every = [*_every(requests)]
    golden = decoded(requests, every, 4)
    if number % 2:
        target, title = chunked(requests, every, int(draw.integers(4, 8))), "chunks"
    elif number % 4:
        target, title = decoded(requests, every, 4, 2), "two tokens a step"
    else:  # other batches: the requests run one group behind the other
        half = len(every) // 2
        target = [*decoded(requests, every[:half], 4), *decoded(requests, every[half:], 3)]
        title = "batches"
    style = _style(draw)
    arrangements = (Arrangement([[step] for step in steps]) for steps in (target, golden))
    return Pair(requests, *arrangements, (style, style), _type(draw), 1, title)


def replicas(draw: np.random.Generator, number: int) -> Pair:
    """Data parallel with left padding, against one card padded on the right or packed."""
    requests = _requests(draw)
    every = _order(draw, requests)
    half = -(-len(every) // 2)
    target = Arrangement([[padded(requests, own, left=True) for own in (every[:half], every[half:])]], 1, "dp")
    whole = packed(requests, _every(requests)) if number % 2 else padded(requests, _every(requests))
    style = _style(draw)
    title = "dp2 left, " + ("packed" if number % 2 else "right")
    return Pair(requests, target, _one_card(whole), (style, style), _type(draw), 1, title)


def frameworks_and_ranks(draw: np.random.Generator, number: int) -> Pair:
    """MindSpore on two ranks, as Cells or kernels, against PyTorch on one card."""
    requests = _requests(draw)
    rows = padded(requests, _every(requests), left=bool(draw.random() < 0.5))
    style = Style("transformers", functions=True, containers=bool(draw.random() < 0.5))
    names = "kernels" if number % 2 else "mindformers"
    target = style._replace(names=names)
    if number % 2:
        target = target._replace(attention="npu", rotary="functions")
    attention = ["npu", "sdpa"] if number % 2 else ["module", "sdpa"]
    golden = style._replace(attention=str(draw.choice(attention)))
    return Pair(requests, Arrangement([[rows]], 2), _one_card(rows), (target, golden), _type(draw), 2, names)


def engines_and_tokens(draw: np.random.Generator, number: int) -> Pair:
    """vLLM with fused products, packed, against transformers, padded."""
    requests = _requests(draw)
    golden = _one_card(padded(requests, _every(requests), left=bool(number % 2)))
    target = _one_card(packed(requests, _order(draw, requests)))
    functions = bool(draw.random() < 0.5)
    styles = (
        Style("vllm", True, "module", "module", functions),
        Style("transformers", False, "sdpa", "functions", True, bool(draw.random() < 0.5)),
    )
    return Pair(requests, target, golden, styles, _type(draw), 1, "left" if number % 2 else "right")


def zigzag_ranks(draw: np.random.Generator, number: int) -> Pair:
    """Context parallel in a zigzag and packed, against one card padded."""
    requests = _requests(draw, 4)
    target = Arrangement([[*zigzag(requests, _every(requests), 2)]], 1, "cp")
    golden = _one_card(padded(requests, _every(requests), left=bool(number % 2)))
    return Pair(requests, target, golden, _both(draw), _type(draw), 1, "cp2 left" if number % 2 else "cp2 right")


def sequence_ranks(draw: np.random.Generator, number: int) -> Pair:
    """Sequence parallel and packed, against one card padded: between products a rank holds a part of the tokens."""
    requests = _requests(draw, 2)
    target = Arrangement([[packed(requests, _every(requests))]], 2, "", True)
    golden = _one_card(padded(requests, _every(requests), left=bool(number % 2)))
    return Pair(requests, target, golden, _both(draw), _type(draw), 2, "left" if number % 2 else "right")


COMBINATIONS: dict[str, Callable[[np.random.Generator, int], Pair]] = {
    "tp_packed": packed_ranks,
    "tp_decode": decoding_ranks,
    "tp_chunks": chunks_and_ranks,
    "decode_decode": two_decodings,
    "dp_padding": replicas,
    "tp_frameworks": frameworks_and_ranks,
    "tokens_frameworks": engines_and_tokens,
    "cp_packed": zigzag_ranks,
    "sp_packed": sequence_ranks,
}
NETWORKS = ("llama", "gpt2")


class Sides(NamedTuple):
    """The target and the golden of a case, and the fault of the target."""

    pair: Pair
    design: Design
    target: Dump
    golden: Dump
    fault: Optional[Fault]


def _draws(combination: str, network: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, [*COMBINATIONS].index(combination), NETWORKS.index(network)])


def _start(combination: str, network: str, seed: int) -> tuple[Pair, Design, Weights]:
    draw = _draws(combination, network, seed)
    pair = COMBINATIONS[combination](draw, seed + NETWORKS.index(network))
    if pair.target.axis == "cp" or len(pair.target.steps) > 1:  # keys that no argument of a function holds
        first, second = pair.styles
        pair = pair._replace(styles=(first._replace(attention="module"), second._replace(attention="module")))
    design = draw_design(network, draw, pair.tp)
    return pair, design, draw_weights(design, draw, pair.dtype)


def fault_kinds(combination: str, network: str, seed: int) -> list[str]:
    """The kinds of fault that a target of this combination can have."""
    pair, design, _ = _start(combination, network, seed)
    return kinds(pair.target, design.biased)


def sides(combination: str, network: str, seed: int, kind: str = "", known: Optional[Dump] = None) -> Sides:
    """Both sides of a case, in memory; `known` is the golden, made for another fault."""
    pair, design, weights = _start(combination, network, seed)

    def forward(arrangement: Arrangement, style: Style, turned: bool, fault: Optional[Fault] = None) -> Dump:
        computed = Forward(pair.requests, arrangement, style, pair.dtype, turned, fault)
        run(design, weights, computed)
        return Dump(network, computed)

    golden = known or forward(pair.golden, pair.styles[1], False)
    fault = None
    if kind:
        draw = np.random.default_rng([seed, len(kind), *map(ord, kind)])
        fault = draw_fault(kind, draw, pair.requests, pair.target, design.layers, design.outputs, design.positions)
    target = forward(pair.target, pair.styles[0], True, fault)
    return Sides(pair, design, target, golden, fault)


def make(combination: str, network: str, seed: int, kind: str, folder: str) -> Written:
    """Write the dumps of a case."""
    made = sides(combination, network, seed, kind)
    place = Path(folder)
    levels = ["mix" if style.functions else "L0" for style in made.pair.styles]
    write(place / "target", made.target, levels[0])
    write(place / "golden", made.golden, levels[1])
    return Written(place / "target", place / "golden", made.pair.title, truth(made))


def truth(made: Sides) -> Optional[Truth]:
    """The operators of both sides that are right to name first, and rank, request and position where one is right."""
    fault = made.fault
    if fault is None:
        return None
    places = fault.right(made.pair.styles[0].functions, made.design.layers)
    names = made.target.names(places) | made.golden.names(places)
    reads = fault.kind in ("unreduced", "bias per rank", "other positions", "offset")
    return Truth(fault.kind, fault.place, frozenset(names), fault.rank, fault.request, fault.position, reads)
