"""The pipeline: plan, write, quantise, check the pair, and only then give the files their names."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gemmtp.errors import BadModelFileError, GemmtpError, UsageError
from gemmtp_models.geometry import read_geometry
from gemmtp_models.header import read_header
from gemmtp_models.manifest import ROLES, Layer, Manifest, Role, check_name, write_manifest
from gemmtp_models.pairing import PairReport, check_pair
from gemmtp_models.projector import check_projector
from gemmtp_models.store import InstalledSet, Store, sha256_of
from gemmtp_models.workspace import open_workspace
from gemmtp_quantize.gguf_file import sync, write_gguf
from gemmtp_quantize.plan import FilePlan, SetPlan
from gemmtp_quantize.recipe import FILE_TYPES, TYPE_IDS

MANIFEST = "manifest.json"
FILES: dict[Role, str] = {role: f"{role}.gguf" for role in ROLES}
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Header, vocabulary and manifest, which the plan of tensors does not count.
SPARE_BYTES = 64 << 20
POLL_SECONDS = 0.2

Progress = Callable[[str, int, int], None]
"""Takes the name of a step, the bytes done and the bytes there are."""


@dataclass(frozen=True)
class Finished:
    """The set where it lies now, and the report of its pair check."""

    files: dict[Role, Path]
    manifest: Manifest
    report: PairReport


def silent(step: str, done: int, total: int) -> None:
    """A progress that shows nothing."""


def build_folder(
    plan: SetPlan, output: Path, *, force: bool, threads: int, progress: Progress = silent
) -> Finished:
    """Leave the files of the set and their ``manifest.json`` in ``output``, all or none.

    Raises UsageError when the folder holds something already (with ``force``: something else than
    such a set), GemmtpError when the disk is full, and what reading the checkpoints raises.
    """
    output = output.absolute()
    _restore(output)
    check_folder(output, force=force)
    with open_workspace(output.parent, f".{output.name}.partial-") as folder, _disk_errors(folder):
        built = folder / "set"
        built.mkdir()
        report = _build(plan, built, threads, progress)
        files = {role: FILES[role] for role in plan.files}
        layers = {
            role: Layer(
                (built / name).stat().st_size, sha256_of(built / name), name, _source(plan, role)
            )
            for role, name in files.items()
        }
        manifest = _manifest(plan, _folder_name(output, plan), layers, report)
        write_manifest(built / MANIFEST, manifest)
        for name in files.values():
            sync(built / name)
        _move_in(built, output)
    return Finished({role: output / name for role, name in files.items()}, manifest, report)


def build_set(
    plan: SetPlan,
    store: Store,
    name: str,
    *,
    force: bool,
    threads: int,
    progress: Progress = silent,
) -> Finished:
    """Register the set under ``name`` in ``store``; raises as ``build_folder`` does."""
    check_store(store, name, force=force)
    with store.workspace() as folder, _disk_errors(folder):
        store.remove_leftovers()
        report = _build(plan, folder, threads, progress)
        staged: dict[Role, Path] = {role: folder / FILES[role] for role in plan.files}
        layers = {
            role: Layer(path.stat().st_size, source=_source(plan, role), file=path.name)
            for role, path in staged.items()
        }
        manifest = _manifest(plan, name, layers, report)
        installed: InstalledSet = store.register(manifest, staged, replace_existing=force)
    return Finished(dict(installed.files), installed.manifest, report)


def check_folder(output: Path, *, force: bool) -> None:
    """Raise UsageError unless the set may go to the folder ``output``."""
    if not output.exists():
        return
    if not output.is_dir():
        raise UsageError(f"{output} is a file.", "Give a folder or a name such as gemma4:mine.")
    found = {path.name for path in output.iterdir()}
    if found and not force:
        raise UsageError(f"{output} exists already.", "Give --force to replace it.")
    if not found <= {MANIFEST, *FILES.values()}:
        raise UsageError(f"{output} holds other files than a set's, and is not replaced.")


def check_store(store: Store, name: str, *, force: bool) -> None:
    """Raise UsageError unless the set may be registered under ``name``."""
    check_name(name)
    if store.exists(name) and not force:
        raise UsageError(f"There is a set {name} already.", "Give --force to replace it.")


def _build(plan: SetPlan, folder: Path, threads: int, progress: Progress) -> PairReport:
    """All files in ``folder``, checked against the plan and each other."""
    _check_space(plan, folder)
    for role, file in plan.files.items():
        _build_file(file, folder / FILES[role], role, threads, progress)
    target = read_header(folder / FILES["target"])
    report = check_pair(target, read_header(folder / FILES["drafter"]))
    report.raise_for_mismatch()
    if plan.projector is not None:
        width = read_geometry(target).embedding_length
        check_projector(read_header(folder / FILES["projector"]), width)
    return report


def _build_file(plan: FilePlan, path: Path, role: str, threads: int, progress: Progress) -> None:
    written = path.with_suffix(".unquantised") if plan.quantised else path
    done, total = 0, plan.written_bytes

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(f"Converting the {role}", done, total)

    write_gguf(written, plan.fields, plan.tensors, advance)
    if plan.quantised:
        _quantise(plan, written, path, role, threads, progress)
        written.unlink()
    _check_types(plan, path)


def _quantise(
    plan: FilePlan, source: Path, target: Path, role: str, threads: int, progress: Progress
) -> None:
    """Run llama.cpp's quantiser in a thread, so that Ctrl-C is heard while it works."""
    from gemmtp.llama.quantize import quantize_file

    number, default = FILE_TYPES[plan.recipe.file_type]
    failures: list[BaseException] = []

    def work() -> None:
        try:
            quantize_file(
                source,
                target,
                file_type=number,
                default_type=TYPE_IDS[default],
                types=plan.types,
                threads=threads,
            )
        except BaseException as error:
            failures.append(error)

    worker = threading.Thread(target=work, name="quantise", daemon=True)
    worker.start()
    step, total = f"Quantising the {role}", plan.final_bytes
    while worker.is_alive():
        worker.join(POLL_SECONDS)
        # How far it is shows in the size of the file that it writes.
        size = target.stat().st_size if target.exists() else 0
        progress(step, min(size, total), total)
    if failures:
        raise failures[0]
    progress(step, total, total)


