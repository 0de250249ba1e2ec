"""Runs a network on a Device, writes down what a dump tool would see, and goes back for the gradients.

A Session is one training step of all ranks; a Tape is what the code of one rank calls. The values of a run depend on
the network, the Device and the precision, and on nothing else: the same call gives the same bits again.
"""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.device import Arithmetic, Array, Device, rounded
from tests.corpus.operators import OPERATORS
from tests.corpus.trace import Item, Record, Run, Tensor

FLOATS = ("bfloat16", "float16", "float32", "float64")  # narrow to wide; of the first two bfloat16 gives way
UNRECORDED = 1_000_000  # calls from here on leave no record and shift the numbers of no others
MODELS = ("networks.py", "unseen.py", "experts.py")  # files whose lines a call stack shows


Turn = Callable[[Array], Array]


class Precision(NamedTuple):
    """half: "" or the 16-bit type that products are computed in under autocast; base: type of everything else.

    A pure bfloat16 run has the base bfloat16, a float64 one the base float64.
    """

    base: str = "float32"
    half: str = ""

    @property
    def coarsest(self) -> str:
        return self.half or self.base


class Address(NamedTuple):
    """One execution of an operator."""

    step: int
    rank: int
    phase: str
    kind: str
    call: int


class Plant:
    """A fault in one operator: what it does to the execution at `address`. The base class does nothing."""

    def __init__(self, address: Address):
        self.address = address
        self.struck: Optional[Struck] = None

    def arithmetic(self, a: Arithmetic) -> Arithmetic:
        return a

    def inputs(self, values: list[Any], keywords: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """What the operator really computes with; the record keeps what it was given."""
        return values, keywords

    def outputs(self, values: list[Optional[Array]], memory: list[Optional[Array]]) -> list[Optional[Array]]:
        """What it writes; memory: what the last operator of this kind wrote."""
        return values

    formula: Optional[Callable[..., list[Any]]] = None  # (arithmetic, values, keywords, what its forward wrote)

    def dtype(self, dtype: str) -> str:
        """The type that it writes."""
        return dtype

    def items(self, items: list[Item], keywords: dict[str, Item]) -> tuple[list[Item], dict[str, Item]]:
        """What the record says that it was given: differs if an argument is openly wrong."""
        return items, keywords


class Struck(NamedTuple):
    """What a planted operator wrote, what it should have written, and the float64 truth for the same inputs."""

    faulty: list[Array]
    clean: list[Array]
    exact: list[Array]


class Var:
    """A tensor in the making: the Tensor, and the node that wrote it."""

    __slots__ = ("node", "tensor")

    def __init__(self, tensor: Tensor):
        self.tensor, self.node = tensor, None  # type: Tensor, Optional[Node]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.values.shape

    @property
    def dtype(self) -> str:
        return self.tensor.dtype


@dataclass(eq=False)
class Node:
    """One executed operator, as the way back needs it."""

    rank: int
    kind: str
    call: int
    scope: str
    line: str
    items: list[Any]  # Vars and numbers
    keywords: dict[str, Any]
    outputs: list[Var]
    half: str = ""  # the type that its products are computed in
    recorded: bool = True
    inverse: Optional[Callable[[Array], Array]] = None  # of a view
    hook: Optional[Callable[[Optional[Tensor]], None]] = None  # called with the gradient that passes
    joint: Optional[Callable[[list[Optional[Tensor]]], list[Optional[Tensor]]]] = None  # between ranks


@dataclass
class Session:
    """One step: what ran on all ranks, in order of execution.

    hooks: "full": the backward records of products hold all gradients; "last": as msprobe 26.2, which hooks the last
        autograd node, so that those of more than two axes hold only the incoming gradient, reshaped.
    captures_all: nothing runs unseen, as in a graph: views are operators too; else they and hidden() leave no record.
    modules: modules leave records of their own, as at level mix.
    """

    device: Optional[Device]
    precision: Precision = Precision()
    plants: dict[Address, Plant] = field(default_factory=dict)
    step: int = 0
    ranks: int = 1
    hooks: str = "full"
    captures_all: bool = False
    modules: bool = False
    records: list[tuple[int, Record]] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    weight_gradients: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    skipped: set[Address] = field(default_factory=set)
    origin: dict[Address, Address] = field(default_factory=dict)  # call that computes another one again → that one

    def __post_init__(self) -> None:
        self._keys = 0
        self._calls: Counter[tuple[int, str]] = Counter()
        self._memory: dict[tuple[int, str, str], list[Optional[Array]]] = {}

    def key(self) -> int:
        self._keys += 1
        return self._keys

    def call(self, rank: int, kind: str) -> int:
        self._calls[rank, kind] += 1
        return self._calls[rank, kind] - 1

    def call_unrecorded(self, rank: int, kind: str) -> int:
        return UNRECORDED + self.call(rank, f"{kind}, unrecorded")

    def plant(self, address: Address) -> Optional[Plant]:
        """The fault that strikes a call, or the call that it computes again."""
        return self.plants.get(self.origin.get(address, address))

    def expect_again(self, nodes: Sequence[Node]) -> None:
        """The next calls compute those of `nodes` again, under the same faults and to the same bits."""
        ahead: Counter[tuple[int, str]] = Counter()
        for node in nodes:
            if node.inverse is not None or node.joint is not None:
                continue
            unrecorded = node.call >= UNRECORDED
            counter = node.rank, f"{node.kind}, unrecorded" if unrecorded else node.kind
            first = Address(self.step, node.rank, "forward", node.kind, node.call)
            again = UNRECORDED * unrecorded + self._calls[counter] + ahead[counter]
            ahead[counter] += 1
            self.origin[first._replace(call=again)] = first

    def uncall(self, rank: int, kind: str) -> None:
        """The last call did not happen."""
        self._calls[rank, kind] -= 1

    def runs(self) -> list[Run]:
        """What was recorded, a Run for each rank."""
        return [
            Run(tuple(r for rank, r in self.records if rank == k), self.step, k if self.ranks > 1 else None)
            for k in range(self.ranks)
        ]

    def compute(
        self,
        address: Address,
        half: str,
        values: list[Any],
        keywords: dict[str, Any],
        after: Callable[..., Any],
        dtypes: Any,
        saved: Sequence[Array] = (),
    ) -> list[Optional[Array]]:
        """What an operator writes: computed, planted, rounded to `dtypes` (a callable of the outputs, given a type).

        after(arithmetic, values, keywords) → outputs.
        """
        first = self.origin.get(address, address)
        label = f"{first.step}/{first.phase}/{first.kind}/{first.call}"
        a = Arithmetic(
            self.device, self.precision.base if self.precision.base == "float64" else half or "float32", label
        )
        plant = self.plant(address)
        memory = self._memory.get((address.rank, address.phase, address.kind), [])
        copy = dtypes(None)  # whether the operator only moves values

        def stored(found: list[Any], b: Arithmetic) -> list[Optional[Array]]:
            return [None if y is None else self._stored(b, y, dtypes(k), copy, k) for k, y in enumerate(found)]

        with np.errstate(all="ignore"):
            clean = stored(after(a, values, keywords), a)
            if plant is not None and self.device is not None:
                b = plant.arithmetic(a.with_())
                given, named = plant.inputs(list(values), dict(keywords))
                made = plant.formula(b, given, named, saved) if plant.formula is not None else after(b, given, named)
                found = plant.outputs(list(made), memory)
                narrow = [
                    None if y is None else self._stored(b, y, self.planted(plant, dtypes(k)), copy, k)
                    for k, y in enumerate(found)
                ]
                exact = [y for y in after(a.twin(), values, keywords) if y is not None]
                plant.struck = Struck([y for y in narrow if y is not None], [y for y in clean if y is not None], exact)
                clean = narrow
        self._memory[address.rank, address.phase, address.kind] = clean
        return clean

    @staticmethod
    def planted(plant: Plant, dtype: str) -> str:
        """The type of an output of a planted operator."""
        return plant.dtype(dtype) if dtype in FLOATS else dtype

    @staticmethod
    def _stored(a: Arithmetic, y: Array, dtype: str, copy: bool, part: int) -> Array:
        if dtype not in FLOATS:
            return np.asarray(y)
        return np.asarray(a.stored(np.asarray(y, np.float64), dtype, copy, part), order="C")

    def backward(self, loss: Sequence[Var], scale: float = 1.0) -> None:
        """From the losses of the ranks to the gradients of all weights; leaves a record of each operator on its way."""
        grads: dict[int, Tensor] = {}
        for one in loss:
            seed = np.full(one.shape, scale, one.tensor.values.dtype)
            grads[id(one)] = Tensor(seed, one.dtype, self.key())
        for node in reversed(self.nodes):
            self._back(node, grads)

    def _back(self, node: Node, grads: dict[int, Tensor]) -> None:
        arrived = [grads.pop(id(out), None) for out in node.outputs]
        if node.hook is not None:
            node.hook(arrived[0])
        if all(one is None for one in arrived):
            return
        if node.joint is not None:
            for item, gradient in zip(node.items, node.joint(arrived)):
                if gradient is not None:
                    self._add(grads, item, gradient, node)
            return
        if node.inverse is not None:
            assert arrived[0] is not None
            values = np.asarray(node.inverse(arrived[0].values), order="C")
            same = values.size == arrived[0].values.size and not node.recorded
            if self.device is not None and not same:  # it may add
                values = rounded(values.astype(np.float64), arrived[0].dtype).astype(values.dtype)
            made = Tensor(values, arrived[0].dtype, arrived[0].key if same else self.key())
            if node.recorded and node.items[0].tensor.needs_grad:
                record = Record(node.kind, "backward", node.call, node.scope, (arrived[0],), (made,), line=node.line)
                self.records.append((node.rank, record))
            self._add(grads, node.items[0], made, node)
            return
        given = [
            Tensor(np.zeros_like(out.tensor.values), out.dtype, self.key()) if one is None else one
            for one, out in zip(arrived, node.outputs)
            if out.dtype in FLOATS
        ]
        op = OPERATORS[node.kind]
        wanted = [isinstance(item, Var) and item.tensor.needs_grad for item in node.items]
        types = [item.dtype if isinstance(item, Var) else "float32" for item in node.items]
        values = [_operand(item, node.half) for item in node.items]
        outputs = [np.asarray(out.tensor.values, np.float64) for out in node.outputs]
        for k, out in enumerate(node.outputs):
            if out.dtype not in FLOATS:
                outputs[k] = out.tensor.values

        def after(a: Arithmetic, given_values: list[Any], keywords: dict[str, Any]) -> list[Any]:
            count = len(given)
            found = op.backward(a, given_values[:count], given_values[count:], outputs, keywords)
            return [g if want else None for g, want in zip(found, wanted)]

        def dtypes(k: Optional[int]) -> Any:
            return op.backward_copies if k is None else (node.half if node.half and types[k] == "float32" else types[k])

        address = Address(self.step, node.rank, "backward", node.kind, node.call)
        widened = [np.asarray(one.values, np.float64) for one in given]
        found = self.compute(address, node.half, [*widened, *values], _numbers(node.keywords), after, dtypes, outputs)
        made = [Tensor(y, types[k], self.key()) if y is not None and wanted[k] else None for k, y in enumerate(found)]
        if node.recorded:
            kept: list[Optional[Tensor]] = [g for g, item in zip(made, node.items) if isinstance(item, Var)]
            if self.hooks == "last" and node.kind in ("linear", "matmul") and given[0].values.ndim > 2:
                flat = given[0].values.reshape(-1, given[0].values.shape[-1])
                kept = [Tensor(flat, given[0].dtype, given[0].key)]
            record = Record(node.kind, "backward", node.call, node.scope, tuple(given), tuple(kept), line=node.line)
            self.records.append((node.rank, record))
        for item, gradient in zip(node.items, made):
            if gradient is not None:
                self._add(grads, item, gradient, node)

    def _add(self, grads: dict[int, Tensor], var: Var, gradient: Tensor, node: Node) -> None:
        """A gradient to those that are there for this tensor."""
        if not var.tensor.needs_grad:
            return
        name = var.tensor.parameter
        there = self.weight_gradients.get((node.rank, name)) if name else grads.get(id(var))
        if there is not None:
            total = there.values.astype(np.float64) + gradient.values
            if self.device is not None:
                total = rounded(total, gradient.dtype)
            both = Tensor(total.astype(gradient.values.dtype), gradient.dtype, self.key())
            if self.captures_all:
                call = self.call(node.rank, "accumulate")
                record = Record("accumulate", "backward", call, node.scope, (there, gradient), (both,))
                self.records.append((node.rank, record))
            gradient = both
        if name:
            self.weight_gradients[node.rank, name] = gradient
        else:
            grads[id(var)] = gradient


def _operand(item: Any, half: str) -> Any:
    """A value as an operator computes with it: float64, after the cast of autocast."""
    if not isinstance(item, Var):
        return item
    values = item.tensor.values
    if item.dtype not in FLOATS:
        return values
    wide = values.astype(np.float64)
    return rounded(wide, half) if half and item.dtype != half else wide


def _numbers(keywords: dict[str, Any]) -> dict[str, Any]:
    return {k: (v.tensor.values if isinstance(v, Var) else v) for k, v in keywords.items()}


class Tape:
    """What the network of one rank calls: `t("softmax", x, dim=-1)`."""

    def __init__(self, session: Session, rank: int = 0):
        self.session, self.rank = session, rank
        self._scopes: list[str] = []
        self._recording = True
        self._parameters: dict[str, dict[str, Tensor]] = {}  # of each module, by their names

    @property
    def scope(self) -> str:
        return ".".join(self._scopes)

    def constant(self, values: Any, dtype: str = "float32") -> Var:
        """A tensor from outside: a batch, a mask, a table."""
        values = np.asarray(values)
        base = self.session.precision.base
        if values.dtype.kind == "f":
            dtype = dtype if dtype != "float32" else base
            wide = rounded(values.astype(np.float64), dtype)
            values = wide if dtype == "float64" else wide.astype(np.float32)
        else:
            dtype = str(values.dtype)
        return Var(Tensor(np.asarray(values, order="C"), dtype, self.session.key()))

    def weight(self, name: str, values: Array) -> Var:
        """A parameter, in the type of the run."""
        base = self.session.precision.base
        wide = rounded(np.asarray(values, np.float64), base)
        kept = wide if base == "float64" else wide.astype(np.float32)
        made = Tensor(kept, base, self.session.key(), True, name)
        self._parameters.setdefault(name.rpartition(".")[0], {})[name] = made
        return Var(made)

    def __call__(self, kind: str, *items: Any, **keywords: Any) -> Any:
        return self._run(kind, items, keywords, recorded=self._recording)

    def hidden(self, kind: str, *items: Any, **keywords: Any) -> Any:
        """An operator that dump tools do not see: a function captured before their hooks, a kernel of one's own."""
        return self._run(kind, items, keywords, recorded=self.session.captures_all)

    def _run(self, kind: str, items: Any, keywords: dict[str, Any], recorded: bool) -> Any:
        session, op = self.session, OPERATORS[kind]
        call = session.call(self.rank, kind) if self._recording else session.call_unrecorded(self.rank, kind)
        half = session.precision.half if op.autocast == "half" else ""
        written = half or self._written(op.autocast, kind, items)
        address = Address(session.step, self.rank, "forward", kind, call)

        def after(a: Arithmetic, values: list[Any], named: dict[str, Any]) -> list[Any]:
            found = op.forward(a, *values, **named)
            return list(found) if isinstance(found, tuple) else [found]

        def dtypes(k: Optional[int]) -> Any:
            return op.copies if k is None else ("int64" if (kind, k) == ("topk", 1) else written)

        values = [_operand(item, half) for item in items]
        found = session.compute(address, half, values, _numbers(keywords), after, dtypes)
        plant = session.plant(address)
        grad = any(isinstance(item, Var) and item.tensor.needs_grad for item in items)
        types = [dtypes(k) if plant is None else session.planted(plant, dtypes(k)) for k in range(len(found))]
        made = [
            Var(Tensor(y, dtype, session.key(), grad and dtype in FLOATS))
            for y, dtype in zip(found, types)
            if y is not None
        ]
        node = Node(self.rank, kind, call, self.scope, self._line(), list(items), keywords, made, half, recorded)
        for one in made:
            one.node = node
        session.nodes.append(node)
        if recorded:
            told: list[Item] = [item.tensor if isinstance(item, Var) else item for item in items]
            named = {k: (v.tensor if isinstance(v, Var) else v) for k, v in keywords.items() if k != "seed"}
            if plant is not None:
                told, named = plant.items(told, named)
            outputs = tuple(one.tensor for one in made)
            session.records.append(
                (self.rank, Record(kind, "forward", call, self.scope, tuple(told), outputs, named, line=node.line))
            )
        return made[0] if len(made) == 1 else tuple(made)

    def _written(self, autocast: str, kind: str, items: Any) -> str:
        """The widest type among the inputs; under autocast float32 for what is computed in it."""
        if kind == "to":
            return str(items[1]).rpartition(".")[2]
        if kind == "setitem":
            return str(items[0].dtype)
        kinds = [item.dtype for item in items if isinstance(item, Var) and item.dtype in FLOATS]
        if kind == "embedding" or not kinds:
            return kinds[-1] if kinds else self.session.precision.base
        if autocast == "single" and self.session.precision.half:
            return "float32"
        return max(kinds, key=FLOATS.index)

    def view(self, x: Var, forward: Turn, inverse: Turn, kind: str = "") -> Var:
        """The same numbers, or some of them, in another shape; an operator where everything is captured."""
        session, recorded = self.session, bool(kind) and self.session.captures_all
        values = np.asarray(forward(x.tensor.values), order="C")
        key = session.key() if recorded else x.tensor.key
        made = Var(Tensor(values, x.dtype, key, x.tensor.needs_grad))
        call = session.call(self.rank, kind) if recorded else 0
        node = Node(self.rank, kind or "view", call, self.scope, self._line(), [x], {}, [made], "", recorded, inverse)
        made.node = node
        session.nodes.append(node)
        if recorded:
            record = Record(kind, "forward", call, self.scope, (x.tensor,), (made.tensor,), line=node.line)
            session.records.append((self.rank, record))
        return made

    def reshape(self, x: Var, *shape: int) -> Var:
        before = x.shape
        return self.view(x, lambda v: v.reshape(shape), lambda g: g.reshape(before), "reshape")

    def transpose(self, x: Var, *axes: int) -> Var:
        back = tuple(int(k) for k in np.argsort(axes))
        return self.view(x, lambda v: v.transpose(axes), lambda g: g.transpose(back), "transpose")

    def part(self, x: Var, index: Any) -> Var:
        def inverse(g: Array) -> Array:
            found = np.zeros(x.shape, g.dtype)
            found[index] = g
            return found

        return self.view(x, lambda v: v[index], inverse, "slice")

    def repeated(self, x: Var, times: int) -> Var:
        """Each head several times, for heads that share keys and values."""
        b, h, n, d = x.shape

        def inverse(g: Array) -> Array:
            return g.reshape(b, h, times, n, d).sum(2).astype(g.dtype)

        return self.view(x, lambda v: v.repeat(times, 1), inverse, "repeat")

    def same(self, x: Var) -> Var:
        """A place that gradients pass, for a hook; nothing else."""
        return self.view(x, lambda v: v, lambda g: g)

    def detached(self, x: Var) -> Var:
        return Var(Tensor(x.tensor.values, x.dtype, x.tensor.key))

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Operators of one fused kernel that a dump tool does not know: no record of them, nor of their gradients."""
        before, self._recording = self._recording, False
        try:
            yield
        finally:
            self._recording = before

    def module(self, name: str, class_name: str, body: Callable[[Var], Var], x: Var) -> Var:
        """body(x) as a module of its own, with records of it as dump tools make them at level mix."""
        if not self.session.modules or not self._recording:
            with self.inside(name):
                return body(x)
        session, rank = self.session, self.rank
        with self.inside(name):
            path, line = self.scope, self._line()
            entered = self.same(x)
            left = self.same(body(entered))
        call = session.call(rank, f"Module.{path}")
        own = self._parameters.get(path, {})

        def record(phase: str, inputs: Any, outputs: Any, parameters: Any) -> None:
            made = Record("Module", phase, call, path, inputs, outputs, {}, parameters, line, class_name)
            session.records.append((rank, made))

        record("forward", (x.tensor,), (left.tensor,), dict(own))
        flowing: list[Optional[Tensor]] = []
        assert left.node is not None and entered.node is not None
        left.node.hook = flowing.append

        def finish(gradient: Optional[Tensor]) -> None:
            found = {n: g for n in own if (g := session.weight_gradients.get((rank, n))) is not None}
            if found:
                record("parameters_grad", (), (), found)
            if flowing and flowing[0] is not None:
                record("backward", (flowing[0],), (gradient,), {})

        entered.node.hook = finish
        return left

    def _line(self) -> str:
        """The line of the network that called, as a call stack tells it."""
        frame = sys._getframe(2)
        while frame.f_back is not None and not frame.f_code.co_filename.endswith(MODELS):
            frame = frame.f_back
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return f"File /src/model.py, line {frame.f_lineno}, in {frame.f_code.co_name}, \n {text}"
