"""``gemmtp show``: what is in a file, read from its header alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gemmtp.cli.complete import available_names

if TYPE_CHECKING:
    from gemmtp_models.catalogue_file import Entry as CatalogueEntry
    from gemmtp_models.header import Header
    from gemmtp_models.metadata import Entry
    from gemmtp_models.names import ModelFiles
    from gemmtp_models.pairing import PairReport

MAX_SHOWN = 100
"""Longer metadata strings are cut for the eye; ``--json`` gives them whole."""


def show(
    model: str = typer.Argument(
        ...,
        metavar="MODEL",
        help="A set's name or a GGUF file.",
        autocompletion=available_names,
    ),
    drafter: Path | None = typer.Option(
        None, "--drafter", metavar="F", help="Check that this drafter belongs to MODEL."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """Show what is in a set or a file, and whether its pair matches."""
    from gemmtp import settings
    from gemmtp_models.header import read_header
    from gemmtp_models.names import find
    from gemmtp_models.pairing import check_pair

    entry = _not_here(model)
    if entry is not None:
        _show_entry(entry, as_json=as_json)
        return
    files = find(model, settings.data_dir())
    header = read_header(files.target)
    drafter = drafter or files.drafter
    report = None
    if drafter is not None:
        report = check_pair(header, read_header(drafter))
    if as_json:
        _print_json(header, report, files)
        return
    lines = [*_set_lines(files), *_lines(header, report)]
    if files.projector is not None:
        lines += ["", f"projector: {_projector(files.projector, header)}"]
    for line in lines:
        sys.stdout.write(line + "\n")


def _projector(path: Path, target: Header) -> str:
    """What a projector can, or why it cannot be used."""
    from gemmtp.errors import ModelError
    from gemmtp_models.geometry import read_geometry
    from gemmtp_models.header import read_header
    from gemmtp_models.projector import check_projector

    try:
        g = check_projector(read_header(path), read_geometry(target).embedding_length)
    except ModelError as error:
        return error.message
    tower = f"a tower of {g.blocks} blocks" if g.blocks else "a direct projection"
    sound = "; its audio encoder is not used yet" if g.audio else ""
    pixels = f"{g.side} x {g.side} pixels a token, {g.image_tokens} tokens an image by default"
    return f"sees for this target: {g.kind}, {tower}, {pixels}{sound}"


def _not_here(model: str) -> CatalogueEntry | None:
    """The catalogue's set of this name if it would have to be pulled."""
    from gemmtp import settings
    from gemmtp_models import catalogue, names

    if names.is_local(model) or names.is_installed(model, settings.data_dir()):
        return None
    return catalogue.find_entry(model, settings.config_dir())


def _show_entry(entry: CatalogueEntry, *, as_json: bool) -> None:
    """What pulling a set would bring."""
    import json

    if as_json:
        files = {
            role: {"source": file.source, "size": file.size, "sha256": file.sha256}
            for role, file in entry.files.items()
        }
        document = {
            "name": entry.name,
            "title": entry.title,
            "installed": False,
            "context": entry.context,
            "size": entry.size,
            "files": files,
            "geometry": dict(entry.geometry),
        }
        sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
        return
    lines = [f"set {entry.name}, not here yet (gemmtp pull {entry.name}): {entry.title}"]
    for role, file in entry.files.items():
        size = "size unknown" if file.size is None else f"{file.size / 2**20:,.1f} MiB"
        lines.append(f"  {role:13} {file.repo} {file.path}, {size}")
    sys.stdout.write("\n".join(lines) + "\n")


def _set_lines(files: ModelFiles) -> list[str]:
    """What a manifest adds to its files; nothing for a bare file."""
    manifest, p = files.manifest, files.parameters
    if manifest is None or p is None:
        return []
    return [
        f"set {manifest.name}",
        *(
            f"  {role:13} {(layer.file or layer.sha256 or '')[:40]}, {layer.size / 2**20:,.1f} MiB"
            for role, layer in manifest.layers.items()
        ),
        f"  sampling      temperature {p.temperature:g}, top-k {p.top_k}, top-p {p.top_p:g}, "
        f"min-p {p.min_p:g}",
        f"  draft depth   {p.draft_depth}",
        "",
    ]


def _lines(header: Header, report: PairReport | None) -> list[str]:
    lines = [
        f"{header.path.name}: {header.name}",
        f"  architecture  {header.architecture}",
        f"  parameters    {header.parameters / 1e6:,.1f} M",
        f"  size          {header.file_size / 2**20:,.1f} MiB, GGUF version {header.version}",
        "  tensors       "
        + ", ".join(f"{count} {name}" for name, count in header.type_counts().items()),
        "",
        "metadata",
    ]
    width = max((len(key) for key in header.metadata), default=0)
    lines += [f"  {key:{width}}  {_value(entry)}" for key, entry in header.metadata.items()]
    if report is not None:
        lines += ["", "pair: " + (report.reason or "target and drafter match")]
        lines += [
            f"  {check.verdict:8}  {check.name}: target {check.target}, drafter {check.drafter}"
            for check in report.checks
        ]
    return lines


def _value(entry: Entry) -> str:
    from gemmtp_models.metadata import ArraySlice

    value = entry.value
    if isinstance(value, ArraySlice):
        return f"{entry.type_name} of {value.count:,}"
    if isinstance(value, tuple):
        text = ", ".join(str(item) for item in value)
    else:
        text = str(value)
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text):,} characters)"


def _print_json(header: Header, report: PairReport | None, files: ModelFiles) -> None:
    import json

    from gemmtp_models.metadata import ArraySlice

    metadata: dict[str, object] = {}
    for key, entry in header.metadata.items():
        value = entry.value
        if isinstance(value, ArraySlice):
            metadata[key] = {"type": entry.type_name, "count": value.count}
        else:
            metadata[key] = list(value) if isinstance(value, tuple) else value
    document = {
        "file": str(header.path),
        "name": header.name,
        "architecture": header.architecture,
        "parameters": header.parameters,
        "size": header.file_size,
        "gguf_version": header.version,
        "tensor_types": header.type_counts(),
        "metadata": metadata,
        "pair": None if report is None else report.to_json(),
        "set": None if files.manifest is None else files.manifest.to_json(),
    }
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
