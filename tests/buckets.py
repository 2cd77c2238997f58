"""A server of S3's protocol for tests: files of a folder, listed and read in parts by who knows the key."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

KEY, SECRET = "AKIATESTS", "correct horse"
PAGE = 2
"""Keys in one answer of a list, so that readers have to ask for the next ones."""


@dataclass
class Buckets:
    """A running server.

    Attributes:
        folder: its buckets, a folder each.
        endpoint: its address, for AWS_ENDPOINT_URL.
        asked: requests so far, as METHOD PATH.
        broken: names of files that are refused from now on.
    """

    folder: Path
    endpoint: str
    asked: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    buckets: Buckets


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base's name
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        self.server.buckets.asked.append(f"{self.command} {unquote(asked.path)}")
        # The signature is not computed again: who names another key is somebody else.
        if f"Credential={KEY}/" not in self.headers.get("Authorization", ""):
            self._refuse(403, "InvalidAccessKeyId", "The access key does not exist in our records.")
            return
        bucket, _, name = unquote(asked.path).strip("/").partition("/")
        query = {key: values[0] for key, values in parse_qs(asked.query, keep_blank_values=True).items()}
        root, path = self.server.buckets.folder / bucket, self.server.buckets.folder / bucket / name
        if not root.is_dir():
            self._refuse(404, "NoSuchBucket", "The specified bucket does not exist")
        elif not name and "list-type" in query:
            self._list(root, query)
        elif not name:
            self._send(200, b"")
        elif path.is_file() and not unquote(asked.path).endswith("/"):
            self._read(path)
        else:
            self._refuse(404, "NoSuchKey", "The specified key does not exist.")

    def _list(self, root: Path, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        keys = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        keys = [key for key in keys if key.startswith(prefix)]
        folders = {}
        if delimiter:
            below = {key: key[len(prefix) :].partition(delimiter) for key in keys}
            folders = {prefix + first + delimiter: True for first, found, _ in below.values() if found}
            keys = [key for key in keys if not below[key][1]]
        start = int(query.get("continuation-token", "0"))
        more = start + PAGE < len(keys)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{(root / key).stat().st_size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in keys[start : start + PAGE]
        )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders)
        text = (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(keys)}</KeyCount>{contents}{prefixes}"
            f"{f'<NextContinuationToken>{start + PAGE}</NextContinuationToken>' if more else ''}</ListBucketResult>"
        )
        self._send(200, text.encode(), {"Content-Type": "application/xml"})

    def _read(self, path: Path) -> None:
        size = path.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), min(size, int(wanted[2] or size) + 1)) if wanted else (0, size)
        if path.name in self.server.buckets.broken:
            self._refuse(403, "AccessDenied", "Access Denied")
            return
        with path.open("rb") as file:
            file.seek(first)
            part = file.read(last - first)
        headers = {"Accept-Ranges": "bytes", "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "ETag": '"1"'}
        if wanted:
            headers["Content-Range"] = f"bytes {first}-{last - 1}/{size}"
        self._send(206 if wanted else 200, part, headers)

    def _refuse(self, status: int, code: str, text: str) -> None:
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{text}</Message></Error>'
        self._send(status, body.encode(), {"Content-Type": "application/xml"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Buckets]:
    """A server of a folder's buckets, until the block ends."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.buckets = Buckets(folder, f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.buckets
    finally:
        server.shutdown()
        server.server_close()


def environment(buckets: Buckets) -> dict[str, str]:
    """Return the variables by which programs reach the server and nothing else."""
    return {
        "AWS_ENDPOINT_URL": buckets.endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "eu-central-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buckets]:
    """A server with an empty bucket "people", and the environment that names it."""
    folder = tmp_path_factory.mktemp("buckets")
    (folder / "people").mkdir()
    with serving(folder) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(server).items():
            patch.setenv(name, value)
        yield server
