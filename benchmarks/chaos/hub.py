"""Hubs that are of no use, each a server on this machine: what they answer, or that they do not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


def unavailable(request: BaseHTTPRequestHandler) -> None:
    """Answer as a hub that is overloaded."""
    request.send_error(503)


def too_many(request: BaseHTTPRequestHandler) -> None:
    """Answer as a hub that was asked too often."""
    request.send_response(429)
    request.send_header("Retry-After", "3600")
    request.end_headers()


def wrong(request: BaseHTTPRequestHandler) -> None:
    """Answer with a page for people, as the portal of a network does."""
    page = b"<html>Please log in.</html>"
    request.send_response(200)
    request.send_header("Content-Type", "text/html")
    request.send_header("Content-Length", str(len(page)))
    request.end_headers()
    request.wfile.write(page)


def cut(request: BaseHTTPRequestHandler) -> None:
    """Answer half of what was announced."""
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b"{")


def silent(request: BaseHTTPRequestHandler) -> None:
    """Take the request and never answer."""
    threading.Event().wait()


@contextmanager
def hub(answer: Answer) -> Iterator[str]:
    """Serve this answer to every request; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
