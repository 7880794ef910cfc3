"""The 8x8 grey digits that come with scikit-learn: 1,437 + 360, nothing to download."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from torchscn.data.dataset import Dataset, DatasetStatus
from torchscn.data.errors import DataError
from torchscn.data.fetch import Progress
from torchscn.data.image_set import ImageSet

__all__ = ["CLASSES", "DIGITS", "NEEDED", "N_TEST"]

CLASSES = tuple("0123456789")
N_TEST = 360
SPLIT_SEED = 0
NEEDED = "The digits come with scikit-learn, which is not installed. Run: pip install torchscn[sklearn]"


@dataclass(frozen=True)
class PackagedDigits(Dataset):
    """The digits from scikit-learn; which of them are test images never changes."""

    @property
    def name(self) -> str:
        return "digits"

    def read(self, split: str, data_dir: str | Path | None) -> ImageSet:
        digits = _all_digits()
        return digits.take(_rows(split, len(digits)))

    def status(self, data_dir: str | Path | None = None, *, verify: bool = False) -> DatasetStatus:
        found = _has_scikit_learn()
        return DatasetStatus(self.name, found, None, (), "" if found else NEEDED, "scikit-learn", 0)

    def download(
        self, data_dir: str | Path | None = None, *, base_url: str | None = None, progress: Progress | None = None
    ) -> Path:
        raise DataError("The digits come with scikit-learn: just load them." if _has_scikit_learn() else NEEDED)


def _has_scikit_learn() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def _all_digits() -> ImageSet:
    """Images ``(n, 1, 8, 8)``, their 17 levels of grey stretched to 0..255, and their digits."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise DataError(NEEDED) from error
    bunch = load_digits()
    grey = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    labels = bunch.target.astype(np.int64)
    return ImageSet("digits", torch.from_numpy(grey)[:, None], torch.from_numpy(labels), CLASSES)


def _rows(split: str, n_images: int) -> torch.Tensor:
    # NumPy promises this stream forever (the legacy generator is frozen); torch.randperm makes no such promise.
    order = torch.from_numpy(np.random.RandomState(SPLIT_SEED).permutation(n_images))
    return order[:-N_TEST] if split == "train" else order[-N_TEST:]


DIGITS = PackagedDigits("digits")
