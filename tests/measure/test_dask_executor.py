"""What npucmp asks of a Dask cluster before and while it works there, with one that does its tasks here. A real one is
in tests/workflows/test_cluster.py."""

import json
import os
import pickle
import sys
import types

import pytest

from npucmp import Cluster
from npucmp.errors import DumpError, MissingExtra, NpucmpError, UsageError
from npucmp.measure import dask_executor
from npucmp.measure.dask_executor import RETRIES, address_of
from npucmp.report import files


class Killed(Exception):
    allowed_failures = 3


class Future:
    """Done when somebody waits for it."""

    def __init__(self, client, task, retries):
        self.client, self.task, self.retries, self.outcome = client, task, retries, None

    def exception(self, timeout=None):
        if not self.client.workers:
            self.client.asked += 1
            raise self.client.dask.TimeoutError
        if self.client.is_lost:
            raise self.client.dask.CancelledError
        if self.outcome is None:
            self.outcome = self.client.outcome(self)
        return self.outcome if isinstance(self.outcome, Exception) else None

    def result(self):
        return self.outcome

    def cancel(self):
        self.client.cancelled.append(self)


class Client:
    """Of a scheduler with these workers; `deadly` are items over which workers end, with whatever else they have."""

    def __init__(self, dask, address):
        self.dask, self.address, self.is_closed, self.is_lost = dask, address, False, False
        self.workers, self.deadly, self.told = {"tcp://127.0.0.1:4001": 1, "tcp://127.0.0.1:4002": 1}, [], {}
        self.futures, self.cancelled, self.waited = [], [], 0

    def submit(self, function, place, task, key, pure, retries):
        assert (type(place), type(task), pure) == (bytes, bytes, False) and key.startswith("npucmp-")
        assert key not in {future.key for future in self.futures}
        self.futures.append(Future(self, lambda: function(place, task), retries))
        self.futures[-1].key, self.futures[-1].item = key, pickle.loads(task)[1]
        return self.futures[-1]

    def outcome(self, future):
        together = [one for one in self.futures if one.outcome is None]
        if not {one.item for one in together}.isdisjoint(self.deadly):
            for one in together:
                one.outcome = Killed()
            return future.outcome
        for left in reversed(range(future.retries + 1)):
            try:
                return future.task()
            except Exception as error:
                if not left:
                    return error

    def nthreads(self):
        return self.workers

    def wait_for_workers(self, count, timeout):
        self.waited += 1
        raise self.dask.TimeoutError

    def run(self, function, place, on_error):
        assert on_error == "return"
        return {address: self.told.get(address, function(place)) for address in self.workers}

    def close(self):
        self.is_closed = True


@pytest.fixture
def dask(monkeypatch):
    """The module `distributed`, whose one client is `dask.client`."""

    class Cancelled(Exception):
        pass

    async def reached(address, **security):
        assert security == {"ssl_context": "mine"}
        if fake.refused:
            raise fake.refused
        return types.SimpleNamespace(close=closed)

    async def closed():
        pass

    def connected(address, set_as_default):
        fake.client = Client(fake, address)
        prepare(fake.client)
        return fake.client

    def prepare(client):
        client.__dict__.update(fake.given)

    fake = types.ModuleType("distributed")
    fake.Client, fake.TimeoutError, fake.CancelledError, fake.KilledWorker = connected, TimeoutError, Cancelled, Killed
    fake.given, fake.refused = {}, None
    fake.comm = types.SimpleNamespace(connect=reached)
    fake.Security = lambda: types.SimpleNamespace(get_connection_args=lambda role: {"ssl_context": "mine"})
    monkeypatch.setitem(sys.modules, "distributed", fake)
    monkeypatch.setattr(dask_executor, "WORKER_TIMEOUT", 0.02)
    monkeypatch.setattr(dask_executor, "CHECK_INTERVAL", 0.01)
    monkeypatch.setattr(dask_executor, "_fit", b"")
    return fake


@pytest.fixture
def dump(tmp_path):
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "a.npy").write_text("")
    return tmp_path / "dump"


@pytest.fixture
def connected(dask, dump, tmp_path):
    with Cluster("tcp://localhost:8786", [dump], str(tmp_path / "out")) as made:
        yield made
    assert dask.client.is_closed and not [*(tmp_path / "out").iterdir()]


def lost(item, because):
    return f"{item} lost: {because}"


def square(item):
    return item * item


@pytest.mark.parametrize("count", [0, 1, dask_executor.LEAST + 5])
def test_results_keep_the_order_of_the_items(connected, count):
    assert list(connected.map(square, range(count), lost)) == [one * one for one in range(count)]


def test_an_item_that_ends_its_workers_costs_only_itself(connected, dask):
    dask.client.deadly = [5]
    found = list(connected.map(square, range(70), lost))
    assert found == [one * one if one != 5 else "5 lost: 4 workers ended during it" for one in range(70)]


