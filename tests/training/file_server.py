"""A small file server on this machine that can go on in the middle of a file, break off, and change its mind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What is served, and what was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: int | None = None
    """Bytes of an answer after which the connection breaks."""
    ranges: bool = True
    """Whether the middle of a file can be asked for."""
    asked: list[str] = field(default_factory=list)
    """The header Range of every request, or the empty text."""
    address: str = ""

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("Range", "")
        self.asked.append(wanted)
        content = self.files.get(handler.path.lstrip("/"))
        if content is None:
            handler.send_error(404)
            return
        tag, start = f'"{hash(content)}"', 0
        if wanted and self.ranges and handler.headers.get("If-Range") == tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                handler.send_error(416)
                return
        rest = content[start:]
        handler.send_response(206 if start else 200)
        handler.send_header("ETag", tag)
        handler.send_header("Content-Length", str(len(rest)))
        handler.end_headers()
        handler.wfile.write(rest[: self.cut_after])


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
