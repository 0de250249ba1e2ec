"""What a machine without torch is told."""

from pathlib import Path

import pytest

from npucmp.errors import MissingExtra
from npucmp.workflows.replay import replay

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"


def test_without_torch_one_line_tells_what_to_install(monkeypatch):
    monkeypatch.setattr("npucmp.replay.torch_engine.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install npucmp\[replay\]"):
        replay(SAMPLES / "msprobe_softmax" / "target")
