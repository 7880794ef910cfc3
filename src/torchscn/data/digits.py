"""The 8x8 grey digits that come with scikit-learn: 1,437 + 360, nothing to download."""

import importlib.util

import numpy as np
import torch

from torchscn.data.errors import DataError
from torchscn.data.image_set import ImageSet

__all__ = ["CLASSES", "NEEDED", "N_TEST", "is_available", "load"]

CLASSES = tuple("0123456789")
N_TEST = 360
SPLIT_SEED = 0
NEEDED = "The digits come with scikit-learn, which is not installed. Run: pip install torchscn[sklearn]"


def is_available() -> bool:
    """Whether scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None


def load(split: str) -> ImageSet:
    """One split of the digits; which images are the test ones never changes.

    Args:
        split: ``"train"`` or ``"test"``.

    Returns:
        Images ``(n, 1, 8, 8)``, their 17 levels of grey stretched to 0..255, and their digits.
    """
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise DataError(NEEDED) from error
    bunch = load_digits()
    grey = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    labels = bunch.target.astype(np.int64)
    digits = ImageSet("digits", torch.from_numpy(grey)[:, None], torch.from_numpy(labels), CLASSES)
    return digits.take(_rows(split, len(digits)))


def _rows(split: str, n_images: int) -> torch.Tensor:
    # NumPy promises this stream for ever (the legacy generator is frozen); torch.randperm makes no such promise.
    order = torch.from_numpy(np.random.RandomState(SPLIT_SEED).permutation(n_images))
    return order[:-N_TEST] if split == "train" else order[-N_TEST:]
