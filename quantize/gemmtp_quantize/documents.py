"""JSON files of a checkpoint, read with a size limit and without surprises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gemmtp.errors import BadModelFileError, ModelNotFoundError

MAX_CONFIG_BYTES = 16 * 2**20
# The published tokenizer.json has 32 MB; four times that is no longer a tokenizer.
MAX_TOKENIZER_BYTES = 128 * 2**20


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("the same key stands twice in one object")
    return mapping


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object in ``data``; ``what`` names the file in the error.

    Raises BadModelFileError for bytes that are not UTF-8 JSON, for another JSON value than an
    object, and for an object that names a key twice.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise BadModelFileError(f"{what} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise BadModelFileError(f"{what} holds no JSON object.")
    return value


def read_object(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The JSON object in ``path``; raises ModelNotFoundError when there is no such file."""
    return parse_object(read_bytes(path, max_bytes), str(path))


def read_optional_object(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The JSON object in ``path``, or an empty one when there is no such file."""
    return read_object(path, max_bytes) if path.is_file() else {}


def read_text(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> str:
    """A UTF-8 file; raises as ``read_bytes`` does, and BadModelFileError for other bytes."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadModelFileError(f"{path} is not UTF-8 text.") from error


def read_bytes(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> bytes:
    """The whole file; raises BadModelFileError when it is longer than ``max_bytes``."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"There is no file {path}.") from error
    except OSError as error:
        raise BadModelFileError(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > max_bytes:
        raise BadModelFileError(f"{path} is larger than the {max_bytes} bytes it may have.")
    return data
