"""The engine that writes a redacted case. The parent imports it, so it imports no other module of a child at the
top."""

from __future__ import annotations

from pathlib import Path

from npucmp.dump.limits import ReadContext
from npucmp.model import ReplayedOutput
from npucmp.recompute.engine import CaseEngine, OperatorEngine
from npucmp.recompute.task import ReplaySettings, Task


class RedactedCaseEngine(OperatorEngine):
    """Replays a record, draws other values with the same verdict, and has `case` write these."""

    def __init__(self, folder: Path, case: CaseEngine) -> None:
        super().__init__(case.library)
        self._folder, self._case = folder, case

    def refuses(self, task: Task) -> tuple[str, str]:
        return self._case.refuses(task)

    def replay(self, task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
        from npucmp.recompute import redacted_task

        recorded = redacted_task.OriginalRecord(task, context, settings, OperatorEngine(self.library))
        return redacted_task.write(recorded, self._case, self._folder)
