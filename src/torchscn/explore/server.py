"""The page and its questions over HTTP, for this machine alone.

Any page in a browser can send requests to a server on the same machine. So this one answers only to its own address
(which keeps out names that were bent to point here), and takes questions only from its own page.
"""

import json
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from torchscn.checks import printable
from torchscn.data import DataError
from torchscn.explore.explorer import Explorer
from torchscn.explore.fields import RequestError

__all__ = ["ExploreServer", "make_server", "serve"]

ADDRESS = "127.0.0.1"
PATIENCE = 20.0  # seconds to wait for a client that is slow, or has nothing to say
LAST_ANSWER = 5.0  # seconds to wait for answers in the making at the end
LARGEST_JSON = 2**20
LARGEST_IMAGE = 16 * 2**20
JSON = "application/json"
BYTES = "application/octet-stream"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class ExploreServer(ThreadingHTTPServer):
    """A server that knows its explorer, page and address."""

    def __init__(self, explorer: Explorer, port: int = 0):
        self.explorer = explorer
        self.page = resources.files("torchscn.explore").joinpath("page.html").read_bytes()
        self._open: dict[socket.socket, threading.Thread] = {}  # connections, each with the thread that answers it
        super().__init__((ADDRESS, port), Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer also looks up the name of the machine, which can be slow
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names that it goes by."""
        return f"{ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.hosts[0]}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        arguments = (request, client_address)
        # A daemon: an answer that never ends does not keep the program from ending.
        thread = threading.Thread(target=self.process_request_thread, args=arguments, daemon=True)
        self._open[request] = thread
        thread.start()

    def close_request(self, request: Any) -> None:
        super().close_request(request)
        self._open.pop(request, None)

    def server_close(self) -> None:
        """Also end the connections: a thread that still runs when Python ends can take the whole process down."""
        super().server_close()
        still_open, deadline = list(self._open.items()), time.monotonic() + LAST_ANSWER
        for request, _ in still_open:
            with suppress(OSError):  # it has just been closed
                request.shutdown(socket.SHUT_RDWR)
        for _, thread in still_open:
            thread.join(max(0.0, deadline - time.monotonic()))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is nothing to report."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            report(error)


def make_server(explorer: Explorer, port: int = 0) -> ExploreServer:
    """A server that listens on 127.0.0.1 and does not answer yet; see :func:`serve`.

    Args:
        explorer: what it answers with.
        port: 0 takes any that is free.

    Raises:
        ValueError: the port is no port, or cannot be used.

    Example:
        >>> from torchscn import load_trained
        >>> server = make_server(Explorer(load_trained("scn4-mnist")))
        >>> server.url
        'http://127.0.0.1:.../'
        >>> server.server_close()
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be a whole number from 0 to 65535; got {port}.")
    try:
        return ExploreServer(explorer, port)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"port {port} cannot be used ({reason}); choose another, or leave it out.") from error


def serve(server: ExploreServer, ready: Callable[[], None] | None = None) -> None:
    """Answer until Ctrl-C, then close the server.

    Args:
        server: from :func:`make_server`.
        ready: called in a thread of its own once requests are answered; it may take its time.
    """
    if ready is not None:
        threading.Thread(target=ready, daemon=True).start()
    # In a thread of its own: Ctrl-C strikes the main thread anywhere, and would close a connection under its answer.
    answering = threading.Thread(target=server.serve_forever, daemon=True)
    with server:
        with suppress(KeyboardInterrupt):
            answering.start()
            while answering.is_alive():
                answering.join(1.0)  # on Windows, Ctrl-C is noticed only between two waits
        if answering.ident is not None:  # it has begun
            server.shutdown()
            answering.join()


def report(error: BaseException | None) -> None:
    """One line on stderr about a mistake of our own."""
    reason = (str(error).splitlines() or [""])[0]
    print(printable(f"scn: a request failed: {type(error).__name__}: {reason}"), file=sys.stderr, flush=True)


