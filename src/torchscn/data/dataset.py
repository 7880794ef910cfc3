"""What a data set is: it has a name and a title, and can be loaded, checked for and downloaded."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchscn.data.errors import DataError, check_choice
from torchscn.data.fetch import Progress, fetch_files
from torchscn.data.files import (
    Content,
    Source,
    check_md5,
    check_size,
    find_data_dir,
    how_to_get,
    md5_of_file,
    read_split,
)
from torchscn.data.image_set import ImageSet

__all__ = ["SPLITS", "Dataset", "DatasetStatus", "FileDataset"]

SPLITS = ("train", "test")


@dataclass(frozen=True)
class DatasetStatus:
    """Whether a data set is ready to load.

    Args:
        name: the data set.
        found: whether every file is there and looks right.
        path: the folder its files are in or would be put in; ``None`` if no folder is needed or known.
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


@dataclass(frozen=True)
class Dataset(ABC):
    """A set of labelled images with a training and a test split.

    Args:
        title: what to call it in tables and headings.
    """

    title: str

    @property
    @abstractmethod
    def name(self) -> str:
        """What settings and commands call it."""

    def load(self, split: str = "train", data_dir: str | Path | None = None) -> ImageSet:
        """Load one split into memory.

        Args:
            split: ``"train"`` or ``"test"``.
            data_dir: the data folder; by default the environment variable ``TORCHSCN_DATA``.

        Returns:
            The images as an :class:`ImageSet`.

        Raises:
            DataError: an unknown split, no data folder, or files that are missing, truncated or not the official ones.
        """
        check_choice("split", split, SPLITS)
        return self.read(split, data_dir)

    @abstractmethod
    def read(self, split: str, data_dir: str | Path | None) -> ImageSet:
        """The images of a split that is known to exist."""

    @abstractmethod
    def status(self, data_dir: str | Path | None = None, *, verify: bool = False) -> DatasetStatus:
        """See whether it is ready, without loading it.

        Args:
            data_dir: the data folder, as for :meth:`load`; a missing one is reported as the problem.
            verify: also compare md5s, which reads every file; by default only sizes are compared.
        """

    @abstractmethod
    def download(
        self, data_dir: str | Path | None = None, *, base_url: str | None = None, progress: Progress | None = None
    ) -> Path:
        """Fetch it from its official address; arguments as for :func:`torchscn.data.download`.

        Returns:
            The folder with the files.

        Raises:
            DataError: no connection, something other than the official files arrived, or there is nothing to fetch.
        """


@dataclass(frozen=True)
class FileDataset(Dataset):
    """A data set published as files, each checked by size and md5 whenever it is read.

    Args:
        title: what to call it in tables and headings.
        source: its files and the address they come from.
        decode: makes images from path and content of every file of a split, in the order of ``source``.
    """

    source: Source
    decode: Callable[[Sequence[Content]], ImageSet]

    @property
    def name(self) -> str:
        return self.source.name

    def read(self, split: str, data_dir: str | Path | None) -> ImageSet:
        return self.decode(read_split(self.source, split, find_data_dir(data_dir)))

    def status(self, data_dir: str | Path | None = None, *, verify: bool = False) -> DatasetStatus:
        source = self.source
        path: Path | None = None
        missing = tuple(file.name for file in source.files)
        problem = ""
        try:
            path = source.folder(find_data_dir(data_dir))
            missing = source.missing(path)
            _check_present(source, path, verify)
            if missing:
                problem = f"{len(missing)} of {len(source.files)} files are missing. {how_to_get(self.name)}"
        except DataError as error:
            problem = str(error)
        return DatasetStatus(self.name, not problem, path, missing, problem, source.base_url, source.total_bytes)

    def download(
        self, data_dir: str | Path | None = None, *, base_url: str | None = None, progress: Progress | None = None
    ) -> Path:
        return fetch_files(self.source, find_data_dir(data_dir, create=True), base_url=base_url, progress=progress)


def _check_present(source: Source, path: Path, verify: bool) -> None:
    for file in source.files:
        located = file.locate(path)
        if located is None:
            continue
        form, file_path = located
        check_size(form, file_path, source.name)
        if verify:
            check_md5(form, file_path, md5_of_file(file_path), source.name)