def test_what_a_killed_run_showed_its_workers_goes_with_a_later_report(dask, dump, tmp_path):
    """And that of a run of hours with its own."""
    with Cluster("tcp://localhost:8786", [dump], str(tmp_path / "out")):
        (shown,) = (tmp_path / "out").iterdir()
        os.utime(shown, (0, 0))
        files.write(tmp_path / "out", {"summary.json": b"{}"})
        assert [one.name for one in (tmp_path / "out").iterdir()] == ["summary.json"]


def needs(item):
    if item == "broken":
        raise DumpError("x.npy", "is no array")
    tries.append(item)
    if item == "slow" and len(tries) <= RETRIES:
        raise OSError("stale file handle")
    if item == "gone":
        raise OSError("no such file")
    if item == "deep":
        raise RecursionError("too deep")
    return item


tries = []


@pytest.mark.parametrize(
    "items, found, raised",
    [
        (["slow"], ["slow"], None),
        (["a", "gone"], ["a"], OSError),
        (["broken"], [], DumpError),
        (["deep"], [], RecursionError),  # as it is, it would be tried again, and Dask could not send it
    ],
)
def test_what_the_system_could_not_do_is_tried_again_and_what_a_task_raises_is_raised(connected, items, found, raised):
    tries.clear()
    got = []
    try:
        got.extend(connected.map(needs, items, lost))  # extend takes them one by one
    except (OSError, NpucmpError, RecursionError) as error:
        assert type(error) is raised
    else:
        assert raised is None
    assert got == found
    assert len(tries) == {"slow": RETRIES + 1, "a": RETRIES + 2, "broken": 0, "deep": 1}[items[0]]


def test_work_that_nobody_wants_is_cancelled(connected, dask):
    results = connected.map(square, range(10), lost)
    assert next(results) == 0
    results.close()
    assert len(dask.client.cancelled) == 10


@pytest.mark.parametrize("threads, width", [(1, 64), (7, 64), (8, 64), (9, 72)])
def test_workers_have_four_tasks_for_each_thread_and_all_together_at_least_64(connected, dask, threads, width):
    dask.client.workers = dict.fromkeys(dask.client.workers, threads)
    results = connected.map(square, range(200), lost)
    next(results)
    assert len(dask.client.futures) == width
    next(results)
    assert len(dask.client.futures) == width + 1
    results.close()
    assert [future.retries for future in dask.client.futures] == [2] * (width + 1)


@pytest.mark.parametrize("content, words", [("abc", "sees something else at"), (None, "cannot see"), ("", None)])
def test_a_worker_sees_files_of_the_same_size(dask, dump, tmp_path, content, words):
    file = dump / "a.npy"
    with Cluster("tcp://localhost:8786", [file], str(tmp_path / "out")) as made:
        file.unlink() if content is None else file.write_text(content)
        results = made.map(square, [3], lost)
        if words is None:
            assert list(results) == [9]
        else:
            with pytest.raises(UsageError, match=f"a worker {words} {file}$"):
                list(results)


def test_a_folder_that_cannot_be_written_is_an_error(dask, dump):
    with pytest.raises(DumpError, match=r"cannot be written: (Not a directory|File exists)$"):
        Cluster("tcp://localhost:1", [dump], str(dump / "a.npy"))
    assert not hasattr(dask, "client")


def where(item):
    return os.getcwd()


def test_a_worker_stands_where_relative_paths_are_told_from(dask, dump, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Cluster("localhost:8786", ["dump"], "out") as made:
        monkeypatch.chdir("/")
        assert list(made.map(where, [0], lost)) == [str(tmp_path)] and os.getcwd() == "/"
    assert dask.client.address == "tcp://localhost:8786"


LOCAL = ["tcp://127.0.0.1:8786", "tcp://localhost:8786", "tcp://[::1]:8786", "127.0.0.1:1", "tls://node7:8786"]
OPEN = ["tcp://node7:8786", "node7:8786", "tcp://10.0.0.7:1", "tcp://0.0.0.0:1", "tcp://[::]:1", "ws://127.0.0.1:1",
        "tcp://localhost.de:1", "tcp://127.0.0.1@node7:1", "tcp://", "tls://", "ipc://1", "tcp://[", ""]  # fmt: skip


@pytest.mark.parametrize("address", LOCAL)
def test_within_this_machine_or_encrypted(address, tmp_path):
    told = address if "://" in address else f"tcp://{address}"
    (tmp_path / "file").write_text(json.dumps({"type": "Scheduler", "address": told}))
    assert address_of(address) == address_of(str(tmp_path / "file")) == told


@pytest.mark.parametrize("address", OPEN)
def test_what_others_could_hear_is_refused(address, tmp_path, dask):
    with pytest.raises(UsageError, match=r"must be encrypted.*tls://HOST:PORT"):
        Cluster(address, [], str(tmp_path / "out"))
    (tmp_path / "file.json").write_text(json.dumps({"address": address}))
    with pytest.raises(UsageError, match=r"file.json \(.*\): connections to other machines"):
        Cluster(str(tmp_path / "file.json"), [], str(tmp_path / "out"))
    assert not hasattr(dask, "client") and not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [None, "", "[]", "{}", "[" * 100_000, '{"address": 3}'])
