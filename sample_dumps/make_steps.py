"""Makes msprobe_steps: four steps of training two linear layers by gradient descent, computed with numpy and written
as msprobe does; step 0 also reads two images. In the target, the second layer computes with a weight a tenth too large
from step 2 on.

Run from the root of the repository: `python -m sample_dumps.make_steps [FOLDER]`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.report.steps import train

STEPS, LAYERS, FAULTY = 4, 2, 2


def main() -> None:
    place = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "msprobe_steps")
    for side, faulty in (("target", FAULTY), ("golden", None)):
        shutil.rmtree(place / side, ignore_errors=True)
        train(place / side, STEPS, faulty, LAYERS, width=8, image=(16, 20))


main()
