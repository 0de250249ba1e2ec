"""run.sh: the environment of a dump around the command that makes it. It contains no text of a dump or of a user."""

from __future__ import annotations

from npucmp.dump_plan.request import DUMP, DumpRequest, Framework, Prepared

RUN = "run.sh"
_START = """\
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
if [ $# -eq 0 ]; then echo "run.sh: append the command: bash run.sh python train.py" >&2; exit 2; fi
if [ -n "$(ls -A "$here/dump" 2>/dev/null)" ]; then
    echo "run.sh: $here/dump is not empty: move it away, because two dumps of one step cannot be distinguished" >&2
fi
"""
_NEXT_RUN = (  # each call is one run
    'n=1; while [ -e "$here/run$n" ]; do n=$((n + 1)); done',
    f'[ ! -e "$here/{DUMP}" ] || mv "$here/{DUMP}" "$here/run$n"',
)


def run_sh(asked: DumpRequest, framework: Framework, prepared: Prepared) -> str:
    """Return the script. Its last commands run however the main command ends, including Ctrl-C."""
    about = (
        f"# {asked.question.name}, {framework.NAME}, {asked.side}: written by npucmp plan. Usage: bash run.sh COMMAND…"
    )
    lines = ["#!/usr/bin/env bash", about, f"# Source: {framework.SOURCE}."]
    lines += [f"# UNVERIFIED: {words}." for words in prepared.unverified]
    lines += _START.splitlines()
    lines += [f'export {one.name}="{one.value}"  # {one.why}' for one in prepared.exports]
    lines += prepared.before
    after = [*prepared.after, *(_NEXT_RUN if asked.question.second == "run" else ())]
    if after:
        lines += ["finish() {", *(f"    {line}" for line in after), "}", "trap finish EXIT"]
    return "\n".join([*lines, '"$@"']) + "\n"
