"""Whether a file can serve as target or drafter, and whether the two belong together.

llama.cpp itself compares only the width of the hidden row, so a drafter of another model
loads and then drafts nonsense. What matters is that the drafter reads the target's KV cache:
its sliding blocks read the target's layer n-2, its full block reads layer n-1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmtp.errors import BadModelFileError, PairMismatchError, UnsupportedModelError
from gemmtp_models.geometry import (
    DRAFTER_ARCHITECTURE,
    TARGET_ARCHITECTURE,
    Geometry,
    read_geometry,
)
from gemmtp_models.header import Header
from gemmtp_models.tensor_layout import check_tensors

FINGERPRINT_KEY = "gemmtp.pairing.fingerprint"

# The names that forks gave the drafter's architecture before llama.cpp had its own.
_FORK_ARCHITECTURES = ("gemma4_assistant", "gemma4_mtp")
_FETCH_DRAFTER = (
    "Fetch a drafter made with llama.cpp's own converter, such as the mtp-gemma-4-*.gguf file "
    "of unsloth/gemma-4-<size>-it-qat-GGUF."
)

Scalar = str | int | float | None
Verdict = Literal["ok", "mismatch", "note"]


@dataclass(frozen=True, slots=True)
class PairCheck:
    """One comparison. A ``note`` is worth knowing and does not keep the pair from drafting."""

    name: str
    target: Scalar
    drafter: Scalar
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class PairReport:
    """All comparisons of one target with one drafter, in a fixed order."""

    target: Geometry
    drafter: Geometry
    checks: tuple[PairCheck, ...]

    @property
    def matches(self) -> bool:
        """Whether the drafter may draft for the target."""
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """The first mismatch: "drafter does not match: hidden 2816, expected 5376"."""
        for check in self.checks:
            if check.verdict == "mismatch":
                found, expected = _short(check.drafter), _short(check.target)
                return f"drafter does not match: {check.name} {found}, expected {expected}"
        return None

    @property
    def notes(self) -> tuple[PairCheck, ...]:
        """The comparisons that are only worth knowing."""
        return tuple(check for check in self.checks if check.verdict == "note")

    def raise_for_mismatch(self) -> None:
        """Raise ``PairMismatchError`` with the reason, if there is one."""
        if self.reason is not None:
            raise PairMismatchError(
                f"The {self.reason}.",
                "Use the drafter that was made for this target, or run with --no-mtp.",
            )

    def to_json(self) -> dict[str, object]:
        """For ``--json``: whether it matches, why not, and every comparison."""
        rows = [
            {
                "name": check.name,
                "target": check.target,
                "drafter": check.drafter,
                "verdict": check.verdict,
            }
            for check in self.checks
        ]
        return {"matches": self.matches, "reason": self.reason, "checks": rows}


def check_target(header: Header) -> Geometry:
    """The geometry of a file that llama.cpp can load as a Gemma 4 target.

    Raises ``UnsupportedModelError`` for any other kind of file, ``BadModelFileError`` for a
    Gemma 4 that is broken.
    """
    name, architecture = header.path.name, header.architecture
    if architecture == DRAFTER_ARCHITECTURE or architecture in _FORK_ARCHITECTURES:
        raise UnsupportedModelError(
            f"{name} is a drafter alone, and a drafter needs its target.",
            "Open the target and give this file with --drafter.",
        )
    if architecture == "clip":
        raise UnsupportedModelError(
            f"{name} is a projector for images or audio, not a language model.",
            "Open the target and give this file with --mmproj.",
        )
    if architecture != TARGET_ARCHITECTURE:
        raise _wrong_architecture(header, TARGET_ARCHITECTURE)
    geometry = read_geometry(header)
    if geometry.nextn_predict_layers:
        raise UnsupportedModelError(f"{name} carries draft layers inside the target.")
    if geometry.embedding_length_out != geometry.embedding_length:
        raise header.metadata.error(
            f"{architecture}.embedding_length_out",
            f"is {geometry.embedding_length_out:,}, expected {geometry.embedding_length:,}",
        )
    _check_shared_layers(header, geometry)
    check_tensors(header, geometry)
    _check_tokens(header, geometry)
    return geometry


def check_drafter(header: Header) -> Geometry:
    """The geometry of a file that llama.cpp can load as a Gemma 4 drafter.

    Raises as ``check_target`` does; a file of a fork says where a right one is.
    """
    geometry = _check_drafter_without_tokens(header)
    _check_tokens(header, geometry)
    return geometry


def _check_drafter_without_tokens(header: Header) -> Geometry:
    name, architecture = header.path.name, header.architecture
    if architecture in _FORK_ARCHITECTURES:
        raise UnsupportedModelError(
            f"{name} has the architecture {architecture}, which comes from a fork of llama.cpp; "
            f"the right one is {DRAFTER_ARCHITECTURE}.",
            _FETCH_DRAFTER,
        )
    if architecture == TARGET_ARCHITECTURE:
        raise UnsupportedModelError(f"{name} is a target, not a drafter.", _FETCH_DRAFTER)
    if architecture != DRAFTER_ARCHITECTURE:
        raise _wrong_architecture(header, DRAFTER_ARCHITECTURE)
    if any(tensor.startswith("masked_embd_") for tensor in header.tensors):
        raise UnsupportedModelError(
            f"{name} has the centroid head (masked_embd_centroids), "
            "which llama.cpp does not load in this version.",
            "Fetch a drafter without it: " + _FETCH_DRAFTER[len("Fetch a drafter ") :],
        )
    geometry = read_geometry(header)
    if geometry.nextn_predict_layers != geometry.block_count:
        raise header.metadata.error(
            f"{architecture}.nextn_predict_layers",
            f"is {geometry.nextn_predict_layers}, expected all {geometry.block_count} blocks",
        )
    if geometry.embedding_length_out == geometry.embedding_length:
        raise header.metadata.error(
            f"{architecture}.embedding_length_out", "has to carry the target's width"
        )
    check_tensors(header, geometry)
    return geometry


def check_pair(target: Header, drafter: Header) -> PairReport:
    """Check both files by themselves and then against each other.

    Raises as ``check_target`` and ``check_drafter`` do. That the two do not match raises
    nothing: running without the drafter is still possible, and the report says why.
    """
    t, d = check_target(target), _check_drafter_without_tokens(drafter)
    vocabulary = _vocabulary_checks(t, d)
    if any(check.verdict == "mismatch" for check in vocabulary):
        # The same list needs no second look at its tokens.
        _check_tokens(drafter, d)
    checks = (
        *_geometry_checks(t, d),
        *vocabulary,
        *_provenance_checks(target, drafter),
    )
    return PairReport(t, d, checks)


def _geometry_checks(t: Geometry, d: Geometry) -> list[PairCheck]:
    """The hidden row that is handed over, and the cache that is read."""
    sliding, full = t.block_count - 2, t.block_count - 1
    return [
        _equal("hidden", t.embedding_length, d.embedding_length_out),
        _equal("head size, sliding layers", t.key_length_swa, d.key_length_swa),
        _equal("head size, full layers", t.key_length, d.key_length),
        _equal("KV heads, sliding layers", t.kv_heads[sliding], _heads(d, True)),
        _equal("KV heads, full layers", t.kv_heads[full], _heads(d, False)),
        _equal("last two layers", "sliding, full", "sliding, full")
        if (t.sliding[sliding], t.sliding[full]) == (True, False)
        else PairCheck("last two layers", _kinds(t), "sliding, full", "mismatch"),
        _equal("sliding window", t.sliding_window, d.sliding_window),
        _equal("rope base, sliding layers", t.rope_base_swa, d.rope_base_swa),
        _equal("rope base, full layers", t.rope_base, d.rope_base),
        _equal("rope dimensions, sliding layers", t.rope_dimensions_swa, d.rope_dimensions_swa),
        _equal("rope dimensions, full layers", t.rope_dimensions, d.rope_dimensions),
        PairCheck(
            "context length",
            t.context_length,
            d.context_length,
            "ok" if d.context_length >= t.context_length else "note",
        ),
    ]


def _vocabulary_checks(t: Geometry, d: Geometry) -> list[PairCheck]:
    checks = [_equal("vocabulary size", t.vocabulary.size, d.vocabulary.size)]
    checks.append(_equal("token list", t.vocabulary.tokens.sha256(), d.vocabulary.tokens.sha256()))
    for name, token in t.vocabulary.special.items():
        if name in d.vocabulary.special:
            checks.append(_special(name, token, d.vocabulary.special[name]))
    return checks


def _special(name: str, target: int, drafter: int) -> PairCheck:
    """bos and eos mark another tokenizer; publishers change the other ids at will."""
    check = _equal(f"{name} token", target, drafter)
    if check.verdict == "ok" or name in ("bos", "eos"):
        return check
    return PairCheck(check.name, target, drafter, "note")


def _provenance_checks(target: Header, drafter: Header) -> list[PairCheck]:
    """What the files say of their origin; a fingerprint counts when both carry one."""
    prints = [header.metadata.string(FINGERPRINT_KEY, "") for header in (target, drafter)]
    checks = []
    if all(prints):
        checks.append(_equal("pairing fingerprint", prints[0], prints[1]))
    qat = ["QAT" if _is_qat(header) else "not marked as QAT" for header in (target, drafter)]
    checks.append(PairCheck("training", qat[0], qat[1], "ok" if qat[0] == qat[1] else "note"))
    return checks


def _equal(name: str, target: Scalar, drafter: Scalar) -> PairCheck:
    return PairCheck(name, target, drafter, "ok" if target == drafter else "mismatch")


def _heads(d: Geometry, sliding: bool) -> Scalar:
    """The KV heads of the drafter's blocks of one kind: a number when they agree."""
    counts = {heads for heads, kind in zip(d.kv_heads, d.sliding, strict=True) if kind is sliding}
    return counts.pop() if len(counts) == 1 else "/".join(str(count) for count in sorted(counts))


