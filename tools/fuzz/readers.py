"""Fuzzing of readers with damaged and forged files: each must end in a result or in one clear error.

    python -m tools.fuzz readers --tries 10000 --seed 0

A try takes a good file, changes it (bytes, fields of a header, entries of a tree, what lies beneath a compression) and
reads it as the program would: in parts, as a whole, for training, for scoring. A failure is any other
exception than the readers' own, or one of theirs without a sentence. Each try has a generator of its own, so that
``--first N --tries 1`` repeats one; ``--memory 4`` (gigabytes) makes an allocation beyond the budget a failure as well.
"""

from __future__ import annotations

import copy
import gzip
import io
import os
import random
import struct
import tempfile
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from fvnce.app.runs import load_run
from fvnce.app.runs.settings import DataSettings, read_config, to_toml
from fvnce.app.runs.training_data import Layout, read_like, read_training_data
from fvnce.tables import ColumnType, FileError, Frame, ReadOptions, open_source

#: What a reader may end in.
CLEAR = (FileError,)
#: Small, so that a try which asks for more ends at once.
MEMORY = "64M"

# fmt: off
TOKENS = [
    b'"', b"'", b",", b";", b"\t", b"\n", b"\r", b"\r\n", b"\0", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b" ", b"|",
    b"nan", b"inf", b"-inf", b"1e999", b"-1e999", b"1_0", b"0x10", b"9" * 400, b"\xd9\xa1\xd9\xa2", b"=1+1", b"@x",
    b"<!--<script>", b"\x1b[31m", b"\xe2\x80\xa8", b"a" * 140_000, b",," * 5000, b'""' * 50, b"\x1f\x8b", b"PK\x03\x04",
    b"\x89PNG", b"()", b"[" * 3000, b"{'a':", b"True", b"None", b"-1", b"4294967295", b"18446744073709551616", b"<f8",
    b"|O", b">U9", b"|V0", b"|b1", b"<c16",
]
NASTY = [
    None, True, False, 0, 1, -1, 2, 7, 10**30, 10**400, 1e308, -1e308, 5e-324, float("nan"), float("inf"), "", "x",
    "abc", "0", "²", "9" * 5000, "../../x", "<!--<script>", '" onload="alert(1)', "\x00\x1b[31m", "\ud800", "\u2028",
    "power(1/0)", "power(a)", [], [[]], ["x"], [1, 2], [None], [1e308, -1e308], {}, {"x": 1}, {"": None},
    {"png": "AAAA"}, {"<": [1]},
]
# fmt: on


def flipped(content: bytes, rng: random.Random) -> bytes:
    """Return the content with a few changed bytes."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        at = rng.randrange(len(data) + 1) if rng.random() < 0.6 else rng.randrange(min(len(data), 64) + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at : at + rng.choice([1, 2, 4, 16, 100])]
        elif kind == 4:
            data[at:at] = rng.choice(TOKENS)
        elif kind == 5:
            number = rng.choice([0, 1, 2**31 - 1, 2**32 - 1, 2**31, 65535, rng.randrange(2**32)])
            data[at : at + 4] = struct.pack(rng.choice("<>") + "I", number)
        else:
            start = rng.randrange(len(data) + 1)
            data[at:at] = data[start : start + rng.choice([1, 8, 64, 1000])]
    return bytes(data)


def changed(tree: Any, rng: random.Random) -> Any:
    """Return nested content with one to three entries replaced, removed or doubled."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        places: list[tuple[Any, Any]] = []
        _places(tree, places)
        if not places:
            return rng.choice(NASTY)
        at, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0:
            del at[key]
        elif kind == 1 and isinstance(at, list):
            at.append(at[key])
        elif kind == 1:
            at[str(rng.choice(NASTY))] = at[key]
        elif kind == 2 and isinstance(at[key], str | list):
            at[key] = at[key] * 2
        elif kind < 4 and isinstance(at[key], int | float | str):
            # Of the same kind, so that it is not refused at the door.
            alike = str if isinstance(at[key], str) else int | float
            at[key] = rng.choice([value for value in NASTY if isinstance(value, alike)])
        else:
            at[key] = copy.deepcopy(rng.choice(NASTY))
    return tree


def _places(tree: Any, places: list[tuple[Any, Any]]) -> None:
    entries = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    for key, value in entries:
        places.append((tree, key))
        _places(value, places)


