"""The server over real connections: what it answers, what it refuses, and that it lives on."""

import io
import json
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection

import PIL.Image
import pytest
import torch

from tests.explore.conftest import serving, small
from torchscn.explore import Explorer, make_server, serve, server
from torchscn.explore.fields import pack
from torchscn.explore.server import LARGEST_IMAGE, LARGEST_JSON, ExploreServer

QUESTION = json.dumps({"pixels": pack(torch.zeros(1, 8, 8, dtype=torch.uint8)), "layer": 2}).encode()
JSON = {"Content-Type": "application/json"}
BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def running() -> Iterator[ExploreServer]:
    with serving(Explorer(small())) as running:
        yield running


class Answer:
    """Status, headers and content of a response."""

    def __init__(self, connection: HTTPConnection):
        response = connection.getresponse()
        self.status, self.headers, self.content = response.status, response.headers, response.read()

    @property
    def json(self) -> dict:
        return json.loads(self.content)


def send(
    running: ExploreServer, method: str, path: str, body: bytes | None = None, headers: dict | None = None
) -> Answer:
    """One request; the headers may replace Host and Content-Length, or leave them out with None."""
    headers = {"Host": f"127.0.0.1:{running.server_port}"} | (headers or {})
    if body is not None:
        headers = {"Content-Length": str(len(body))} | headers
    connection = HTTPConnection("127.0.0.1", running.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(body)
    answer = Answer(connection)
    connection.close()
    return answer


def assert_refused(answer: Answer, status: int, message: str) -> None:
    assert answer.status == status
    assert answer.headers["Content-Type"] == "application/json"
    assert list(answer.json) == ["error"]
    assert message in answer.json["error"]
    assert answer.json["error"].endswith(".")


def assert_alive(running: ExploreServer) -> None:
    assert send(running, "POST", "/look", QUESTION, JSON).status == 200


def image_file(kind: str = "PNG", mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> bytes:
    file = io.BytesIO()
    PIL.Image.new(mode, size, "white").save(file, kind)
    return file.getvalue()


def test_the_page_is_whole_and_safe(running):
    answer = send(running, "GET", "/")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    text = answer.content.decode()
    assert text.startswith("<!doctype html>")
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")  # the name of a format, never fetched
    assert "https://" not in text
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"


def test_questions_are_answered(running):
    about = send(running, "GET", "/describe").json
    assert about["classes"] == list("0123456789")
    answer = send(running, "POST", "/look", QUESTION, JSON)
    assert (answer.status, answer.json["shape"][1:]) == (200, [8, 8])
    assert answer.headers["Cache-Control"] == "no-store"
    pictures = send(running, "POST", "/pictures", json.dumps({"layer": 2, "atoms": [0, 1]}).encode(), JSON)
    assert (pictures.status, len(pictures.json["pictures"])) == (200, 2)


def test_one_connection_carries_many_questions(running):
    connection = HTTPConnection("127.0.0.1", running.server_port, timeout=10)
    for _ in range(3):
        connection.request("POST", "/look", QUESTION, JSON)
        assert Answer(connection).status == 200
        connection.request("POST", "/look", b"{}", JSON)
        assert_refused(Answer(connection), 400, "a request needs an image")
    connection.close()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_image_files_become_pixels(running, kind):
    answer = send(running, "POST", "/image", image_file(kind), BYTES)
    assert answer.status == 200
    assert answer.json == {"pixels": pack(torch.full((1, 8, 8), 255, dtype=torch.uint8))}


@pytest.mark.parametrize(
    "content", [b"", b"not an image", image_file()[:60], image_file("TIFF"), image_file("PPM"), image_file("PDF")]
)
def test_what_is_no_image_is_refused(running, content):
    answer = send(running, "POST", "/image", content, BYTES)
    assert_refused(answer, 400, "this cannot be read as an image")
    assert "BytesIO" not in answer.json["error"]
    assert_alive(running)


def test_without_pillow_the_extra_is_named_and_drawing_works(running, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "PIL"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    answer = send(running, "POST", "/image", b"any", BYTES)
    assert (answer.status, answer.json["error"][-28:]) == (400, "pip install torchscn[images]")
    drawing = json.dumps({"drawing": pack(torch.zeros(280, 280, dtype=torch.uint8))}).encode()
    assert send(running, "POST", "/look", drawing, JSON).status == 200


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "127.0.0.1", "127.0.0.1:1", "localhost", "[::1]:{port}", "evil.example:{port}"]
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("GET", "/describe"), ("POST", "/look")])
def test_foreign_names_are_refused(running, host, method, path):
    headers = JSON | {"Host": host and host.format(port=running.server_port)}
    body = QUESTION if method == "POST" else None
    assert_refused(send(running, method, path, body, headers), 403, f"this page is at {running.url}")
    assert_alive(running)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "cross-site"},
    ],
)
@pytest.mark.parametrize("path", ["/look", "/pictures", "/image"])
def test_requests_of_other_pages_are_refused(running, headers, path):
    headers = {name: value.format(port=running.server_port) for name, value in headers.items()}
    kind = BYTES if path == "/image" else JSON
    assert_refused(send(running, "POST", path, QUESTION, kind | headers), 403, "from other pages")


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}"])
def test_its_own_page_is_answered_by_both_names(running, host):
    host = host.format(port=running.server_port)
    headers = JSON | {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    assert send(running, "POST", "/look", QUESTION, headers).status == 200


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
@pytest.mark.parametrize("path", ["/look", "/image"])
def test_content_of_another_kind_is_refused(running, kind, path):
    """Of these kinds, a page elsewhere could send requests without being asked for permission."""
    assert_refused(send(running, "POST", path, QUESTION, {"Content-Type": kind}), 415, "this takes application/")


def test_json_with_a_charset_is_json(running):
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert send(running, "POST", "/look", QUESTION, headers).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Length": None}, 411),
        ({"Content-Length": None, "Transfer-Encoding": "chunked"}, 411),
        ({"Transfer-Encoding": "chunked"}, 411),
        ({"Content-Length": "many"}, 400),
        ({"Content-Length": "-5"}, 400),
        ({"Content-Length": "+5"}, 400),
        ({"Content-Length": "5.0"}, 400),
        ({"Content-Length": "²"}, 400),
        ({"Content-Length": ""}, 400),
        ({"Content-Length": "9" * 30}, 400),
        ({"Content-Length": str(LARGEST_JSON + 1)}, 413),
        ({"Content-Length": "9" * 18}, 413),
    ],
)
def test_lengths_are_checked(running, headers, status):
    assert_refused(send(running, "POST", "/look", QUESTION, JSON | headers), status, "")
    assert_alive(running)


