"""What a machine without torch is told, where numpy can do nothing (test_numpy_engine.py has what it can)."""

import numpy as np
import pytest

from npucmp.errors import MissingExtra
from npucmp.workflows.replay import replay
from tests.replay.craft import Dump


def test_without_torch_one_line_tells_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("npucmp.replay.torch_engine.find_spec", lambda name: None)
    folder = Dump(tmp_path).add("Torch.cumsum.0.forward", [np.ones(3)], [np.arange(3.0)], {"dim": 0}).write()
    with pytest.raises(MissingExtra, match=r"pip install npucmp\[replay\]"):
        replay(folder)
    with pytest.raises(MissingExtra):
        replay(folder, engine="torch")
