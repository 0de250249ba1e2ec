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
import traceback
from functools import cache

from tests.mutants.line_tests import TIMES

SERVER = """
import contextlib, gc, importlib, json, os, pkgutil, sys
import jinja2, numpy, npucmp
from npucmp import cli
for name in ("ml_dtypes", "tomllib"):  # what many commands import late; tomllib since Python 3.11
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
sys.modules.update(torch=None, distributed=None, pandas=None)  # a fork of what they start would hang, or be slow
for module in pkgutil.walk_packages(npucmp.__path__, "npucmp."):
    if not module.name.endswith(("__main__", "repro_case")):  # the second asks for torch as it is imported
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
for name in ("torch", "distributed", "pandas"):
    del sys.modules[name]
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
gc.freeze()  # a collection would copy the pages of all objects that the server made
try:
    cli.main()
except SystemExit as end:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(end.code or 0)  # the interpreter takes 0.2 s to take itself apart
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
        files = [out.name, errors.name]
        status = _forked(**asked, files=files) if TIMES in os.environ else _served({**asked, "files": files})
        texts = [file.read().decode() for file in (out, errors)]
    return subprocess.CompletedProcess(asked["words"], status, *texts)


def _served(asked: dict[str, object]) -> int:
    one = server()
    assert one.stdin and one.stdout
    one.stdin.write(json.dumps(asked) + "\n")
    one.stdin.flush()
    return int(one.stdout.readline())


def _forked(words: list[str], cwd: str, environ: dict[str, str], files: list[str]) -> int:
    """Return the status of a command in a fork of this process, which coverage measures."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for fd, name in enumerate(files, 1):
            os.dup2(os.open(name, os.O_WRONLY), fd)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode, closefd=False) for fd, mode in enumerate("rww"))
        os.chdir(cwd)
        sys.argv = ["npucmp", *words]
        from npucmp import cli

        cli.main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
