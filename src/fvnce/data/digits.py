"""The 1,797 handwritten digits of 8×8 pixels that ship with scikit-learn."""

from __future__ import annotations

import numpy as np
import torch

from .images import Images


def load_digits(*, test_share: float = 0.2, seed: int = 0) -> Images:
    """The digits, with a stratified test set drawn by ``seed``.

    >>> digits = load_digits()
    >>> digits.train.shape, digits.test.shape
    (torch.Size([1437, 64]), torch.Size([360, 64]))
    """
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    bunch = load()
    x = (bunch.data / 16).astype(np.float32)
    y = bunch.target.astype(np.int64)
    parts = train_test_split(x, y, test_size=test_share, stratify=y, random_state=seed)
    train, test, train_labels, test_labels = (torch.from_numpy(part) for part in parts)
    return Images("digits", train, train_labels, test, test_labels, (8, 8))
