"""A folder of PNG images of one size, as arrays of shape (n, H, W), in colour (n, C, H, W), with values in [0, 1]."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import DataError, one_line, within_budget

#: What Pillow raises on one file or another that is no whole image.
_DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    OverflowError,
    AttributeError,
    struct.error,
    zlib.error,
)
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: Samples of a pixel by the type of colour; a palette stands for red, green, blue and opacity.
_SAMPLES = {0: 1, 2: 3, 3: 4, 4: 2, 6: 4}


class PictureReader:
    """The PNG files of a folder and those below it, in the order of their names."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.files = sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".png" and path.is_file())
        if not self.files:
            raise DataError(f"{folder} must hold PNG images, found none in it or below it")
        # A name that is no text in UTF-8 is kept as text that can be written.
        self.names: list[str] | None = [
            os.fsencode(path.relative_to(folder)).decode("utf-8", "backslashreplace") for path in self.files
        ]
        self.dtype = np.dtype(np.float32)
        self.shape = (len(self.files), *read_png(self.files[0]).shape)

    def parts(self, rows: int) -> Iterator[NDArray[Any]]:
        """The images in parts of at most so many."""
        for start in range(0, len(self.files), rows):
            images = []
            for path in self.files[start : start + rows]:
                image = read_png(path)
                if image.shape != self.shape[1:]:
                    raise DataError(
                        f"{path} has shape {image.shape} where {self.files[0].name} has {self.shape[1:]}; "
                        "all images must be of one size and colour, so leave it out or scale it"
                    )
                images.append(image)
            yield np.stack(images)


def read_png(path: Path) -> NDArray[np.float32]:
    """One image: (H, W) if grey, (C, H, W) in colour; transparency is left out."""
    from matplotlib.image import imread

    _check_size(path)
    try:
        image = np.asarray(imread(path, format="png"), dtype=np.float32)
    except (FileNotFoundError, PermissionError):
        raise
    except (*_DAMAGED, Warning) as error:
        raise DataError(
            f"{path} is not a PNG image, or damaged: {one_line(error)}; leave it out or save it again"
        ) from None
    if image.ndim == 2:
        return image
    colours = image[..., :1] if image.shape[-1] == 2 else image[..., :3]
    # A grey picture stored in colour is a grey picture.
    if colours.shape[-1] == 1 or (colours == colours[..., :1]).all():
        return np.ascontiguousarray(colours[..., 0])
    return np.ascontiguousarray(np.moveaxis(colours, -1, 0))


def _check_size(path: Path) -> None:
    """Compare the size that the header of an image promises with the budget: a megabyte can unfold to gigabytes."""
    with path.open("rb") as file:
        head = file.read(26)
    if len(head) < 26 or not head.startswith(_SIGNATURE) or head[12:16] != b"IHDR" or head[25] not in _SAMPLES:
        raise DataError(f"{path} is not a PNG image, or damaged: it has no header; leave it out or save it again")
    width, height = struct.unpack(">II", head[16:24])
    # Decoded, as float32, and a copy of that with the channels in front.
    within_budget(str(path), f"an image of {width}×{height}", width * height * _SAMPLES[head[25]] * (2 + 4 + 4))
