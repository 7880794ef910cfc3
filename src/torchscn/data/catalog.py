"""Data sets by name: load one, list them, and see which are there."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchscn.data import cifar, digits, folder, mnist, stl10
from torchscn.data.errors import DataError, check_choice
from torchscn.data.files import Source, check_md5, check_size, find_data_dir, how_to_get, md5_of_file
from torchscn.data.image_set import ImageSet

__all__ = ["SOURCES", "DatasetStatus", "list_datasets", "load", "status"]

SOURCES: dict[str, Source] = {
    source.name: source for source in (mnist.SOURCE, cifar.CIFAR10, cifar.CIFAR100, stl10.SOURCE)
}
_READERS: dict[str, Callable[[str, Path], ImageSet]] = {
    "mnist": mnist.load,
    "cifar10": cifar.load_cifar10,
    "cifar100": cifar.load_cifar100,
    "stl10": stl10.load,
}
SPLITS = ("train", "test")


@dataclass(frozen=True)
class DatasetStatus:
    """Whether a data set is ready to load.

    Args:
        name: the data set.
        found: every file is there and looks right.
        path: the folder its files are in or would go to; ``None`` if no folder is needed or known.
        missing: names of the files that are not there.
        problem: what is wrong and what to do, empty if nothing is.
        source: the address it comes from.
        total_bytes: size of all its files.
    """

    name: str
    found: bool
    path: Path | None
    missing: tuple[str, ...]
    problem: str
    source: str
    total_bytes: int


def list_datasets() -> list[str]:
    """Names usable in :func:`load`; a folder of your own images is ``folder:PATH``.

    Example:
        >>> list_datasets()
        ['mnist', 'cifar10', 'cifar100', 'stl10', 'digits']
    """
    return [*SOURCES, "digits"]


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
    check_choice("split", split, SPLITS)
    if name.startswith(folder.PREFIX):
        return folder.load(name, split)
    check_choice("data set", name, [*list_datasets(), f"{folder.PREFIX}PATH"])
    if name == "digits":
        return digits.load(split)
    return _READERS[name](split, find_data_dir(data_dir))


def status(data_dir: str | Path | None = None, *, verify: bool = False) -> list[DatasetStatus]:
    """See which data sets are ready, without loading them.

    Args:
        data_dir: the data folder, as for :func:`load`; a missing one is reported as the problem of each data set.
        verify: also compare md5s, which reads every file; by default only sizes are compared.

    Returns:
        One entry per data set of :func:`list_datasets`.
    """
    return [*(_source_status(source, data_dir, verify) for source in SOURCES.values()), _digits_status()]


def _source_status(source: Source, data_dir: str | Path | None, verify: bool) -> DatasetStatus:
    path: Path | None = None
    missing = tuple(file.name for file in source.files)
    problem = ""
    try:
        path = source.folder(find_data_dir(data_dir))
        missing = source.missing(path)
        _check_present(source, path, verify)
        if missing:
            problem = f"{len(missing)} of {len(source.files)} files are missing. {how_to_get(source.name)}"
    except DataError as error:
        problem = str(error)
    return DatasetStatus(source.name, not problem, path, missing, problem, source.base_url, source.total_bytes)


def _check_present(source: Source, path: Path, verify: bool) -> None:
    for file in source.files:
        located = file.locate(path)
        if located is None:
            continue
        form, file_path = located
        check_size(form, file_path, source.name)
        if verify:
            check_md5(form, file_path, md5_of_file(file_path), source.name)


def _digits_status() -> DatasetStatus:
    found = digits.is_available()
    return DatasetStatus("digits", found, None, (), "" if found else digits.NEEDED, "scikit-learn", 0)
