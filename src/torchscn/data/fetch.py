"""Fetching the official files: resumed where a download stopped, checked by md5 before they are moved into place."""

import http.client
import io
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from torchscn.data.errors import DataError
from torchscn.data.files import CHUNK_BYTES, OfficialFile, Source, check_md5, check_size, md5_of_file

__all__ = ["Progress", "fetch_files"]

Progress = Callable[[int, int | None], None]

ATTEMPTS = 3  # a broken connection is resumed this often before giving up
TIMEOUT_SECONDS = 60


class _BrokenConnectionError(Exception):
    """The server stopped before the end; what arrived is kept and can be resumed."""


def fetch_files(
    source: Source, data_dir: Path, *, base_url: str | None = None, progress: Progress | None = None
) -> Path:
    """Fetch those files of a data set that are missing or wrong; the next call resumes a broken download.

    Args:
        source: the files.
        data_dir: the data folder, which must exist.
        base_url: another address to fetch the same files from (a mirror).
        progress: called with the bytes so far and the total (``None`` if the server does not say).

    Returns:
        The folder with the files.

    Raises:
        DataError: no connection, or something other than the official files arrived.
    """
    folder = source.folder(data_dir)
    wanted = [file for file in source.files if not _is_right(file, folder)]
    if not wanted:
        return folder
    address = _checked_url(base_url or source.base_url)
    report = progress or _silent
    if source.archive is None:
        _fetch_each(wanted, source, folder, address, report)
    else:
        archive = _fetch(source.archive, source, folder, address, report)
        _unpack(archive, wanted, source, folder)
        archive.unlink()
    return folder


def _is_right(file: OfficialFile, folder: Path) -> bool:
    located = file.locate(folder)
    if located is None:
        return False
    form, path = located
    return form.size in (None, path.stat().st_size) and md5_of_file(path) == form.md5


def _checked_url(base_url: str) -> str:
    if urlsplit(base_url).scheme not in ("http", "https"):
        raise DataError(f"base_url must start with http:// or https://; got {base_url!r}.")
    return base_url if base_url.endswith("/") else f"{base_url}/"


def _silent(done: int, total: int | None) -> None:
    """Report nothing."""


def _fetch_each(wanted: list[OfficialFile], source: Source, folder: Path, base_url: str, report: Progress) -> None:
    """Fetch the files one by one, reporting on all of them together."""
    total = sum(file.size or 0 for file in wanted)
    before = 0

    def report_all(done: int, _: int | None) -> None:
        report(before + done, total)

    for file in wanted:
        _fetch(file, source, folder, base_url, report_all)
        before += file.size or 0


def _fetch(file: OfficialFile, source: Source, folder: Path, base_url: str, report: Progress) -> Path:
    """Fetch one file, resuming its ``.part``; it gets its final name once its md5 is right."""
    path, part = folder / file.name, folder / f"{file.name}.part"
    if _is_right(file, folder):
        return path
    url = urljoin(base_url, file.name)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _receive(url, part, report)
            break
        except _BrokenConnectionError as broken:
            if attempt == ATTEMPTS:
                raise DataError(
                    f"{url} was interrupted: {broken}. {_bytes_of(part):,} bytes are kept in {part}; "
                    f"resume with: scn data get {source.name}"
                ) from broken
    try:
        check_size(file, part, source.name)
        check_md5(file, part, md5_of_file(part), source.name)
    except DataError as error:
        part.unlink()
        raise DataError(f"The file from {url} was not right and has been removed. {error}") from error
    part.replace(path)
    return path


def _receive(url: str, part: Path, report: Progress) -> None:
    """Append what is still missing to ``part``."""
    have = _bytes_of(part)
    headers = {"User-Agent": "torchscn"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS) as response:
            resumed = response.status == 206 and _range_start(response) == have
            if response.status == 206 and not resumed:
                part.unlink()
                raise _BrokenConnectionError("the server resumed at another position than the one requested")
            _write(response, part, have if resumed else 0, report)
    except urllib.error.HTTPError as error:
        with error:
            _judge_refusal(error, url, part, have, report)
    except urllib.error.URLError as error:
        if have:
            raise _BrokenConnectionError(str(error.reason)) from error
        raise DataError(
            f"{url} cannot be reached ({error.reason}); check the connection, or give a base_url."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenConnectionError(str(error) or type(error).__name__) from error


def _write(response: http.client.HTTPResponse, part: Path, start: int, report: Progress) -> None:
    """Stream the response into ``part`` from byte ``start`` on."""
    length = response.headers.get("Content-Length")
    total = start + int(length) if length else None
    done = start
    with _errors_of_disk(part):
        part.parent.mkdir(parents=True, exist_ok=True)
        stream = part.open("ab" if start else "wb", buffering=0)  # a buffer would report a full disk late
    with stream:
        report(done, total)
        while chunk := response.read(CHUNK_BYTES):
            with _errors_of_disk(part):
                _write_all(stream, chunk)
            done += len(chunk)
            report(done, total)
    if total is not None and done < total:
        raise _BrokenConnectionError(f"{done:,} of {total:,} bytes received")


def _write_all(stream: io.FileIO, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[stream.write(left) :]


@contextmanager
def _errors_of_disk(path: Path) -> Iterator[None]:
    """Tell errors of the disk from those of the connection, which are retried."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path} cannot be written ({error}). Free some space, then run the same command: it resumes the download."
        ) from error


def _judge_refusal(error: urllib.error.HTTPError, url: str, part: Path, have: int, report: Progress) -> None:
    """An HTTP error: 416 means that nothing is missing, or that ``part`` is too long; anything else is an error."""
    if error.code != 416 or not have:
        raise DataError(
            f"{url} answered {error.code} {error.reason}; try later, give another base_url, "
            f"or put the files into {part.parent} by hand."
        ) from error
    total = re.search(r"\*/(\d+)", error.headers.get("Content-Range", ""))
    if total is not None and int(total[1]) == have:
        report(have, have)
        return
    part.unlink()
    raise _BrokenConnectionError("the file to be resumed was longer than the server's; starting over") from error


def _range_start(response: http.client.HTTPResponse) -> int | None:
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _bytes_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _unpack(archive: Path, wanted: list[OfficialFile], source: Source, folder: Path) -> None:
    """Move the wanted files of a tar.gz into ``folder``: only regular files with the expected names, each checked."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack-") as scratch:
        expected = {f"{source.folders[-1]}/{file.name}": file for file in wanted}
        try:
            _extract(archive, set(expected), Path(scratch))
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            is_disk = isinstance(error, OSError) and error.errno is not None  # a damaged archive has no such number
            advice = "free some space, and try again." if is_disk else "remove it and fetch it again."
            raise DataError(f"{archive} cannot be unpacked ({error}); {advice}") from error
        for member, file in expected.items():
            path = Path(scratch) / member
            if not path.is_file():
                raise DataError(f"{archive} does not hold {member}; remove it and fetch it again.")
            check_size(file, path, source.name)
            check_md5(file, path, md5_of_file(path), source.name)
        for member, file in expected.items():
            shutil.move(Path(scratch) / member, folder / file.name)


def _extract(archive: Path, names: set[str], folder: Path) -> None:
    """Unpack the regular files called ``names``, and nothing else."""
    left = set(names)
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if name in left and member.isreg():
                tar.extract(member, folder, filter="data")
                left.discard(name)
            if not left:
                return
