"""Names of MindSpore in PyTorch's words, by the mapping files of msprobe."""

import pytest

from npucmp.align.cross_framework.msprobe_mapping import Api, MsprobeMapping, vendor_of
from tests.align.craft import api

LAYERS = MsprobeMapping(
    layers={
        "TopLayer": {"network": "module", "a.b": "c"},
        "Cell": {"net": "core", "top": "x.y"},
        "Block": {"attention": "self_attn", "attention.dense": "o_proj", "split": "chunk(0)"},
    }
)
CLASSES = {("network",): "Block", ("net",): "Block", ("network", "attention"): "Other"}


@pytest.mark.parametrize(
    "path, expected",
    [
        ("network", "module"),
        ("net", "core"),
        ("top", "x.y"),
        ("a.b.d", "c.d"),  # two words at once
        ("a.d", "a.d"),
        ("network.attention", "module.self_attn"),
        ("network.attention.dense", "module.o_proj"),  # the longest name first
        ("network.attention.mlp", "module.self_attn.mlp"),
        ("network.split", "module.chunk"),  # without the arguments in brackets
        ("network.network", "module.network"),  # the names of the model are for its own parts
        ("network.attention.attention", "module.self_attn.attention"),  # of a class without an entry
        ("other.attention", "other.attention"),
        ("", ""),
    ],
)
def test_modules_by_their_class(path, expected):
    path = tuple(filter(None, path.split(".")))
    assert ".".join(LAYERS.path(path, CLASSES)) == expected
    assert MsprobeMapping().path(path, CLASSES) == path


@pytest.mark.parametrize(
    "cells, path, expected",
    [
        ({"fc.Dense": "linear.Linear"}, "net.fc", "net.linear"),
        ({"fc.Dense": "linear.Linear"}, "net.fc.fc", "net.fc.linear"),
        ({"net.fc": "model.linear"}, "net.fc.inner", "model.linear.inner"),
        ({"net": "model"}, "net.net", "model.net"),  # one place
        ({"c.Dense": "linear.Linear"}, "net.fc", "core.fc"),  # whole words alone; then the layers decide
        ({"x": "y", "fc": "z"}, "net.fc", "net.z"),
        ({"net": "y", "fc": "z"}, "net.fc", "y.fc"),  # the first entry
    ],
)
def test_parts_of_paths_with_their_class(cells, path, expected):
    both = LAYERS._replace(cells=cells)
    assert (
        ".".join(both.path(tuple(path.split(".")), {("net", "fc"): "Dense", ("net", "fc", "fc"): "Dense"})) == expected
    )


ABS = Api("Functional.absolute", "Torch.linalg.abs")
APIS = MsprobeMapping(apis={"Functional.absolute": ABS, "Functional.max.3.forward": Api("x", "Torch.amax")})


def test_functions_by_their_api_or_by_one_name():
    absolute, first, third = (
        api(name, number, "forward", 0)
        for name, number in (("Functional.absolute", 0), ("Functional.max", 0), ("Functional.max", 3))
    )
    assert APIS.api(absolute) is ABS and APIS.api(first) is None
    assert APIS.api(third).other == "Torch.amax"
    assert MsprobeMapping().api(absolute) is None
    assert APIS.function_path(("net",), absolute, {}) == ("net", "abs")
    assert APIS.function_path(("net",), first, {}) == ("net", "max")
    assert APIS.function_path((), third, {}) == ("amax",)


def test_functions_by_the_class_of_the_module_around_them():
    operator = api("Functional.attention", 0, "forward", 0)
    assert LAYERS.function_path(("network",), operator, CLASSES) == ("module", "self_attn")
    without = LAYERS._replace(apis={"Functional.attention": Api("a", "")})
    assert without.function_path(("network",), operator, CLASSES) == ("module", "self_attn")  # names no other function
    both = LAYERS._replace(apis={"Functional.attention": Api("a", "Torch.sdpa")})
    assert both.function_path(("network",), operator, CLASSES) == ("module", "sdpa")


@pytest.mark.parametrize(
    "mapping, name, expected",
    [
        (LAYERS, "Cell.network.Block.forward.0", True),
        (LAYERS, "Primitive.network.Dense.forward.0", False),
        (APIS, "Functional.absolute.0.forward", True),
        (APIS, "Torch.linalg.abs.0.forward", True),
        (APIS, "Torch.abs.0.forward", False),
        (APIS, "Functional.absolute.0", False),
        (MsprobeMapping(), "Functional.absolute.0.forward", False),
    ],
)
def test_names_that_a_file_has_an_entry_for(mapping, name, expected):
    assert mapping.fits(name) is expected


@pytest.mark.parametrize(
    "lists, slots, roles",
    [
        (
            {"ms_args": [0, "dim"], "pt_args": [1, "axis"]},
            {"input:0": "input:1", "input:dim": "input:axis"},
            ("input",),
        ),
        ({"ms_args": [0], "pt_args": [1, 2]}, {}, ()),
        ({"ms_args": [], "pt_args": []}, {}, ()),
        ({"ms_args": [0]}, {}, ()),
        ({"pt_args": [0]}, {}, ()),
        ({"ms_args": [0], "pt_args": "0"}, {}, ()),
        ({"ms_args": "0", "pt_args": [0]}, {}, ()),
        ({"ms_outputs": [0], "pt_outputs": [1]}, {"output:0": "output:1"}, ("output",)),
        ({"ms_output": [0], "pt_output": [1]}, {"output:0": "output:1"}, ("output",)),
        (
            {
                "ms_parameters": ["gamma"],
                "pt_parameters": ["weight"],
                "ms_parameters_grad": ["b"],
                "pt_parameters_grad": ["c"],
            },
            {"param:gamma": "param:weight", "grad:b": "grad:c"},
            ("param", "grad"),
        ),
    ],
)
def test_slots_of_an_entry(lists, slots, roles):
    entry = {"ms_api": "Functional.a", "pt_api": "Torch.b", **lists}
    for table in (entry, [entry]):
        assert vendor_of(table) == MsprobeMapping(apis={"Functional.a": Api("Functional.a", "Torch.b", slots, roles)})


@pytest.mark.parametrize(
    "table",
    [
        {"A": {"b": "c"}, "B": {"b": ""}},
        {"A": {"": "c"}},
        {"A": {"b": "c"}, "B": "c"},
        {"A": {"b": "c"}, 1: {"b": "c"}},
        {"ms_api": "a", "pt_api": 1},
        {"ms_api": "a"},
        {"pt_api": "a"},
        [{"ms_api": "a", "pt_api": "b"}, {"ms_api": "a"}],
        [["ms_api", "pt_api"]],
        "ms_api",
        None,
    ],
)
def test_other_tables_are_none_of_these_files(table):
    assert vendor_of(table) is None


def test_a_layer_mapping_may_have_a_class_without_names():
    table = {"A": {}, "B": {"b": "c"}}
    assert vendor_of(table) == MsprobeMapping(layers=table)
