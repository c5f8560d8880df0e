"""Imports point one way, and only ``gemmtp.llama`` binds to llama.cpp."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "gemmtp": ROOT / "gemmtp",
    "gemmtp_models": ROOT / "models/gemmtp_models",
    "gemmtp_quantize": ROOT / "quantize/gemmtp_quantize",
}

# What a layer may import of ours, itself aside.
ALLOWED: dict[str, set[str]] = {
    "gemmtp.errors": set(),
    "gemmtp.settings": set(),
    "gemmtp_models": {"gemmtp.errors", "gemmtp.settings"},
    "gemmtp.engine": {"gemmtp.errors", "gemmtp.settings"},
}
ALLOWED["gemmtp.llama"] = {*ALLOWED, "gemmtp.errors", "gemmtp.settings"}
ALLOWED["gemmtp.prompt"] = set(ALLOWED)
ALLOWED["gemmtp_quantize"] = set(ALLOWED)
ALLOWED["gemmtp.chat"] = set(ALLOWED)
ALLOWED["gemmtp.cli"] = {*ALLOWED, "gemmtp"}


def modules() -> Iterator[tuple[str, Path]]:
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join([package, *(part for part in parts if part != "__init__")]), path


def layer(module: str) -> str:
    """The layer a module belongs to: the longest name in the table that begins it."""
    candidates = [name for name in ALLOWED if module == name or module.startswith(name + ".")]
    return max(candidates, key=len, default=module.split(".")[0])


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports here are absolute"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    ("module", "path"), list(modules()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_module_imports_only_what_lies_below_it(module: str, path: Path) -> None:
    own = layer(module)
    names = set(imported(path))
    if own != "gemmtp.llama":
        assert not {name for name in names if name.split(".")[0] == "llama_cpp"}
    if own not in ALLOWED:
        # gemmtp/__init__.py and __main__.py: the version and the entry.
        assert {layer(n) for n in names if n.startswith("gemmtp")} <= {"gemmtp.cli"}
        return
    ours = {layer(name) for name in names if name.split(".")[0] in FOLDERS}
    ours = {name for name in ours if name in ALLOWED or own == "gemmtp.cli"}
    assert ours <= ALLOWED[own] | {own}


def test_the_engine_needs_numpy_alone() -> None:
    outside = set()
    for module, path in modules():
        if layer(module) == "gemmtp.engine":
            outside |= {name.split(".")[0] for name in imported(path)}
    import sys

    assert outside - set(sys.stdlib_module_names) == {"gemmtp", "numpy"}
