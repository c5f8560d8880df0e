"""Shapes of the demo's target and drafter: a Gemma 4 in miniature."""

import json
from pathlib import Path
from typing import Any

from transformers import (
    Gemma4AssistantConfig,
    Gemma4Config,
    Gemma4TextConfig,
    Gemma4VisionConfig,
)

from demo.tokenizer import CONTROL_TOKENS, VOCABULARY

SLIDING, FULL = "sliding_attention", "full_attention"
HEAD_KEYS = {"global_head_dim": 64, "num_global_key_value_heads": 2}
ATTENTION: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    **HEAD_KEYS,
    "attention_k_eq_v": True,
    "sliding_window": 64,
    "max_position_embeddings": 4096,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
}
VISION_WIDTH = 128
# A strip of one row at the largest budget, 1,120 tokens of three patches each.
VISION_POSITIONS = 3360


def target_config() -> Gemma4TextConfig:
    """Six layers of width 256, two of them with full attention and K = V."""
    return Gemma4TextConfig(
        **ATTENTION,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        layer_types=[SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL],
        final_logit_softcapping=30.0,
    )


def seeing_config(text: Gemma4TextConfig) -> Gemma4Config:
    """The target with a vision tower of four layers of width 128."""
    vision = Gemma4VisionConfig(
        hidden_size=VISION_WIDTH,
        intermediate_size=3 * VISION_WIDTH,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=VISION_WIDTH // 4,
        position_embedding_size=VISION_POSITIONS,
    )
    text.use_bidirectional_attention = "vision"
    return Gemma4Config(
        text_config=text,
        vision_config=vision,
        audio_config=None,
        boi_token_id=CONTROL_TOKENS.index("<|image>"),
        image_token_id=CONTROL_TOKENS.index("<|image|>"),
        eoi_token_id=CONTROL_TOKENS.index("<image|>"),
        boa_token_id=CONTROL_TOKENS.index("<|audio>"),
        audio_token_id=CONTROL_TOKENS.index("<|audio|>"),
        eoa_token_index=CONTROL_TOKENS.index("<audio|>"),
        video_token_id=CONTROL_TOKENS.index("<|video|>"),
    )


def drafter_config() -> Gemma4AssistantConfig:
    """Four blocks of width 128 that read the target's last two layers."""
    text = Gemma4TextConfig(
        **ATTENTION,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_kv_shared_layers=4,
        layer_types=[SLIDING, SLIDING, SLIDING, FULL],
    )
    return Gemma4AssistantConfig(text_config=text, backbone_hidden_size=256)


def name_full_heads(folder: Path) -> None:
    """Add the full layers' head size to a saved config: transformers may leave it out."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.get("text_config", config).update(HEAD_KEYS)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
