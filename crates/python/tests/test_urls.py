"""Images by URL, from a server of this machine."""

from __future__ import annotations

import http.server
import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import weald
from conftest import Forest, in_child


class Ranges(http.server.BaseHTTPRequestHandler):
    """Serves one file, whole or in ranges."""

    protocol_version = "HTTP/1.1"
    content = b""
    count = 0

    def do_GET(self) -> None:
        Ranges.count += 1
        size = len(self.content)
        first, last = 0, size - 1
        asked = self.headers.get("Range", "").removeprefix("bytes=")
        if asked.startswith("-"):
            first = max(size - int(asked[1:]), 0)
        elif asked:
            begin, _, end = asked.partition("-")
            first, last = int(begin), min(int(end or last), last)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"1"')
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.content[first : last + 1])

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url(forest: Forest) -> Iterator[str]:
    handler = type("Served", (Ranges,), {"content": forest.image.read_bytes()})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/forest.weald"
        server.shutdown()
        thread.join()


def read(image: weald.Image, name: str) -> bytes:
    return image.read(name)


# Would catch: a read that keeps the other threads of Python waiting, the server's among them.
def test_other_threads_run_while_one_reads(url: str, forest: Forest) -> None:
    image = weald.open(url)
    count = Ranges.count
    assert image.read("long") == (forest.tree / "long").read_bytes()
    assert Ranges.count > count


# Would catch: a forked process that waits for ever for threads which it lacks.
def test_images_by_url(url: str, forest: Forest) -> None:
    image = weald.open(f"{url}:/deep")
    words = Path(forest.tree / "deep" / "words.txt").read_bytes()
    assert image.read("words.txt") == words
    assert image.digest == weald.open(forest.image).digest
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(read, (image, "words.txt")) == words

    def work() -> None:
        with pytest.raises(OSError, match="'spawn'"):
            image.read("words.txt")

    in_child(work)
