"""llama-server of the same llama.cpp commit: a peer to measure against.

    python -m tests.perf.peer --target T.gguf --drafter D.gguf --draft 3 "import os"

The source distribution of llama-cpp-python carries the llama.cpp it was built from, so a server
built from it differs from our engine in the loop alone. The build takes minutes once and is kept
in the user's cache directory.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import platformdirs

BUILD_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_IS_DEV=OFF",
)
START_SECONDS = 120.0
ANSWER_SECONDS = 600.0
STOP_SECONDS = 10.0


def cache() -> Path:
    """The directory for what benchmarks keep between runs; outside the repository."""
    return platformdirs.user_cache_path("gemmtp") / "perf"


def cores() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def server_binary(sdist: Path | None = None) -> Path:
    """llama-server as built from the source distribution of the installed llama-cpp-python.

    ``sdist`` is a downloaded ``llama_cpp_python-X.tar.gz``; without it pip fetches one.
    Raises subprocess.CalledProcessError when pip or cmake fail.
    """
    release = version("llama-cpp-python")
    home = cache() / f"llama-server-{release}"
    binary = home / "build" / "bin" / "llama-server"
    finished = home / "finished"
    if finished.exists() and binary.exists():
        return binary
    home.mkdir(parents=True, exist_ok=True)
    source = home / "source"
    if not (source / "CMakeLists.txt").exists():
        with tempfile.TemporaryDirectory(dir=home) as scratch:
            archive = sdist or _download(release, Path(scratch))
            _unpack_llama_cpp(archive, Path(scratch) / "source")
            (Path(scratch) / "source").rename(source)
    build = home / "build"
    subprocess.run(["cmake", "-S", source, "-B", build, *BUILD_OPTIONS], check=True)
    subprocess.run(
        ["cmake", "--build", build, "--target", "llama-server", "-j", str(cores())], check=True
    )
    finished.touch()
    return binary


def _download(release: str, directory: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*pip, "-d", directory, f"llama-cpp-python=={release}"], check=True)
    return next(directory.glob("llama_cpp_python-*.tar.gz"))


def _unpack_llama_cpp(archive: Path, target: Path) -> None:
    """The archive's ``*/vendor/llama.cpp`` as ``target``."""
    target.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if parts[1:3] != ("vendor", "llama.cpp") or len(parts) == 3:
                continue
            member.name = str(PurePosixPath(*parts[3:]))
            tar.extract(member, target, filter="data")


@dataclass(frozen=True)
class PeerAnswer:
    """One completion with the server's own timings.

    ``rate`` is tokens a second after the first token, which belongs to the prompt's decode.
    """

    tokens: tuple[int, ...]
    text: str
    rate: float
    drafted: int
    accepted: int
    prompt_ms: float


class Peer:
    """A running llama-server."""

    def __init__(self, port: int) -> None:
        self._port = port

    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> PeerAnswer:
        """The continuation of a raw prompt or of token ids; end tokens do not stop it."""
        body = {
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "n_predict": max_tokens,
            "temperature": temperature,
            "top_k": 64,
            "top_p": 0.95,
            "min_p": 0.0,
            "seed": seed,
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
        }
        answer = self._post("/completion", body)
        timings = answer["timings"]
        spent = timings["predicted_ms"] / 1000
        return PeerAnswer(
            tokens=tuple(answer["tokens"]),
            text=answer["content"],
            rate=(timings["predicted_n"] - 1) / spent if spent else 0.0,
            drafted=timings.get("draft_n", 0),
            accepted=timings.get("draft_n_accepted", 0),
            prompt_ms=timings["prompt_ms"],
        )

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            payload = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"llama-server answered {response.status}: {payload[:500]!r}")
        parsed: dict[str, Any] = json.loads(payload)
        return parsed


@contextlib.contextmanager
def serving(
    binary: Path,
    target: Path,
    drafter: Path | None = None,
    *,
    draft: int = 0,
    n_ctx: int = 1024,
    slots: int = 1,
    threads: int | None = None,
) -> Iterator[Peer]:
    """A server that answers on 127.0.0.1 while the block runs and is gone after it.

    ``draft`` is the number of tokens drafted each round; 0 starts it without the drafter. Every
    one of ``slots`` has ``n_ctx`` positions; they share one cache, as ours do.
    """
    port = _free_port()
    command = [binary, "-m", target, "--host", "127.0.0.1", "--port", port, "-c", n_ctx * slots]
    command += ["-np", slots, "-t", threads or cores(), "--cache-ram", 0, "-ngl", 0]
    if slots > 1:
        command += ["--kv-unified"]
    if draft:
        if drafter is None:
            raise ValueError("drafting needs a drafter")
        command += ["-md", drafter, "--spec-type", "draft-mtp", "--spec-draft-n-max", draft]
    with tempfile.TemporaryFile("w+b") as log:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            if not _becomes_healthy(process, port):
                log.seek(0)
                raise RuntimeError(f"llama-server did not start: {log.read()[-2000:]!r}")
            yield Peer(port)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _becomes_healthy(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", "/health")
            if connection.getresponse().status == http.client.OK:
                return True
        time.sleep(0.1)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("prompt", nargs="?", help="without it the server is built and no more")
    parser.add_argument("--target", type=Path)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--draft", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--sdist", type=Path, help="a downloaded llama_cpp_python-*.tar.gz")
    arguments = parser.parse_args()
    for tool in ("cmake", "c++"):
        if shutil.which(tool) is None:
            parser.error(f"{tool} is not installed")
    binary = server_binary(arguments.sdist)
    print(binary)
    if arguments.prompt is None:
        return
    if arguments.target is None:
        parser.error("a prompt needs --target")
    draft = arguments.draft if arguments.drafter else 0
    with serving(binary, arguments.target, arguments.drafter, draft=draft) as peer:
        answer = peer.complete(arguments.prompt, max_tokens=arguments.max_tokens)
    print(answer.text)
    print(f"{answer.rate:.1f} tok/s, {answer.accepted} of {answer.drafted} drafted accepted")


if __name__ == "__main__":
    main()
