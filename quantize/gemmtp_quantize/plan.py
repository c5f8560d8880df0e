"""Everything that can be known before a weight is read: both files, their types and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gemmtp.errors import PairMismatchError, UnsupportedModelError
from gemmtp_models.manifest import Parameters
from gemmtp_models.pairing import FINGERPRINT_KEY
from gemmtp_quantize.assistant import assistant_fields, assistant_tensors
from gemmtp_quantize.checkpoint import Checkpoint, open_checkpoint
from gemmtp_quantize.config import (
    AssistantConfig,
    TextConfig,
    family,
    read_assistant_config,
    read_target_config,
)
from gemmtp_quantize.fingerprint import fingerprint
from gemmtp_quantize.model_file import Fields, sampling_defaults, text, u32
from gemmtp_quantize.recipe import (
    FILE_TYPES,
    FLOATS,
    TYPE_IDS,
    PlannedTensor,
    Recipe,
    RoleRecipe,
    plan_types,
)
from gemmtp_quantize.text import target_fields, target_tensors
from gemmtp_quantize.tokenizer import FILE, Tokenizer, read_tokenizer

SOURCE_KEY = "gemmtp.source.identity"
QUANTIZATION_VERSION = 2
# Measured starting points: a 31B verifies four drafted tokens nearly for the price of one.
LARGE_LAYERS, LARGE_DEPTH, DEFAULT_DEPTH = 60, 4, 3


@dataclass(frozen=True)
class FilePlan:
    """One GGUF: its metadata, and each tensor with its types."""

    recipe: RoleRecipe
    fields: Fields
    tensors: tuple[PlannedTensor, ...]

    @property
    def quantised(self) -> bool:
        """Whether llama.cpp's quantiser has to run after the file is written."""
        return any(tensor.final not in FLOATS for tensor in self.tensors)

    @property
    def written_bytes(self) -> int:
        return sum(tensor.written_bytes for tensor in self.tensors)

    @property
    def final_bytes(self) -> int:
        return sum(tensor.final_bytes for tensor in self.tensors)

    @property
    def types(self) -> dict[str, int]:
        """Tensor names to ggml's type numbers, as they end."""
        return {tensor.spec.name: TYPE_IDS[tensor.final] for tensor in self.tensors}


@dataclass(frozen=True)
class SetPlan:
    """Target and drafter, converted and quantised by one recipe."""

    recipe: Recipe
    target: FilePlan
    drafter: FilePlan
    sources: Mapping[str, Checkpoint]
    fingerprint: str
    parameters: Parameters
    chat_template: str | None
    notes: tuple[str, ...]

    @property
    def files(self) -> dict[str, FilePlan]:
        return {"target": self.target, "drafter": self.drafter}


def plan_set(target_dir: Path, drafter_dir: Path, recipe: Recipe) -> SetPlan:
    """Read and check both checkpoints against their configs and against each other.

    Raises ModelNotFoundError, BadModelFileError, UnsupportedModelError and PairMismatchError.
    """
    target, drafter = open_checkpoint(target_dir), open_checkpoint(drafter_dir)
    _check_families(target, drafter)
    config = read_target_config(target.config)
    assistant = read_assistant_config(drafter.config)
    _check_geometry(config, assistant)
    tokenizer = _tokenizer(target, config)
    _check_tokenizers(tokenizer, drafter, assistant)
    identities = target.identity(), drafter.identity()
    mark = fingerprint(tokenizer, config, assistant, *identities)
    specs, drafter_specs = target_tensors(target, config), assistant_tensors(drafter, assistant)
    sampling = sampling_defaults(target.directory)
    return SetPlan(
        recipe=recipe,
        target=_file(
            recipe.target,
            target_fields(target, config, tokenizer, specs),
            plan_types(specs, recipe.target),
            {SOURCE_KEY: identities[0], FINGERPRINT_KEY: mark},
        ),
        drafter=_file(
            recipe.drafter,
            assistant_fields(drafter, assistant, tokenizer, drafter_specs),
            plan_types(drafter_specs, recipe.drafter),
            {SOURCE_KEY: identities[1], FINGERPRINT_KEY: mark},
        ),
        sources={"target": target, "drafter": drafter},
        fingerprint=mark,
        parameters=Parameters(
            temperature=float(sampling["temperature"]),
            top_k=int(sampling["top_k"]),
            top_p=float(sampling["top_p"]),
            draft_depth=LARGE_DEPTH if config.layers >= LARGE_LAYERS else DEFAULT_DEPTH,
        ),
        chat_template=tokenizer.chat_template,
        notes=tuple(_notes(tokenizer)),
    )


