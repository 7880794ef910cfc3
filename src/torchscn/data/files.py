"""Finding the official files of a data set and checking them by size and md5."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchscn.data.errors import DataError

__all__ = [
    "CHUNK_BYTES",
    "Content",
    "OfficialFile",
    "Source",
    "check_md5",
    "check_size",
    "find_data_dir",
    "how_to_get",
    "md5_of_file",
    "read_checked",
    "read_split",
]

ENVIRONMENT = "TORCHSCN_DATA"
CHUNK_BYTES = 1 << 20

Content = tuple[Path, bytes]
"""The path of a file that was read, and what was in it."""


@dataclass(frozen=True)
class OfficialFile:
    """One file as it was published.

    Args:
        name: its file name.
        md5: its official md5.
        size: its size in bytes; ``None`` if only the md5 was published.
        unpacked: the same content uncompressed, accepted instead.
    """

    name: str
    md5: str
    size: int | None = None
    unpacked: "OfficialFile | None" = None

    def locate(self, folder: Path) -> "tuple[OfficialFile, Path] | None":
        """This file, or else its unpacked form, if ``folder`` has one of them."""
        for form in (self, self.unpacked):
            if form is not None and (folder / form.name).is_file():
                return form, folder / form.name
        return None


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and where its files may be.

    Args:
        name: the data set.
        folders: places inside the data folder, ours first, then that of the official archive.
        train: the files of the training split.
        test: the files of the test split.
        base_url: the address the files or the archive are fetched from, with a final slash.
        archive: the tar.gz that holds the files; ``None`` if they are fetched one by one.
    """

    name: str
    folders: tuple[str, ...]
    train: tuple[OfficialFile, ...]
    test: tuple[OfficialFile, ...]
    base_url: str
    archive: OfficialFile | None = None

    @property
    def files(self) -> tuple[OfficialFile, ...]:
        """The files of both splits."""
        return self.train + self.test

    @property
    def total_bytes(self) -> int:
        """Bytes of all the files."""
        return sum(file.size or 0 for file in self.files)

    def of_split(self, split: str) -> tuple[OfficialFile, ...]:
        """The files of one split."""
        return self.train if split == "train" else self.test

    def folder(self, data_dir: Path) -> Path:
        """The folder under ``data_dir`` that holds most of the files; ours if none holds any."""
        return min((data_dir / name for name in self.folders), key=lambda folder: len(self.missing(folder)))

    def missing(self, folder: Path) -> tuple[str, ...]:
        """Names of the files that ``folder`` lacks."""
        return tuple(file.name for file in self.files if file.locate(folder) is None)


def find_data_dir(data_dir: str | Path | None, *, create: bool = False) -> Path:
    """The data folder: the argument, else the environment variable ``TORCHSCN_DATA``.

    Args:
        data_dir: a folder, or ``None`` to use the environment variable.
        create: create the folder if it does not exist, instead of raising an error.

    Returns:
        The folder, which exists.
    """
    chosen = data_dir or os.environ.get(ENVIRONMENT)
    if not chosen:
        raise DataError(
            f"No data folder is set. Pass data_dir=..., or set the environment variable {ENVIRONMENT} to a folder "
            "for the data sets."
        )
    folder = Path(chosen).expanduser()
    if create:
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        origin = "data_dir" if data_dir else ENVIRONMENT
        raise DataError(f"The data folder {folder} ({origin}) does not exist; create it or name another one.")
    return folder


def read_split(source: Source, split: str, data_dir: Path) -> list[Content]:
    """Path and checked content of every file of one split, in the order of ``source``."""
    folder = source.folder(data_dir)
    return [read_checked(file, folder, source) for file in source.of_split(split)]


def read_checked(file: OfficialFile, folder: Path, source: Source) -> Content:
    """Content of a file, after checking that its size and md5 are the official ones.

    Args:
        file: what is expected.
        folder: where it should be.
        source: its data set, for the error message.

    Returns:
        The path that was read (of the unpacked form, if that is what was there) and its bytes.
    """
    located = file.locate(folder)
    if located is None:
        places = " or ".join(f"{name}/" for name in source.folders)
        raise DataError(
            f"{folder / file.name} is missing; {source.name} needs it in {places} of the data folder. "
            f"{how_to_get(source.name)}"
        )
    form, path = located
    check_size(form, path, source.name)
    content = path.read_bytes()
    check_md5(form, path, md5_of([content]), source.name)
    return path, content


def check_size(file: OfficialFile, path: Path, dataset: str) -> None:
    """Check that ``path`` has the official number of bytes."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        what = "is truncated" if size < file.size else "is too long"
        raise DataError(f"{path} {what}: expected {file.size:,} bytes, found {size:,}. {how_to_get(dataset)}")


def check_md5(file: OfficialFile, path: Path, found: str, dataset: str) -> None:
    """Check that ``found``, the md5 of ``path``, is the official one."""
    if found != file.md5:
        raise DataError(
            f"{path} is not the official {file.name}: expected md5 {file.md5}, found {found}. {how_to_get(dataset)}"
        )


def md5_of(chunks: Iterable[bytes]) -> str:
    """Hexadecimal md5 of the chunks put together."""
    digest = hashlib.md5(usedforsecurity=False)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def md5_of_file(path: Path) -> str:
    """Hexadecimal md5 of a file, read piece by piece."""
    with path.open("rb") as stream:
        return md5_of(iter(lambda: stream.read(CHUNK_BYTES), b""))


def how_to_get(dataset: str) -> str:
    """The sentence that says how to fetch good files."""
    return f"Fetch it with: scn data get {dataset}"
