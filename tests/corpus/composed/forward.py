"""The operators that the networks share, computed rank by rank, with their collectives and a fault."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.composed.arrangements import Arrangement, Requests
from tests.corpus.composed.faults import Fault
from tests.corpus.composed.values import Array, Meta, Record, Value, Weight, layer_of
from tests.corpus.tokens.network import bfloat16

IDS, POSITIONS = Meta("ids"), Meta("positions")


class Style(NamedTuple):
    """How a side is written and recorded.

    names      the dialect of names: "transformers", "parallel", "vllm", "mindformers", "kernels"
    fused      q, k, v are one product, gate and up another; a sum of residuals belongs to the norm behind it
    attention  "module", or the function "npu" or "sdpa"
    rotary     rotary embedding is "module" or a row of "functions"
    functions  functions are recorded inside modules (level mix), else modules alone (level L0)
    containers layers and blocks are recorded too
    vocabulary the embedding is split over ranks
    """

    names: str = "transformers"
    fused: bool = False
    attention: str = "module"
    rotary: str = "module"
    functions: bool = True
    containers: bool = False
    vocabulary: bool = True


class Forward:
    """A forward pass of one side; `records` are in the order of execution."""

    def __init__(
        self, requests: Requests, arrangement: Arrangement, style: Style, dtype: str, turned: bool,
        fault: Optional[Fault] = None,
    ) -> None:  # fmt: skip
        self.requests, self.arrangement, self.style, self.dtype = requests, arrangement, style, dtype
        self.turned, self.fault, self.tp = turned, fault, arrangement.tp
        self.records: list[Record] = []

    # values

    def rounded(self, values: Array) -> Array:
        return bfloat16(values) if self.dtype == "bfloat16" else np.asarray(values, np.float32)

    def each(self, function: Callable[..., Array], *values: Any, **fields: Any) -> Value:
        """The function of the parts of each rank; equal parts are computed once."""
        known: dict[tuple[int, ...], Array] = {}
        parts = []
        for rank in range(self.tp):
            own = [value.parts[rank] if isinstance(value, (Value, Weight)) else value for value in values]
            key = tuple(map(id, own))
            if key not in known:
                known[key] = self.rounded(function(*own))
            parts.append(known[key])
        first = next(value for value in values if isinstance(value, Value))
        return first._replace(parts=parts, **fields)

    def product(self, x: Array, weight: Array) -> Array:
        """A product in float32, whose sum the target adds up in another order."""
        return x[:, ::-1] @ weight[:, ::-1].T if self.turned else x @ weight.T

    def split(self, weight: Array, axis: int, groups: int = 0) -> tuple[Weight, int]:
        """The parts of a parameter, and the number of ranks that share one: `groups` of fewer heads than ranks."""
        count = min(self.tp, groups) if groups else self.tp
        parts = np.split(weight, count, axis)
        copies = self.tp // count
        return Weight([np.ascontiguousarray(parts[rank // copies]) for rank in range(self.tp)]), copies

    def same(self, weight: Array) -> Weight:
        return Weight([weight] * self.tp)

    def positions_at(self, place: str) -> Array:
        """The positions with which a place is computed."""
        positions = self.requests.positions.copy()
        if self.arrangement.is_left(self.requests):
            positions[~self.requests.real] = 1
        fault = self.fault
        if fault is None or fault.kind not in ("other positions", "offset") or fault.request is None:
            return positions
        if layer_of(fault.place) in (-1, layer_of(place)) or fault.recorded:
            rows = np.array(self.requests.rows(fault.request))[fault.position :]
            positions[rows] += 1 if fault.kind == "offset" else self.requests.lengths[fault.request - 1]
        return positions

    def strikes(self, kind: str, place: str) -> bool:
        return self.fault is not None and (self.fault.kind, self.fault.place) == (kind, place)

    def outcome(self, place: str, value: Value) -> Value:
        """An output with the fault of its place."""
        if self.fault is not None and self.fault.place == place:
            value = self.fault.changed(value, self.arrangement)
            return value._replace(parts=[self.rounded(part) for part in value.parts])
        return value

    # records

    def function(
        self, operator: str, place: str, inputs: Sequence[Any], outputs: Sequence[Value], *covers: str, **keywords: Any
    ) -> None:
        """Record a function within the module of `place`."""
        if self.style.functions:
            self.records.append(Record(operator, place, covers or (place,), tuple(inputs), tuple(outputs), keywords))

    def module(
        self, place: str, inputs: Sequence[Any], outputs: Sequence[Value], *covers: str, **keywords: Any
    ) -> None:
        self.records.append(Record("module", place, covers or (place,), tuple(inputs), tuple(outputs), keywords))

    def container(self, place: str, inputs: Sequence[Any], outputs: Sequence[Value], **keywords: Any) -> None:
        if self.style.containers:
            self.records.append(Record("module", place, (), tuple(inputs), tuple(outputs), keywords))

    # collectives

    def divided(self, x: Value) -> Value:
        """The rows of a tensor that a rank goes on with."""
        return x._replace(spread="part") if self.arrangement.sequence else x

    def reduced(self, place: str, partial: Value, whole: bool = False) -> Value:
        """The sum over ranks, or of a divided sequence the rows of the sum that a rank goes on with, unless `whole`."""
        if self.tp == 1:
            return partial._replace(held="whole")
        total = self.rounded(np.sum(partial.parts, axis=0, dtype=np.float32))
        parts = [total] * self.tp
        spread = "part" if self.arrangement.sequence and not whole else "own"
        if self.strikes("unreduced", place):
            return Value(partial.parts, "whole", spread)
        value = Value(parts, "whole", spread)
        self.function("reduce_scatter" if spread == "part" else "all_reduce", place, [partial], [value])
        return value

    def gathered_rows(self, place: str, x: Value) -> Value:
        """All rows of a divided sequence."""
        if x.spread != "part":
            return x
        owners = self.arrangement.owners
        rows = np.arange(len(owners))
        whole = x.parts[0].copy()
        whole[: len(owners)] = np.stack(x.parts)[owners, rows]
        value = Value([whole] * self.tp, "whole")
        self.function("all_gather", place, [x], [value], f"{place} gather")
        return value

    def gathered_columns(self, place: str, x: Value) -> Value:
        if self.tp == 1:
            return x
        value = Value([np.concatenate(x.parts, 1)] * self.tp, "whole")
        self.function("all_gather", place, [x], [value])
        return value

    # operators

    def embedding(self, place: str, table: Array, whole: bool = False) -> Value:
        """Rows of a table by ids; `whole`: of a divided sequence too, all rows are handed on."""
        ids = self.requests.ids
        if self.tp == 1 or not self.style.vocabulary:
            value = self.outcome(place, Value([self.rounded(table[ids])] * self.tp))
            self.function("embedding", place, [IDS, self.same(table)], [value])
        else:
            size = len(table) // self.tp
            weight, _ = self.split(table, 0)
            own = [np.where(ids // size == rank, ids - rank * size, 0) for rank in range(self.tp)]
            looked = Value([part[rows] for part, rows in zip(weight.parts, own)], "local")
            within = [(ids // size == rank)[:, None] for rank in range(self.tp)]
            partial = Value([part * inside for part, inside in zip(looked.parts, within)], "partial")
            self.function("embedding", place, [Value(own, "local"), weight], [looked])
            outside = Value([~inside[:, 0] for inside in within], "local")
            self.function("masked_fill", place, [looked, outside, 0], [partial])
            value = self.outcome(place, self.reduced(place, partial, whole))
        self.module(place, [IDS], [value])
        return value

    def norm(self, place: str, x: Value, weight: Array, bias: Optional[Array], addend: Optional[Value] = None) -> Value:
        """An RMS norm, with a bias a layer norm. `addend`: the sum of both is made here; it is the second output."""
        number = layer_of(place)
        covers: list[str] = [place]

        def root_mean_square(rows: Array) -> Array:
            squares = (rows[:, ::-1] if self.turned else rows) ** 2
            return rows / np.sqrt(squares.mean(1, keepdims=True, dtype=np.float32) + np.float32(1e-5)) * weight

        def layer_norm(rows: Array) -> Array:
            centred = rows - rows.mean(1, keepdims=True)
            assert bias is not None
            return centred / np.sqrt((centred**2).mean(1, keepdims=True) + np.float32(1e-5)) * weight + bias

        value = self.outcome(place, self.each(layer_norm if bias is not None else root_mean_square, x))
        parameters = [self.same(weight)] + [self.same(bias)] * (bias is not None)
        if bias is None:
            self.function("rms_norm", place, [x, *parameters], [value], epsilon=1e-5)
        else:
            self.function("layer_norm", place, [x, [len(weight)], self.same(weight), self.same(bias)], [value])
        if addend is not None:
            before = "residual1" if place.endswith("norm2") else "residual2"
            covers.append(f"{number}.{before}" if place.endswith("norm2") else self.residual_before(place))
            self.module(place, [addend], [value, x], *covers)
        else:
            self.module(place, [x], [value], *covers)
        return value

    def residual_before(self, place: str) -> str:
        """The residual that a norm at the head of a layer, or at the end, adds."""
        layers = [layer_of(record.place) for record in self.records]
        return f"{(layer_of(place) - 1) if layer_of(place) > 0 else max(layers)}.residual2"

    def residual(self, place: str, x: Value, y: Value) -> Value:
        value = self.outcome(place, self.each(np.add, x, y))
        if not self.style.fused:
            self.function("add", place, [x, y], [value])
        return value

    def columns(
        self, place: str, parts: Sequence[tuple[str, Array, Optional[Array], int]], x: Value, fused: bool
    ) -> list[Value]:
        """Products whose columns the ranks share: (name, weight, bias, heads) of each; `fused`: one product."""
        layer = place.rpartition(".")[0]
        head = f"{layer}." if layer else ""
        gathered = x
        values, weights, biases = [], [], []
        for name, weight, bias, heads in parts:
            own, copies = self.split(weight, 0, heads)
            value = self.each(self.product, x if x.spread == "own" else self._silently_gathered(x), own)
            if bias is not None:
                own_bias, _ = self.split(bias, 0, heads)
                value = self.each(np.add, value, own_bias)
                biases.append(own_bias)
            held = "columns" if self.tp > 1 else "whole"
            value = value._replace(held=held, blocks=((value.parts[0].shape[1], copies),), spread="own")
            values.append(self.outcome(f"{head}{name}", value))
            weights.append(own)
        if fused:
            gathered = self.gathered_rows(place, x)
            one = [np.concatenate([value.parts[rank] for value in values], 1) for rank in range(self.tp)]
            blocks = tuple(block for value in values for block in value.blocks)
            whole = Value(one, values[0].held, "own", 0, blocks)
            weight = Weight([np.concatenate([own.parts[rank] for own in weights]) for rank in range(self.tp)])
            inputs: list[Any] = [gathered, weight]
            if biases:
                inputs.append(Weight([np.concatenate([own.parts[rank] for own in biases]) for rank in range(self.tp)]))
            covers = [f"{head}{name}" for name, *_ in parts]
            self.function("linear", place, inputs, [whole], *covers)
            self.module(place, [x], [whole], *covers)
            return values
        for number, (name, *_) in enumerate(parts):
            gathered = self.gathered_rows(f"{head}{name}", x)
            inputs = [gathered, weights[number], *biases[number : number + 1]]
            self.function("linear", f"{head}{name}", inputs, [values[number]])
            self.module(f"{head}{name}", [x], [values[number]])
        return values

    def _silently_gathered(self, x: Value) -> Value:
        records, self.records = self.records, []
        gathered = self.gathered_rows("", x)
        self.records = records
        return gathered

    def row(self, place: str, x: Value, weight: Array, bias: Optional[Array]) -> Value:
        """A product of which each rank has an addend; the bias is added behind the sum."""
        own, _ = self.split(weight, 1)
        everywhere = self.strikes("bias per rank", place)
        partial = self.each(self.product, x, own, heads=0, blocks=())
        inputs: list[Any] = [x, own]
        if bias is not None and (self.tp == 1 or everywhere):
            partial = self.each(np.add, partial, bias * 2 if self.tp == 1 and everywhere else bias)
            inputs.append(self.same(bias))
        partial = partial._replace(held="partial" if self.tp > 1 else "whole")
        partial = self.outcome(place, partial)
        self.function("linear", place, inputs, [partial])
        value = self.reduced(place, partial)
        if bias is not None and self.tp > 1 and not everywhere:
            total = self.each(np.add, value, bias)
            self.function("add", place, [value, self.same(bias)], [total])
            value = total
        self.module(place, [x], [value])
        return value

    def pointwise(
        self, operator: str, place: str, function: Callable[..., Array], *inputs: Value, **keywords: Any
    ) -> Value:
        value = self.outcome(place, self.each(function, *inputs))
        self.function(operator, place, inputs, [value], **keywords)
        return value

    # attention

    def rotary(self, place: str, q: Value, k: Value, size: int) -> tuple[Value, Value]:
        """Rotated queries and keys: the second half of each head turns with the first."""
        positions = self.positions_at(place)
        angles = positions[:, None] / 10000.0 ** (np.arange(size // 2) * 2 / size)
        angles = np.concatenate([angles, angles], 1)
        cos, sin = (self.rounded(function(angles).astype(np.float32)) for function in (np.cos, np.sin))

        def half(rows: Array) -> Array:
            heads = rows.reshape(len(rows), -1, 2, size // 2)
            return np.stack([-heads[:, :, 1], heads[:, :, 0]], 2).reshape(rows.shape)

        def times(rows: Array, factor: Array) -> Array:
            return (rows.reshape(len(rows), -1, size) * factor[:, None]).reshape(rows.shape)

        by_head = self.style.rotary == "functions"
        outputs = []
        for value in (q, k):
            heads = value.parts[0].shape[1] // size
            shown = heads if by_head else 0
            first = self.each(times, value, cos, heads=shown)
            turned = self.each(half, value, heads=shown)
            second = self.each(times, turned, sin, heads=shown)
            total = self.each(np.add, first, second, heads=shown)
            outputs.append(total._replace(heads=heads if by_head else 0))
            if by_head:
                table = [Value([part] * self.tp, heads=1) for part in (cos, sin)]
                self.function("mul", place, [value.shown(heads), table[0]], [first])
                halves = [self.each(part, value, heads=heads) for part in _halves(size)]
                negative = self.each(np.negative, halves[1])
                self.function("neg", place, [halves[1]], [negative])
                self.function("cat", place, [[negative, halves[0]]], [turned])
                self.function("mul", place, [turned, table[1]], [second])
                self.function("add", place, [first, second], [total])
        if not by_head:
            self.module(place, [self.recorded_positions(), q, k], outputs)
        return outputs[0], outputs[1]

    def recorded_positions(self) -> Any:
        """The positions that the dump has, wrong ones if the engine made them."""
        if self.fault is None or not self.fault.recorded:
            return POSITIONS
        return Value([self.positions_at(self.fault.place)] * self.tp, "positions")

    def rotary_table(self, x: Value, size: int) -> None:
        """The module that makes cosines and sines once, as in transformers."""
        if self.style.rotary == "functions":
            angles = self.positions_at("rotary")[:, None] / 10000.0 ** (np.arange(size // 2) * 2 / size)
            angles = np.concatenate([angles, angles], 1)
            tables = [Value([self.rounded(function(angles).astype(np.float32))]) for function in (np.cos, np.sin)]
            self.module("rotary", [x, POSITIONS], tables)

    def attention(self, place: str, q: Value, k: Value, v: Value, size: int) -> Value:
        """Causal attention of each request."""
        gathered = self.arrangement.axis == "cp" and not self.strikes("unreduced", place)
        keys, values = k, v
        if gathered:
            keys, values = (value._replace(spread="all", heads=0) for value in (k, v))
            for value, whole in ((k, keys), (v, values)):
                self.function("all_gather", place, [value._replace(heads=0)], [whole], f"{place} gather")

        def attended(queries: Array, own_keys: Array, own_values: Array) -> Array:
            rows = np.zeros_like(queries)
            for request in range(len(self.requests.lengths)):
                span = self.requests.rows(request)
                rows[span.start : span.stop] = self._request(place, request, queries, own_keys, own_values, size)
            return rows

        heads = q.parts[0].shape[1] // size
        value = self.outcome(place, self.each(attended, q, k, v, heads=heads))
        value = value._replace(heads=0)
        shown = [(one, one.parts[0].shape[1] // size) for one in (q, keys, values)]
        if self.style.attention == "module":
            self.module(place, [one._replace(heads=0) for one, _ in shown], [value], **self._lengths())
            return value
        inputs: list[Any] = []
        for one, count in shown:
            if self.style.attention == "sdpa" and count < heads:  # as repeat_kv
                one = self.each(_repeated, one, size, heads // count)
                count = heads
            inputs.append(one.shown(count))
        if self.style.attention == "sdpa":
            self.function("sdpa", place, inputs, [value.shown(heads)], attn_mask=Meta("causal"), is_causal=False)
        else:
            layout = "TND" if self.arrangement.rows(0, 0).ndim == 1 else "BNSD"
            more: dict[str, Any] = {"atten_mask": Meta("masked")} if layout == "BNSD" else {}
            lengths = Meta("actual_seq_qlen") if layout == "TND" else None
            more.update(actual_seq_qlen=lengths, actual_seq_kvlen=lengths, sparse_mode=3 if layout == "TND" else 0)
            self.function("npu", place, [*inputs, heads, layout], [value.shown(heads)], scale=size**-0.5, **more)
        return value

    def _lengths(self) -> dict[str, Any]:
        if self.arrangement.rows(0, 0).ndim == 2:
            return {"attention_mask": Meta("attention_mask")}
        return {"cu_seqlens": Meta("cu_seqlens")}

    def _request(self, place: str, request: int, q: Array, k: Array, v: Array, size: int) -> Array:
        requests, span = self.requests, self.requests.rows(request)
        rows = np.arange(span.start, span.stop)
        sees = np.tril(np.ones((len(rows), len(rows)), bool))
        sees[:, requests.lengths[request] :] = False
        if self.arrangement.is_left(requests):  # padding in front sees all, as transformers has it
            width = self.arrangement.lane(request, requests)
            sees[requests.lengths[request] : width, :width] = True
        keys = rows
        fault = self.fault
        if fault is not None and fault.place == place and fault.request in (None, request):
            if fault.kind == "leak":
                is_padded = self.arrangement.rows(0, 0).ndim == 2
                behind = [*span][requests.lengths[request] :] if is_padded else requests.tokens(request - 1)
                keys = np.r_[behind[:2], rows]
                sees = np.concatenate([np.ones((len(rows), len(behind[:2])), bool), sees], 1)
            elif fault.kind == "unreduced":  # each rank sees its own keys
                groups = np.full(len(q), -1)
                for rank in range(self.arrangement.ranks):
                    groups[self.arrangement.of_rank(rank)] = rank
                sees &= groups[rows][:, None] == groups[rows][None]
                sees |= np.eye(len(rows), dtype=bool)
        right = _attention(q[rows], k[keys], v[keys], sees, size)
        if fault is not None and self.strikes("cache", place) and fault.request == request:
            assert fault.position is not None
            lost_k, lost_v = k[rows].copy(), v[rows].copy()
            lost_k[fault.position - 1] = lost_v[fault.position - 1] = 0
            wrong = _attention(q[rows], lost_k, lost_v, sees, size)
            right[fault.position :] = wrong[fault.position :]
        return right


def _halves(size: int) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """The first and the second half of each head."""

    def half(number: int) -> Callable[[Array], Array]:
        return lambda rows: rows.reshape(len(rows), -1, 2, size // 2)[:, :, number].reshape(len(rows), -1)

    return half(0), half(1)


def _repeated(rows: Array, size: int, times: int) -> Array:
    """Each head as often as queries read it."""
    return np.repeat(rows.reshape(len(rows), -1, size), times, 1).reshape(len(rows), -1)


def _attention(q: Array, k: Array, v: Array, sees: Array, size: int) -> Array:
    heads, groups = q.shape[1] // size, k.shape[1] // size
    queries = q.reshape(len(q), groups, heads // groups, size)
    keys, values = (part.reshape(len(part), groups, size) for part in (k, v))
    scores = np.einsum("tgnd,sgd->gnts", queries, keys) * np.float32(size**-0.5)
    scores = np.where(sees, scores, np.float32(-1e30))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("gnts,sgd->tgnd", weights, values).reshape(len(q), -1)