def test_bodies_that_are_too_large_are_refused_with_an_answer(running):
    answer = send(running, "POST", "/look", b" " * (LARGEST_JSON + 1), JSON)
    assert_refused(answer, 413, "this is larger than 1 MB")
    answer = send(running, "POST", "/image", bytes(LARGEST_IMAGE + 1), BYTES)
    assert_refused(answer, 413, "this is larger than 16 MB")
    assert_alive(running)


def claim(side: int) -> bytes:
    """A small file that says it is a large image."""
    file = bytearray(image_file("BMP"))
    file[18:22] = file[22:26] = side.to_bytes(4, "little")
    return bytes(file)


def test_an_image_that_would_fill_the_memory_is_refused(running):
    answer = send(running, "POST", "/image", claim(30_000), BYTES)
    assert_refused(answer, 400, "the image has more than 64 million pixels; scale it down first.")
    assert_alive(running)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1,", b"\xff\xfe", b"{'a': 1}", b"[" * 100_000, b"9" * 10_000, b'"text"', b"null", b"[]", b"{}"],
)
@pytest.mark.parametrize("path", ["/look", "/pictures"])
def test_bad_json_is_refused(running, body, path):
    assert_refused(send(running, "POST", path, body, JSON), 400, "")
    assert_alive(running)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1", '"0.1"', "true", "1" + "0" * 400])
@pytest.mark.parametrize("name", ["lam1", "tol", "noise"])
def test_sliders_that_are_no_numbers_are_refused(running, name, value):
    body = QUESTION[:-1] + f', "{name}": {value}}}'.encode()
    assert_refused(send(running, "POST", "/look", body, JSON), 400, f"{name} must be a number from")
    assert_alive(running)


