"""Makes msprobe_tensor_parallel: the forward pass of a small GPT on two tensor-parallel ranks (target) and on one
(golden), computed with numpy and written as msprobe does. The target does not sum the partial products of the attention
of the second layer.

Run from the root of the repository: `python -m sample_dumps.make_layouts`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.corpus.device import Device
from tests.corpus.networks import Weights
from tests.corpus.parallel.faults import Fault
from tests.corpus.parallel.layout import Layout
from tests.corpus.parallel.networks import Design, Network
from tests.corpus.tape import Precision, Session
from tests.corpus.trace import Run
from tests.corpus.writers.msprobe import Style, write

PLACE = Path(__file__).parent / "msprobe_tensor_parallel"
DESIGN = Design(
    batch=2, length=4, width=8, heads=2, keys=2, layers=2, inner=8, words=16, parallel_loss=False, rope=False, rms=True
)
SIDES = {
    "golden": (Layout(), Fault(), Device()),
    "target": (Layout(tp=2), Fault("not reduced", "layers.1.proj"), Device(32, 1)),
}


def main() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    for side, (layout, fault, device) in SIDES.items():
        session = Session(device, Precision(), {}, 0, layout.ranks)
        Network(session, layout, DESIGN, Weights(11), 11, fault).forward(0)
        runs = [Run(run.records, 0, run.rank or 0) for run in session.runs()]
        write(PLACE / side, runs, Style())


if __name__ == "__main__":
    main()