class RefusedError(Exception):
    """A request that gets no answer but a sentence."""

    def __init__(self, status: HTTPStatus, sentence: str):
        super().__init__(sentence)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: ExploreServer
    protocol_version = "HTTP/1.1"
    server_version = "scn"
    sys_version = ""
    timeout = PATIENCE
    disable_nagle_algorithm = True  # head and content of an answer are sent one after the other

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_POST(self) -> None:
        self._respond(self._post)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses (a method, a line that is too long) is told in JSON as well."""
        self.close_connection = True
        self._send(code, JSON, _error(f"{message or HTTPStatus(code).phrase}."))

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not listed: the terminal is for the address and for mistakes."""

    def _respond(self, answer: Callable[[], tuple[str, bytes]]) -> None:
        try:
            self._check_host()
            kind, content = answer()
        except RefusedError as refusal:
            self._refuse(refusal.status, str(refusal))
        except (RequestError, DataError) as error:
            self._send(HTTPStatus.BAD_REQUEST, JSON, _error(str(error)))
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            report(error)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "this went wrong here; the terminal says more.")
        else:
            self._send(HTTPStatus.OK, kind, content)

    def _get(self) -> tuple[str, bytes]:
        if self.path == "/":
            return "text/html; charset=utf-8", self.server.page
        if self.path == "/describe":
            return JSON, _json(self.server.explorer.describe())
        raise self._unknown()

    def _post(self) -> tuple[str, bytes]:
        self._check_origin()
        explorer = self.server.explorer
        if self.path == "/look":
            return JSON, _json(explorer.look(_parse(self._body(JSON, LARGEST_JSON))))
        if self.path == "/pictures":
            return JSON, _json(explorer.pictures(_parse(self._body(JSON, LARGEST_JSON))))
        if self.path == "/image":
            return JSON, _json(explorer.read(self._body(BYTES, LARGEST_IMAGE)))
        raise self._unknown()

    def _unknown(self) -> RefusedError:
        if self.path in ("/", "/describe", "/look", "/pictures", "/image"):
            return RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.command} is not possible here.")
        return RefusedError(HTTPStatus.NOT_FOUND, "there is nothing at this address.")

    def _check_host(self) -> None:
        """A foreign name that leads here would make our answers readable to its owner's pages."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            raise RefusedError(
                HTTPStatus.FORBIDDEN, f"this page is at {self.server.url}, not at the name that was used."
            )

    def _check_origin(self) -> None:
        """Browsers say from which page a request comes; programs without pages say nothing."""
        own = {f"http://{host}" for host in self.server.hosts}
        foreign = any(origin.lower() not in own for origin in self.headers.get_all("Origin", []))
        if foreign or self.headers.get("Sec-Fetch-Site", "same-origin").lower() not in ("same-origin", "none"):
            raise RefusedError(HTTPStatus.FORBIDDEN, "requests from other pages are not answered.")

    def _body(self, kind: str, largest: int) -> bytes:
        """What was sent, if it is of this kind and not larger than allowed."""
        if self.headers.get_content_type() != kind or "Content-Type" not in self.headers:
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"this takes {kind}, see Content-Type.")
        length = self._length()
        if length > largest:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"this is larger than {largest // 2**20} MB.")
        content = self._receive(length)
        if len(content) < length:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"only {len(content)} of {length} bytes arrived.")
        return content

    def _receive(self, length: int) -> bytes:
        """The next bytes; fewer if the client stops or takes too long, even if it sends one now and then."""
        content, deadline = bytearray(), time.monotonic() + PATIENCE
        with suppress(TimeoutError):
            while len(content) < length and time.monotonic() < deadline:
                piece = self.rfile.read1(min(length - len(content), 2**16))
                if not piece:
                    break
                content += piece
        return bytes(content)

    def _length(self) -> int:
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) != 1 or "Transfer-Encoding" in self.headers:
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "a request must say its length once, see Content-Length.")
        if not (lengths[0].isdecimal() and len(lengths[0]) < 20):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "Content-Length must be a whole number.")
        return int(lengths[0])

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        """Answer without having read what was sent, so the connection cannot be used for another request."""
        self.close_connection = True
        self._send(status, JSON, _error(sentence))
        self._drain()

    def _drain(self) -> None:
        """Throw away what still comes: a connection that is closed before can take the answer with it."""
        left = 4 * LARGEST_IMAGE
        self.connection.settimeout(0.2)
        with suppress(OSError):  # nothing more comes, or nobody is there any more
            while left > 0 and (piece := self.rfile.read1(2**16)):
                left -= len(piece)

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        headers = HEADERS | {"Content-Type": kind, "Content-Length": str(len(content))}
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _parse(content: bytes) -> object:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise RequestError("this is not valid JSON.") from None


def _json(answer: object) -> bytes:
    return json.dumps(answer, allow_nan=False).encode()


def _error(sentence: str) -> bytes:
    return _json({"error": sentence})
