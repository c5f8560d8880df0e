"""``gemmtp quantize``: a Gemma 4 checkpoint and its assistant become one matched set."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gemmtp_quantize.pipeline import Finished, Progress
    from gemmtp_quantize.plan import SetPlan


def quantize(
    target: Annotated[Path, typer.Argument(metavar="TARGET_DIR", help="The target's checkpoint.")],
    drafter: Annotated[
        Path, typer.Argument(metavar="DRAFTER_DIR", help="Its assistant's checkpoint.")
    ],
    recipe: str = typer.Option(
        "q4_k_m", "--recipe", "-r", metavar="NAME", help="A recipe's name, or a TOML file."
    ),
    vision: str = typer.Option(
        "f16",
        "--vision",
        metavar="TYPE",
        help="The type of a vision tower's weights: f32, bf16, f16, q8_0; none leaves it out.",
    ),
    output: str | None = typer.Option(
        None, "--output", "-o", metavar="NAME_OR_DIR", help="family:tag in the store, or a folder."
    ),
    force: bool = typer.Option(False, "--force", help="Replace a set that is there already."),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print every tensor's type and size; write nothing."
    ),
    verify: bool = typer.Option(
        False, "--verify", help="Compare the result with the checkpoints by transformers."
    ),
    threads: int = typer.Option(
        0, "--threads", min=0, help="For quantising and comparing; 0: all cores."
    ),
) -> None:
    """Turn a checkpoint and its assistant into one matched set."""
    from gemmtp.errors import UsageError
    from gemmtp_quantize.plan import plan_set
    from gemmtp_quantize.recipe import load_recipe

    if output is None and not dry_run:
        raise UsageError(
            "Where the set is to go is missing.", "Give --output family:tag or --output FOLDER."
        )
    chosen = load_recipe(recipe)
    if output is not None and not dry_run:
        _check_output(output, force)
    plan = plan_set(target, drafter, chosen, vision=None if vision == "none" else vision)
    for note in plan.notes:
        sys.stderr.write(f"note: {note}\n")
    if dry_run:
        from gemmtp_quantize.report import plan_table

        sys.stdout.write(plan_table(plan))
        return
    with _progress() as progress:
        finished = _build(plan, str(output), force, threads or os.cpu_count() or 1, progress)
    _say(plan, finished)
    if verify:
        _verify(target, drafter, finished, threads)


def _is_name(output: str) -> bool:
    """A name has a colon and no separator; a Windows drive is followed by one."""
    return ":" in output and not any(mark in output for mark in ("/", "\\"))


def _check_output(output: str, force: bool) -> None:
    from gemmtp.settings import data_dir
    from gemmtp_models.store import Store
    from gemmtp_quantize.pipeline import check_folder, check_store

    if _is_name(output):
        check_store(Store(data_dir()), output, force=force)
    else:
        check_folder(Path(output), force=force)


def _build(plan: SetPlan, output: str, force: bool, threads: int, progress: Progress) -> Finished:
    from gemmtp.settings import data_dir
    from gemmtp_models.store import Store
    from gemmtp_quantize.pipeline import build_folder, build_set

    if _is_name(output):
        store = Store(data_dir())
        return build_set(plan, store, output, force=force, threads=threads, progress=progress)
    return build_folder(plan, Path(output), force=force, threads=threads, progress=progress)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Bars with the remaining time on stderr; nothing when stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description:24}"), BarColumn(), DownloadColumn())
    bars = Bars(*columns, TimeRemainingColumn(), console=Console(stderr=True))
    tasks: dict[str, object] = {}

    def show(step: str, done: int, total: int) -> None:
        task = tasks.get(step)
        if task is None:
            task = tasks[step] = bars.add_task(step, total=total)
        bars.update(task, completed=done)  # type: ignore[arg-type]

    if not sys.stderr.isatty():
        yield lambda step, done, total: None
        return
    with bars:
        yield show


def _say(plan: SetPlan, finished: Finished) -> None:
    for role, path in finished.files.items():
        size, before = path.stat().st_size, plan.files[role].source_bytes
        sys.stderr.write(f"{role:9} {path}  {size / 2**20:,.1f} MiB of {before / 2**20:,.1f}\n")
    sys.stderr.write(f"target and drafter match, fingerprint {plan.fingerprint[:12]}\n")


def _verify(target: Path, drafter: Path, finished: Finished, threads: int) -> None:
    from gemmtp_quantize.parity import compare

    files = finished.files
    report = compare(target, drafter, files["target"], files["drafter"], threads=threads)
    sys.stdout.write(report.text())
    if "projector" in files:
        from gemmtp_models.memory_projector import IMAGE_BUDGETS
        from gemmtp_quantize.answer_parity import compare_answer, sample_image

        seen = compare_answer(
            target, drafter, files, sample_image(), tokens=min(IMAGE_BUDGETS), threads=threads
        )
        sys.stdout.write("\nafter an image\n" + seen.text())