def _notes(tokenizer: Tokenizer) -> Iterator[str]:
    """What is not wrong and still worth knowing."""
    if count := tokenizer.merges_across_newlines:
        yield (
            f"{count} merges of the tokenizer join a newline with other text; llama.cpp does not, "
            "so some texts become other tokens than in training"
        )
    if tokenizer.chat_template is None:
        yield "the checkpoint has no chat template"


def _file(
    recipe: RoleRecipe, fields: Fields, tensors: list[PlannedTensor], marks: Mapping[str, str]
) -> FilePlan:
    fields = {
        **fields,
        "general.file_type": u32(FILE_TYPES[recipe.file_type][0]),
        "general.quantization_version": u32(QUANTIZATION_VERSION),
        **{key: text(value) for key, value in marks.items()},
    }
    return FilePlan(recipe, fields, tuple(tensors))


def _check_families(target: Checkpoint, drafter: Checkpoint) -> None:
    kinds = family(target.config), family(drafter.config)
    if kinds == ("assistant", "target"):
        raise UnsupportedModelError(
            "The two checkpoints are swapped: the first is the assistant, the second the target.",
            "Give the target's folder first.",
        )
    if kinds[0] != "target":
        raise UnsupportedModelError(f"{target.name} is an assistant, not a target.")
    if kinds[1] != "assistant":
        raise UnsupportedModelError(
            f"{drafter.name} is a target, not an assistant.",
            "The drafter's checkpoint is the one whose name ends in -assistant.",
        )


def _check_geometry(target: TextConfig, assistant: AssistantConfig) -> None:
    """What the drafter takes over from the target must have the target's shape."""
    text = assistant.text
    pairs = {
        "hidden size": (assistant.backbone_size, target.hidden_size),
        "vocabulary": (text.vocab_size, target.vocab_size),
        "head size of the sliding layers": (text.head_dim, target.head_dim),
        "head size of the full layers": (text.head_dim_full, target.head_dim_full),
        "key-value heads of the sliding layers": (text.kv_heads, target.kv_heads),
        "key-value heads of the full layers": (text.kv_heads_full, target.kv_heads_full),
        "sliding window": (text.sliding_window, target.sliding_window),
        "RoPE base of the sliding layers": (text.theta_sliding, target.theta_sliding),
        "RoPE base of the full layers": (text.theta_full, target.theta_full),
        "rotated part of the full layers": (text.rotary_factor, target.rotary_factor),
    }
    for name, (found, expected) in pairs.items():
        if found != expected:
            raise PairMismatchError(
                f"The assistant was made for another target: {name} {found:g}, "
                f"expected {expected:g}.",
                "Give the assistant that was published with this target.",
            )
    if target.layers < 2 or not target.sliding(target.layers - 2):
        raise UnsupportedModelError(
            "The target's last two layers must be sliding and full: the drafter reads their cache."
        )


def _tokenizer(checkpoint: Checkpoint, config: TextConfig) -> Tokenizer:
    tokenizer = read_tokenizer(checkpoint.directory)
    _check_size(tokenizer, checkpoint, config)
    return tokenizer


def _check_size(tokenizer: Tokenizer, checkpoint: Checkpoint, config: TextConfig) -> None:
    if len(tokenizer.tokens) != config.vocab_size:
        raise PairMismatchError(
            f"The tokenizer in {checkpoint.name} has {len(tokenizer.tokens)} tokens, the model "
            f"{config.vocab_size}.",
            "Take config, weights and tokenizer of the same checkpoint.",
        )


def _check_tokenizers(target: Tokenizer, drafter: Checkpoint, assistant: AssistantConfig) -> None:
    """An assistant without a tokenizer shares the target's; one with another cannot draft."""
    if not (drafter.directory / FILE).is_file():
        return
    own = _tokenizer(drafter, assistant.text)
    if own.tokens != target.tokens:
        raise PairMismatchError("The assistant's tokenizer has other tokens than the target's.")
