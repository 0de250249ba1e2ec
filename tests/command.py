"""`npucmp WORDS` as a process, without the time that a fresh interpreter takes to import it.

One interpreter per test process has imported npucmp, and no pytest. It forks for each command: exit status, standard
output and standard error are those of a process. tests/test_cli.py starts real interpreters where more is asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache

SERVER = """
import importlib, json, os, pkgutil, sys
import numpy
from npucmp import cli
for place in ("commands", "workflows", "report"):
    package = importlib.import_module(f"npucmp.{place}")
    for module in pkgutil.iter_modules(package.__path__, f"npucmp.{place}."):
        importlib.import_module(module.name)
if os.fork():
    os._exit(0)
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for fd, name in enumerate(asked["files"], 1):
            os.dup2(os.open(name, os.O_WRONLY), fd)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["environ"])
        sys.argv = ["npucmp", *asked["words"]]
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
cli.main()
"""


@cache
def server() -> subprocess.Popen[str]:
    environ = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path),
    }
    words = [sys.executable, "-c", SERVER]
    found = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, start_new_session=True
    )
    found.wait()  # the interpreter that serves is no child of this process: tests ask whether children are left
    return found


def npucmp(*words: object, cwd: object | None = None) -> subprocess.CompletedProcess[str]:
    asked = {"words": [*map(str, words)], "cwd": str(cwd or os.getcwd()), "environ": {**os.environ}}
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as errors:
        one = server()
        assert one.stdin and one.stdout
        one.stdin.write(json.dumps({**asked, "files": [out.name, errors.name]}) + "\n")
        one.stdin.flush()
        status = int(one.stdout.readline())
        texts = [file.read().decode() for file in (out, errors)]
    return subprocess.CompletedProcess(asked["words"], status, *texts)
