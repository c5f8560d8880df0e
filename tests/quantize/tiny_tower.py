"""A random Gemma 4 vision tower in miniature, as transformers saves one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CLIPPED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
BOUNDS = {"input_min": -3.0, "input_max": 2.5, "output_min": -2.0, "output_max": 2.25}


@dataclass(frozen=True)
class Tower:
    """The knobs of a tiny tower; ``positions`` bounds a side of an image, in patches."""

    hidden: int = 64
    inner: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 16
    patch: int = 16
    pooling: int = 3
    positions: int = 1120
    norm_eps: float = 1e-6
    clipped: bool = False
    standardize: bool = False
    theta: float = 100.0


def vision_config(tower: Tower) -> dict[str, Any]:
    """The ``vision_config`` of a checkpoint."""
    return {
        "model_type": "gemma4_vision", "hidden_size": tower.hidden,
        "intermediate_size": tower.inner, "num_hidden_layers": tower.layers,
        "num_attention_heads": tower.heads, "num_key_value_heads": tower.kv_heads,
        "head_dim": tower.head_dim, "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": tower.norm_eps, "attention_bias": False, "attention_dropout": 0.0,
        "patch_size": tower.patch, "pooling_kernel_size": tower.pooling,
        "position_embedding_size": tower.positions, "use_clipped_linears": tower.clipped,
        "standardize": tower.standardize,
        "rope_parameters": {"rope_type": "axial", "rope_theta": tower.theta},
    }  # fmt: skip


def processor_config(tower: Tower) -> dict[str, Any]:
    """``processor_config.json`` as transformers writes it."""
    return {
        "image_processor": {
            "image_processor_type": "Gemma4ImageProcessor", "do_convert_rgb": True,
            "do_normalize": False, "do_rescale": True, "do_resize": True,
            "image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0],
            "max_soft_tokens": 280, "patch_size": tower.patch,
            "pooling_kernel_size": tower.pooling, "resample": 3,
            "rescale_factor": 0.00392156862745098,
        },
        "processor_class": "Gemma4Processor",
    }  # fmt: skip


def tower_shapes(tower: Tower, text_width: int) -> dict[str, tuple[int, ...]]:
    """The tensors of tower and projection by their names in a checkpoint."""
    prefix, width = "model.vision_tower.", tower.hidden
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}patch_embedder.input_proj.weight": (width, 3 * tower.patch**2),
        f"{prefix}patch_embedder.position_embedding_table": (2, tower.positions, width),
        "model.embed_vision.embedding_projection.weight": (text_width, width),
    }
    if tower.standardize:
        shapes |= {f"{prefix}std_bias": (width,), f"{prefix}std_scale": (width,)}
    queries, keys = tower.head_dim * tower.heads, tower.head_dim * tower.kv_heads
    block: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "pre_feedforward_layernorm.weight": (width,),
        "post_feedforward_layernorm.weight": (width,),
        "self_attn.q_norm.weight": (tower.head_dim,),
        "self_attn.k_norm.weight": (tower.head_dim,),
        "self_attn.q_proj.linear.weight": (queries, width),
        "self_attn.k_proj.linear.weight": (keys, width),
        "self_attn.v_proj.linear.weight": (keys, width),
        "self_attn.o_proj.linear.weight": (width, queries),
        "mlp.gate_proj.linear.weight": (tower.inner, width),
        "mlp.up_proj.linear.weight": (tower.inner, width),
        "mlp.down_proj.linear.weight": (width, tower.inner),
    }
    if tower.clipped:
        block |= {f"{linear}.{bound}": () for linear in CLIPPED for bound in BOUNDS}
    for layer in range(tower.layers):
        shapes |= {f"{prefix}encoder.layers.{layer}.{name}": s for name, s in block.items()}
    return shapes
