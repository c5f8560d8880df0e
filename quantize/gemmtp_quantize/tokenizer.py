"""tokenizer.json to llama.cpp's ``gemma4`` vocabulary: tokens, types, merges, special ids.

Gemma 4's tokenizer is byte-fallback BPE over text whose spaces have become U+2581. llama.cpp
merges as that does, except that it never merges across a newline, and it takes a run of newlines
whole when the run is one token.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmtp.errors import BadModelFileError, ModelNotFoundError, UnsupportedModelError
from gemmtp_quantize.documents import (
    MAX_TOKENIZER_BYTES,
    read_object,
    read_optional_object,
    read_text,
)

FILE = "tokenizer.json"
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
# BPE has ranks in place of scores; llama.cpp's converter writes this one for every token.
SCORE = -1000.0
# Markers that stay visible in the output, so that thoughts and tool calls can be told apart.
VISIBLE = frozenset(
    {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
     "<tool_response|>", '<|"|>'}
)  # fmt: skip
END_OF_TURN = "<turn|>"
SPECIAL_ROLES = ("bos", "eos", "unk", "pad", "mask")
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
MAX_TOKENS = 2**22


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary ready to be written; ``special`` maps bos, eos, eot, ... to token ids."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    special: Mapping[str, int]
    chat_template: str | None

    @property
    def merges_across_newlines(self) -> int:
        """Merges of a newline with something else, which llama.cpp never makes."""
        texts = (merge.replace(" ", "") for merge in self.merges)
        return sum("\n" in text and text.strip("\n") != "" for text in texts)

    def digest(self) -> str:
        """SHA-256 (hex) of the token list, its types and merges."""
        digest = hashlib.sha256()
        for text in (*self.tokens, "", *self.merges):
            digest.update(text.encode("utf-8") + b"\0")
        digest.update(bytes(self.types))
        return digest.hexdigest()


def read_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder.

    Raises ModelNotFoundError without a tokenizer.json, BadModelFileError when ids have gaps, and
    UnsupportedModelError for a tokenizer that llama.cpp's ``gemma4`` cannot stand in for.
    """
    path = directory / FILE
    if not path.is_file():
        raise ModelNotFoundError(
            f"{directory} has no {FILE}.", hint="The fast tokenizer's file is needed."
        )
    document = read_object(path, MAX_TOKENIZER_BYTES)
    settings = read_optional_object(directory / "tokenizer_config.json")
    model = document.get("model")
    if not isinstance(model, dict):
        raise BadModelFileError(f"{path} has no model.")
    _check_kind(document, model, path)
    added = _added_tokens(document, path)
    tokens = _token_list(model, added, path)
    special_names = _special_names(settings) | {
        entry["content"] for entry in added if entry.get("special") is True
    }
    added_names = {entry["content"] for entry in added}
    types = tuple(_type(token, special_names, added_names) for token in tokens)
    if sum(kind == BYTE for kind in types) != 256:
        raise UnsupportedModelError(f"{path} does not have one token for each byte.")
    return Tokenizer(
        tokens=tokens,
        types=types,
        merges=_merges(model, path),
        special=_special_ids(settings, directory, {token: i for i, token in enumerate(tokens)}),
        chat_template=_chat_template(settings, directory),
    )


def _check_kind(document: Mapping[str, Any], model: Mapping[str, Any], path: Path) -> None:
    normalizer = document.get("normalizer")
    steps = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    replaces = [step.get("content") for step in steps if isinstance(step, dict)]
    right = (
        model.get("type") == "BPE"
        and model.get("byte_fallback") is True
        and not model.get("ignore_merges")
        and not model.get("dropout")
        and replaces == ["▁"]
    )
    if not right:
        raise UnsupportedModelError(
            f"{path} is not Gemma 4's kind of tokenizer.",
            hint="Byte-fallback BPE that writes spaces as ▁ is expected.",
        )


