"""What a graph calls its kernels: full names of scope, type and number, and which tensors a kernel reads and writes.

    {prefix}{type}-op{n}     n counts the kernels of one prefix and type, so that one more elsewhere shifts none

A backward kernel reads the gradients, then what its forward read and wrote, as autograd saves it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional

from tests.corpus.trace import Record, Run, Tensor

MODULE = "Module"  # its record repeats what its operators read and wrote

_ESCAPES = str.maketrans(" ./\\", "____")


class Kernel(NamedTuple):
    """One operator of a graph: its full name, type, and the tensors that it reads and writes, recorded or not.

    reads are in order of slots; of a backward kernel those beyond `gradients` are the reads and writes of `forward`.
    """

    record: Record
    name: str
    op_type: str
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    gradients: int = 0
    forward: Optional[Kernel] = None

    @property
    def dumped(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The inputs and the outputs of which the dump holds values."""
        return self.reads if self.record.given else (), self.writes if self.record.told else ()


def kernels(run: Run, spell: Callable[[Record], tuple[str, str]]) -> list[Kernel]:
    """The operators of a run in order of execution, without modules; `spell` tells prefix and type of each."""
    found: list[Kernel] = []
    seen: Counter[str] = Counter()
    forwards: dict[tuple[str, int], Kernel] = {}
    for record in run.records:
        if record.kind == MODULE:
            continue
        prefix, op_type = spell(record)
        stem = f"{prefix}{op_type}"
        reads = tuple(tensors((*record.inputs, *record.keywords.values())))
        made = Kernel(record, f"{stem}-op{seen[stem]}", op_type, reads, tuple(tensors(record.outputs)), len(reads))
        forward = forwards.get((record.kind, record.call)) if record.phase == "backward" else None
        if forward is not None:
            made = made._replace(reads=(*reads, *forward.reads, *forward.writes), forward=forward)
        elif record.phase == "forward":
            forwards[record.kind, record.call] = made
        seen[stem] += 1
        found.append(made)
    return found


def tensors(items: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments, those of lists one after the other; numbers and None are left out."""
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from tensors(item)


def escaped(name: str) -> str:
    """A full name as it stands in a file name."""
    return name.translate(_ESCAPES)
