"""The one place that writes and reads tensors and JSON: atomic, checksummed, without pickle.

==================  ===================================================================
``files``           a file is written whole or not at all, by one writer at a time
``records``         tensors and JSON in one safetensors file, or JSON alone, with a SHA-256
``registry``        the classes that may be rebuilt, and what that may allocate
``objects``         nested state, and objects of these classes, as JSON and tensors
==================  ===================================================================
"""

from .files import FolderInUse, atomic_write, locked, sweep, write_text
from .objects import describe, flatten, rebuild, unflatten
from .records import (
    RecordError,
    checksum_of,
    decode,
    encode,
    fields,
    kind_of,
    read_document,
    read_record,
    reading,
    write_document,
    write_record,
)
from .registry import Kind, add, register, register_alias

__all__ = [
    "FolderInUse",
    "Kind",
    "RecordError",
    "add",
    "atomic_write",
    "checksum_of",
    "decode",
    "describe",
    "encode",
    "fields",
    "flatten",
    "kind_of",
    "locked",
    "read_document",
    "read_record",
    "reading",
    "rebuild",
    "register",
    "register_alias",
    "sweep",
    "unflatten",
    "write_document",
    "write_record",
    "write_text",
]