def test_a_scheduler_file_that_is_none(content, tmp_path):
    if content is not None:
        (tmp_path / "s.json").write_text(content)
    with pytest.raises(UsageError, match=r"--scheduler .*s\.json"):
        address_of(str(tmp_path / "s.json"))


@pytest.mark.parametrize("size, is_read", [(2**20, True), (2**20 + 1, False)])
def test_a_scheduler_file_has_at_most_a_mebibyte(size, is_read, tmp_path):
    start = '{"address": "tcp://localhost:1"'
    (tmp_path / "s.json").write_text(start + " " * (size - len(start) - 1) + "}")
    if is_read:
        assert address_of(str(tmp_path / "s.json")) == "tcp://localhost:1"
    else:
        with pytest.raises(UsageError, match="no scheduler file of Dask"):
            address_of(str(tmp_path / "s.json"))


def told(**other):
    """What a worker says of work that it is told of in other words."""

    def answer(place):
        return dask_executor.unfit_reason(pickle.dumps({**pickle.loads(place), **other}))

    return answer


@pytest.mark.parametrize(
    "other, words",
    [
        ({"npucmp": "0.0.1"}, "has npucmp .*, this process has 0.0.1"),
        ({"Python": "3.2"}, "has Python 3.*, this process has 3.2"),
        ({"kernel": "other"}, "has kernel .*, this process has other"),
        ({"reads": {"/nowhere/dump": "7"}}, "cannot see /nowhere/dump"),
        ({"reads": {"/": "7"}}, "sees something else at /"),
        ({"folder": "/nowhere"}, "cannot see /nowhere"),
        ({"probe": "/nowhere/out/file"}, "cannot see /nowhere/out"),
        ({"probe": "/proc/self/stat"}, "cannot write to /proc/self"),
    ],
)
def test_a_worker_that_cannot_do_the_work_is_told(dask, dump, tmp_path, other, words, monkeypatch):
    monkeypatch.setattr(Client, "run", lambda self, function, place, on_error: {"tcp://a": told(**other)(place)})
    with pytest.raises(UsageError, match=f"^--scheduler tcp://localhost:1: the worker at tcp://a {words}") as raised:
        Cluster("tcp://localhost:1", [dump], str(tmp_path / "out"))
    assert "\n" not in str(raised.value) and dask.client.is_closed


def test_a_worker_without_npucmp_is_told(dask, dump, tmp_path):
    dask.given = {"told": {"tcp://127.0.0.1:4002": Exception("ModuleNotFoundError(\"No module\nnamed 'npucmp'\")")}}
    with pytest.raises(
        UsageError, match=r"the worker at tcp://127.0.0.1:4002 has no working npucmp .*No module named 'npucmp'"
    ):
        Cluster("tcp://localhost:1", [dump], str(tmp_path / "out"))


def test_a_worker_that_comes_later_is_asked_too(connected, dump):
    (dump / "b.npy").write_text("")
    with pytest.raises(UsageError, match=r"a worker sees something else at .*dump"):
        list(connected.map(square, [1], lost))


def test_workers_that_others_could_hear_are_refused(dask, tmp_path):
    dask.given = {"workers": {"tcp://10.0.0.7:4000": 1}}
    with pytest.raises(UsageError, match=r"worker at tcp://10.0.0.7:4000 is reached without encryption"):
        Cluster("tcp://localhost:1", [], str(tmp_path / "out"))


def test_no_worker_at_all(dask, tmp_path):
    dask.given = {"workers": {}}
    with pytest.raises(UsageError, match=r"no worker connected within 0.02 s"):
        Cluster("tcp://localhost:1", [], str(tmp_path / "out"))
    assert dask.client.waited


def test_workers_that_all_go(connected, dask):
    dask.client.workers, dask.client.asked = {}, 0
    with pytest.raises(UsageError, match="no worker has existed"):
        list(connected.map(square, [1], lost))
    assert dask.client.asked == 2  # checks, after half of the time and after all of it


def test_a_scheduler_that_goes(connected, dask):
    dask.client.is_lost = True
    with pytest.raises(UsageError, match="the scheduler was lost"):
        list(connected.map(square, [1], lost))


def test_no_scheduler(dask, tmp_path):
    dask.refused = OSError("Timed out\ntrying to connect")
    with pytest.raises(UsageError, match=r"^--scheduler tcp://localhost:1: cannot be reached: Timed out trying"):
        Cluster("tcp://localhost:1", [], str(tmp_path / "out"))
    assert not hasattr(dask, "client")


def test_a_dump_that_is_not_there_is_told_before_anybody_is_asked(dask, tmp_path):
    with pytest.raises(DumpError, match="dmup: no such file or folder"):
        Cluster("tcp://localhost:1", [tmp_path / "dmup"], str(tmp_path / "out"))
    assert not hasattr(dask, "client") and not (tmp_path / "out").exists()


def test_without_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[dask\]'"):
        Cluster("tcp://localhost:1", [], str(tmp_path))
