"""The hub's answers, and which of a repository's files make a set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from gemmtp.errors import (
    BadModelFileError,
    DownloadError,
    ModelNotFoundError,
    UnsupportedModelError,
    UsageError,
)
from gemmtp_models.hub import Hub, Patience
from gemmtp_models.hub_header import peek
from gemmtp_models.hub_names import HubName, RemoteFile, check_path, split_parts
from gemmtp_models.hub_set import HubSet, find_set, quant_of
from tests.support.hub import LocalHub
from tests.support.raw_gguf import key, raw_gguf, text
from tests.support.tiny_pair import write_drafter, write_target

REPO = "maker/gemma"
QUICK = Patience(attempts=2, first=0.01, longest_retry_after=0.01)


@pytest.fixture
def server() -> Iterator[LocalHub]:
    with LocalHub() as hub:
        yield hub


@pytest.fixture
def hub(server: LocalHub) -> Iterator[Hub]:
    with Hub(server.url, patience=QUICK) as hub:
        yield hub


def _architecture(name: str) -> bytes:
    return raw_gguf(keys=[text("general.architecture") + b"\x08\0\0\0" + text(name)])


CLIP = _architecture("clip")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], bytes]:
    """Bytes of a target or a drafter that say they are of this general.file_type."""
    folder = tmp_path_factory.mktemp("files")
    made: dict[tuple[str, int], bytes] = {}

    def make(role: str, file_type: int = 2) -> bytes:
        if (role, file_type) not in made:
            write = write_target if role == "target" else write_drafter
            path = write(folder / f"{role}{file_type}", metadata={"general.file_type": file_type})
            made[role, file_type] = path.read_bytes()
        return made[role, file_type]

    return make


def _paths(found: HubSet) -> dict[str, str]:
    return {role: file.path for role, file in found.files.items()}


def test_a_set_is_found_by_headers_wherever_its_files_lie(
    server: LocalHub, hub: Hub, files: Callable[..., bytes]
) -> None:
    server.add(REPO, "model-UD-Q4_K_XL.gguf", files("target"))
    server.add(REPO, "model-Q8_0.gguf", files("target", 7))
    server.add(REPO, "MTP/mtp-model-Q8_0.gguf", files("drafter", 7))
    server.add(REPO, "MTP/mtp-model-Q4_0.gguf", files("drafter", 2))
    server.add(REPO, "mmproj-F16.gguf", CLIP)
    server.add(REPO, "mmproj-BF16.gguf", CLIP)
    server.add(REPO, "README.md", b"hello")
    found = find_set(hub, HubName(REPO))
    assert _paths(found) == {
        "target": "model-UD-Q4_K_XL.gguf",
        "drafter": "MTP/mtp-model-Q4_0.gguf",
        "projector": "mmproj-BF16.gguf",
    }
    assert found.files["target"].revision == server.repos[REPO].commit
    eight = find_set(hub, HubName(REPO, quant="q8_0"))
    assert _paths(eight)["target"] == "model-Q8_0.gguf"
    assert _paths(eight)["drafter"] == "MTP/mtp-model-Q8_0.gguf"
    assert found.notes == ()


def test_a_drafter_is_known_by_its_header_and_not_by_its_name(
    server: LocalHub, hub: Hub, files: Callable[..., bytes]
) -> None:
    server.add(REPO, "a-Q4_0.gguf", files("target") + bytes(1 << 20))
    server.add(REPO, "head.gguf", files("drafter"))
    server.add(REPO, "mtp-impostor.gguf", files("target", 7))
    assert _paths(find_set(hub, HubName(REPO)))["drafter"] == "head.gguf"


def test_a_drafter_of_a_fork_is_passed_over_and_said(
    server: LocalHub, hub: Hub, files: Callable[..., bytes]
) -> None:
    server.add(REPO, "a-Q4_0.gguf", files("target"))
    server.add(REPO, "mtp-a.gguf", _architecture("gemma4_assistant"))
    found = find_set(hub, HubName(REPO))
    assert set(found.files) == {"target"}
    assert "mtp-a.gguf is a drafter for a fork of llama.cpp" in found.notes
    assert "no drafter in this repository" in found.notes


def test_a_target_in_parts_is_found_whole_or_not_at_all(
    server: LocalHub, hub: Hub, files: Callable[..., bytes]
) -> None:
    server.add(REPO, "BF16/big-BF16-00001-of-00002.gguf", files("target"))
    with pytest.raises(ModelNotFoundError, match="no part BF16/big-BF16-00002-of-00002"):
        find_set(hub, HubName(REPO, quant="BF16"))
    server.add(REPO, "BF16/big-BF16-00002-of-00002.gguf", b"more")
    found = find_set(hub, HubName(REPO, quant="BF16"))
    assert [part.size for part in found.parts] == [len(files("target")), 4]
    assert found.files["target"].size == len(files("target")) + 4
    assert found.files["target"].sha256 is None
    server.add(REPO, "small-BF16.gguf", files("target"))
    assert _paths(find_set(hub, HubName(REPO)))["target"] == "small-BF16.gguf"


def test_another_model_or_quantisation_is_named(
    server: LocalHub, hub: Hub, files: Callable[..., bytes]
) -> None:
    server.add(REPO, "m-Q4_0.gguf", files("target"))
    with pytest.raises(ModelNotFoundError, match="as Q6_K") as caught:
        find_set(hub, HubName(REPO, quant="Q6_K"))
    assert caught.value.hint == "There is: Q4_0."
    server.add("other/llama", "m-Q4_0.gguf", _architecture("llama"))
    with pytest.raises(UnsupportedModelError, match="'llama', expected gemma4"):
        find_set(hub, HubName("other/llama"))


def test_names_in_a_listing_that_would_climb_are_left_out(
    server: LocalHub, hub: Hub, files: Callable[..., bytes]
) -> None:
    for path in ("../m-Q4_0.gguf", "/etc/m-Q4_0.gguf", "a\\m-Q4_0.gguf", "a//m-Q4_0.gguf"):
        server.add(REPO, path, files("target"))
    assert hub.files(REPO, "main") == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"<html>not found</html>",
        raw_gguf(keys=[key("general.file_type", 2)]),
        raw_gguf(key_count=2**63),
        b"GGUF\3\0\0\0" + bytes(8) + b"\1" + bytes(7) + b"\xff" * 8,
        raw_gguf(keys=[text("general.architecture") + b"\x08\0\0\0" + b"\xff" * 8]),
        raw_gguf(keys=[text("a") + b"\x09\0\0\0\x08\0\0\0" + b"\xff" * 8]),
        raw_gguf(keys=[text("a") + b"\x63\0\0\0"]),
    ],
)
def test_a_hostile_header_is_bounded(data: bytes) -> None:
    with pytest.raises(BadModelFileError):
        peek(data, "x.gguf")


def test_only_the_start_of_a_file_is_read_even_from_a_server_without_ranges(
    server: LocalHub, hub: Hub, files: Callable[..., bytes]
) -> None:
    server.add(REPO, "m-Q4_0.gguf", files("target") + bytes(8 << 20))
    server.fault = lambda asked: "200 instead of 206"
    assert set(find_set(hub, HubName(REPO)).files) == {"target"}
    assert server.sent < 6 << 20


def test_a_gated_repository_says_what_to_do(server: LocalHub, hub: Hub) -> None:
    server.add(REPO, "m.gguf", b"x")
    server.repos[REPO].gated = True
    with pytest.raises(DownloadError, match="is gated") as caught:
        hub.commit(REPO)
    assert f"{server.url}/{REPO}" in (caught.value.hint or "")
    assert "set HF_TOKEN" in (caught.value.hint or "")
    with Hub(server.url, token="hf_other", patience=QUICK) as other:
        with pytest.raises(DownloadError, match="is gated") as caught:
            other.commit(REPO)
        assert "account of your HF_TOKEN" in (caught.value.hint or "")


def test_what_is_missing_is_said(server: LocalHub, hub: Hub) -> None:
    with pytest.raises(ModelNotFoundError, match="no repository no/such") as caught:
        hub.commit("no/such")
    assert "HF_TOKEN" in (caught.value.hint or "")
    server.add(REPO, "m.gguf", b"x")
    with pytest.raises(ModelNotFoundError, match="no such revision"):
        hub.locate(RemoteFile(REPO, "f" * 40, "m.gguf"))
    with pytest.raises(ModelNotFoundError, match="is not there"):
        hub.locate(RemoteFile(REPO, "main", "n.gguf"))


def test_a_repository_that_moved_is_followed(server: LocalHub, hub: Hub) -> None:
    sha256 = server.add(REPO, "m.gguf", b"hello")
    server.moved["old/name"] = REPO
    location = hub.locate(RemoteFile("old/name", "main", "m.gguf"))
    assert (location.size, location.sha256) == (5, sha256)
    assert hub.commit("old/name") == server.repos[REPO].commit


def test_too_many_requests_end_with_the_time_to_wait(server: LocalHub, hub: Hub) -> None:
    server.hub_status, server.retry_after = 429, "17"
    with pytest.raises(DownloadError, match="too many requests") as caught:
        hub.commit(REPO)
    assert "17 seconds" in (caught.value.hint or "")
    assert len(server.requests) == QUICK.attempts


def test_offline_nothing_is_asked(server: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    with Hub.from_environment() as hub, pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        hub.commit(REPO)
    assert server.requests == []


def test_the_token_comes_from_the_environment_or_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with Hub.from_environment() as hub:
        assert hub.token is None
    (tmp_path / "token").write_text("hf_file\n")
    with Hub.from_environment() as hub:
        assert hub.token == "hf_file"
    monkeypatch.setenv("HF_TOKEN", "hf_environment")
    with Hub.from_environment() as hub:
        assert hub.token == "hf_environment"


def test_a_redirect_from_https_to_http_is_not_followed() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"Location": "http://cdn.example/x"})

    with Hub("https://hub.example", token="hf_good", patience=QUICK) as hub:
        hub.client = httpx.Client(transport=httpx.MockTransport(answer))
        with pytest.raises(DownloadError, match="redirects to http:"):
            hub.locate(RemoteFile(REPO, "main", "m.gguf"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" * 100_000, "sends no JSON"),
        (b"<html>", "sends no JSON"),
        (b'{"sha": 7}', "does not say at which commit"),
        (b" " * (17 << 20), "an answer without end"),
    ],
)
def test_an_answer_that_is_none_is_refused(body: bytes, words: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(body))

    with Hub("https://hub.example", patience=QUICK) as hub:
        hub.client = httpx.Client(transport=httpx.MockTransport(answer))
        with pytest.raises(DownloadError, match=words):
            hub.commit(REPO)


def test_a_proxy_of_the_environment_is_used(
    server: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(REPO, "m.gguf", b"x")
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    with Hub.from_environment() as hub:
        assert hub.commit(REPO) == server.repos[REPO].commit
    assert server.requests[0].path.startswith("http://hub.example/api/models/")


def test_an_endpoint_that_is_none_is_refused() -> None:
    for endpoint in ("file:///etc", "huggingface.co"):
        with pytest.raises(UsageError, match="no address"):
            Hub(endpoint)


def test_names_on_the_hub() -> None:
    name = HubName.parse("hf:unsloth/gemma-4-31B-it-qat-GGUF:UD-Q4_K_XL")
    assert (name.repo, name.quant) == ("unsloth/gemma-4-31B-it-qat-GGUF", "UD-Q4_K_XL")
    assert name.set_name == "hf.unsloth.gemma-4-31b-it-qat-gguf:ud-q4_k_xl"
    assert HubName.parse("hf:a/b").set_name == "hf.a.b:latest"
    assert HubName.parse("hf:a/b@abc:q4").revision == "abc"
    for bad in ("hf:a", "hf:../b", "hf:a/b/c", "hf:a/..", "hf:a/b:../x", "hf:a/b@../x", "hf:/b"):
        with pytest.raises(UsageError):
            HubName.parse(bad)


def test_quantisations_and_parts_are_read_from_names() -> None:
    assert quant_of("gemma-4-31B-it-qat-UD-Q4_K_XL.gguf") == "UD-Q4_K_XL"
    assert quant_of("gemma-4-26B_q4_0-it.gguf") == "Q4_0"
    assert quant_of("MTP/mtp-gemma-4-12b-it-BF16.gguf") == "BF16"
    assert quant_of("mtp-gemma-4-12B-it.gguf") is None
    assert split_parts("a-00001-of-00003.gguf") == ("a", 1, 3)
    assert split_parts("a.gguf") is None
    with pytest.raises(UsageError):
        check_path("x/../a-00001-of-00003.gguf")
