"""The one place that writes and reads tensors and JSON: atomic, checksummed, without pickle.

==================  ===================================================================
``files``           a file is written whole or not at all, and never through a link
``records``         tensors and JSON in one safetensors file, or JSON alone, with a SHA-256
``lock``            one writer at a time in a folder
``text``            JSON with limits on what a stranger's text may cost
``tree``            nested state as JSON and tensors
``registry``        the classes that may be rebuilt, which every room registers
``objects``         objects of these classes as JSON and tensors, and back
``budget``          what rebuilding may allocate
``errors``          what is said of a file that cannot be trusted
==================  ===================================================================
"""

from .errors import RecordError, fields, reading
from .files import atomic_write, sweep, write_text
from .lock import FolderInUse, locked
from .objects import describe, rebuild
from .records import checksum_of, kind_of, read_document, read_record, write_document, write_record
from .registry import Kind, add, register, register_alias
from .tree import flatten, unflatten

__all__ = [
    "FolderInUse",
    "Kind",
    "RecordError",
    "add",
    "atomic_write",
    "checksum_of",
    "describe",
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
