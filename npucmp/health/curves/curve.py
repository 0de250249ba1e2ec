"""A curve is one figure of a training run, step by step. A log holds several curves and finds the loss among them."""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from npucmp.errors import UsageError, nearest
from npucmp.model import first_of
from npucmp.model.check_finding import LoggedCurve

Steps = NDArray[np.int64]
Values = NDArray[np.float64]

DRAWN = 600  # intervals of a drawn curve
LOSSES = ("loss", "train_loss", "training_loss", "lm_loss", "train/loss", "loss/train")  # the likeliest first
_LOSS = re.compile("(?:^|[^a-z])loss(?:_value|_mean|_avg)?$")
_VALIDATION = re.compile("(?:^|[^a-z])(?:val|valid|validation|eval|evaluation|test|dev)(?:[^a-z]|$)")
_SCALE = re.compile("(?:^|[^a-z])(?:loss_?scale|grad_scale|scale)(?:_value)?$")


class Curve(NamedTuple):
    """A figure by steps. Steps are distinct and rise; values may be NaN or infinite."""

    name: str
    steps: Steps
    values: Values

    @classmethod
    def of(cls, name: str, steps: Sequence[int], values: Sequence[float]) -> tuple[Curve, int]:
        """Return the curve of logged values, and the number of repeated steps; the last value of a step counts."""
        last = dict(zip(steps, values))
        ordered = sorted(last)
        found = np.array(ordered, np.int64), np.array([last[step] for step in ordered], np.float64)
        return cls(name, *found), len(steps) - len(ordered)

    def drawn_points(self) -> LoggedCurve:
        """Return the points to draw: all, or the first, the extremes and the first non-finite value of each
        interval."""
        values, each = self.values, -(-len(self.values) // DRAWN)
        drawn = {*range(0, len(values), max(1, each)), len(values) - 1}
        for begin in range(0, len(values), each) if each > 1 else ():
            window = values[begin : begin + each]
            known = np.flatnonzero(np.isfinite(window))
            odd = np.flatnonzero(~np.isfinite(window))[:1]
            extremes = [known[window[known].argmin()], known[window[known].argmax()]] if len(known) else []
            drawn |= {begin + int(at) for at in (*extremes, *odd)}
        order = sorted(drawn) if len(values) else []
        return LoggedCurve(self.name, tuple(self.steps[order].tolist()), tuple(values[order].tolist()))


class Log(NamedTuple):
    """A log of a training run: its curves by name, in order of appearance; `chosen` is the name of the loss, if
    known."""

    path: str
    curves: Mapping[str, Curve]
    notes: tuple[str, ...] = ()
    chosen: str = ""

    def with_loss(self, name: str = "") -> Log:
        """Return the log with its loss chosen: the column of this name, or the most likely one."""
        return self._replace(chosen=self.column(name).name)

    def column(self, name: str = "") -> Curve:
        """Return the curve of this name; without a name, the training loss. Raise UsageError if it does not exist."""
        if name:
            if name not in self.curves:
                near = nearest(name, self.curves) or [*self.curves][:8]
                raise UsageError(f"{self.path}: no column {name!r:.60}", near)
            return self.curves[name]
        found = self.loss
        if found is None:
            raise UsageError(f"{self.path}: which column is the loss? It holds {first_of([*self.curves], 8)}; "
                             "name it with --column")  # fmt: skip
        return found

    @property
    def loss(self) -> Optional[Curve]:
        """The training loss: the chosen curve, else one with a name of a loss, else the only curve."""
        if self.chosen:
            return self.curves[self.chosen]
        known = {_plain(name): one for name, one in reversed([*self.curves.items()])}
        certain = [known[name] for name in LOSSES if name in known]
        likely = [one for name, one in self.curves.items() if _is(name, _LOSS) and not _is(name, _VALIDATION)]
        only = [*self.curves.values()] if len(self.curves) == 1 else []
        return next(iter([*certain, *likely, *only]), None)

    @property
    def validation(self) -> Optional[Curve]:
        """The loss on validation data."""
        return next((one for name, one in self.curves.items() if _is(name, _LOSS) and _is(name, _VALIDATION)), None)

    @property
    def scale(self) -> Optional[Curve]:
        """The loss scale: the factor that keeps small gradients from vanishing in float16."""
        return next((one for name, one in self.curves.items() if _is(name, _SCALE)), None)


def _is(name: str, pattern: re.Pattern[str]) -> bool:
    return pattern.search(_plain(name)) is not None


def _plain(name: str) -> str:
    return re.sub("[ -]+", "_", name.strip().lower())
