"""Read the directory of a zip file of stored (uncompressed) members, as torch.save (.pt) writes it, and NPZ files. A
truncated or damaged zip file is worded here.

    end of central directory, last 22 bytes   PK 05 06, disks, entries (2+2), size (4), offset (4), comment length 0
    zip64 locator, the 20 bytes before        PK 06 07, disk (4), offset of the zip64 record (8), disks (4)
    zip64 record, the 56 bytes before         PK 06 06, …, entries (8+8), size (8), offset (8)
    central entry, 46 bytes + name + extra + comment
        PK 01 02, …, flags (2), method (2), …, sizes (4+4), lengths (2+2+2), disk (2), …, offset of local header (4)
    local header, 30 bytes + name + extra, then the data
        PK 03 04, version (2), flags (2), method (2), time, date, crc, sizes (4+4), name length (2), extra length (2)
    extra field 1 (zip64): 8 bytes for each of uncompressed size, compressed size and offset that is FF FF FF FF

Source: PKWARE APPNOTE 6.3. Zip readers disagree on files with contradictory redundant fields, so all such fields must
agree here: names, sizes, counts; members may not overlap. zipfile of the standard library is 5 times slower and accepts
five entries on one local header. Checksums are not verified: torch can be configured to write wrong ones
(torch.serialization.set_crc32_options). numpy.savez writes sizes in the zip64 field of all local headers.

An NPZ file is a zip file of NPY files, as numpy.savez writes it, none compressed:

    {name}.npy     one array each: npy.py; the zip file: stored_zip.py

Source: numpy.lib.npyio.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, Union

from npucmp.dump.readers.safe_open import FileSlice, RegularFile
from npucmp.errors import DumpError
from npucmp.model import Payload

_END = Struct("<4s4H2IH")
_LOCATOR = Struct("<4sIQI")
_END64 = Struct("<4sQ4x2I4Q")
_ENTRY = Struct("<4s4x2H8x2I4H6xI")
_LOCAL = Struct("<4s2x2H8x2I2H")
_TAIL = _END.size + _LOCATOR.size + _END64.size  # all end records
_ENTRY_SIZE, _ENTRY_AT = _ENTRY.size, _ENTRY.unpack_from
_LOCAL_SIZE, _LOCAL_AT = _LOCAL.size, _LOCAL.unpack_from
_EXTRA = Struct("<2H")
_FULL = 0xFFFFFFFF
_DESCRIPTOR = 0x8  # sizes follow the data; torch then writes 0 in the local header
_FLAGS = _DESCRIPTOR | 0x800  # 0x800: names are UTF-8; other flags (encryption, …) are refused


_Entry = tuple[int, bytes, int, int]  # the first four fields of Member


class Member(NamedTuple):
    """One central entry: `at` is the offset of its local header, `end` that of the next member or of the directory."""

    at: int
    name: bytes
    size: int
    flags: int
    end: int


_Member = tuple[int, bytes, int, int, int]  # fields of a Member, made on demand: three of seven are used


class _Directory(NamedTuple):
    at: int
    size: int
    entries: int


Members = dict[bytes, _Member]


def members(file: RegularFile) -> Members:
    """Return all members by name, checked against each other. DumpError for anything torch.save would not write."""
    directory = _directory(file)
    limits = file.limits
    if directory.entries > limits.members or directory.size > limits.header_bytes:  # two calls cost 1 % of a pair each
        limits.require(file.path, "members", directory.entries, "a zip file of {:,} members")
        limits.require(file.path, "header_bytes", directory.size, "a zip directory of {:,} bytes")
    data = file.read(directory.at, directory.size)
    found: list[_Entry] = []
    place, end = 0, len(data)
    for _ in range(directory.entries):  # the only loop over members of every file, so it is inlined
        here, name_at = place, place + _ENTRY_SIZE
        if name_at > end:
            raise DumpError(file.path, "the zip directory ends early", directory.at + here)
        signature, flags, method, stored, size, name_length, extra_length, more, disk, at = _ENTRY_AT(data, here)
        extra_at = name_at + name_length
        place = extra_at + extra_length + more
        if signature != b"PK\1\2" or disk:
            raise DumpError(file.path, "a damaged zip directory", directory.at + here)
        if method or flags & ~_FLAGS:
            raise DumpError(file.path, "unsupported: a compressed or encrypted zip member", directory.at + here)
        if place > end:
            raise DumpError(file.path, "the zip directory ends early", directory.at + here)
        if size == _FULL or stored == _FULL or at == _FULL:
            size, stored, at = _wide((size, stored, at), data[extra_at : extra_at + extra_length])
            if size < 0 or stored < 0 or at < 0:
                raise DumpError(file.path, "a zip64 size is missing", directory.at + here)
        if size != stored:
            raise DumpError(file.path, "a stored zip member has two sizes", directory.at + here)
        found.append((at, data[name_at:extra_at], size, flags))
    if place != end:
        raise DumpError(file.path, "the zip directory is larger than its entries", directory.at + place)
    return _disjoint(file, found, directory.at)


def data_offset(file: RegularFile, member: Member) -> int:
    """Return the offset of a member's bytes; its local header must agree with the central entry."""
    at, name, size, flags, end = member
    start = file.read(at, min(_LOCAL_SIZE + len(name), end - at))
    signature, said, method, stored, full, name_length, extra_length = _LOCAL_AT(start)
    if signature != b"PK\3\4" or method != 0 or said != flags or start[_LOCAL_SIZE:] != name:
        raise DumpError(file.path, "a local zip header differs from the directory", at)
    if name_length != len(name) or not stored == full == size:
        deferred = flags & _DESCRIPTOR and stored == full == 0
        wide = stored == full == _FULL and _zip64_words(file.read(at + len(start), extra_length))[:2] == [size, size]
        if name_length != len(name) or not (deferred or wide or stored == full == min(size, _FULL)):
            raise DumpError(file.path, "a local zip header differs from the directory in sizes", at)
    offset: int = at + _LOCAL_SIZE + name_length + extra_length
    if offset + size > end:
        raise DumpError(file.path, "a zip member reaches into the next one", at)
    return offset