def _kinds(t: Geometry) -> str:
    return ", ".join("sliding" if kind else "full" for kind in t.sliding[-2:])


def _is_qat(header: Header) -> bool:
    """Published QAT files say so in a name; the tensor types alone do not tell."""
    keys = ("general.name", "general.basename", "general.finetune")
    texts = [header.metadata.string(key, "") for key in keys] + [header.path.name]
    return any("qat" in text.lower() for text in texts)


def _short(value: Scalar) -> str:
    """A digest by its first digits, anything else in full."""
    text = str(value)
    return text[:12] if len(text) == 64 else text


def _wrong_architecture(header: Header, expected: str) -> UnsupportedModelError:
    found = header.architecture[:40]
    return UnsupportedModelError(
        f"{header.path.name} has the architecture {found!r}, expected {expected}.",
        "gemmtp runs Gemma 4 and its drafters; llama.cpp's own tools run other models.",
    )


def _check_shared_layers(header: Header, g: Geometry) -> None:
    """Layers without KV read the last own layer of their kind: n-2 if sliding, n-1 if full.

    llama.cpp takes that order for granted and asserts that the layer is there.
    """
    key = f"{g.architecture}.attention.shared_kv_layers"
    own = g.block_count - g.shared_kv_layers
    if own < 2:
        raise header.metadata.error(
            key, f"is {g.shared_kv_layers:,}, which leaves fewer than 2 layers with keys and values"
        )
    if g.shared_kv_layers and (g.sliding[own - 2], g.sliding[own - 1]) != (True, False):
        raise header.metadata.error(
            key, f"is {g.shared_kv_layers}, but the layers in front do not end in sliding, full"
        )
    for layer in range(own, g.block_count):
        source = own - 2 if g.sliding[layer] else own - 1
        if g.kv_heads[layer] != g.kv_heads[source]:
            raise header.metadata.error(
                f"{g.architecture}.attention.head_count_kv",
                f"has {g.kv_heads[layer]} for layer {layer}, which reads the cache of layer "
                f"{source} with {g.kv_heads[source]}",
            )


def _check_tokens(header: Header, g: Geometry) -> None:
    """llama.cpp asserts that no token stands twice in the vocabulary.

    A token ends there at its first NUL, and an empty one gets a name (``[EMPTY_5]``).
    """
    seen: set[bytes] = set()
    for index, token in enumerate(g.vocabulary.tokens.strings()):
        text = token.partition(b"\0")[0] if b"\0" in token else token
        seen.add(text or f"[EMPTY_{index}]".encode())
        if len(seen) <= index:
            shown = token[:40].decode("utf-8", errors="replace")
            raise BadModelFileError(
                f"{header.path.name} has the token {shown!r} twice in its vocabulary.",
                "Fetch the file again or another one.",
            )
