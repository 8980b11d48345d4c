"""Reading and writing of tensors and JSON: atomic, with checksums, without pickle.

==================  ===================================================================
``files``           atomic files, records of tensors and JSON with a SHA-256, locks
``codec``           nested state and objects of registered classes as JSON and tensors
==================  ===================================================================
"""

from .._moved import moved
from .._validation import FileError, fields, reading
from .codec import Kind, add, describe, flatten, rebuild, register, register_alias, unflatten
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

__getattr__ = moved(__name__, {"RecordError": "fvnce.io.FileError"})
