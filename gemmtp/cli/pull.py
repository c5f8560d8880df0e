"""``gemmtp pull``: fetch a set, check its pair, keep it. Also how ``run`` gets a missing set."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import typer

from gemmtp.cli.complete import available_names

if TYPE_CHECKING:
    from gemmtp_models.pull import Plan
    from gemmtp_models.store import InstalledSet

POLICIES = ("missing", "never", "always")


def pull(
    model: str = typer.Argument(
        ...,
        metavar="NAME",
        help="A set of the catalogue, or hf:owner/repo[:quant].",
        autocompletion=available_names,
    ),
    connections: int = typer.Option(4, "--connections", help="Connections at a time, 1 to 16."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Say nothing unless it fails."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """Fetch a set: target, drafter and projector, checked to belong together."""
    import json

    from gemmtp_models import names

    begin = time.monotonic()
    if model == names.DEMO:
        _tell("The set demo comes with gemmtp; there is nothing to fetch.", quiet)
        return
    plan, installed = _pull(model, connections=connections, quiet=quiet)
    if not plan.missing:
        _tell(f"{plan.name} was here already, in full.", quiet)
    if as_json:
        document = _document(plan, installed, time.monotonic() - begin)
        sys.stdout.write(json.dumps(document, indent=2) + "\n")


def ensure(model: str, policy: str) -> None:
    """Pull a set that ``run`` was asked for, if ``--pull`` says so.

    With ``missing`` a set that is here makes no network call; one that is not is asked for on a
    terminal and pulled with a note elsewhere. A name that no catalogue has is left to who opens
    it: it may have been built here. Raises UsageError for another policy, and InterruptedByUser
    when the answer is no.
    """
    from gemmtp import settings
    from gemmtp.errors import UsageError
    from gemmtp_models import names, ollama

    if policy not in POLICIES:
        raise UsageError(f"{policy!r} is no way to pull.", f"Use {', '.join(POLICIES)}.")
    here = names.is_local(model) or model == names.DEMO or model.startswith(ollama.PREFIX)
    if policy == "never" or here:
        return
    if policy == "missing" and names.is_installed(model, settings.data_dir()):
        return
    from gemmtp_models import catalogue

    if model.startswith("hf:") or catalogue.find_entry(model, settings.config_dir()):
        _pull(model, ask=policy == "missing")


def _pull(
    model: str, *, connections: int | None = None, quiet: bool = False, ask: bool = False
) -> tuple[Plan, InstalledSet]:
    from gemmtp import settings
    from gemmtp.cli.fetch_progress import FetchProgress
    from gemmtp.errors import UsageError
    from gemmtp_models import download
    from gemmtp_models.hub import Hub
    from gemmtp_models.pull import make_plan
    from gemmtp_models.pull import pull as fetch_set
    from gemmtp_models.store import Store

    connections = download.DEFAULT_CONNECTIONS if connections is None else connections
    if not 1 <= connections <= download.MAX_CONNECTIONS:
        raise UsageError(
            f"From 1 to {download.MAX_CONNECTIONS} connections are possible, not {connections}.",
            f"Without the option there are {download.DEFAULT_CONNECTIONS}.",
        )
    store = Store(settings.data_dir())
    with Hub.from_environment() as hub:
        plan = make_plan(model, hub, store, settings.config_dir())
        for note in plan.notes:
            _tell(f"note: {note}", quiet)
        if plan.missing:
            _agree(plan, model, ask=ask, quiet=quiet)
        with FetchProgress(plan, quiet=quiet) as progress:
            options = download.Options(connections)
            installed = fetch_set(plan, hub, store, progress, options)
    if plan.missing:
        _tell(f"{plan.name} is here: {_pair_words(installed)}", quiet)
    return plan, installed


def _agree(plan: Plan, model: str, *, ask: bool, quiet: bool) -> None:
    """Say what is about to come, and on a terminal ask for it if that was not asked for."""
    from gemmtp.cli.prospect import prospect
    from gemmtp.errors import InterruptedByUser

    files = " + ".join(plan.missing)
    words = f"{plan.name}: {size_words(plan.to_fetch)} to fetch ({files})"
    if plan.held:
        words += f", {size_words(plan.held)} are here from an earlier try"
    if ask and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        if (memory := prospect(model)) is not None:
            sys.stderr.write(memory + "\n")
        sys.stderr.write(f"{words}. Fetch? [Y/n] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("", "y", "yes"):
            raise InterruptedByUser("Nothing was fetched.")
        return
    _tell(words, quiet)


def _tell(text: str, quiet: bool) -> None:
    if not quiet:
        sys.stderr.write(text + "\n")


def size_words(nbytes: int) -> str:
    """A size for people: "17.5 GiB"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:,.1f} {unit}"
    return f"{nbytes} bytes"


def _pair_words(installed: InstalledSet) -> str:
    pairing = installed.manifest.pairing
    return "no drafter in this set" if pairing is None else "target and drafter match"


def _document(plan: Plan, installed: InstalledSet, seconds: float) -> dict[str, Any]:
    files = [
        {
            "role": role,
            "source": file.source,
            "size": installed.manifest.layers[role].size,
            "sha256": installed.manifest.layers[role].sha256,
            "fetched": role in plan.missing,
            "path": str(installed.files[role]),
        }
        for role, file in plan.files.items()
    ]
    return {
        "name": plan.name,
        "files": files,
        "fetched_bytes": plan.to_fetch if plan.missing else 0,
        "seconds": round(seconds, 3),
        "pair": installed.manifest.pairing,
        "notes": list(plan.notes),
    }
