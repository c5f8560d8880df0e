"""The store: files by content, sets by name, nothing lost and nothing left over."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gemmtp.errors import BadModelFileError, ModelNotFoundError, UsageError
from gemmtp_models.manifest import Layer, Manifest
from gemmtp_models.store import Store, sha256_of
from gemmtp_models.workspace import open_workspace, remove_leftovers


def _register(store: Store, name: str, target: bytes, drafter: bytes, force: bool = False) -> None:
    layers = {"target": Layer(1, file="t"), "drafter": Layer(1, file="d")}
    with store.workspace() as folder:
        (folder / "t").write_bytes(target)
        (folder / "d").write_bytes(drafter)
        staged = {"target": folder / "t", "drafter": folder / "d"}
        store.register(Manifest(name, layers), staged, replace_existing=force)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def _blobs(store: Store) -> int:
    return len(list((store.root / "blobs").iterdir()))


def test_a_registered_set_resolves_to_files_of_its_content(store: Store) -> None:
    _register(store, "demo:1", b"target", b"drafter")
    found = store.resolve("demo:1")
    assert found.files["target"].read_bytes() == b"target"
    assert found.manifest.layers["target"].sha256 == sha256_of(found.files["target"])
    assert found.manifest.layers["drafter"].size == len(b"drafter")
    assert store.names() == ["demo:1"]
    assert list((store.root / "partial").iterdir()) == []


def test_equal_files_lie_there_once_and_go_with_their_last_set(store: Store) -> None:
    _register(store, "demo:1", b"target", b"one")
    _register(store, "demo:2", b"target", b"two")
    assert _blobs(store) == 3
    store.remove("demo:1")
    assert store.names() == ["demo:2"]
    assert _blobs(store) == 2
    assert store.resolve("demo:2").files["target"].read_bytes() == b"target"


def test_a_name_is_taken_once(store: Store) -> None:
    _register(store, "demo:1", b"a", b"b")
    with pytest.raises(UsageError, match="already"):
        _register(store, "demo:1", b"c", b"d")
    assert store.resolve("demo:1").files["target"].read_bytes() == b"a"
    _register(store, "demo:1", b"c", b"d", force=True)
    assert store.resolve("demo:1").files["target"].read_bytes() == b"c"
    assert _blobs(store) == 2


def test_an_unknown_set_is_not_found_and_an_empty_store_is_empty(store: Store) -> None:
    assert store.names() == []
    assert store.remove_leftovers() == 0
    for call in (store.manifest, store.resolve, store.remove):
        with pytest.raises(ModelNotFoundError):
            call("demo:1")
    assert not store.root.exists()


def test_a_missing_or_short_file_is_noticed(store: Store) -> None:
    _register(store, "demo:1", b"target", b"drafter")
    store.resolve("demo:1").files["target"].write_bytes(b"tar")
    with pytest.raises(BadModelFileError, match="incomplete"):
        store.resolve("demo:1")


def test_a_manifest_under_another_name_is_noticed(store: Store) -> None:
    _register(store, "demo:1", b"a", b"b")
    folder = store.root / "manifests" / "demo"
    os.rename(folder / "1.json", folder / "2.json")
    with pytest.raises(BadModelFileError, match="is of the set demo:1"):
        store.manifest("demo:2")


def test_a_file_that_is_no_set_is_not_listed(store: Store) -> None:
    _register(store, "demo:1", b"a", b"b")
    for name in ("Demo/x.json", "demo/.hidden.json", "a b/c.json", "demo/..x.json"):
        path = store.root / "manifests" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    assert store.names() == ["demo:1"]


def test_a_whole_blob_that_no_set_names_is_a_leftover(store: Store) -> None:
    _register(store, "demo:1", b"a", b"b")
    store.blob("0" * 64).write_bytes(b"orphan")
    (store.root / "manifests" / "demo" / ".x.tmp").write_text("{")
    assert store.remove_leftovers() == 2
    assert store.resolve("demo:1").files["target"].read_bytes() == b"a"


def test_nothing_is_removed_while_a_manifest_cannot_be_read(store: Store) -> None:
    _register(store, "demo:1", b"a", b"b")
    path = store.root / "manifests" / "demo" / "1.json"
    text = path.read_text()
    path.write_text("{")
    assert store.remove_leftovers() == 0
    path.write_text(text)
    assert store.resolve("demo:1").files["drafter"].read_bytes() == b"b"


def test_threads_that_register_at_once_all_succeed(store: Store) -> None:
    names = [f"demo:{i}" for i in range(12)]
    threads = [
        threading.Thread(target=_register, args=(store, name, name.encode(), b"same"))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.names() == sorted(names)
    assert _blobs(store) == 13
    for name in names:
        assert store.resolve(name).files["target"].read_bytes() == name.encode()


HOLD = """
import sys, time
from pathlib import Path
from gemmtp_models.workspace import open_workspace
with open_workspace(Path(sys.argv[1]), "run-") as folder:
    (folder / "half").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    time.sleep(600)
"""


def test_a_living_workspace_is_left_alone_and_a_killed_one_is_removed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        folder = Path(process.stdout.readline().strip())
        with open_workspace(tmp_path, "run-") as own:
            assert folder.is_dir()
            assert own != folder
        assert (folder / "half").is_file()
        process.kill()
        process.communicate()
    assert remove_leftovers(tmp_path, "run-") == 1
    assert list(tmp_path.iterdir()) == []