def _added_tokens(document: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    added = document.get("added_tokens") or []
    if not isinstance(added, list):
        raise BadModelFileError(f"added_tokens in {path} is no list.")
    for entry in added:
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("content"), str)
            or type(entry.get("id")) is not int
        ):
            raise BadModelFileError(f"added_tokens in {path} holds something else than tokens.")
    return added


def _token_list(
    model: Mapping[str, Any], added: list[dict[str, Any]], path: Path
) -> tuple[str, ...]:
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise BadModelFileError(f"{path} has no vocabulary.")
    by_id: dict[int, str] = {}
    pairs = [*vocabulary.items(), *((entry["content"], entry["id"]) for entry in added)]
    for token, index in pairs:
        if type(index) is not int or not 0 <= index < MAX_TOKENS:
            raise BadModelFileError(f"{path} gives token {token!r} the id {index!r}.")
        if not token.isprintable() and any("\ud800" <= mark <= "\udfff" for mark in token):
            raise BadModelFileError(f"{path} has half a surrogate pair in token {index}.")
        if by_id.setdefault(index, token) != token:
            raise BadModelFileError(f"{path} gives the id {index} to two tokens.")
    if len(by_id) != max(by_id) + 1:
        raise BadModelFileError(f"The token ids in {path} have gaps.")
    tokens = tuple(by_id[index] for index in range(len(by_id)))
    if len(set(tokens)) != len(tokens):
        raise BadModelFileError(f"{path} has the same token under two ids.")
    return tokens


def _type(token: str, special: set[str], added: set[str]) -> int:
    if _BYTE_TOKEN.fullmatch(token):
        return BYTE
    if token in VISIBLE:
        return USER_DEFINED
    if token in special:
        return CONTROL
    return USER_DEFINED if token in added else NORMAL


def _merges(model: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise BadModelFileError(f"{path} has no merges.")
    # Pairs since tokenizers 0.20, before that one string with a space in between.
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    for pair in pairs:
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or any(not isinstance(part, str) or not part or " " in part for part in pair)
        ):
            raise BadModelFileError(f"{path} holds the merge {pair!r}, which is no pair of tokens.")
    return tuple(f"{left} {right}" for left, right in pairs)


def _text_of(entry: Any) -> str | None:
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _special_names(settings: Mapping[str, Any]) -> set[str]:
    names = [_text_of(value) for key, value in settings.items() if key.endswith("_token")]
    for key in ("extra_special_tokens", "additional_special_tokens"):
        extra = settings.get(key)
        values = extra.values() if isinstance(extra, dict) else extra
        names.extend(_text_of(value) for value in values or [])
    return {name for name in names if name}


def _special_ids(
    settings: Mapping[str, Any], directory: Path, ids: Mapping[str, int]
) -> dict[str, int]:
    config = read_optional_object(directory / "config.json")
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    special: dict[str, int] = {}
    for role in SPECIAL_ROLES:
        name = _text_of(settings.get(f"{role}_token"))
        index = ids.get(name) if name else None
        for source in (config, text or {}):
            if index is None and type(source.get(f"{role}_token_id")) is int:
                index = source[f"{role}_token_id"]
        if index is not None:
            if not 0 <= index < len(ids):
                raise BadModelFileError(f"The {role} token {index} is outside the vocabulary.")
            special[role] = index
    for role in ("bos", "eos"):
        if role not in special:
            raise BadModelFileError(f"The tokenizer in {directory} names no {role} token.")
    if END_OF_TURN in ids:
        special["eot"] = ids[END_OF_TURN]
    return special


def _chat_template(settings: Mapping[str, Any], directory: Path) -> str | None:
    """The template as transformers finds it: a file of its own first, then the settings."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return read_text(file)
    found = read_optional_object(directory / "chat_template.json").get("chat_template")
    found = settings.get("chat_template") if found is None else found
    if isinstance(found, list):
        named = {
            entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)
        }
        found = named.get("default")
    return found if isinstance(found, str) and found else None