def _check_types(plan: FilePlan, path: Path) -> None:
    """The file must hold exactly the tensors and types of the plan, and no byte less."""
    header = read_header(path)
    found = {name: TYPE_IDS.get(tensor.type.name) for name, tensor in header.tensors.items()}
    for name, kind in plan.types.items():
        if found.get(name) != kind:
            raise BadModelFileError(f"{path.name} came out with another type of {name}.")


def _check_space(plan: SetPlan, folder: Path) -> None:
    """Each file stands beside its unquantised form while it is made."""
    needed = done = 0
    for file in plan.files.values():
        done += file.final_bytes
        needed = max(needed, done + (file.written_bytes if file.quantised else 0))
    needed += SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise GemmtpError(
            f"{needed / 2**30:.1f} GiB are needed on the disk of {folder.parent}, "
            f"{free / 2**30:.1f} GiB are free."
        )


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            raise GemmtpError(
                f"The disk of {folder.parent} or the allowed size of a file is full.",
                "Make room, or choose another place with --output.",
            ) from error
        where = error.filename or folder
        raise GemmtpError(f"{where} cannot be read or written: {error.strerror}.") from error


def _source(plan: SetPlan, role: str) -> str:
    return plan.sources[role].name


def _manifest(plan: SetPlan, name: str, layers: dict[Role, Layer], report: PairReport) -> Manifest:
    pairing = {"fingerprint": plan.fingerprint, "recipe": plan.recipe.name, **report.to_json()}
    return Manifest(name, layers, plan.parameters, plan.chat_template, pairing)


def _folder_name(output: Path, plan: SetPlan) -> str:
    """``folder:recipe``, with what a name cannot have turned into dashes."""
    parts = []
    for text in (output.name, plan.recipe.name):
        clean = "".join(
            c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text.lower()
        )
        parts.append(clean.lstrip("._-")[:64] or "set")
    return ":".join(parts)


def _old(output: Path) -> Path:
    return output.with_name(f".{output.name}.old")


def _restore(output: Path) -> None:
    """A killed run may have moved the old set away without bringing the new one."""
    old = _old(output)
    if old.is_dir():
        if output.exists():
            shutil.rmtree(old)
        else:
            os.rename(old, output)


def _move_in(built: Path, output: Path) -> None:
    if output.is_dir() and any(output.iterdir()):
        os.rename(output, _old(output))
    os.rename(built, output)
    shutil.rmtree(_old(output), ignore_errors=True)
