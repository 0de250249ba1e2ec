"""The engine that writes a redacted case. The parent imports it, so it imports no other module of a child at the
top."""

from __future__ import annotations

from pathlib import Path
from typing import Union

from npucmp.dump.limits import ReadContext
from npucmp.model import ReplayedOutput
from npucmp.recompute.numpy_engine import NumpyCaseEngine, NumpyEngine
from npucmp.recompute.table import row_of
from npucmp.recompute.task import ReplaySettings, Task
from npucmp.recompute.torch_engine import CaseEngine, TorchEngine


class RedactedCaseEngine:
    """Replays a record, draws other values with the same verdict, and has `case` write these (see task.Engine)."""

    def __init__(self, folder: Path, case: Union[CaseEngine, NumpyCaseEngine]) -> None:
        self._folder, self._case, self.name = folder, case, case.name

    def missing(self) -> str:
        return self._case.missing()

    def refuses(self, task: Task) -> tuple[str, str]:
        return self._case.refuses(task)

    def start(self, settings: ReplaySettings) -> None:
        self._case.start(settings)

    def replay(self, task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
        from npucmp.recompute import redacted_task

        row = row_of(task.forward_call if task.is_backward and task.forward_call else task.call)
        assert row is not None
        judge: Union[TorchEngine, NumpyEngine]
        exact_of: redacted_task.ExactOf
        if isinstance(self._case, CaseEngine):
            from npucmp.recompute.torch_exact import TorchExact

            judge, exact_of = TorchEngine(), TorchExact
        else:
            from npucmp.recompute.numpy_exact import NumpyExact

            judge, exact_of = NumpyEngine(), NumpyExact
        recorded = redacted_task.OriginalRecord(task, row, context, settings, judge, exact_of)
        return redacted_task.write(recorded, self._case, self._folder)
