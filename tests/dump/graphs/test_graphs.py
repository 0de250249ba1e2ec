"""Recognising a graph file by its content, and finding those near a dump by their names."""

import os

import pytest

from npucmp import Limits
from npucmp.dump import graphs
from npucmp.dump.limits import ReadContext
from npucmp.errors import DumpError


@pytest.mark.parametrize(
    "text, names",
    [
        ('graph { name: "g" op { name: "n" } }', ["g"]),
        ('name: "m" graph { name: "g" op { } } graph { name: "h" }', ["g", "h"]),
        ('name: "g" op { name: "n" }', ["g"]),
        ('node { name: "n" op: "Relu" } versions { producer: 1 }', [""]),
        ('\ufeff\n {"graph": [{"name": "g", "op": [{"name": "n"}]}]}', ["g"]),
        ('{"op": [{"name": "n"}]}', [""]),
    ],
)
def test_load_knows_a_graph_by_its_content(tmp_path, text, names):
    path = tmp_path / "any.name"
    path.write_text(text, encoding="utf-8")
    assert [graph.name for graph in graphs.load_graphs(path)] == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing",
        "{}",
        "graph { }",
        "versions { producer: 1 }",
        'layer { name: "caffe" }',
        'ir_version: 7 graph { node { name: "onnx" } }',
        '{"dump": {"dump_list": []}}',
    ],
)
def test_load_refuses_what_is_no_graph(tmp_path, text):
    path = tmp_path / "graph.pbtxt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DumpError, match=r"not a graph that npucmp reads: .*`node") as caught:
        graphs.load_graphs(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"\x0a\x05abc", b"PK\x03\x04", b"name, value\n1, 2\n", b"{1", b"a{" * 999]
)
def test_load_refuses_garbage(tmp_path, data):
    path = tmp_path / "graph.pbtxt"
    path.write_bytes(data)
    with pytest.raises(DumpError):
        graphs.load_graphs(path)


def test_load_refuses_what_is_too_large_and_what_is_not_there(tmp_path):
    (tmp_path / "graph.pbtxt").write_text("node { }")
    with pytest.raises(DumpError, match="more than the limit graph_bytes of 3;"):
        graphs.load_graphs(tmp_path / "graph.pbtxt", ReadContext(Limits(graph_bytes=3)))
    with pytest.raises(DumpError, match="no such file"):
        graphs.load_graphs(tmp_path / "none")


def found(tmp_path, files, dump):
    """What `beside` finds of some files, as names below tmp_path; `dump` exists."""
    (tmp_path / dump).mkdir(parents=True, exist_ok=True)
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    near = graphs.graphs_near(tmp_path / dump)
    return [str(path.relative_to(tmp_path)) for path in near if tmp_path in path.parents]


@pytest.mark.parametrize(
    "name", ["ge_proto_00000012_graph_1_Build.txt", "ge_proto_x.json", "graph.json", "graph_def.json", "g.pbtxt"]
)
@pytest.mark.parametrize("folder", ["a/b", "a", "a/b/graph", "a/graphs", "graph", "a/b/pid_7_deviceid_0", "graph/7_0"])
def test_beside_finds(tmp_path, folder, name):
    assert found(tmp_path, [f"{folder}/{name}"], "a/b") == [f"{folder}/{name}"]


@pytest.mark.parametrize("folder", ["out/model", "out/dump/model", "out/dump/0"])
def test_beside_finds_the_json_of_atc_by_its_first_bytes(tmp_path, folder):
    """{om}.json is called after the model; what else is JSON is none."""
    graph = '{ "graph": [{"op": [{"name": "a", "type": "Add"}]}], "name": "m" }'
    sorted_keys = '{"attr": [{"key": "atc_cmdline", "value": {"s": ""}}], ' + graph[1:]
    others = '{"architectures": ["Llama"], "op": 1}', "[1]", "", '{"name": "x"}', '\ufeff"graph"'
    (tmp_path / folder).mkdir(parents=True)
    for number, text in enumerate((graph, sorted_keys, *others)):
        (tmp_path / folder / f"resnet{number}.json").write_text(text, encoding="utf-8")
    (tmp_path / folder / "link.json").symlink_to("resnet0.json")
    assert found(tmp_path, [], "out/dump/0") == [f"{folder}/resnet0.json", f"{folder}/resnet1.json"]


@pytest.mark.parametrize(
    "file",
    ["a/b/ge_onnx_00000001_Build.pbtxt", "a/b/Add.1.2.3", "a/b/x.txt", "a/b/c/g.pbtxt", "g.pbtxt", "graphics/g.pbtxt"],
)
def test_beside_does_not_find(tmp_path, file):
    assert found(tmp_path, [file], "a/b") == []


def test_beside_climbs_four_ancestors(tmp_path):
    files = ["1/graph/g.pbtxt", "1/2/graph/g.pbtxt", "graph/g.pbtxt"]
    assert found(tmp_path, files, "1/2/3/4/5") == ["1/2/graph/g.pbtxt", "1/graph/g.pbtxt"]


def test_beside_prefers_the_last_stage_of_a_graph(tmp_path):
    files = [
        "ge_proto_00000001_graph_1_PreRunBegin.txt",
        "ge_proto_00000009_graph_1_Build.txt",
        "ge_proto_00000002_graph_2_PreRunBegin.txt",
        "graph.json",
        "graph/ge_proto_00000003_OptimizeOriginalGraph_FeGraphFusionAfter.txt",
        "graph/ge_proto_00000004_PreRunAfterBuild.txt",
        "graph/ge_proto_00000005_Build.txt",
    ]
    assert found(tmp_path, files, ".") == [
        "ge_proto_00000009_graph_1_Build.txt",
        "graph/ge_proto_00000004_PreRunAfterBuild.txt",
        "graph/ge_proto_00000005_Build.txt",
        "ge_proto_00000002_graph_2_PreRunBegin.txt",
        "graph.json",
    ]


def test_beside_is_bounded(tmp_path):
    names = [f"ge_proto_{i:08}_graph_{i}_Build.txt" for i in range(graphs.MOST_FILES + 9)]
    assert found(tmp_path, names, ".") == names[: graphs.MOST_FILES]


@pytest.mark.parametrize("path", ["/no/such/folder", "/", "", "nul\0", "x" * 5000])
def test_beside_never_raises(path):
    assert isinstance(graphs.graphs_near(path), list)


def test_beside_takes_no_pipe_and_a_file_for_its_folder(tmp_path):
    os.mkfifo(tmp_path / "graph.json")
    assert found(tmp_path, ["g.pbtxt", "tensor.npy"], ".") == ["g.pbtxt"]
    assert graphs.graphs_near(tmp_path / "tensor.npy")[0] == tmp_path / "g.pbtxt"
