"""How long it takes to open a dump of many files: makes N small ones, opens them, prints time and memory.

python tests/benchmarks/open_cann.py [N]      not run by pytest
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from npucmp.dump.formats import open_runs
from tests.dump.readers import craft_cann as craft


def make(folder: Path, number: int) -> None:
    where = folder / "20231114221320" / "0" / "net" / "1" / "0"
    where.mkdir(parents=True)
    x = craft.tensor(np.zeros((16, 16), np.float32), original=(16, 16))
    for n in range(number):
        name = f"net/layer_{n}/MatMul"
        file = where / f"MatMul.{name.replace('/', '_')}.{n}.5.{craft.TIME + n}"
        file.write_bytes(craft.v2([x, x], [x], name))


def peak() -> float:
    """MiB of memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), number)
        before, start = peak(), time.perf_counter()
        (run,) = open_runs(folder)
        seconds = time.perf_counter() - start
    print(
        f"{len(run.operators)} files, {run.tensors} tensors: {seconds:.2f} s, {number / seconds:.0f} files/s, "
        f"peak RSS {peak():.0f} MiB ({before:.0f} before opening)"
    )


if __name__ == "__main__":
    main()
