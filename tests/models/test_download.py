"""One file over a bad network: it arrives right, or there is an error that says why."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmtp.errors import DownloadError, ModelNotFoundError
from gemmtp_models import positioned, unfinished
from gemmtp_models.download import Options, Progress, fetch
from gemmtp_models.hub import Hub, Patience
from gemmtp_models.hub_names import RemoteFile
from tests.support.hub import Asked, LocalHub

MIB = 2**20
REPO = "maker/model"
DATA = random.Random(1).randbytes(5 * MIB + 123)
SHA = hashlib.sha256(DATA).hexdigest()
QUICK = Options(piece=MIB, patience=Patience(first=0.005, longest=0.02, longest_retry_after=0.02))


@pytest.fixture
def server() -> Iterator[LocalHub]:
    with LocalHub() as hub:
        hub.add(REPO, "m.gguf", DATA)
        yield hub


@pytest.fixture
def hub(server: LocalHub) -> Iterator[Hub]:
    with Hub(server.url, token="hf_good", patience=QUICK.patience) as hub:
        yield hub


def _file(size: int = len(DATA), sha256: str = SHA, path: str = "m.gguf") -> RemoteFile:
    return RemoteFile(REPO, "main", path, size, sha256)


def _left(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


@pytest.mark.parametrize("connections", [1, 4])
def test_a_file_arrives_and_nothing_else_is_left(
    server: LocalHub, hub: Hub, tmp_path: Path, connections: int
) -> None:
    seen: list[Progress] = []
    options = Options(connections, piece=MIB)
    path = fetch(hub, _file(), tmp_path, seen.append, options)
    assert path.read_bytes() == DATA
    assert _left(tmp_path) == [".whole"]
    assert seen[-1] == Progress(len(DATA), len(DATA))
    assert server.sent == len(DATA)
    assert len(server.asked("cdn")) == (1 if connections == 1 else 6)


def test_a_fetched_file_is_not_asked_for_again(server: LocalHub, hub: Hub, tmp_path: Path) -> None:
    fetch(hub, _file(), tmp_path)
    server.requests.clear()
    fetch(hub, _file(), tmp_path)
    assert server.requests == []


def test_the_token_goes_to_the_hub_and_not_to_the_cdn(
    server: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    server.repos[REPO].gated = True
    fetch(hub, _file(), tmp_path)
    assert {a.authorization for a in server.asked("hub", "HEAD")} == {"Bearer hf_good"}
    assert {a.authorization for a in server.asked("cdn")} == {None}


@pytest.mark.parametrize(
    "fault",
    ["reset", "short body", "wrong length", "wrong range", "200 instead of 206", "429", "503"],
)
def test_a_failure_that_passes_is_got_over(
    server: LocalHub, hub: Hub, tmp_path: Path, fault: str
) -> None:
    left = [fault] * 3
    server.fault = lambda asked: left.pop() if left else None
    assert fetch(hub, _file(), tmp_path, options=QUICK).read_bytes() == DATA
    assert left == []


@pytest.mark.parametrize("fault", ["reset", "wrong length", "wrong range", "429", "503"])
def test_a_failure_that_stays_comes_to_an_end(
    server: LocalHub, hub: Hub, tmp_path: Path, fault: str
) -> None:
    server.fault = lambda asked: fault if asked.range != "bytes=0-1048575" else None
    with pytest.raises(DownloadError, match="again and again") as caught:
        fetch(hub, _file(), tmp_path, options=QUICK)
    assert "is kept" in (caught.value.hint or "")
    server.fault = lambda asked: None
    server.sent = 0
    assert fetch(hub, _file(), tmp_path, options=QUICK).read_bytes() == DATA
    assert server.sent <= len(DATA) - MIB


def test_a_server_without_ranges_sends_the_file_once(
    server: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    server.fault = lambda asked: "200 instead of 206"
    assert fetch(hub, _file(), tmp_path, options=QUICK).read_bytes() == DATA


def test_no_byte_is_written_twice_where_two_connections_bring_it(
    server: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    """One streams the file; a damaged range comes when its bytes have been hashed already."""

    def first(asked: Asked) -> bool:
        return str(asked.range).startswith("bytes=0-")

    streaming = ["200 instead of 206"]
    server.rate = 10 * MIB
    server.pause = lambda asked: 0.3 if first(asked) else 0.0
    server.fault = lambda asked: (
        "corrupt byte" if first(asked) else streaming.pop() if streaming else None
    )
    path = fetch(hub, _file(), tmp_path, options=Options(2, piece=MIB))
    assert path.read_bytes() == DATA
    assert streaming == []


def test_a_version_that_changes_on_the_way_is_fetched_anew(
    server: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    server.fault = lambda asked: "changed etag" if len(server.asked("cdn")) == 3 else None
    assert fetch(hub, _file(), tmp_path, options=QUICK).read_bytes() == DATA
    assert server.sent > len(DATA)


def test_a_damaged_byte_is_noticed_and_the_file_fetched_again(
    server: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    server.fault = lambda asked: "corrupt byte" if len(server.asked("cdn")) == 2 else None
    assert fetch(hub, _file(), tmp_path, options=QUICK).read_bytes() == DATA


def test_a_server_that_always_damages_gives_no_file(
    server: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    server.fault = lambda asked: "corrupt byte"
    with pytest.raises(DownloadError, match="wrong content"):
        fetch(hub, _file(), tmp_path, options=QUICK)
    assert ".whole" not in _left(tmp_path)


@pytest.mark.parametrize(
    ("file", "word"),
    [(_file(size=len(DATA) + 1), "size"), (_file(sha256="ab" * 32), "sha256")],
    ids=["size", "sha256"],
)
def test_a_file_that_the_hub_has_changed_is_refused_before_a_byte_is_fetched(
    server: LocalHub, hub: Hub, tmp_path: Path, file: RemoteFile, word: str
) -> None:
    with pytest.raises(DownloadError, match=f"has changed on the hub: {word}"):
        fetch(hub, file, tmp_path)
    assert server.asked("cdn") == []


def test_a_file_without_a_hash_is_refused(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="no sha256"):
        fetch(hub, RemoteFile(REPO, "main", "m.gguf", 10, None), tmp_path)


def test_a_missing_file_is_named(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"x\.gguf of maker/model is not there"):
        fetch(hub, _file(path="x.gguf"), tmp_path)


def test_an_address_that_ran_out_is_asked_for_anew(
    server: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    left = ["404"]
    server.fault = lambda asked: left.pop() if left else None
    assert fetch(hub, _file(), tmp_path, options=QUICK).read_bytes() == DATA
    assert len(server.asked("hub", "HEAD")) == 2


@pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
def test_a_redirect_to_anything_but_the_web_is_not_followed(
    server: LocalHub, hub: Hub, tmp_path: Path, to: str
) -> None:
    server.redirect = to
    with pytest.raises(DownloadError, match="redirects to"):
        fetch(hub, _file(), tmp_path, options=QUICK)
    assert _left(tmp_path) == []


def test_redirects_in_circles_end(server: LocalHub, hub: Hub, tmp_path: Path) -> None:
    server.redirect = f"{server.url}/{REPO}/resolve/main/m.gguf"
    with pytest.raises(DownloadError, match="circles"):
        fetch(hub, _file(), tmp_path, options=QUICK)


def test_two_threads_and_one_lock_fetch_once(server: LocalHub, tmp_path: Path) -> None:
    server.rate = 10 * MIB
    waited: list[Progress] = []
    paths: list[Path] = []

    def run() -> None:
        with Hub(server.url) as hub:
            paths.append(fetch(hub, _file(), tmp_path, waited.append, QUICK))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [unfinished.whole_path(tmp_path, SHA)] * 2
    assert server.sent == len(DATA)
    assert any(progress.waiting for progress in waited)


CHILD = """
import sys
from pathlib import Path
from gemmtp_models.download import Options, fetch
from gemmtp_models.hub import Hub
from gemmtp_models.hub_names import RemoteFile
from gemmtp_models.transfer import Transfer
url, size, sha256, folder = sys.argv[1:5]
with Hub(url) as hub:
    LIMIT
    file = RemoteFile("maker/model", "main", "m.gguf", int(size), sha256)
    try:
        fetch(hub, file, Path(folder), lambda p: print(p.done, flush=True), Options(2, 1 << 20))
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
"""


def child(server: LocalHub, folder: Path, limit: str = "") -> subprocess.Popen[str]:
    """A process that fetches DATA and prints how far it is."""
    code = CHILD.replace("LIMIT", limit)
    args = [sys.executable, "-c", code, server.url, str(len(DATA)), SHA, str(folder)]
    return subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_fetch_goes_on_where_it_was(server: LocalHub, hub: Hub, tmp_path: Path) -> None:
    server.rate = 2 * MIB
    with child(server, tmp_path) as process:
        assert process.stdout is not None
        while int(process.stdout.readline()) < 3 * MIB:
            pass
        process.kill()
    server.rate, sent = None, server.sent
    held = unfinished.held_bytes(tmp_path, _file())
    assert 0 < held < len(DATA)
    path = fetch(hub, _file(), tmp_path, options=QUICK)
    assert path.read_bytes() == DATA
    assert server.sent - sent == len(DATA) - held


def test_what_the_disk_lost_of_a_killed_fetch_is_noticed(
    server: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    server.fault = lambda asked: "503" if asked.range != "bytes=0-1048575" else None
    with pytest.raises(DownloadError):
        fetch(hub, _file(), tmp_path, options=QUICK)
    server.fault = lambda asked: None
    partial = unfinished.whole_path(tmp_path, SHA).with_suffix(".partial")
    damaged = bytearray(partial.read_bytes())
    damaged[1000] ^= 1
    partial.write_bytes(damaged)
    assert fetch(hub, _file(), tmp_path, options=QUICK).read_bytes() == DATA


def test_a_full_disk_is_said_and_what_is_there_stays(
    server: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))"
    with child(server, tmp_path, limit) as process:
        errors = process.communicate()[1]
    assert "DownloadError" in errors
    assert "is full" in errors
    held = unfinished.held_bytes(tmp_path, _file())
    sent = server.sent
    assert fetch(hub, _file(), tmp_path).read_bytes() == DATA
    assert server.sent - sent == len(DATA) - held


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user in a child")
def test_a_folder_that_may_not_be_written_is_said(server: LocalHub, tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o555)
    other = "import os; os.setgid(65534); os.setuid(65534)"
    with child(server, folder / "store", other) as process:
        errors = process.communicate()[1]
    assert "DownloadError" in errors
    assert "cannot be written" in errors


def test_without_positioned_calls_the_file_is_the_same(
    server: LocalHub, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positioned, "_POSITIONED", False)
    assert fetch(hub, _file(), tmp_path, options=QUICK).read_bytes() == DATA


def test_unfinished_fetches_are_counted_and_removed(
    server: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    server.fault = lambda asked: "503" if asked.range != "bytes=0-1048575" else None
    with pytest.raises(DownloadError):
        fetch(hub, _file(), tmp_path, options=QUICK)
    assert unfinished.unfinished_bytes(tmp_path) >= MIB
    assert unfinished.remove_unfinished(tmp_path) >= MIB
    assert list(tmp_path.iterdir()) == []