def table_text(rng: random.Random) -> bytes:
    """Return a valid text table."""
    delimiter = rng.choice([",", ";", "\t", "|", " "])
    lines = [["a", "b", "town"]] if rng.random() < 0.7 else []
    odd = rng.random() < 0.5
    for i in range(rng.choice([1, 3, 30, 250])):
        number = (
            rng.choice([f"{rng.gauss(0, 1):.3f}", f'"${rng.random() * 1e4:,.2f}"', "12%"]) if odd else f"{i / 7:.3f}"
        )
        when = rng.choice([f"2024-03-{i % 28 + 1:02d}", f"{i % 12 + 1}/3/2024 14:30"]) if odd else str(i % 7)
        lines.append([number, when, rng.choice(["Bern", '"x y"', "NA", "", "yes"])])
    return ("\n".join(delimiter.join(line) for line in lines) + "\n").encode()


def array(rng: random.Random) -> np.ndarray[Any, Any]:
    """Return a valid array of random shape."""
    shape = rng.choice([(5, 3), (40, 2), (4, 3, 3), (3, 2, 4, 4)])
    kind = rng.choice(["f8", "f4", "u1", "i4", "?", ">f8", "f2"])
    values = np.random.default_rng(rng.randrange(2**32)).normal(size=shape) * 3
    if kind == "f8" and rng.random() < 0.2:
        values.flat[0] = rng.choice([np.nan, np.inf])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(values.astype(kind), order=rng.choice(["C", "C", "F"]))


def npy(values: np.ndarray[Any, Any]) -> bytes:
    """Return the content of an npy file."""
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def npz(rng: random.Random) -> bytes:
    """Return an npz file whose members may be damaged although the archive is valid."""
    values = array(rng)
    buffer = io.BytesIO()
    kind = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, member in (("X", values), ("y", np.arange(len(values)) % 2)):
            content = npy(member)
            archive.writestr(f"{name}.npy", flipped(content, rng) if rng.random() < 0.4 else content)
    return buffer.getvalue()


def parquet_file(rng: random.Random) -> bytes:
    """Return the content of a parquet file."""
    buffer = io.BytesIO()
    table = pyarrow.table({"a": [rng.gauss(0, 1), None, 2.0], "b": [1, 2, 3], "town": ["x", None, "y"]})
    parquet.write_table(table, buffer, compression=rng.choice(["none", "snappy", "gzip"]))
    return buffer.getvalue()


def png(rng: random.Random) -> bytes:
    """Return a PNG image with changed chunks and valid checksums."""
    mode = rng.choice(["L", "RGB", "RGBA", "LA", "P", "1", "I;16"])
    from PIL import Image

    values = np.random.default_rng(rng.randrange(2**32)).integers(0, 255, (6, 5, 4)).astype(np.uint8)
    base = Image.fromarray(values, "RGBA") if mode != "I;16" else Image.fromarray(values[..., 0].astype(np.uint16))
    buffer = io.BytesIO()
    (base if mode == "I;16" else base.convert(mode)).save(buffer, "png")
    content = buffer.getvalue()
    if rng.random() < 0.5:
        return content
    parts, at = [content[:8]], 8
    while at < len(content):
        size = struct.unpack(">I", content[at : at + 4])[0]
        name, body = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        if rng.random() < 0.4:
            body = flipped(body, rng) if body else body
        if rng.random() < 0.1:
            name = rng.choice(
                [b"IDAT", b"PLTE", b"tRNS", b"acTL", b"fcTL", b"iCCP", b"zTXt", b"gAMA", b"eXIf", b"IHDR"]
            )
        parts.append(struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)))
        at += 12 + size
    return b"".join(parts)


