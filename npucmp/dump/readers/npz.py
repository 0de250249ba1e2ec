"""Read NPZ files: a zip file of NPY files, as numpy.savez writes it, none compressed.

    {name}.npy     one array each: npy.py; the zip file: stored_zip.py

Source: numpy.lib.npyio.
"""

from __future__ import annotations

from typing import Union

from npucmp.dump.readers import npy
from npucmp.dump.readers.safe_open import FileSlice, RegularFile
from npucmp.dump.readers.stored_zip import Member, data_offset, members
from npucmp.errors import DumpError
from npucmp.model import Payload

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
    try:
        start = data_offset(file, member)
        found = npy.header(FileSlice(file, start, member.size))
    except DumpError as error:
        return error.because
    return found._replace(offset=start + found.offset)
