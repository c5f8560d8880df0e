"""The pairing fingerprint: what makes a drafter belong to a target, as one hash in both files."""

from __future__ import annotations

import hashlib
import json

from gemmtp_quantize.config import AssistantConfig, TextConfig
from gemmtp_quantize.tokenizer import Tokenizer


def fingerprint(
    tokenizer: Tokenizer,
    target: TextConfig,
    assistant: AssistantConfig,
    target_identity: str,
    assistant_identity: str,
) -> str:
    """SHA-256 (hex) over token list, special ids, shared geometry and both source checkpoints."""
    parts = {
        "tokens": tokenizer.digest(),
        "special": dict(sorted(tokenizer.special.items())),
        "hidden": target.hidden_size,
        "backbone": assistant.backbone_size,
        "geometry": [_geometry(target), _geometry(assistant.text)],
        "sources": [target_identity, assistant_identity],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _geometry(config: TextConfig) -> dict[str, float | int]:
    """What a drafter block reads of the target's cache."""
    return {
        "head_dim": config.head_dim,
        "head_dim_full": config.head_dim_full,
        "kv_heads": config.kv_heads,
        "kv_heads_full": config.kv_heads_full,
        "sliding_window": config.sliding_window,
        "theta_sliding": config.theta_sliding,
        "theta_full": config.theta_full,
        "rotary_factor": config.rotary_factor,
    }