def read_rows(path: Path, rng: random.Random) -> None:
    """Read a file in one of the ways the program does."""
    how = rng.randrange(4)
    kinds = rng.choice(
        [None, {"a": "number", "b": "number", "town": "text"}, {"column_1": "number", "column_2": "text"}]
    )
    types = None if kinds is None else {name: ColumnType(kind) for name, kind in kinds.items()}
    options = ReadOptions(
        rng.choice([*[None] * 8, ",", ";", " "]),
        rng.choice([*[None] * 6, True, False]),
        rng.choice([(), ("x",)]),
        rng.choice([*[()] * 6, ("town",)]),
        types if how == 0 else None,
    )
    if how == 0:
        for _ in open_source(path, replace(options, array=rng.choice([None, "X"]))).parts():
            pass
    elif how == 1:
        open_source(path, options).read()
    elif how == 2:
        label = rng.choice([*[None] * 8, "y", "town", "b", "-1", "town=Bern", "a=1", "=", "9" * 30])
        drop = rng.choice([*[()] * 8, ("b",), ("1",), ("nothing",)])
        keep, name = rng.choice([*[()] * 8, ("a",), ("nothing",)]), rng.choice([*[None] * 8, "b", "nothing"])
        settings = DataSettings(str(path), label=label, drop=drop, keep=keep, id=name)
        read_training_data(settings, lambda sentence: None)
    else:
        layout = rng.choice(
            [
                Layout({"a": ColumnType(), "b": ColumnType("time"), "town": ColumnType("text")}, None),
                Layout(None, (3,)),
                Layout(None, (3, 3)),
            ]
        )
        for part in read_like(layout, str(path), DataSettings(str(path))).parts():
            layout.prepare(part.rows)
            assert isinstance(part.rows, Frame | np.ndarray)


def config_text(rng: random.Random) -> bytes:
    """Return a config.toml with values of any type."""

    content: dict[str, Any] = {
        "run": {"seed": 0},
        "data": {"path": "t.csv", "drop": ["id"]},
        "detector": {"n_trees": 5, "alpha": 0.3, "members": "auto"},
    }
    content["data"] |= {"missing": ["x"], "header": True, "delimiter": ",", "label": "y"}
    try:
        return to_toml(changed(content, rng)).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, AttributeError):
        return to_toml(content).encode()  # what was put there cannot be written as TOML


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _rows(name: str, make: Callable[[random.Random], bytes]) -> Callable[[Path, random.Random], None]:
    def attempt(folder: Path, rng: random.Random) -> None:
        content = make(rng)
        content = flipped(content, rng) if rng.random() < 0.7 else content
        if name.endswith(".gz"):
            content = gzip.compress(content, mtime=0)
            content = flipped(content, rng) if rng.random() < 0.3 else content
        path = _write(folder / name, content)
        read_rows(path if not name.endswith(".png") else folder, rng)

    return attempt


def _config(folder: Path, rng: random.Random) -> None:
    content = config_text(rng)
    read_config(_write(folder / "config.toml", flipped(content, rng) if rng.random() < 0.4 else content))


def _run_folder(folder: Path, rng: random.Random) -> None:
    content = config_text(rng)
    _write(folder / "config.toml", flipped(content, rng) if rng.random() < 0.4 else content)
    _write(folder / "model.safetensors", rng.choice([b"", b"{}", rng.randbytes(64)]))
    load_run(folder)


ATTEMPTS: dict[str, Callable[[Path, random.Random], None]] = {
    "csv": _rows("t.csv", table_text),
    "csv.gz": _rows("t.csv.gz", table_text),
    "npy": _rows("t.npy", lambda rng: npy(array(rng))),
    "npz": _rows("t.npz", npz),
    "png": _rows("a.png", png),
    "toml": _config,
    "the folder of a run": _run_folder,
    "parquet": _rows("t.parquet", parquet_file),
}


def readers(seed: int, tries: int, first: int = 0) -> list[str]:
    """Make the given tries; return a line for each that ended in neither a result nor a clear error."""
    failures = []
    before = os.environ.get("FVNCE_MAX_MEMORY")
    os.environ["FVNCE_MAX_MEMORY"] = MEMORY
    try:
        for number in range(first, first + tries):
            rng = random.Random(f"{seed}:{number}")
            name = list(ATTEMPTS)[number % len(ATTEMPTS)]
            with tempfile.TemporaryDirectory() as folder:
                problem = _problem(ATTEMPTS[name], Path(folder), rng)
            if problem is not None:
                failures.append(f"try {number} ({name}): {problem}")
    finally:
        if before is None:
            del os.environ["FVNCE_MAX_MEMORY"]
        else:
            os.environ["FVNCE_MAX_MEMORY"] = before
    return failures


def _problem(attempt: Callable[[Path, random.Random], None], folder: Path, rng: random.Random) -> str | None:
    inside = folder / "inside"
    inside.mkdir()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attempt(inside, rng)
    except CLEAR as error:
        said = str(error)
        if len(said) < 20 or "\n" in said or len(said) > 2000:
            return f"no sentence: {said[:200]!r}"
    except Exception as error:  # noqa: BLE001
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]!r} in {Path(last.filename).name}:{last.lineno}"
    if [path.name for path in folder.iterdir()] != ["inside"]:
        return "a file was written outside the folder"
    return None
