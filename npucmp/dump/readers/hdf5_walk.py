"""Walk the tree of an HDF5 file through the library. Only this module and hdf5_dataset.py call h5py.

The library trusts its input: damaged files have made it crash, loop and allocate without end. Therefore it works in a
separate process: hdf5_child.py runs the walk there, hdf5.py starts the process and reads the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional

from npucmp.dump.limits import Limits, ReadContext
from npucmp.dump.readers.names import natural
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import DumpError, MissingExtra, NpucmpError


class H5File(NamedTuple):
    """An open file: `root` is the object of h5py. `whole` is whether the addresses of chunks count from byte 0."""

    path: str
    size: int
    root: Any
    limits: Limits
    whole: bool = True


class H5Object(NamedTuple):
    """One named object. `dataset` is open until the walk continues; `problem` states why the object is not followed."""

    parts: tuple[str, ...]
    dataset: Any = None
    problem: str = ""


# errors that h5py raises on damaged files; nearly all have been observed
H5PY_ERRORS = (ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, LookupError, OSError,
               RuntimeError, SystemError, TypeError, ValueError)  # fmt: skip


@contextmanager
def open_hdf5(path: str, limits: Limits) -> Iterator[H5File]:
    """Open an HDF5 file for reading, in a `with`. MissingExtra without h5py, DumpError if it is damaged."""
    try:
        import h5py
    except ImportError:
        raise MissingExtra("h5py", f"reading {path}") from None
    with open_regular(path, ReadContext(limits)) as regular:
        with h5py_errors(path, limits):
            try:
                handle = h5py.File(path, "r", locking=False)  # a lock needs write permission on some file systems
            except TypeError:  # h5py before 3.5
                handle = h5py.File(path, "r")
            # behind a user block, older libraries count the addresses of chunks from its end
            whole = not handle.userblock_size or h5py.version.hdf5_version_tuple >= (2, 0, 0)
        try:
            yield H5File(path, regular.size, handle.id, limits, whole)
        finally:
            try:
                handle.close()
            except H5PY_ERRORS:  # damaged file, read as far as possible
                pass


@contextmanager
def h5py_errors(path: str, limits: Limits) -> Iterator[None]:
    """Turn an error that h5py raises on a damaged file into a DumpError."""
    try:
        yield
    except NpucmpError:
        raise
    except MemoryError:
        raise DumpError(path, limits.limit_message("memory that HDF5 needs for it", "hdf5_memory")) from None
    except H5PY_ERRORS as error:
        words = " ".join(str(error).split())[:160]
        raise DumpError(path, f"cannot be read by HDF5: {words or type(error).__name__}") from None


class FileWalk:
    """Iterate over the objects of a file in the order of the dump: groups before their members, each group once.

    Iterating fills `soft` (soft links skipped), `again` (further names of groups), and `tracked`: whether the file
    keeps the order of creation.
    """

    def __init__(self, file: H5File) -> None:
        self.soft = self.again = self._count = self._names = 0
        self.tracked = True
        self._file = file
        self._seen: set[Any] = set()

    def __iter__(self) -> Iterator[H5Object]:
        with h5py_errors(self._file.path, self._file.limits):
            root = _open(self._file.root, b"/")
            self._seen.add(_address(root))
        yield from self._group(root, ())

    def _group(self, group: Any, parts: tuple[str, ...]) -> Iterator[H5Object]:
        try:
            links = self._links(group)
        except DumpError as error:
            if not parts:
                raise
            yield H5Object(parts, problem=error.because)
            return
        for name, kind in links:
            yield from self._link(group, name, kind, (*parts, name.decode("utf-8", "surrogateescape")))

    def _links(self, group: Any) -> list[tuple[bytes, int]]:
        """Return (name, kind) of all links in the order of creation; if unknown, in the natural order of names."""
        found: dict[bytes, tuple[Optional[int], int]] = {}
        limits = self._file.limits

        def take(name: bytes, info: Any) -> Optional[str]:
            if name in found:
                return "is damaged: a group contains a name twice"  # or its index is cyclic
            found[name] = info.corder if info.corder_valid else None, info.type
            self._count += 1
            self._names += len(name)
            if self._count > limits.hdf5_objects:
                return limits.limit_message("objects in a file", "hdf5_objects")
            return (
                limits.limit_message("bytes of names", "hdf5_name_bytes")
                if self._names > limits.hdf5_name_bytes
                else None
            )

        with h5py_errors(self._file.path, self._file.limits):
            stopped = group.links.iterate(take, info=True)
        if isinstance(stopped, tuple):  # newer h5py also returns where the iteration stopped
            stopped = stopped[0]
        if stopped:
            raise DumpError(self._file.path, stopped)
        tracked = all(order is not None for order, _ in found.values())
        self.tracked = self.tracked and (tracked or len(found) < 2)
        names = sorted(found, key=lambda name: found[name][0] or 0 if tracked else natural(name.decode("latin-1")))
        return [(name, found[name][1]) for name in names]

    def _link(self, group: Any, name: bytes, kind: int, parts: tuple[str, ...]) -> Iterator[H5Object]:
        from h5py import h5d, h5g, h5l

        if kind == h5l.TYPE_SOFT:
            self.soft += 1
            return
        try:
            _require_plain(self._file.path, name, kind)
            if len(parts) > self._file.limits.hdf5_depth:
                raise DumpError(self._file.path, self._file.limits.limit_message("groups in groups", "hdf5_depth"))
            with h5py_errors(self._file.path, self._file.limits):
                found = _open(group, name)
                address = _address(found)
        except DumpError as error:
            yield H5Object(parts, problem=error.because)
            return
        if isinstance(found, h5d.DatasetID):
            yield H5Object(parts, found)
        elif isinstance(found, h5g.GroupID):
            if address in self._seen:
                self.again += 1
                return
            self._seen.add(address)
            yield H5Object(parts)
            yield from self._group(found, parts)


def _require_plain(path: str, name: bytes, kind: int) -> None:
    """Require a link inside the file, with a name that the library does not interpret as a path."""
    from h5py import h5l

    if kind == h5l.TYPE_EXTERNAL:
        raise DumpError(path, "refused: an external link, to another file")
    if kind != h5l.TYPE_HARD:
        raise DumpError(path, "refused: a link of an unknown kind")
    if b"/" in name or name in (b"", b"."):
        raise DumpError(path, "refused: a name that is a path")


def _open(group: Any, name: bytes) -> Any:
    from h5py import h5o

    return h5o.open(group, name)


def _address(found: Any) -> Any:
    """Return the address of an object's header. h5o.get_info knows it too, but also walks the object's heaps."""
    from h5py import h5g

    return h5g.get_objinfo(found, b".").objno
