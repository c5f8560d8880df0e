"""Everything that can be known before a weight is read: the files, their types and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmtp.errors import PairMismatchError, UnsupportedModelError, UsageError
from gemmtp_models.manifest import ROLES, Parameters, Role
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
from gemmtp_quantize.vision import (
    TYPES,
    has_weights,
    vision_fields,
    vision_recipe,
    vision_tensors,
)
from gemmtp_quantize.vision_config import has_tower, read_processor, read_vision_config

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
    def source_bytes(self) -> int:
        """What the same tensors take in the checkpoint."""
        return sum(tensor.spec.source.size for tensor in self.tensors if tensor.spec.source)

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
    """Target, drafter and, for a checkpoint with eyes, projector."""

    recipe: Recipe
    target: FilePlan
    drafter: FilePlan
    projector: FilePlan | None
    sources: Mapping[str, Checkpoint]
    fingerprint: str
    parameters: Parameters
    chat_template: str | None
    notes: tuple[str, ...]

    @property
    def files(self) -> dict[Role, FilePlan]:
        """The files of the set by their roles, target first."""
        plans = dict(zip(ROLES, (self.target, self.drafter, self.projector), strict=True))
        return {role: plan for role, plan in plans.items() if plan is not None}


def plan_set(
    target_dir: Path, drafter_dir: Path, recipe: Recipe, *, vision: str | None = "f16"
) -> SetPlan:
    """Read and check both checkpoints against their configs and against each other.

    ``vision`` is the type of a vision tower's weights, one of ``vision.TYPES``, or None to leave a
    tower out. Raises ModelNotFoundError, BadModelFileError, UnsupportedModelError,
    PairMismatchError, and UsageError for another ``vision``.
    """
    if vision is not None and vision not in TYPES:
        raise UsageError(
            f"A vision tower cannot be written as {vision}.", f"There are {', '.join(TYPES)}, none."
        )
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
    marks = {SOURCE_KEY: identities[0], FINGERPRINT_KEY: mark}
    return SetPlan(
        recipe=recipe,
        target=_file(
            recipe.target,
            target_fields(target, config, tokenizer, specs),
            plan_types(specs, recipe.target),
            marks,
        ),
        drafter=_file(
            recipe.drafter,
            assistant_fields(drafter, assistant, tokenizer, drafter_specs),
            plan_types(drafter_specs, recipe.drafter),
            {**marks, SOURCE_KEY: identities[1]},
        ),
        projector=_projector(target, config, vision, marks),
        sources={"target": target, "drafter": drafter, "projector": target},
        fingerprint=mark,
        parameters=Parameters(
            temperature=float(sampling["temperature"]),
            top_k=int(sampling["top_k"]),
            top_p=float(sampling["top_p"]),
            draft_depth=LARGE_DEPTH if config.layers >= LARGE_LAYERS else DEFAULT_DEPTH,
        ),
        chat_template=tokenizer.chat_template,
        notes=tuple(_notes(tokenizer, target)),
    )


def _projector(
    target: Checkpoint, text: TextConfig, vision: str | None, marks: Mapping[str, str]
) -> FilePlan | None:
    if vision is None or not has_tower(target.config):
        return None
    config, recipe = read_vision_config(target.config), vision_recipe(vision)
    specs = vision_tensors(target, config, text.hidden_size)
    tokens = read_processor(target.directory, config)
    fields = vision_fields(target, config, text.hidden_size, specs, tokens)
    return _file(recipe, fields, plan_types(specs, recipe), marks)


def _notes(tokenizer: Tokenizer, target: Checkpoint) -> Iterator[str]:
    """What is not wrong and still worth knowing."""
    if has_weights(target) and not has_tower(target.config):
        yield "the vision tower is of a kind that is not converted; the set will have no eyes"
    if target.config.get("audio_config"):
        yield "the audio tower is left out: the set will not hear"
    if count := tokenizer.merges_across_newlines:
        yield (
            f"{count} merges of the tokenizer join a newline with other text; llama.cpp does not, "
            "so some texts become other tokens than in training"
        )
    if tokenizer.chat_template is None:
        yield "the checkpoint has no chat template"


def _file(
    recipe: RoleRecipe, fields: Fields, tensors: Sequence[PlannedTensor], marks: Mapping[str, str]
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
