"""The one place that writes and reads tensors and JSON: atomic, checksummed, without pickle.

==================  ===================================================================
``files``           a file is written whole or not at all, by one writer at a time
``records``         tensors and JSON in one safetensors file, or JSON alone, with a SHA-256
``codec``           nested state, and objects of registered classes, as JSON and tensors
==================  ===================================================================
"""

from .._moved import moved
from .._validation import FileError, fields, reading
from .codec import Kind, add, describe, flatten, rebuild, register, register_alias, unflatten
from .files import FolderInUse, atomic_write, locked, sweep, write_text
from .records import checksum_of, decode, encode, kind_of, read_document, read_record, write_document, write_record

__all__ = [
    "FileError",
    "FolderInUse",
    "Kind",
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

__getattr__ = moved(__name__, {"RecordError": "fvnce.io.FileError"})
