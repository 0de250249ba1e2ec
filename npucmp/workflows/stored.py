"""The comparisons of shards, as a report holds them: where they lie."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Sequence, TypeVar, Union, overload

from npucmp.errors import DumpError
from npucmp.model import Apart, Comparison, PartOf, Tally, Where
from npucmp.workflows.crew import Crew, Died
from npucmp.workflows.shard import Finished, Work
from npucmp.workflows.spool import Folder

Part = TypeVar("Part")


class Stored(Apart):
    """The comparisons of shards, read when they are asked for and not kept."""

    def __init__(self, crew: Crew, shards: Sequence[Finished], folder: Folder) -> None:
        self._crew, self.shards, self._kept = crew, shards, folder
        self.folder = folder.path
        self._untold: set[int] = set()

    @property
    def tallies(self) -> Sequence[Tally]:
        return [one.tally.spoiled() if at in self._untold else one.tally for at, one in enumerate(self.shards)]

    @property
    def where(self) -> Sequence[Where]:
        return [one.shard.where for one in self.shards]

    def __len__(self) -> int:
        return len(self.shards)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, ((*self,),)  # pickled, they are all there: the folder goes with this process

    @overload
    def __getitem__(self, at: int) -> Comparison: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Comparison]: ...
    def __getitem__(self, at: Union[int, slice]) -> Union[Comparison, Sequence[Comparison]]:
        if isinstance(at, slice):
            return Stored(self._crew, self.shards[at], self._kept)
        return self.shards[at].read(self._crew.work)

    def each(
        self,
        part: PartOf[Part],
        lost: Optional[Callable[[int, str], Part]] = None,
        numbers: Optional[Sequence[int]] = None,
    ) -> Iterator[Part]:
        chosen = range(len(self.shards)) if numbers is None else numbers
        told = self._crew.every_with(_part, [self.shards[at] for at in chosen], [(at, part) for at in chosen])
        for at, one in zip(chosen, told):
            if isinstance(one, Died):
                if lost is None:
                    raise DumpError(self.shards[at].target.path, f"telling of it ended the process: {one.because}")
                self._untold.add(at)
                yield lost(at, one.because)
            else:
                yield one

    def close(self) -> None:
        self._kept.remove()


def _part(work: Work, shard: Finished, number: int, part: PartOf[Part]) -> Part:
    return part(number, shard.read(work))
