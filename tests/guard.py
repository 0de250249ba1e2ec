"""Runs command lines of npucmp and reports every event that reading a dump has no business to cause.

python -I -B guard.py FOLDERS_TO_READ OUTPUT_FOLDER COMMANDS, as test_trust.py does. Not imported: its hook stays.
"""

import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
READS = [os.path.realpath(path) for path in sys.argv[1].split(":")]
OUTPUT = os.path.realpath(sys.argv[2])
COMMANDS = json.loads(sys.argv[3])
PYTHON = [os.path.realpath(path) for path in {*sys.path, sys.prefix, sys.base_prefix, sys.exec_prefix} if path]
SYSTEM = ["/proc/", "/sys/devices", "/usr/", "/lib", "/dev/null", "/dev/urandom"]
HOME = [*PYTHON, *SYSTEM, f"{ROOT}/npucmp"]
STDLIB = os.path.dirname(os.__file__)
if hasattr(sys, "stdlib_module_names"):
    OWN = set(sys.stdlib_module_names)
else:  # Python 3.9: what lies in its folders, and the modules of other systems that it tries
    found = os.listdir(STDLIB) + os.listdir(f"{STDLIB}/lib-dynload") + ["nt", "msvcrt", "_winapi", "winreg"]
    OWN = {name.split(".")[0] for name in found} | set(sys.builtin_module_names)
KNOWN = (
    OWN
    | {"npucmp"}
    | set(
        "numpy click h5py ml_dtypes msgspec pandas yaml tqdm tomli jinja2 markupsafe colorama dateutil six pytz psutil "
        "numexpr bottleneck pyarrow IPython org mpi4py cython_runtime _loader _yaml threadpoolctl scipy lxml "
        "typing_extensions tzdata _cython_0_29".split()
    )
)
PATHS = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename", "os.truncate", "os.chmod")
READING = ("os.listdir", "os.scandir")
NEVER = (
    "socket.", "os.system", "os.exec", "os.posix_spawn", "os.kill", "os.symlink", "os.link", "pickle.", "urllib",
    "ftplib", "http", "shutil", "webbrowser", "code.__new__",
)  # fmt: skip
NAMES = ("<frozen", "<string>", "<template>", "<attrs", "<__array")  # of code that Python's own and our modules make
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

report = os.dup(1)  # while commands run, stdout leads to nowhere
beside = {ROOT}  # folders above a dump are listed: its graphs may lie there
for above in READS:
    while above not in beside:
        beside.add(above)
        above = os.path.dirname(above)
busy = True


def told(*what):
    os.write(report, (" ".join(map(repr, what))[:300] + "\n").encode())


def below(path, folders):
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def hook(event, arguments):
    global busy
    if busy:
        return
    busy = True
    try:
        check(event, arguments)
    finally:
        busy = False


def check(event, arguments):
    if event == "import":
        if arguments[0].split(".")[0] not in KNOWN:
            told(event, arguments[0])
    elif event in PATHS:
        touched(event, *arguments)
    elif event == "subprocess.Popen":
        words = arguments[1]
        if not (len(words) == 4 and words[1:3] == ["-I", "-c"] and "npucmp.dump.readers.hdf5_child" in words[3]):
            told(event, words)
    elif event in ("exec", "compile"):
        code = arguments[0] if event == "exec" else arguments[1]
        name = str(getattr(code, "co_filename", code))
        parsing = event == "compile" and sys._getframe(2).f_code.co_name == "parse"  # ast.parse: a tree, nothing is run
        if not os.path.isabs(name) and not name.startswith(NAMES) and not parsing:
            told(event, name)
    elif event == "ctypes.dlopen":
        if arguments[0] is not None and not below(str(arguments[0]), HOME):
            told(event, arguments[0])
    elif event.startswith(NEVER):
        told(event, *arguments[:2])


def touched(event, path, *more):
    if isinstance(path, int) or path is None:
        return
    path = os.path.join(os.getcwd(), os.fsdecode(path))
    if event == "open" and isinstance(more[1], int) and more[1] & os.O_NOFOLLOW:  # fails if the last name is a link
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    else:
        path = os.path.realpath(path)
    writes = bool(more[1] & WRITES) if event == "open" and isinstance(more[1], int) else event not in READING
    if writes:
        if path != os.devnull and not below(path, [OUTPUT]):
            told("writes", event, path)
    elif event != "open" and path in beside:
        return
    elif path.endswith((".egg-info/entry_points.txt", ".dist-info/entry_points.txt")):
        return  # names of extensions of installed packages
    elif not below(path, [*READS, OUTPUT, os.path.dirname(OUTPUT), *HOME]):
        told("reads", event, path)


def call(words):
    sys.argv[1:] = words
    try:
        cli.main()
    except SystemExit as end:
        return end.code
    except BaseException as error:
        return repr(error)


sys.path.insert(0, ROOT)
sys.addaudithook(hook)
from npucmp import cli  # noqa: E402

nowhere = os.open(os.devnull, os.O_RDWR)
for words in COMMANDS:
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    busy = False
    status = call(words)
    busy = True
    if status not in (0, 1, 2):
        told("status", status, words)
told("done", len(COMMANDS))
