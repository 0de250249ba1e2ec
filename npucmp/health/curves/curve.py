"""A curve: one figure of a training run, step by step; a log, which holds several; and which of them is the loss."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Mapping, NamedTuple, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from npucmp.errors import UsageError
from npucmp.model import first_of
from npucmp.model.symptom import Logged

Steps = NDArray[np.int64]
Values = NDArray[np.float64]

DRAWN = 600  # stretches of a curve that are drawn
LOSSES = ("loss", "train_loss", "training_loss", "lm_loss", "train/loss", "loss/train")  # the likeliest first
_LOSS = re.compile("(?:^|[^a-z])loss(?:_value|_mean|_avg)?$")
_VALIDATION = re.compile("(?:^|[^a-z])(?:val|valid|validation|eval|evaluation|test|dev)(?:[^a-z]|$)")
_SCALE = re.compile("(?:^|[^a-z])(?:loss_?scale|grad_scale|scale)(?:_value)?$")


class Curve(NamedTuple):
    """A figure by steps, which rise and are all different; values may be NaN or infinite."""

    name: str
    steps: Steps
    values: Values

    @classmethod
    def of(cls, name: str, steps: Sequence[int], values: Sequence[float]) -> tuple[Curve, int]:
        """The curve of what was logged in this order, and how many values were logged again: the last one counts."""
        last = dict(zip(steps, values))
        ordered = sorted(last)
        found = np.array(ordered, np.int64), np.array([last[step] for step in ordered], np.float64)
        return cls(name, *found), len(steps) - len(ordered)

    def logged(self) -> Logged:
        """What a page draws: all of it, or of each stretch of steps the first, the extremes and what is not finite."""
        values, each = self.values, -(-len(self.values) // DRAWN)
        kept = {*range(0, len(values), max(1, each)), len(values) - 1}
        for begin in range(0, len(values), each) if each > 1 else ():
            some = values[begin : begin + each]
            known = np.flatnonzero(np.isfinite(some))
            odd = np.flatnonzero(~np.isfinite(some))[:1]
            extremes = [known[some[known].argmin()], known[some[known].argmax()]] if len(known) else []
            kept |= {begin + int(at) for at in (*extremes, *odd)}
        order = sorted(kept) if len(values) else []
        return Logged(self.name, tuple(self.steps[order].tolist()), tuple(values[order].tolist()))


class Log(NamedTuple):
    """What a file tells of a training run: its curves by name, in the order in which they came up; `chosen` is the loss
    that somebody named."""

    path: str
    curves: Mapping[str, Curve]
    notes: tuple[str, ...] = ()
    chosen: str = ""

    def with_loss(self, name: str = "") -> Log:
        """The same, of which the loss is known: the column of this name, or what is likely to be it."""
        return self._replace(chosen=self.column(name).name)

    def column(self, name: str = "") -> Curve:
        """The curve of this name, else the training loss. UsageError where there is none such."""
        if name:
            if name not in self.curves:
                near = get_close_matches(name, self.curves) or [*self.curves][:8]
                raise UsageError(f"{self.path}: no column {name!r:.60}", near)
            return self.curves[name]
        found = self.loss
        if found is None:
            raise UsageError(f"{self.path}: which column is the loss? It holds {first_of([*self.curves], 8)}; "
                             "name it with --column")  # fmt: skip
        return found

    @property
    def loss(self) -> Optional[Curve]:
        """The training loss: what was chosen, or is called so; what is the only curve is taken for it."""
        if self.chosen:
            return self.curves[self.chosen]
        known = {_plain(name): one for name, one in reversed([*self.curves.items()])}
        certain = [known[name] for name in LOSSES if name in known]
        likely = [one for name, one in self.curves.items() if _is(name, _LOSS) and not _is(name, _VALIDATION)]
        only = [*self.curves.values()] if len(self.curves) == 1 else []
        return next(iter([*certain, *likely, *only]), None)

    @property
    def validation(self) -> Optional[Curve]:
        """The loss on data that is not trained on."""
        return next((one for name, one in self.curves.items() if _is(name, _LOSS) and _is(name, _VALIDATION)), None)

    @property
    def scale(self) -> Optional[Curve]:
        """The factor that the loss is multiplied by, so that small gradients do not vanish in float16."""
        return next((one for name, one in self.curves.items() if _is(name, _SCALE)), None)


def _is(name: str, pattern: re.Pattern[str]) -> bool:
    return pattern.search(_plain(name)) is not None


def _plain(name: str) -> str:
    return re.sub("[ -]+", "_", name.strip().lower())
