"""A folder of PNG images of one size, as arrays of shape (n, H, W), in colour (n, C, H, W), with values in [0, 1]."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .frame import DataError


class PictureReader:
    """The PNG files of a folder and those below it, in the order of their names."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.files = sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".png" and path.is_file())
        if not self.files:
            raise DataError(f"{folder} must hold PNG images, found none in it or below it")
        self.names = [str(path.relative_to(folder)) for path in self.files]
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
                        "all images must be of one size and colour"
                    )
                images.append(image)
            yield np.stack(images)


def read_png(path: Path) -> NDArray[np.float32]:
    """One image: (H, W) if grey, (C, H, W) in colour; transparency is left out."""
    from matplotlib.image import imread

    try:
        image = np.asarray(imread(path, format="png"), dtype=np.float32)
    except FileNotFoundError:
        raise
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} is not a PNG image, or damaged: {' '.join(str(error).split())}") from None
    if image.ndim == 2:
        return image
    colours = image[..., :1] if image.shape[-1] == 2 else image[..., :3]
    # A grey picture stored in colour is a grey picture.
    if colours.shape[-1] == 1 or (colours == colours[..., :1]).all():
        return np.ascontiguousarray(colours[..., 0])
    return np.ascontiguousarray(np.moveaxis(colours, -1, 0))