def _directory(file: RegularFile) -> _Directory:
    """Locate the central directory. It must end exactly at the end records: no gap, no comment."""
    if file.size < _END.size:
        raise DumpError(file.path, "truncated: it ends inside the zip file")
    length, end = min(_TAIL, file.size), file.size - _END.size
    tail = file.read(file.size - length, length)
    signature, disk, disk2, here, entries, size, at, comment = _END.unpack_from(tail, len(tail) - _END.size)
    if signature != b"PK\5\6" or comment:
        raise DumpError(file.path, "truncated or altered: it does not end with the end record of the zip format", end)
    if disk or disk2 or here != entries:
        raise DumpError(file.path, "a zip file in several parts", end)
    directory, before = _Directory(at, size, entries), len(tail) - _END.size - _LOCATOR.size
    if before >= 0 and tail.startswith(b"PK\6\7", before):
        end -= _LOCATOR.size
        directory, end = _zip64(file, directory, tail, end)
    if directory.at + directory.size != end:
        raise DumpError(file.path, "the zip directory does not end at the end record", end)
    return directory


def _zip64(file: RegularFile, narrow: _Directory, tail: bytes, locator: int) -> tuple[_Directory, int]:
    """Return the directory's place in zip64 form; the short form must be equal or all ones. `tail` holds all end
    records."""
    place = len(tail) - _END.size - _LOCATOR.size
    _, disk, record, disks = _LOCATOR.unpack_from(tail, place)
    if disk or disks > 1 or record + _END64.size != locator:
        raise DumpError(file.path, "the zip64 locator does not point at the zip64 record", locator)
    signature, length, disk, disk2, here, entries, size, at = _END64.unpack_from(tail, place - _END64.size)
    if signature != b"PK\6\6" or length != _END64.size - 12 or disk or disk2 or here != entries:
        raise DumpError(file.path, "a damaged zip64 record", record)
    wide = _Directory(at, size, entries)
    for short, long, full in zip(narrow, wide, (_FULL, _FULL, 0xFFFF)):
        if short != long and short != full:
            raise DumpError(file.path, "the two end records of the zip file disagree", record)
    return wide, record


def _wide(narrow: tuple[int, ...], extra: bytes) -> list[int]:
    """Return sizes and offset, read from the zip64 field where needed; -1 for a missing value."""
    wide = _zip64_words(extra)
    return [value if value != _FULL else wide.pop(0) if wide else -1 for value in narrow]


def _zip64_words(extra: bytes) -> list[int]:
    """Return the 8-byte numbers of the zip64 field among the extra fields."""
    place = 0
    while place + 4 <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, place)
        field = extra[place + 4 : place + 4 + length]
        if kind == 1:
            return [int.from_bytes(field[at : at + 8], "little") for at in range(0, len(field) - 7, 8)]
        place += 4 + length
    return []


def _disjoint(file: RegularFile, found: list[_Entry], directory_at: int) -> Members:
    """Return members by name, each with its end; DumpError if two share a name or a byte.

    Only the local headers of used members are read, so the minimum size of a header is assumed.
    """
    named: Members = {}
    found.sort(reverse=True)
    end = directory_at
    for at, name, size, flags in found:
        if at + _LOCAL_SIZE + len(name) + size > end:
            raise DumpError(file.path, "zip members overlap", at)
        named[name] = at, name, size, flags, end
        end = at
    if len(named) < len(found):
        raise DumpError(file.path, "two zip members have the same name", directory_at)
    return named


_ENDING = b".npy"
_COMPRESSED = "compressed"


def entries(file: RegularFile) -> dict[str, Union[Payload, str]]:
    """Return the payload of each array, or why it cannot be read; DumpError for other files."""
    try:
        found = members(file)
    except DumpError as error:
        if _COMPRESSED not in error.because:
            raise
        because = f"{error.because}; save it with numpy.savez instead of savez_compressed"
        raise DumpError(file.path, because, error.offset) from None
    ordered = sorted(Member(*member) for member in found.values())
    read = {_name(member.name): _array(file, member) for member in ordered if member.name.endswith(_ENDING)}
    others = (member for member in ordered if not member.name.endswith(_ENDING))
    for member in others:  # a member with the name of an array but another ending gets a distinct name
        name = _name(member.name)
        read[f"{name} (no array)" if name in read else name] = _array(file, member)
    return read


def _name(member: bytes) -> str:
    text = member.decode("utf-8", "surrogateescape")
    return text[: -len(_ENDING)] if member.endswith(_ENDING) else text


def _array(file: RegularFile, member: Member) -> Union[Payload, str]:
    if not member.name.endswith(_ENDING):
        return "not an NPY file, by its name"
    from npucmp.dump.readers import npy

    try:
        start = data_offset(file, member)
        found = npy.header(FileSlice(file, start, member.size))
    except DumpError as error:
        return error.because
    return found._replace(offset=start + found.offset)
