"""A hub on 127.0.0.1 that speaks like huggingface.co, with a CDN on a port of its own.

    with LocalHub() as hub:
        hub.add("owner/repo", "model.gguf", data)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)

Served are ``/api/models/REPO/revision/REV``, ``/api/models/REPO/tree/REV`` and
``/REPO/resolve/REV/FILE``, which redirects to the CDN. ``fault`` is asked before each answer of the
CDN and may name one of ``FAULTS``.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

FAULTS = (
    "reset",
    "short body",
    "wrong length",
    "wrong range",
    "200 instead of 206",
    "429",
    "503",
    "changed etag",
    "corrupt byte",
)
_BLOCK = 256 * 1024


@dataclass(frozen=True)
class Asked:
    """One request as it came: ``server`` is "hub" or "cdn"."""

    server: str
    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Repo:
    """The files of one repository at one commit, by their sha256."""

    commit: str
    files: dict[str, str] = field(default_factory=dict)
    gated: bool = False


class LocalHub:
    """The two servers; everything may be changed while they run.

    ``rate`` limits a connection to so many bytes a second, ``pause`` is what an answer of the CDN
    waits for, in seconds. ``requests`` lists what was asked and
    ``sent`` counts the bytes of bodies. ``moved`` maps old repository names to new ones;
    ``redirect`` replaces the address of the CDN.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.requests: list[Asked] = []
        self.sent = 0
        self.rate: float | None = None
        self.fault: Callable[[Asked], str | None] = lambda asked: None
        self.pause: Callable[[Asked], float] = lambda asked: 0.0
        self.hub_status: int | None = None
        self.retry_after: str | None = "0"
        self.redirect: str | None = None
        self.oid: dict[str, str] = {}
        self.lock = threading.Lock()
        self._servers = [self._server("hub"), self._server("cdn")]

    @property
    def url(self) -> str:
        """The hub's address, for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._servers[0].server_address[1]}"

    @property
    def cdn(self) -> str:
        """The CDN's address."""
        return f"http://127.0.0.1:{self._servers[1].server_address[1]}"

    def add(self, repo: str, path: str, data: bytes) -> str:
        """Serve ``data`` as a file of ``repo``; returns its sha256."""
        commit = hashlib.sha1(repo.encode()).hexdigest()
        sha256 = hashlib.sha256(data).hexdigest()
        self.blobs[sha256] = data
        self.repos.setdefault(repo, Repo(commit)).files[path] = sha256
        return sha256

    def asked(self, server: str, method: str = "GET") -> list[Asked]:
        """The requests to one of the two servers."""
        return [a for a in self.requests if a.server == server and a.method == method]

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _server(self, name: str) -> ThreadingHTTPServer:
        handler = type(f"_{name}", (_Handler,), {"hub": self, "server_name": name})
        return _Server(("127.0.0.1", 0), handler)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    server_name: str
    protocol_version = "HTTP/1.1"
    wbufsize = 0
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        asked = Asked(
            self.server_name,
            self.command,
            self.path,
            self.headers.get("Range"),
            self.headers.get("Authorization"),
        )
        with self.hub.lock:
            self.hub.requests.append(asked)
        try:
            if self.server_name == "hub":
                self._hub()
            else:
                self._cdn(asked)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing goes to stderr."""

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _hub(self) -> None:
        if self.hub.hub_status is not None:
            headers = {"Retry-After": self.hub.retry_after} if self.hub.retry_after else {}
            self._answer(self.hub.hub_status, headers)
            return
        path = unquote(urlsplit(self.path).path)
        parts = path.removeprefix("/api/models").strip("/").split("/")
        name = "/".join(parts[:2])
        if name in self.hub.moved:
            self._answer(307, {"Location": self.path.replace(name, self.hub.moved[name])})
            return
        repo = self.hub.repos.get(name)
        if repo is None:
            self._answer(401, {"X-Error-Code": "RepoNotFound"})
        elif repo.gated and not self.headers.get("Authorization"):
            self._answer(401, {"X-Error-Code": "GatedRepo"})
        elif repo.gated and self.headers["Authorization"] != "Bearer hf_good":
            self._answer(403, {"X-Error-Code": "GatedRepo"})
        elif parts[3] not in ("main", repo.commit):
            self._answer(404, {"X-Error-Code": "RevisionNotFound"})
        elif parts[2] == "revision":
            self._json({"id": name, "sha": repo.commit})
        elif parts[2] == "tree":
            self._json([self._entry(*item) for item in repo.files.items()])
        else:
            self._resolve(repo, "/".join(parts[4:]))

    def _json(self, value: Any) -> None:
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _entry(self, path: str, sha256: str) -> dict[str, Any]:
        size = len(self.hub.blobs[sha256])
        lfs = {"oid": self.hub.oid.get(path, sha256), "size": size}
        return {"type": "file", "path": path, "size": size, "lfs": lfs}

    def _resolve(self, repo: Repo, path: str) -> None:
        sha256 = repo.files.get(path)
        if sha256 is None:
            self._answer(404, {"X-Error-Code": "EntryNotFound"})
            return
        headers = {
            "Location": self.hub.redirect or f"{self.hub.cdn}/blobs/{sha256}?signature=1",
            "X-Linked-Etag": f'"{self.hub.oid.get(path, sha256)}"',
            "X-Linked-Size": str(len(self.hub.blobs[sha256])),
            "X-Repo-Commit": repo.commit,
        }
        self._answer(302, headers)

    def _cdn(self, asked: Asked) -> None:
        sha256 = urlsplit(self.path).path.rpartition("/")[2]
        data = self.hub.blobs.get(sha256)
        if data is None:
            self._answer(404, {})
            return
        fault = self.hub.fault(asked)
        if fault in ("404", "429", "503"):
            headers = {"Retry-After": self.hub.retry_after} if self.hub.retry_after else {}
            self._answer(int(fault), headers)
            return
        time.sleep(self.hub.pause(asked))
        self._send(data, sha256, asked.range, fault)

    def _send(self, data: bytes, etag: str, wanted: str | None, fault: str | None) -> None:
        start, end = 0, len(data)
        if wanted is not None:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1, end) if last else end
        ranged = wanted is not None and fault != "200 instead of 206"
        if not ranged:
            start, end = 0, len(data)
        body = memoryview(data)[start:end]
        self.send_response(206 if ranged else 200)
        if ranged:
            claimed = start + 1 if fault == "wrong range" else start
            self.send_header("Content-Range", f"bytes {claimed}-{end - 1}/{len(data)}")
        length = len(body) + (7 if fault == "wrong length" else 0)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", f'"other-{etag[:8]}"' if fault == "changed etag" else f'"{etag}"')
        self.end_headers()
        self._body(body, fault)

    def _body(self, body: memoryview, fault: str | None) -> None:
        if fault in ("short body", "reset"):
            body = body[: len(body) // 2]
        if fault == "corrupt byte" and body:
            damaged = bytearray(body)
            damaged[len(damaged) // 3] ^= 1
            body = memoryview(damaged)
        begin = time.monotonic()
        for at in range(0, len(body), _BLOCK):
            block = body[at : at + _BLOCK]
            self.connection.sendall(block)
            with self.hub.lock:
                self.hub.sent += len(block)
            if self.hub.rate:
                ahead = (at + len(block)) / self.hub.rate - (time.monotonic() - begin)
                time.sleep(max(0.0, ahead))
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            raise ConnectionResetError
        if fault in ("short body", "wrong length"):
            self.close_connection = True
