"""The hub's HTTP interface: which files a repository has, and where their bytes are.

``HF_ENDPOINT``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE`` mean what they mean to huggingface_hub; proxies
come from the environment, as httpx reads it. The token goes to the endpoint's own origin only, not
to the CDN that the hub redirects to.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx

from gemmtp.errors import DownloadError, GemmtpError, ModelNotFoundError, UsageError
from gemmtp_models.hub_names import (
    RemoteFile,
    check_path,
    check_repo,
    check_revision,
    is_sha256,
)

_T = TypeVar("_T")

ENDPOINT = "https://huggingface.co"
MAX_REDIRECTS = 5
MAX_LISTING_PAGES = 50
MAX_LISTED_FILES = 10_000
MAX_ANSWER_BYTES = 16 << 20
_TIMEOUT = httpx.Timeout(30.0, connect=15.0)
_PASSING = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a failing request is tried (``attempts``), and the waits between, in seconds."""

    attempts: int = 8
    first: float = 0.5
    longest: float = 20.0
    longest_retry_after: float = 120.0

    def delay(self, failures: int, retry_after: float | None = None) -> float:
        """Seconds to wait after so many failures in a row."""
        if retry_after is not None:
            return min(retry_after, self.longest_retry_after)
        return min(self.first * 2.0 ** (failures - 1), self.longest)


