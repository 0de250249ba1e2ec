"""Each seed of tests/fuzz_atheris.py, and each input that it once failed on: read, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from npucmp.errors import NpucmpError
from tests.fuzz_atheris import inputs, prepared, readers

REFUSED = 0.5  # most of the seeds of a target may be refused


@pytest.mark.parametrize("target", readers(Path()))
def test_seeds_and_findings_are_read_or_refused(target, tmp_path):
    file, read = prepared(target, tmp_path)
    given = inputs(target)[-40:]
    refused = 0
    for data in given:
        file.write_bytes(data)
        try:
            read(str(file))
        except NpucmpError as error:
            assert "\n" not in str(error)
            refused += 1
    assert given and refused <= REFUSED * len(given), "a seed that is refused leads the search nowhere"
