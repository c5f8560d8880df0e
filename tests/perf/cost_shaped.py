"""A small pair made as costly as a large one without changing what it says.

    python -m tests.perf.cost_shaped --target T.gguf --drafter D.gguf

Blocks with a wide feed-forward part are put in front of the target. The weights of their
post-norms are zero, so each adds zero to the residual stream and the function stays the same,
bit for bit, while the cost becomes that of a model of hundreds of millions of parameters. The
drafter reads the cache of the target's last two layers, which stay the last two.

The vocabulary is padded to Gemma 4's 262,144 tokens, so that what a logits row costs is real too.
All padding rows of the embedding are the mean of the real ones, so a padding logit is the mean of
the real logits: whatever the hidden state, it is below the largest of them, and as far below as a
likely token stands out. (A direction opposite to measured states did not do: where real prompts led
elsewhere, padding tokens won in the drafter, and a draft of 3 gave 1.1 tokens a round, not 3.6.)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from .bare import opened
from .peer import cache

RECIPE = 2
"""Raise it when the same inputs give other files, so that cached pairs are built anew."""
TRUE_VOCABULARY = 262_144
FULL_LAYER_EVERY = 6
"""Gemma 4 has one full-attention layer after five sliding ones."""
FFN_DEVIATION = 0.02
TOP_K = 64


@dataclass(frozen=True)
class _Tensor:
    """A tensor as it lies in the file: raw blocks, or floats of the type's own dtype."""

    data: NDArray[Any]
    type: gguf.GGMLQuantizationType


class _File:
    """A small GGUF, read whole: metadata as gguf's fields, tensors by name."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.fields = {
            name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")
        }
        self.tensors = {t.name: _Tensor(t.data, t.tensor_type) for t in reader.tensors}
        self.architecture: str = self.fields["general.architecture"].contents()

    def value(self, key: str) -> Any:
        """The value of ``{architecture}.key``, None where the file has none."""
        field = self.fields.get(f"{self.architecture}.{key}")
        return field.contents() if field else None

    @property
    def vocabulary(self) -> int:
        return len(self.fields["tokenizer.ggml.tokens"].data)


def cached(
    target: Path,
    drafter: Path,
    *,
    blocks: int = 24,
    ffn: int = 16384,
    vocabulary: int | None = TRUE_VOCABULARY,
    type: str = "Q8_0",
) -> tuple[Path, Path]:
    """The pair that ``build`` makes of these inputs, from the user's cache or built into it."""
    key = hashlib.sha256(json.dumps([RECIPE, blocks, ffn, vocabulary, type]).encode())
    for path in (target, drafter):
        key.update(hashlib.sha256(path.read_bytes()).digest())
    home = cache() / key.hexdigest()[:16]
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            made = Path(scratch) / "pair"
            build(target, drafter, made, blocks=blocks, ffn=ffn, vocabulary=vocabulary, type=type)
            made.rename(home)
    return home / "target.gguf", home / "drafter.gguf"


def build(
    target: Path,
    drafter: Path,
    out_dir: Path,
    *,
    blocks: int = 24,
    ffn: int = 16384,
    vocabulary: int | None = TRUE_VOCABULARY,
    type: str = "Q8_0",
) -> tuple[Path, Path]:
    """Writes ``out_dir/target.gguf`` and ``drafter.gguf``; returns their paths.

    ``blocks`` blocks of feed-forward length ``ffn`` are put in front of the dense gemma4
    ``target``; ``vocabulary`` None keeps the pair's own; ``type`` is the tensor type of all
    matrices (a name of ``gguf.GGMLQuantizationType`` that gguf's numpy code can write).
    Raises ValueError for a target that is not dense or shares KV among its layers.
    """
    files = {"target": _File(target), "drafter": _File(drafter)}
    _check(files["target"])
    out_dir.mkdir(parents=True, exist_ok=True)
    paths = []
    for role, file in files.items():
        extra = blocks if role == "target" else 0
        path = out_dir / f"{role}.gguf"
        _write(file, path, extra, ffn, gguf.GGMLQuantizationType[type], vocabulary)
        paths.append(path)
    return paths[0], paths[1]


