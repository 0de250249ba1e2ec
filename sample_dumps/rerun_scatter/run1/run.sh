#!/usr/bin/env bash
# compare, pytorch, golden: by npucmp plan. bash run.sh COMMAND…
# Source: msprobe 26.2: config_json_introduct.md, pytorch_data_dump_instruct.md; tried with mindstudio-probe 26.2.0.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
if [ $# -eq 0 ]; then echo "run.sh: give it the command, as in: bash run.sh python train.py" >&2; exit 2; fi
if [ -n "$(ls -A "$here/dump" 2>/dev/null)" ]; then
    echo "run.sh: $here/dump is not empty; two dumps of one step cannot be told apart: move it away" >&2
fi
export PYTHONHASHSEED="1234"  # sets and dicts of text in the same order
export CUBLAS_WORKSPACE_CONFIG=":4096:8"  # products add in the same order on a GPU
export NVIDIA_TF32_OVERRIDE="0"  # float32 stays float32 on a GPU: no TF32 in the reference
"$@"
