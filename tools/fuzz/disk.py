"""Full disks: whatever is being written when no more bytes fit, the run goes on from its last checkpoint afterwards.

A limit on the size of files stands for the full disk: the system then refuses to write at the same places, with another
error number.
"""

import hashlib
import http.server
import io
import resource
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from tools.fuzz.child import Fault, run_command
from tools.fuzz.judge import Wrong, check_sentence, problem_of
from tools.fuzz.kills import SETTINGS
from tools.fuzz.outcome import Outcome, Report, Tally
from torchscn.data import DataError
from torchscn.data.dataset import FileDataset
from torchscn.data.files import OfficialFile
from torchscn.data.mnist import MNIST
from torchscn.data.stl10 import STL10
from torchscn.training.checkpoint import load_checkpoint
from torchscn.training.run_folder import RunFolder

__all__ = ["run"]

# The end of the name under which each file of a run is written, and how many of its bytes fit.
WRITTEN = {
    "checkpoint": ("checkpoint.next.safetensors.tmp", (0, 4_096, 100_000)),
    "trained network": ("model.safetensors.tmp", (0, 4_096)),
    "metrics": ("metrics.jsonl.tmp", (10,)),
    "environment": ("environment.json.tmp", (10,)),
    "settings": ("config.json.tmp", (0,)),
    "picture": ("curves.png.tmp", (100,)),
}


def run(report: Report) -> list[Outcome]:
    """Let the disk be full while each kind of file is written.

    Args:
        report: is told about failures, and about every kind in one line.

    Returns:
        One outcome for each kind of file.
    """
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        run_command(["info"], scratch)  # the first process waits for torch to be loaded
        expected = _complete(scratch / "undisturbed", scratch)
        halfway = _stop_halfway(scratch)
        of_runs = [_run_kind(what, *how, scratch, halfway, expected, report) for what, how in WRITTEN.items()]
        return [*of_runs, _run_downloads(scratch, report)]


def _command(folder: Path) -> list[str]:
    resume = ["--resume"] if RunFolder(folder).has_checkpoint() else []
    return ["train", "digits", *SETTINGS, "--run-dir", str(folder), *resume]


def _complete(folder: Path, scratch: Path) -> bytes:
    """Run or resume a training to its end; returns the network."""
    ended = run_command(_command(folder), scratch)
    if ended.code != 0:
        raise Wrong(f"with space on the disk, the training failed with exit code {ended.code}: {ended.complaints}")
    return (folder / "model.safetensors").read_bytes()


def _stop_halfway(scratch: Path) -> Path:
    """A run that was killed in its second epoch."""
    folder = scratch / "halfway"
    run_command(_command(folder), scratch, Fault("kill", "checkpoint.next.safetensors.tmp", nth=20))
    return folder


def _run_kind(
    what: str, name: str, sizes: Sequence[int], scratch: Path, halfway: Path, expected: bytes, report: Report
) -> Outcome:
    tally = Tally(f"disk full at the {what}", report)
    for size in sizes:
        for start in (None, halfway):
            case = f"{size} bytes fit, {'a new run' if start is None else 'a resumed run'}"
            tally.add(case, problem_of(partial(_check_run, scratch, start, Fault("full", name, size=size), expected)))
    return tally.outcome()


def _check_run(scratch: Path, start: Path | None, fault: Fault, expected: bytes) -> None:
    """A run that meets a full disk says so, leaves no rubbish, keeps its checkpoint and can be resumed."""
    folder = scratch / "run"
    shutil.rmtree(folder, ignore_errors=True)
    if start is not None:
        shutil.copytree(start, folder)
    ended = run_command(_command(folder), scratch, fault)
    if ended.code != 1:
        raise Wrong(f"exit code {ended.code}: {ended.complaints}")
    check_sentence(ended.complaints.rstrip("\n"), folder / fault.name.removesuffix(".tmp"))
    rubbish = [path.name for path in folder.glob("*.tmp")]
    if rubbish:
        raise Wrong(f"left behind: {rubbish}")
    if start is not None:
        _, problem = load_checkpoint(folder)
        if problem is not None:
            raise Wrong(problem)
    if _complete(folder, scratch) != expected:
        raise Wrong("the resumed run arrived at another network")


def _run_downloads(scratch: Path, report: Report) -> Outcome:
    """The files of MNIST come one by one, those of STL-10 in an archive; here they are small and of zeros."""
    tally = Tally("disk full at a download", report)
    contents = {file.name: bytes(100_000 + n) for n, file in enumerate((*MNIST.source.files, *STL10.source.files))}
    archive = _pack({f"stl10_binary/{file.name}": contents[file.name] for file in STL10.source.files})
    files = contents | {"stl10_binary.tar.gz": archive}
    site = scratch / "site"
    site.mkdir()
    for name, content in files.items():
        (site / name).write_bytes(content)
    with _served(site) as url:
        for dataset in (MNIST, STL10):
            small = _small(dataset, files)
            for size in (0, 100, len(archive) // 2, len(archive), 50_000):  # the last ones fit the archive alone
                check = partial(_check_download, small, scratch / "downloads", url, size, contents)
                tally.add(f"{dataset.title}, {size} bytes fit", problem_of(check))
    return tally.outcome()


def _pack(contents: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def _small(dataset: FileDataset, contents: dict[str, bytes]) -> FileDataset:
    """The data set with these files as its official ones."""

    def official(file: OfficialFile) -> OfficialFile:
        content = contents[file.name]
        return OfficialFile(file.name, hashlib.md5(content, usedforsecurity=False).hexdigest(), len(content))

    source = dataset.source
    train, test = (tuple(map(official, files)) for files in (source.train, source.test))
    archive = None if source.archive is None else official(source.archive)
    return replace(dataset, source=replace(source, train=train, test=test, archive=archive))


def _check_download(dataset: FileDataset, data_dir: Path, url: str, size: int, contents: dict[str, bytes]) -> None:
    shutil.rmtree(data_dir, ignore_errors=True)
    data_dir.mkdir()
    try:
        with _files_up_to(size):
            dataset.download(data_dir, base_url=url)
    except DataError as error:
        check_sentence(str(error), data_dir)
        if "fetch it again" in str(error) or "interrupted" in str(error):
            raise Wrong(f"not the disk is blamed: {error}") from error
    else:
        raise Wrong("nothing was noticed")
    folder = dataset.download(data_dir, base_url=url)
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    if found != {file.name: contents[file.name] for file in dataset.source.files}:
        raise Wrong(f"other files: {sorted(found)}")


@contextmanager
def _files_up_to(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond ``size`` bytes; Python ignores the signal that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *values: object) -> None:
        """Say nothing."""


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The address at which the files of a folder can be fetched."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
