"""Data sets by name: load one, list them, see which are available, download one."""

from pathlib import Path

from torchscn.data import folder
from torchscn.data.cifar import CIFAR10, CIFAR100
from torchscn.data.dataset import SPLITS, Dataset, DatasetStatus
from torchscn.data.digits import DIGITS
from torchscn.data.errors import check_choice
from torchscn.data.fashion_mnist import FASHION_MNIST
from torchscn.data.fetch import Progress
from torchscn.data.image_set import ImageSet
from torchscn.data.mnist import MNIST
from torchscn.data.stl10 import STL10

__all__ = ["DATASETS", "download", "list_datasets", "load", "status"]

DATASETS: tuple[Dataset, ...] = (MNIST, FASHION_MNIST, CIFAR10, CIFAR100, STL10, DIGITS)
"""Every data set; to add one, write its file and name it here."""


def list_datasets() -> list[str]:
    """Names usable in :func:`load`; a folder of your own images is ``folder:PATH``.

    Example:
        >>> list_datasets()
        ['mnist', 'fashion_mnist', 'cifar10', 'cifar100', 'stl10', 'digits']
    """
    return [dataset.name for dataset in DATASETS]


def load(name: str, split: str = "train", data_dir: str | Path | None = None) -> ImageSet:
    """Load one split of a data set into memory, its files checked by size and md5.

    Args:
        name: one of :func:`list_datasets`, or ``folder:PATH`` (``folder:PATH?size=64`` resizes).
        split: ``"train"`` or ``"test"``.
        data_dir: the data folder; by default the environment variable ``TORCHSCN_DATA``. Digits and folders need none.

    Returns:
        The images as an :class:`ImageSet`.

    Raises:
        DataError: unknown name, no data folder, or files that are missing, truncated or not the official ones.

    Example:
        >>> load("digits", "test")
        ImageSet('digits': 360 images of 1x8x8, 10 classes)
    """
    if name.startswith(folder.PREFIX):
        check_choice("split", split, SPLITS)
        return folder.load(name, split)
    check_choice("data set", name, [*list_datasets(), f"{folder.PREFIX}PATH"])
    return _find(name).load(split, data_dir)


def status(data_dir: str | Path | None = None, *, verify: bool = False) -> list[DatasetStatus]:
    """See which data sets are ready, without loading them.

    Args:
        data_dir: the data folder, as for :func:`load`; a missing one is reported as the problem of each data set.
        verify: also compare md5s, which reads every file; by default only sizes are compared.

    Returns:
        One entry per data set of :func:`list_datasets`.
    """
    return [dataset.status(data_dir, verify=verify) for dataset in DATASETS]


def download(
    name: str,
    data_dir: str | Path | None = None,
    *,
    base_url: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch a data set from its official address; files that are present and correct are not fetched again.

    A broken download leaves a ``.part`` file, which the next call resumes. Every file is compared with its official md5
    before it is moved into place, so the folder only holds complete files.

    Args:
        name: one of :func:`list_datasets`.
        data_dir: the data folder, created if it does not exist; by default the environment variable ``TORCHSCN_DATA``.
        base_url: another address to fetch the same files from (a mirror).
        progress: called with the bytes so far and the total (``None`` if the server does not say).

    Returns:
        The folder with the files.

    Raises:
        DataError: unknown name, no connection, or something other than the official files arrived.
    """
    check_choice("data set", name, list_datasets())
    return _find(name).download(data_dir, base_url=base_url, progress=progress)


def _find(name: str) -> Dataset:
    return next(dataset for dataset in DATASETS if dataset.name == name)
