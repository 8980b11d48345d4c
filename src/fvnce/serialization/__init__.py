"""The one place that writes and reads files: tensors and JSON, atomic, checksummed, without pickle.

``files``     a file is written whole or not at all, and never through a symbolic link
``records``   tensors and JSON in one safetensors file with a SHA-256
``tree``      nested state as JSON and tensors
"""

from .files import atomic_write, write_text
from .records import RecordError, read_record, write_record

__all__ = ["RecordError", "atomic_write", "read_record", "write_record", "write_text"]