class PassingError(Exception):
    """A failure that may be gone at the next try; ``retry_after`` in seconds if the server says."""

    def __init__(self, problem: str, retry_after: float | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Location:
    """Where a file's bytes are; ``size`` and ``sha256`` as the hub says, if it does."""

    url: str
    size: int | None
    sha256: str | None


@dataclass
class Hub:
    """A hub at ``endpoint``. Close it, or use it in a ``with``."""

    endpoint: str = ENDPOINT
    token: str | None = None
    offline: bool = False
    patience: Patience = field(default_factory=lambda: Patience(attempts=4))
    connections: int = 18

    def __post_init__(self) -> None:
        self.endpoint = self.endpoint.rstrip("/")
        try:
            self._origin = _origin(httpx.URL(self.endpoint))
        except httpx.InvalidURL:
            self._origin = ("", "", None)
        if self._origin[0] not in ("http", "https"):
            raise UsageError(
                f"{self.endpoint!r} is no address of a hub.", "Set HF_ENDPOINT to an https:// one."
            )
        self.client = httpx.Client(
            timeout=_TIMEOUT,
            limits=httpx.Limits(max_connections=self.connections),
            headers={"User-Agent": "gemmtp", "Accept-Encoding": "identity"},
        )

    @classmethod
    def from_environment(cls) -> Self:
        """The hub that the environment names."""
        offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
        return cls(os.environ.get("HF_ENDPOINT") or ENDPOINT, _token(), offline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.client.close()

    def headers(self, url: httpx.URL) -> dict[str, str]:
        """The token for the hub's own origin, nothing for any other."""
        if self.token and _origin(url) == self._origin:
            return {"Authorization": f"Bearer {self.token}"}
        return {}

    def commit(self, repo: str, revision: str = "main") -> str:
        """The commit that a branch or tag of ``repo`` stands at."""
        repo, revision = check_repo(repo), check_revision(revision)
        answer = self._json(f"{self.endpoint}/api/models/{repo}/revision/{revision}", repo)
        sha = answer[0].get("sha") if isinstance(answer[0], dict) else None
        if not isinstance(sha, str):
            raise DownloadError(f"{self._host} does not say at which commit {repo} is.")
        return check_revision(sha)

    def files(self, repo: str, revision: str) -> list[RemoteFile]:
        """All files of a repository at a commit; names that are no plain paths are left out."""
        url: str | None = f"{self.endpoint}/api/models/{check_repo(repo)}/tree/"
        url = f"{url}{check_revision(revision)}?recursive=true"
        found: list[RemoteFile] = []
        for _ in range(MAX_LISTING_PAGES):
            entries, following = self._json(url, repo)
            for entry in entries if isinstance(entries, list) else []:
                if (file := _listed(repo, revision, entry)) is not None:
                    found.append(file)
            if following is None or len(found) > MAX_LISTED_FILES:
                return found
            url = following
        raise DownloadError(f"{repo} has more files than can be listed.")

    def locate(self, file: RemoteFile) -> Location:
        """Ask where the bytes of ``file`` are; raises for one that is missing or gated."""
        path = quote(check_path(file.path))
        address = f"{check_repo(file.repo)}/resolve/{check_revision(file.revision)}/{path}"
        return self._patiently(lambda: self._locate(f"{self.endpoint}/{address}", file))

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[httpx.Response]:
        """The answer to a GET behind at most ``MAX_REDIRECTS`` redirects, its body unread.

        Raises PassingError when no answer comes.
        """
        at = httpx.URL(url)
        for _ in range(MAX_REDIRECTS + 1):
            request = self.client.build_request(
                "GET", at, headers={**(headers or {}), **self.headers(at)}
            )
            with _failures(at):
                response = self.client.send(request, stream=True)
            if not response.has_redirect_location:
                break
            response.close()
            at = self._redirect(response)
        else:
            raise DownloadError(f"{self._host} redirects in circles.")
        try:
            yield response
        finally:
            response.close()

    def refusal(self, response: httpx.Response, repo: str, what: str) -> GemmtpError:
        """The error for an answer that no second try will change."""
        code = response.headers.get("x-error-code", "")
        status, page = response.status_code, f"{self.endpoint}/{repo}"
        if code == "GatedRepo":
            if self.token is None:
                hint = f"Accept the terms at {page} and set HF_TOKEN to a token of your account."
            else:
                hint = f"Accept the terms at {page} with the account of your HF_TOKEN."
            return DownloadError(f"{repo} is gated: its terms have to be accepted first.", hint)
        if code == "RepoNotFound" or (status == 401 and not code):
            return ModelNotFoundError(
                f"{self._host} has no repository {repo} that may be read.",
                "Check the spelling; for a private one set HF_TOKEN.",
            )
        if code == "RevisionNotFound":
            return ModelNotFoundError(
                f"{repo} has no such revision any more.", "Update gemmtp, or pull hf:" + repo + "."
            )
        if status in (404, 410):
            return ModelNotFoundError(f"{what} is not there.", f"See {page} for what is.")
        return DownloadError(f"{self._host} answers {status} when asked for {what}.")

    @property
    def _host(self) -> str:
        return self._origin[1]

    def _locate(self, url: str, file: RemoteFile) -> Location:
        at, size, sha256 = httpx.URL(url), None, None
        for _ in range(MAX_REDIRECTS + 1):
            with _failures(at):
                response = self.client.request("HEAD", at, headers=self.headers(at))
            size = size or _number(response.headers.get("x-linked-size"))
            etag = response.headers.get("x-linked-etag", "").removeprefix("W/").strip('"')
            sha256 = sha256 or (etag if is_sha256(etag) else None)
            if not response.has_redirect_location:
                self._check(response, file.repo, f"{file.path} of {file.repo}")
                return Location(
                    str(at), size or _number(response.headers.get("content-length")), sha256
                )
            at = self._redirect(response)
            if _origin(at) != self._origin:
                return Location(str(at), size, sha256)
        raise DownloadError(f"{self._host} redirects in circles.")

    def _redirect(self, response: httpx.Response) -> httpx.URL:
        """Where a redirect leads: to http(s) only, and from https to nothing less."""
        with _failures(response.url):
            target = response.url.join(response.headers["location"])
        secure = response.url.scheme == "https"
        if target.scheme not in (("https",) if secure else ("http", "https")) or not target.host:
            raise DownloadError(
                f"{response.url.host} redirects to {target.scheme}:, which is not followed."
            )
        return target

    def _json(self, url: str, repo: str) -> tuple[Any, str | None]:
        """The JSON of an answer and the address of the next page, if there is one."""
        return self._patiently(lambda: self._page(httpx.URL(url), repo))

    def _page(self, at: httpx.URL, repo: str) -> tuple[Any, str | None]:
        # The token goes along only while the redirects stay on the hub.
        with self.open(str(at)) as response:
            self._check(response, repo, repo)
            with _failures(at):
                data = _bounded(response)
        following = response.links.get("next", {}).get("url")
        if following is not None and _origin(httpx.URL(following)) != self._origin:
            raise DownloadError(f"{self._host} lists {repo} at another host.")
        try:
            return json.loads(data), following
        except (ValueError, RecursionError):
            raise PassingError(f"{self._host} sends no JSON") from None

    def _check(self, response: httpx.Response, repo: str, what: str) -> None:
        check_passing(response)
        if response.status_code >= 300:
            raise self.refusal(response, repo, what)

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        if self.offline:
            raise DownloadError(
                "HF_HUB_OFFLINE is set, so nothing is fetched.", "Unset it to fetch from the hub."
            )
        failures = 0
        while True:
            try:
                return ask()
            except PassingError as error:
                failures += 1
                if failures >= self.patience.attempts:
                    raise given_up(error) from error
                time.sleep(self.patience.delay(failures, error.retry_after))


def check_passing(response: httpx.Response) -> None:
    """Raise PassingError for a status that asks to come again."""
    if response.status_code in _PASSING:
        after = _number(response.headers.get("retry-after"))
        raise PassingError(
            f"{response.url.host} answers {response.status_code}"
            + (" (too many requests)" if response.status_code == 429 else ""),
            after,
        )


def given_up(error: PassingError) -> DownloadError:
    """The error at the end of all tries."""
    if error.retry_after is not None:
        hint = (
            f"The server asks to wait {error.retry_after:.0f} seconds; what is here is kept. "
            "With HF_TOKEN set, the hub allows more requests."
        )
    else:
        hint = "Check the connection and try again; what is here is kept."
    return DownloadError(f"{error.problem}, again and again.", hint)


def _bounded(response: httpx.Response) -> bytes:
    """The body of an answer that has to be short."""
    data = bytearray()
    for chunk in response.iter_bytes():
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            raise DownloadError(f"{response.url.host} sends an answer without end.")
    return bytes(data)


@contextmanager
def _failures(url: httpx.URL) -> Iterator[None]:
    """What httpx raises on the way to ``url``, as errors of ours."""
    try:
        yield
    except httpx.TransportError as error:
        raise PassingError(_words(error, url)) from error
    except httpx.InvalidURL:
        raise DownloadError(f"{url.host} redirects to no address.") from None


def _words(error: httpx.TransportError, url: httpx.URL) -> str:
    """What went wrong on the way, without addresses, which may be signed."""
    kind = type(error).__name__
    words = {
        "ConnectError": "cannot be reached",
        "ConnectTimeout": "does not answer",
        "ReadTimeout": "stopped sending",
        "ProxyError": "cannot be reached through the proxy",
    }
    return f"{url.host} {words.get(kind, 'broke the connection')}"


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else None


def _listed(repo: str, revision: str, entry: Any) -> RemoteFile | None:
    if not isinstance(entry, dict) or entry.get("type") != "file":
        return None
    path, lfs = entry.get("path"), entry.get("lfs")
    details = lfs if isinstance(lfs, dict) else {}
    oid, size = details.get("oid"), details.get("size", entry.get("size"))
    try:
        check_path(path if isinstance(path, str) else "")
    except UsageError:
        return None
    known = isinstance(oid, str) and is_sha256(oid)
    whole = type(size) is int and size >= 0
    return RemoteFile(repo, revision, str(path), size if whole else None, oid if known else None)


def _token() -> str | None:
    """The token of the environment, else of the file where huggingface_hub keeps it."""
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    home = os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    path = Path(os.environ.get("HF_TOKEN_PATH") or Path(home) / "token")
    try:
        return path.read_text("utf-8").strip() or None
    except (OSError, ValueError):
        return None
