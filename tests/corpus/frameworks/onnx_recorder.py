"""Records the ONNX export of a torch network, run node by node by ONNX Runtime: plain, or optimised by it."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any, Optional

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper, numpy_helper

from tests.corpus.frameworks.tape import Call, Strike, Tape

FOLDED = {"Constant", "Shape", "ConstantOfShape"}  # nodes that compute nothing of the network


def export(module: torch.nn.Module, given: torch.Tensor, path: Path, optimised: bool, dynamo: bool = False) -> None:
    """Write the model of a network; `optimised`: with ONNX Runtime's extended optimisations."""
    whole = path.with_suffix(".whole.onnx") if optimised else path
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (given,), str(whole), opset_version=18 if dynamo else 17, dynamo=dynamo)
    if optimised:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 3
        onnxruntime.InferenceSession(str(whole), options, providers=["CPUExecutionProvider"])


class OnnxNetwork:
    """A model whose nodes are sessions of their own; they are made once, and run for every strike."""

    def __init__(self, path: Path) -> None:
        self.model = onnx.load(str(path))
        self.opsets = [helper.make_opsetid(one.domain, one.version) for one in self.model.opset_import]
        self._sessions: dict[Any, onnxruntime.InferenceSession] = {}

    def record(self, given: np.ndarray, strike: Optional[Strike] = None) -> list[Call]:
        """Return the calls of the nodes; `/` of their names is `_`."""
        tape = Tape(strike)
        graph = self.model.graph
        values: dict[str, Any] = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
        values[next(one.name for one in graph.input if one.name not in values)] = given
        for k, node in enumerate(graph.node):
            read = [name for name in node.input if name]
            arrays = [values[name] for name in read]
            arguments = {one.name: helper.get_attribute_value(one) for one in node.attribute}

            def compute(inputs: list[np.ndarray], changed: dict[str, Any]) -> list[np.ndarray]:
                session = self._session(k, node, read, inputs, changed)  # noqa: B023
                return list(session.run(None, dict(zip(dict.fromkeys(read), _distinct(read, inputs)))))  # noqa: B023

            if node.op_type in FOLDED or not read:
                outputs = compute(arrays, arguments)
            else:
                name = (node.name or f"{node.op_type}_{k}").strip("/").replace("/", "_")
                shown = {key: v.decode() if isinstance(v, bytes) else v for key, v in arguments.items()}
                outputs = tape.run(name, node.op_type, compute, arrays, shown)
            values.update((name, one) for name, one in zip((n for n in node.output if n), outputs))
        return tape.calls

    def _session(
        self, place: int, node: Any, read: list[str], inputs: list[np.ndarray], arguments: dict[str, Any]
    ) -> onnxruntime.InferenceSession:
        key = (place, tuple((one.dtype.str, one.shape) for one in inputs), repr(arguments.get("epsilon")))
        if key not in self._sessions:
            again = onnx.NodeProto()
            again.CopyFrom(node)
            for one in again.attribute:
                if one.name == "epsilon":
                    one.f = float(arguments["epsilon"])
            entries = [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
                for name, one in zip(dict.fromkeys(read), _distinct(read, inputs))
            ]
            exits = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
            graph = helper.make_graph([again], "one", entries, exits)
            model = helper.make_model(graph, opset_imports=self.opsets, ir_version=8)
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.intra_op_num_threads, options.log_severity_level = 1, 3
            self._sessions[key] = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        return self._sessions[key]


def _distinct(read: list[str], inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return one array for each name that a node reads."""
    return list(dict(zip(read, inputs)).values())
