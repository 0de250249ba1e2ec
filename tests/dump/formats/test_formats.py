"""What every format and every encoding says of itself, so that adding one is one file and one name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from npucmp.dump import formats, readers
from npucmp.dump.formats import FORMATS, graph_source, module_of
from npucmp.dump.readers import READERS


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_says_what_the_package_asks(name):
    module = module_of(name)
    assert name == module.NAME and module.ABOUT and module.sniff.__doc__ and module.open_runs.__doc__


def test_a_format_says_which_graphs_know_its_operators():
    sources = {name: graph_source(name) for name in FORMATS}
    assert {name for name, source in sources.items() if source} == {"cann", "tfdbg", "npy"}
    assert {name for name, source in sources.items() if source and source.of_device} == {"cann"}
    assert {name for name, source in sources.items() if source and source.own} == {"tfdbg"}


@pytest.mark.parametrize("name", READERS)
def test_an_encoding_is_a_module_with_a_header(name):
    assert import_module(f"{readers.__name__}.{name}").header.__doc__


def test_every_module_of_the_formats_is_named():
    """One that is forgotten in FORMATS would never be met."""
    files = Path(formats.__file__).parent.glob("*.py")
    assert {file.stem for file in files} - {"__init__"} == set(FORMATS)
