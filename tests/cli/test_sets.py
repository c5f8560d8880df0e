"""``create cp rm verify list``: sets come, get names, go, and take no other set's files along."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmtp_models.manifest import Layer, Manifest, write_manifest
from gemmtp_models.store import Store
from tests.cli.conftest import Cli
from tests.support.parts import write_parts
from tests.support.tiny_pair import write_drafter

GREEDY = ("--raw", "--temperature", "0", "--threads", "1", "--ctx", "256", "--max-tokens", "8")


@pytest.fixture
def store(home: Path) -> Store:
    return Store(home / "data")


def create(cli: Cli, tiny: tuple[Path, Path], name: str, *more: object) -> str:
    result = cli("create", name, "--target", tiny[0], "--drafter", tiny[1], *more)
    assert result.code == 0, result.err
    return result.out


def test_a_created_set_runs_and_keeps_its_pairing(
    cli: Cli, tiny: tuple[Path, Path], store: Store
) -> None:
    create(cli, tiny, "mine:1")
    result = cli("run", "mine:1", "the", *GREEDY)
    assert "drafting on" in result.err
    manifest = store.manifest("mine:1")
    assert manifest.pairing is not None
    assert manifest.pairing["matches"] is True
    assert tiny[0].is_file()
    shown = json.loads(cli("show", "mine:1", "--json").out)
    assert shown["set"]["layers"].keys() == {"target", "drafter"}
    assert cli("create", "mine:1", "--target", tiny[0]).code == 2
    assert json.loads(create(cli, tiny, "mine:1", "--force", "--json"))["name"] == "mine:1"


def test_a_set_that_does_not_match_is_not_created(
    cli: Cli, tiny: tuple[Path, Path], store: Store, tmp_path: Path
) -> None:
    wrong = write_drafter(tmp_path / "wrong.gguf", window=32)
    result = cli("create", "mine:1", "--target", tiny[0], "--drafter", wrong)
    assert result.code == 3
    assert "drafter does not match: sliding window 32, expected 16" in result.err
    assert cli("create", "mine:1", "--target", tiny[1]).code == 3
    assert cli("create", "mine:1").code == 2
    for name in ("../x:1", "mine", "mine:../1", "/etc/x:1", "Mine:1"):
        assert cli("create", name, "--target", tiny[0]).code == 2, name
    assert store.names() == []


def test_a_modelfile_gives_files_settings_and_a_system_message(
    cli: Cli, tiny: tuple[Path, Path], store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "recipe"
    folder.mkdir()
    for name, path in zip(("t.gguf", "d.gguf"), tiny, strict=True):
        (folder / name).write_bytes(path.read_bytes())
    modelfile = folder / "Modelfile"
    modelfile.write_text(
        "FROM t.gguf\nDRAFT d.gguf\nPARAMETER top_k 7\nPARAMETER stop x\n"
        "SYSTEM in\nTEMPLATE {% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}\n"
    )
    result = cli("create", "mine:2", "--from-modelfile", modelfile)
    assert result.code == 0
    assert "note: PARAMETER stop of the Modelfile has no meaning here" in result.err
    manifest = store.manifest("mine:2")
    assert (manifest.parameters.top_k, manifest.system) == (7, "in")
    counted = [
        json.loads(cli("run", "mine:2", "the", *GREEDY[1:], *more, "--json").out)["prompt_tokens"]
        for more in ((), ("--system", "in the in the"))
    ]
    assert counted[0]["evaluated"] < counted[1]["evaluated"]
    modelfile.write_text("FROM ../../etc/passwd\n")
    assert cli("create", "mine:3", "--from-modelfile", modelfile).code == 2


def test_rm_says_what_it_frees_and_leaves_what_another_set_has(
    cli: Cli, tiny: tuple[Path, Path], store: Store, tmp_path: Path
) -> None:
    other = (tiny[0], write_drafter(tmp_path / "other.gguf", seed=5))
    create(cli, tiny, "mine:1")
    create(cli, other, "mine:2")
    result = cli("rm", "mine:1")
    assert result.code == 0
    assert f"removed mine:1: {tiny[1].stat().st_size / 1024:,.1f} KiB freed" in result.err
    assert "the target stays: mine:2 has it too" in result.err
    assert store.resolve("mine:2").files["target"].read_bytes() == tiny[0].read_bytes()
    document = json.loads(cli("rm", "mine:2", "--json").out)
    sizes = sum(path.stat().st_size for path in other)
    assert document["removed"] == [{"name": "mine:2", "freed_bytes": sizes, "kept": {}}]
    assert list((store.root / "blobs").iterdir()) == []
    assert cli("rm", "mine:2").code == 3
    assert cli("rm").code == 2
    assert cli("rm", "demo").code == 2
    assert cli("rm", "../../x").code == 2


def test_nothing_is_removed_when_one_name_is_wrong(
    cli: Cli, tiny: tuple[Path, Path], store: Store
) -> None:
    create(cli, tiny, "mine:1")
    assert cli("rm", "mine:1", "mine:nosuch").code == 3
    assert store.names() == ["mine:1"]


def test_a_set_whose_manifest_is_damaged_is_listed_and_can_go(
    cli: Cli, tiny: tuple[Path, Path], store: Store
) -> None:
    create(cli, tiny, "mine:1")
    create(cli, tiny, "mine:2")
    (store.root / "manifests/mine/1.json").write_text("{")
    assert "is not valid JSON" in cli("list").out
    assert "could not be read" in cli("rm", "mine:1").err
    assert store.names() == ["mine:2"]
    assert store.resolve("mine:2").files["target"].is_file()


def test_cp_gives_a_second_name_to_the_same_files(
    cli: Cli, tiny: tuple[Path, Path], store: Store
) -> None:
    create(cli, tiny, "mine:1")
    assert json.loads(cli("cp", "mine:1", "work", "--json").out)["name"] == "work:latest"
    assert len(list((store.root / "blobs").iterdir())) == 2
    assert cli("cp", "mine:1", "work").code == 2
    assert cli("cp", "mine:1", "work", "--force").code == 0
    assert cli("cp", "nosuch", "x").code == 3
    cli("rm", "mine:1")
    assert cli("run", "work", "the", *GREEDY).code == 0


def test_verify_finds_a_changed_byte_and_a_missing_file(
    cli: Cli, tiny: tuple[Path, Path], store: Store
) -> None:
    create(cli, tiny, "mine:1")
    assert cli("verify").out == "mine:1: all files are right\n"
    blob = store.resolve("mine:1").files["target"]
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    result = cli("verify", "mine:1", "--json")
    assert result.code == 3
    assert "the target is damaged" in json.loads(result.out)["sets"][0]["problems"][0]
    assert blob.is_file()
    assert cli("verify", "--repair").code == 3
    assert not blob.exists()
    assert "the target is missing" in cli("verify").out


def test_a_manifest_cannot_reach_outside_the_store(
    cli: Cli, tiny: tuple[Path, Path], store: Store
) -> None:
    create(cli, tiny, "mine:1")
    path = store.root / "manifests/mine/1.json"
    document = json.loads(path.read_text())
    for key, bad in (("sha256", "../../../../etc/passwd"), ("file", "../../etc/passwd")):
        layer = {**document["layers"]["target"], key: bad}
        path.write_text(json.dumps({**document, "layers": {"target": layer}}))
        assert cli("run", "mine:1", "the").code == 3
        assert cli("verify", "mine:1").code == 3


def test_the_catalogue_is_listed(cli: Cli, home: Path) -> None:
    rows = json.loads(cli("list", "--available", "--json").out)["sets"]
    names = [row["name"] for row in rows]
    assert names[0] == "demo"
    assert {"gemma4:31b", "gemma4:31b-mtp", "gemma4:31b-mtp-q8_0"} <= set(names)
    row = rows[names.index("gemma4:31b-mtp")]
    assert row["layers"] == ["target", "drafter", "projector"]
    assert row["size"] == 17_287_670_048 + 279_955_968 + 1_200_726_496
    assert row["installed"] is False
    assert "size unknown" in cli("list", "--available").out


def test_a_hundred_sets_are_listed_from_their_manifests_alone(cli: Cli, store: Store) -> None:
    pairing = {"matches": True, "reason": None, "checks": [{"name": "x" * 40}] * 20}
    (store.root / "blobs").mkdir(parents=True)
    for index in range(100):
        layers = {}
        for part, role in enumerate(("target", "drafter", "projector")):
            sha256 = f"{index * 3 + part:064x}"
            store.blob(sha256).write_bytes(b"x")
            layers[role] = Layer(1, sha256)
        manifest = Manifest(f"set:{index}", layers, pairing=pairing)  # type: ignore[arg-type]
        write_manifest(store.root / f"manifests/set/{index}.json", manifest)
    listed = [line for line in cli("list").out.splitlines() if line.startswith("set:")]
    assert len(listed) == 100
    assert all(line.endswith("target + drafter + projector") for line in listed)


def test_a_target_in_parts_is_joined(
    cli: Cli, tiny: tuple[Path, Path], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = write_parts(tmp_path, monkeypatch)
    assert "gemmtp create" in cli("run", parts[0], "the").err
    result = cli("create", "mine:1", "--target", parts[0], "--drafter", tiny[1])
    assert result.code == 0, result.err
    assert (
        cli("run", "mine:1", "the", *GREEDY).out
        == cli("run", tiny[0], "--drafter", tiny[1], "the", *GREEDY).out
    )