def test_pixels_of_another_size_are_refused(running):
    body = json.dumps({"pixels": pack(torch.zeros(1, 28, 28, dtype=torch.uint8))}).encode()
    assert_refused(
        send(running, "POST", "/look", body, JSON), 400, "pixels must hold 64 bytes, 1 x 8 x 8 pixels; got 784."
    )


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/look", 405),
        ("POST", "/nothing", 404),
        ("POST", "/", 405),
        ("PUT", "/look", 501),
        ("OPTIONS", "/look", 501),
    ],
)
def test_other_addresses_and_methods(running, method, path, status):
    body = QUESTION if method == "POST" else None
    assert_refused(send(running, method, path, body, JSON if body else None), status, "")
    assert_alive(running)


@pytest.mark.parametrize(
    "line", [b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"]
)
def test_what_is_not_http_is_refused(running, line):
    with socket.create_connection(("127.0.0.1", running.server_port), timeout=10) as client:
        client.sendall(line)
        answer = client.makefile("rb").read()
    assert b'{"error": "' in answer
    assert_alive(running)


def test_a_client_that_stops_in_the_middle_is_told(running, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.3)
    monkeypatch.setattr(server.Handler, "timeout", 0.3)
    with socket.create_connection(("127.0.0.1", running.server_port), timeout=10) as client:
        head = f"POST /look HTTP/1.1\r\nHost: 127.0.0.1:{running.server_port}\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        answer = client.makefile("rb").read()
    assert b"only 1 of 100 bytes arrived." in answer
    assert_alive(running)


def test_a_client_that_says_nothing_does_not_wait_for_ever(running, monkeypatch):
    assert 0 < server.Handler.timeout <= 60
    monkeypatch.setattr(server.Handler, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", running.server_port), timeout=10) as client:
        assert client.recv(1) == b""


def test_a_client_that_leaves_is_nothing_to_report(running, capfd):
    for _ in range(3):
        client = socket.create_connection(("127.0.0.1", running.server_port))
        client.sendall(b"POST /look HTTP/1.1\r\nHost: x\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # so that closing resets it
        client.close()
    assert_alive(running)
    time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_mistakes_of_our_own_are_reported_in_one_line(running, monkeypatch, capfd):
    def fail(*arguments):
        raise KeyError("what\x1b[2J\nhappened")

    monkeypatch.setattr(running.explorer, "look", fail)
    assert_refused(send(running, "POST", "/look", QUESTION, JSON), 500, "this went wrong here; the terminal says more.")
    err = capfd.readouterr().err
    assert err.startswith("scn: a request failed: KeyError: ")
    assert len(err.splitlines()) == 1
    assert "\x1b" not in err
    monkeypatch.undo()
    assert_alive(running)


def test_it_listens_to_this_machine_alone(running):
    assert running.socket.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_named(running):
    with pytest.raises(ValueError, match=f"port {running.server_port} cannot be used"):
        make_server(running.explorer, running.server_port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_must_be_one(running, port):
    with pytest.raises(ValueError, match="port must be a whole number from 0 to 65535"):
        make_server(running.explorer, port)


def test_requests_are_answered_while_a_browser_opens(running):
    """A browser in the terminal returns when it is closed, and needs the page before."""
    other, seen = make_server(running.explorer), []

    def browse():
        with urllib.request.urlopen(other.url, timeout=10) as page:
            seen.append(page.status)
        other.shutdown()

    serve(other, browse)
    assert seen == [200]
    assert other.socket.fileno() == -1  # closed


def test_the_end_waits_for_open_connections():
    """A thread that still answers while Python ends can bring the process down with it."""
    running = make_server(Explorer(small()))
    threading.Thread(target=running.serve_forever, daemon=True).start()
    before = set(threading.enumerate())
    with socket.create_connection(("127.0.0.1", running.server_port)):
        while not (answering := set(threading.enumerate()) - before):
            time.sleep(0.01)
        running.shutdown()
        running.server_close()
        assert not any(thread.is_alive() for thread in answering)
