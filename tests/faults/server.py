"""An interpreter that has imported npucmp and runs a command line in a fork for each trial: python -c of its source.

It is started with LD_PRELOAD=failing.so. Each line of stdin is one trial as JSON; each line of stdout its result. The
first trial of a command runs here, so that later ones import no module.
"""

import atexit
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import sys
import tempfile
import time
from contextlib import suppress

from npucmp import cli
from npucmp.measure import checkpoint, executor
from npucmp.workflows import task_choice

ACTIONS = {"fail": 0, "kill": 1, "short": 2}
KINDS = {"read": 1, "write": 2, "name": 4, "map": 8, "fork": 16, "allocate": 32}
USUAL = executor.WEIGHT, executor.BATCH, checkpoint.EVERY, task_choice.SMALL
DIVIDED = 1, 1, 0.0, 0  # as large dumps are: tasks of workers, a scratch folder, a checkpoint
ROOMS = ("dump", "align", "measure", "flow", "judge", "localise", "recompute", "workflows", "report")
LONGEST = 30  # seconds of a trial, which takes less than one
OURS = ("/numpy/", "/npucmp/")  # libraries whose allocations are buffers of npucmp


def import_all():
    """Import the modules of a comparison: a worker would import them in each trial."""
    for package in ROOMS:
        place = importlib.import_module(f"npucmp.{package}")
        for module in pkgutil.walk_packages(place.__path__, f"npucmp.{package}."):
            if "torch" not in module.name:
                with suppress(ImportError):
                    importlib.import_module(module.name)


class Plan(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_long) for name in ("count", "nth", "kinds", "action")),
        ("counts", ctypes.c_long * 6),
        ("name", ctypes.c_char * 32),
    ]


library = ctypes.CDLL(None)
library.failing_plan.restype = ctypes.POINTER(Plan)
plan = library.failing_plan().contents


def ranges():
    """Address ranges of the code of numpy and of the kernel."""
    found = []
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.split()
            if len(fields) > 5 and "x" in fields[1] and any(place in fields[5] for place in OURS):
                found += [int(one, 16) for one in fields[0].split("-")]
    return found


def call(trial):
    """Run the command line of a trial in this process; its exit status."""
    os.environ.update(trial["environ"])
    tempfile.tempdir = None
    sizes = DIVIDED if trial["divided"] else USUAL
    executor.WEIGHT, executor.BATCH, checkpoint.EVERY, task_choice.SMALL = sizes
    sys.argv = ["npucmp", *trial["words"]]
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def redirect(trial):
    """Standard output and error are files, as fresh as those of a process."""
    for fd, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(trial[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), fd)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=False)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)


def child(trial):
    status = 70
    try:
        os.setsid()
        signal.alarm(LONGEST)
        redirect(trial)
        stack = os.fdopen(os.open(trial["stack"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w")
        faulthandler.register(signal.SIGUSR2, file=stack, all_threads=False)
        found = ranges()
        given = (ctypes.c_ulong * len(found))(*found)
        gc.collect()
        if trial["kinds"]:
            library.failing_arm(given, len(found))
        status = call(trial)
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
        except OSError:
            status = 120  # as Python does at exit
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
        status = 70
    finally:
        os._exit(status)


def serve():
    answers = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    known = set()
    import_all()
    for line in sys.stdin:
        trial = json.loads(line)
        if trial["warm"] not in known:
            known.add(trial["warm"])
            sys.stdout = os.fdopen(null, "w", closefd=False)
            call({**trial, "words": trial["warm_words"]})
            gc.collect()
            gc.freeze()  # a collection in a fork would copy every page of the objects
        plan.count, plan.nth, plan.action, plan.name = 0, trial["nth"], ACTIONS[trial["action"]], b""
        plan.counts = (ctypes.c_long * 6)()
        plan.kinds = sum(KINDS[kind] for kind in trial["kinds"])
        started = time.monotonic()
        process = os.fork()
        if not process:
            child(trial)
        if trial["after"] is not None:
            time.sleep(trial["after"])
            os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        found = {
            "status": status,
            "count": plan.count,
            "name": plan.name.decode(),
            "process": process,
            "counts": [*plan.counts],
        }
        answers.write(json.dumps({**found, "seconds": time.monotonic() - started}) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