def _check(target: _File) -> None:
    if target.architecture != "gemma4":
        raise ValueError(f"the target is {target.architecture}, not gemma4")
    if target.value("embedding_length_per_layer_input") or target.value("expert_count"):
        raise ValueError("the target is not dense: it has per-layer inputs or experts")
    if target.value("attention.shared_kv_layers"):
        raise ValueError("the target's layers share their KV")


def _write(
    file: _File,
    path: Path,
    blocks: int,
    ffn: int,
    type: gguf.GGMLQuantizationType,
    vocabulary: int | None,
) -> None:
    writer = gguf.GGUFWriter(path, file.architecture)
    templates = _templates(file, blocks) if blocks else []
    for name, value, kinds in _metadata(file, templates, ffn, vocabulary):
        writer.add_key_value(name, value, kinds[0], kinds[1] if len(kinds) > 1 else None)
    for name, tensor in _tensors(file, templates, ffn):
        tensor = _retyped(tensor, type)
        if name == "token_embd.weight" and vocabulary:
            tensor = _padded(tensor, vocabulary - file.vocabulary)
        writer.add_tensor(name, tensor.data, raw_dtype=tensor.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _templates(file: _File, blocks: int) -> list[int]:
    """For each block in front, the layer of the target whose attention it copies."""
    pattern = file.value("attention.sliding_window_pattern")
    sliding, full = pattern.index(True), pattern.index(False)
    return [
        full if i % FULL_LAYER_EVERY == FULL_LAYER_EVERY - 1 else sliding for i in range(blocks)
    ]


def _metadata(
    file: _File, templates: Sequence[int], ffn: int, vocabulary: int | None
) -> Iterator[tuple[str, Any, list[gguf.GGUFValueType]]]:
    """The file's keys, those counted by blocks or by tokens extended."""
    layers = file.value("block_count")
    own = f"{file.architecture}."
    more = max(0, (vocabulary or 0) - file.vocabulary)
    tokens = {
        "tokenizer.ggml.tokens": [f"<padding{i}>" for i in range(more)],
        "tokenizer.ggml.scores": [-1000.0] * more,
        "tokenizer.ggml.token_type": [int(gguf.TokenType.UNUSED)] * more,
    }
    for name, field in file.fields.items():
        value, kinds = field.contents(), [*field.types[:1], *field.types[-1:]][: len(field.types)]
        if name == "general.architecture":
            continue  # GGUFWriter has written it
        if name in tokens:
            value = value + tokens[name]
        elif name == f"{own}block_count":
            value = layers + len(templates)
        elif name == f"{own}feed_forward_length" and templates:
            rest = value if isinstance(value, list) else [value] * layers
            value, kinds = [ffn] * len(templates) + rest, _INT_ARRAY
        elif name.startswith(own) and isinstance(value, list) and len(value) == layers:
            value = [value[layer] for layer in templates] + value
        yield name, value, kinds


_INT_ARRAY = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32]


def _tensors(file: _File, templates: Sequence[int], ffn: int) -> Iterator[tuple[str, _Tensor]]:
    """The blocks in front, then the file's own tensors with their blocks renumbered."""
    wide = _wide_ffn(file.value("embedding_length"), ffn) if templates else {}
    for block, layer in enumerate(templates):
        prefix = f"blk.{layer}."
        for name, tensor in file.tensors.items():
            if not name.startswith(prefix):
                continue
            part = name.removeprefix(prefix)
            yield f"blk.{block}.{part}", wide.get(part) or _neutral(part, tensor)
    for name, tensor in file.tensors.items():
        if name.startswith("blk."):
            _, layer_text, part = name.split(".", 2)
            name = f"blk.{int(layer_text) + len(templates)}.{part}"
        yield name, tensor


def _wide_ffn(width: int, ffn: int) -> dict[str, _Tensor]:
    """Random matrices, the same for every block: what they compute is multiplied by zero."""
    draws = np.random.default_rng(0)
    f32 = gguf.GGMLQuantizationType.F32
    return {
        f"ffn_{part}.weight": _Tensor(draws.normal(0, FFN_DEVIATION, shape).astype(np.float32), f32)
        for part, shape in {
            "gate": (ffn, width),
            "up": (ffn, width),
            "down": (width, ffn),
        }.items()
    }


