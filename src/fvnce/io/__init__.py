"""Reading and writing of tensors and JSON: atomic, with checksums, without pickle.

==================  ===================================================================
``files``           atomic files, records of tensors and JSON with a SHA-256, locks
``codec``           nested state and objects of registered classes as JSON and tensors
==================  ===================================================================
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._moved import moved
from .._validation import FileError, fields, reading
from .files import (
    FolderInUse,
    atomic_write,
    checksum_of,
    decode,
    kind_of,
    locked,
    read_record,
    sweep,
    write_record,
    write_text,
)

if TYPE_CHECKING:
    from .codec import Kind, add, describe, flatten, rebuild, register, register_alias, unflatten

__all__ = [
    "FileError",
    "FolderInUse",
    "Kind",
    "add",
    "atomic_write",
    "checksum_of",
    "decode",
    "describe",
    "fields",
    "flatten",
    "kind_of",
    "locked",
    "read_record",
    "reading",
    "rebuild",
    "register",
    "register_alias",
    "sweep",
    "unflatten",
    "write_record",
    "write_text",
]

_moved = moved(__name__, {"RecordError": "fvnce.io.FileError"}, stacklevel=3)


def __getattr__(name: str) -> Any:
    # The codec builds torch's modules; what reads arrays does without.
    return getattr(import_module(".codec", __name__), name) if name in __all__ else _moved(name)
