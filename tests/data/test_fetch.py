"""Downloads from a server on this machine that can be told to misbehave."""

import hashlib
import io
import tarfile
import threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from torchscn.data import DataError, catalog, download, fetch
from torchscn.data.files import OfficialFile
from torchscn.data.mnist import MNIST
from torchscn.data.stl10 import STL10


@dataclass
class Site:
    """What the server offers, how it behaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    wrong_range: bool = False
    break_after: list[int] = field(default_factory=list)  # one entry per answer that breaks off, after so many bytes
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self):
        name, wanted = self.path.lstrip("/"), self.headers.get("Range")
        self.site.asked.append((name, wanted))
        content = self.site.files.get(name)
        if content is None:
            return self.send_error(404)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.site.ranges else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        start = 1 if start and self.site.wrong_range else start
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if self.site.break_after:
            body = body[: self.site.break_after.pop(0)]
            self.close_connection = True
        self.wfile.write(body)
        return None

    def log_message(self, *args):
        """Stay silent."""


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    site = Site()
    handler = type("SiteHandler", (Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}/"
    yield site
    server.shutdown()
    server.server_close()
    thread.join()


def official(name: str, content: bytes) -> OfficialFile:
    return OfficialFile(name, hashlib.md5(content).hexdigest(), len(content))


@pytest.fixture
def small_mnist(site, monkeypatch):
    """Four short files behind the names of MNIST; returns their contents."""
    contents = {file.name: bytes([i]) * (1000 + i) for i, file in enumerate(MNIST.source.files)}
    files = [official(name, content) for name, content in contents.items()]
    source = replace(MNIST.source, train=tuple(files[:2]), test=tuple(files[2:]))
    monkeypatch.setattr(catalog, "DATASETS", (replace(MNIST, source=source),))
    site.files.update(contents)
    return contents


def tar_gz(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return stream.getvalue()


CONTENTS = {file.name: f"content of {file.name}".encode() for file in STL10.source.files}


@pytest.fixture
def small_stl10(site, monkeypatch):
    """Offer an archive as that of STL-10."""

    def offer(archive: bytes) -> None:
        files = [official(name, content) for name, content in CONTENTS.items()]
        source = replace(
            STL10.source,
            train=tuple(files[:2]),
            test=tuple(files[2:]),
            archive=replace(official("stl10_binary.tar.gz", archive), size=None),
        )
        monkeypatch.setattr(catalog, "DATASETS", (replace(STL10, source=source),))
        site.files["stl10_binary.tar.gz"] = archive

    return offer


def in_archive(contents: dict[str, bytes]) -> dict[str, bytes]:
    return {f"stl10_binary/{name}": content for name, content in contents.items()}


def everything_in(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_arrive_whole_and_are_not_fetched_twice(site, small_mnist, tmp_path):
    seen = []
    folder = download("mnist", tmp_path / "new", base_url=site.url, progress=lambda *step: seen.append(step))
    assert folder == tmp_path / "new" / "mnist"
    assert everything_in(folder) == small_mnist
    assert seen[0] == (0, 4006)
    assert seen[-1] == (4006, 4006)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    site.asked.clear()
    assert download("mnist", tmp_path / "new", base_url=site.url.rstrip("/")) == folder
    assert site.asked == []


def test_only_what_is_missing_or_wrong_is_fetched(site, small_mnist, tmp_path):
    folder = download("mnist", tmp_path, base_url=site.url)
    names = list(small_mnist)
    (folder / names[0]).unlink()
    (folder / names[1]).write_bytes(bytes(1001))
    site.asked.clear()
    download("mnist", tmp_path, base_url=site.url)
    assert [name for name, _ in site.asked] == names[:2]
    assert everything_in(folder) == small_mnist


def test_a_broken_connection_is_resumed_where_it_broke(site, small_mnist, tmp_path):
    site.break_after = [400, 100]
    folder = download("mnist", tmp_path, base_url=site.url)
    assert [wanted for _, wanted in site.asked[:3]] == [None, "bytes=400-", "bytes=500-"]
    assert everything_in(folder) == small_mnist


def test_a_download_given_up_is_resumed_by_the_next_call(site, small_mnist, tmp_path):
    first = next(iter(small_mnist))
    site.break_after = [100, 100, 100]
    with pytest.raises(
        DataError, match=r"was interrupted: 300 of 1,000 bytes received.*\.part; resume with: scn data get mnist"
    ):
        download("mnist", tmp_path, base_url=site.url)
    assert everything_in(tmp_path) == {f"mnist/{first}.part": small_mnist[first][:300]}
    site.asked.clear()
    assert everything_in(download("mnist", tmp_path, base_url=site.url)) == small_mnist
    assert site.asked[0] == (first, "bytes=300-")


@pytest.mark.parametrize("behaviour", [{"ranges": False}, {"wrong_range": True}])
def test_a_server_that_cannot_resume_starts_afresh(site, small_mnist, tmp_path, behaviour):
    vars(site).update(behaviour)
    first = next(iter(small_mnist))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / f"{first}.part").write_bytes(b"stale")
    assert everything_in(download("mnist", tmp_path, base_url=site.url)) == small_mnist


@pytest.mark.parametrize("n_bytes", [1000, 1500])
def test_a_part_with_nothing_left_to_fetch(site, small_mnist, tmp_path, n_bytes):
    """The server answers 416: the part is whole, or longer than the file and thrown away."""
    first = next(iter(small_mnist))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / f"{first}.part").write_bytes(small_mnist[first].ljust(n_bytes, b"x"))
    assert everything_in(download("mnist", tmp_path, base_url=site.url)) == small_mnist
    n_asked = sum(name == first for name, _ in site.asked)
    assert n_asked == (1 if n_bytes == 1000 else 2)


def test_a_wrong_file_is_refused_and_removed(site, small_mnist, tmp_path):
    first = next(iter(small_mnist))
    site.files[first] = b"x" * 1000
    with pytest.raises(DataError, match=r"was not right and has been removed.*expected md5"):
        download("mnist", tmp_path, base_url=site.url)
    assert everything_in(tmp_path) == {}


def test_an_absent_file_is_named(site, small_mnist, tmp_path):
    site.files.clear()
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz answered 404 Not Found.*by hand"):
        download("mnist", tmp_path, base_url=site.url)
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_server_is_named(site, small_mnist, tmp_path):
    with pytest.raises(DataError, match="cannot be reached"):
        download("mnist", tmp_path, base_url="http://127.0.0.1:1/")


def test_an_archive_is_unpacked_and_removed(site, small_stl10, tmp_path):
    small_stl10(tar_gz({"stl10_binary/unlabeled_X.bin": b"much"} | in_archive(CONTENTS)))
    assert everything_in(download("stl10", tmp_path, base_url=site.url)) == CONTENTS
    assert sorted(path.name for path in (tmp_path / "stl10").iterdir()) == sorted(CONTENTS)


def test_a_whole_archive_left_behind_is_used_again(site, small_stl10, tmp_path):
    archive = tar_gz(in_archive(CONTENTS))
    small_stl10(archive)
    (tmp_path / "stl10").mkdir()
    (tmp_path / "stl10" / "stl10_binary.tar.gz").write_bytes(archive)
    assert everything_in(download("stl10", tmp_path, base_url=site.url)) == CONTENTS
    assert site.asked == []


def test_nothing_else_leaves_the_archive(site, small_stl10, tmp_path):
    """Paths that climb out, absolute paths and names that are not expected are passed over."""
    evil = {"../evil.bin": b"1", "stl10_binary/../../evil.bin": b"2", str(tmp_path / "evil.bin"): b"3", "notes": b"4"}
    small_stl10(tar_gz(evil | in_archive(CONTENTS)))
    folder = download("stl10", tmp_path / "data", base_url=site.url)
    assert everything_in(tmp_path) == {f"data/stl10/{name}": content for name, content in CONTENTS.items()}
    assert everything_in(folder) == CONTENTS


def test_a_link_in_place_of_a_file_is_refused(site, small_stl10, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENTS["test_y.bin"])
    honest = {name: content for name, content in CONTENTS.items() if name != "test_y.bin"}
    small_stl10(tar_gz(in_archive(honest), links={"stl10_binary/test_y.bin": str(secret)}))
    with pytest.raises(DataError, match=r"does not hold stl10_binary/test_y\.bin"):
        download("stl10", tmp_path / "data", base_url=site.url)
    assert list(everything_in(tmp_path / "data")) == ["stl10/stl10_binary.tar.gz"]


@pytest.mark.parametrize("change", [slice(0, 60), slice(60, None)])
def test_a_damaged_archive_leaves_no_files(site, small_stl10, tmp_path, change):
    small_stl10(tar_gz(in_archive(CONTENTS))[change])
    with pytest.raises(DataError, match="cannot be unpacked"):
        download("stl10", tmp_path, base_url=site.url)
    assert list(everything_in(tmp_path)) == ["stl10/stl10_binary.tar.gz"]


def full_disk(*arguments):
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_not_taken_for_a_broken_connection(site, small_mnist, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(fetch, "_write_all", full_disk)
        with pytest.raises(DataError, match=r"\.part cannot be written \(.*No space left.*resumes"):
            download("mnist", tmp_path, base_url=site.url)
    assert len(site.asked) == 1
    assert everything_in(download("mnist", tmp_path, base_url=site.url)) == small_mnist


def test_a_full_disk_is_not_taken_for_a_damaged_archive(site, small_stl10, tmp_path, monkeypatch):
    small_stl10(tar_gz(in_archive(CONTENTS)))
    with monkeypatch.context() as patch:
        patch.setattr(fetch, "_extract", full_disk)
        with pytest.raises(DataError, match=r"No space left.*free some space"):
            download("stl10", tmp_path, base_url=site.url)
    assert everything_in(download("stl10", tmp_path, base_url=site.url)) == CONTENTS


def test_wrong_content_in_the_archive_is_refused(site, small_stl10, tmp_path):
    small_stl10(tar_gz(in_archive(CONTENTS | {"test_y.bin": b"contenT of test_y.bin"})))
    with pytest.raises(DataError, match=r"not the official test_y\.bin"):
        download("stl10", tmp_path, base_url=site.url)
    assert list(everything_in(tmp_path)) == ["stl10/stl10_binary.tar.gz"]


def test_names_and_addresses_are_checked(tmp_path):
    with pytest.raises(DataError, match=r"Did you mean 'mnist'\?"):
        download("minst", tmp_path)
    with pytest.raises(DataError, match="come with scikit-learn"):
        download("digits", tmp_path)
    with pytest.raises(DataError, match="must start with http:// or https://"):
        download("mnist", tmp_path, base_url="file:///etc/")