def _neutral(part: str, tensor: _Tensor) -> _Tensor:
    """A template's tensor, changed where the block would otherwise change its input."""
    if part in ("post_attention_norm.weight", "post_ffw_norm.weight"):
        return _Tensor(np.zeros_like(tensor.data), tensor.type)
    if part == "layer_output_scale.weight":
        return _Tensor(np.ones_like(tensor.data), tensor.type)
    return tensor


def _retyped(tensor: _Tensor, type: gguf.GGMLQuantizationType) -> _Tensor:
    """Matrices in ``type``; vectors and what is in it already as they are."""
    if tensor.data.ndim < 2 or tensor.type == type:
        return tensor
    floats = gguf.quants.dequantize(tensor.data, tensor.type)
    if floats.shape[-1] % gguf.GGML_QUANT_SIZES[type][0]:
        return tensor
    return _Tensor(gguf.quants.quantize(floats, type), type)


def _padded(embedding: _Tensor, more: int) -> _Tensor:
    if more <= 0:
        raise ValueError("the pair's vocabulary is as large as that")
    mean = gguf.quants.dequantize(embedding.data, embedding.type).mean(axis=0, dtype=np.float64)
    one = gguf.quants.quantize(mean[None, :].astype(np.float32), embedding.type)
    rows = np.broadcast_to(one, (more, one.shape[1]))
    return _Tensor(np.concatenate([embedding.data, rows]), embedding.type)


def probe_prompts(n_vocab: int, *, seed: int, count: int = 48, length: int = 12) -> list[list[int]]:
    """Seeded prompts of random tokens, which lead a model to more states than text would."""
    draws = np.random.default_rng(seed)
    return [[int(t) for t in draws.integers(0, n_vocab, length)] for _ in range(count)]


@dataclass(frozen=True)
class Verdict:
    """How a shaped pair compares with the pair it was made of.

    ``same`` of ``prompts`` answers have equal tokens at draft 0 and 3; ``gap`` is the least
    distance of a row's best padding logit below the logit of rank 64.
    """

    prompts: int
    same: int
    same_acceptance: int
    gap: float
    largest_padding_logit: float


def verify(reference: tuple[Path, Path], shaped: tuple[Path, Path], *, tokens: int = 64) -> Verdict:
    """Compares greedy answers, plain and drafted, on prompts that ``build`` has not seen."""
    same = same_acceptance = 0
    gap, largest = float("inf"), -float("inf")
    with opened(*reference, threads=1) as before, opened(*shaped, threads=1) as after:
        prompts = probe_prompts(before.n_vocab, seed=1)
        for prompt in prompts:
            runs = [
                (before.generate(prompt, tokens, k), after.generate(prompt, tokens, k))
                for k in (0, 3)
            ]
            same += all(a.tokens == b.tokens for a, b in runs)
            same_acceptance += runs[1][0].accepted == runs[1][1].accepted
            *answer, newest = runs[0][1].tokens[:9]
            after.remove(len(prompt))
            after.decode(answer, len(prompt), outputs=len(answer))
            rows = [after.logits(row) for row in range(len(answer))]
            end = len(prompt) + len(answer)
            after.draft_decode(newest, after.hidden(len(answer) - 1), end)
            for row in [*rows, after.draft_logits()]:
                padding = float(row[before.n_vocab :].max(initial=-np.inf))
                rank = float(np.partition(row[: before.n_vocab], -TOP_K)[-TOP_K])
                gap, largest = min(gap, rank - padding), max(largest, padding)
    return Verdict(len(prompts), same, same_acceptance, gap, largest)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--ffn", type=int, default=16384)
    parser.add_argument("--vocabulary", type=int, default=TRUE_VOCABULARY, help="0 keeps its own")
    parser.add_argument("--type", default="Q8_0")
    parser.add_argument("--verify", action="store_true", help="compare it with the original")
    arguments = parser.parse_args()
    source = arguments.target, arguments.drafter
    shaped = cached(
        *source,
        blocks=arguments.blocks,
        ffn=arguments.ffn,
        vocabulary=arguments.vocabulary or None,
        type=arguments.type,
    )
    print(*shaped, sep="\n")
    if arguments.verify:
        reference = cached(*source, blocks=0, vocabulary=None, type=arguments.type)
        print(verify(reference, shaped))


if __name__ == "__main__":
    main()
