"""The shapes of a set: from its files' headers, or from the catalogue before they are here."""

from __future__ import annotations

from dataclasses import replace

from gemmtp_models.catalogue_file import Entry
from gemmtp_models.geometry import Geometry
from gemmtp_models.ggml_types import GGML_TYPES
from gemmtp_models.header import Header
from gemmtp_models.memory import ModelSet
from gemmtp_models.memory_projector import Projector, projector_of
from gemmtp_models.projector import image_tokens
from gemmtp_models.shapes import (
    HEADER_BYTES,
    RECIPES,
    SIZES,
    Shape,
    Weight,
    drafter_shape,
    shape_of,
    target_shape,
)

_BYTE = next(kind for kind in GGML_TYPES.values() if kind.name == "I8")
_HEADER_SLACK = 1 << 18
"""Headers differ by their chat templates; a smaller difference is no other quantisation."""


def of_headers(
    name: str,
    target: tuple[Header, Geometry],
    drafter: tuple[Header, Geometry] | None = None,
    projector: Header | None = None,
) -> ModelSet:
    """The set of checked headers."""
    return ModelSet(
        name,
        shape_of(*target),
        shape_of(*drafter) if drafter else None,
        projector_of_header(projector) if projector else None,
    )


def of_entry(entry: Entry) -> ModelSet | None:
    """The set of a catalogue entry; None when it is of no published size."""
    numbers = entry.geometry.get("layers"), entry.geometry.get("hidden")
    size = next((key for key, row in SIZES.items() if (row.layers, row.width) == numbers), None)
    if size is None:
        return None
    bytes_of = {role: file.size for role, file in entry.files.items()}
    projector = projector_of(size) if "projector" in entry.files else None
    if projector is not None and (nbytes := bytes_of["projector"]):
        projector = replace(projector, nbytes=nbytes)
    drafter = None
    if "drafter" in entry.files:
        shapes = [drafter_shape(size, recipe) for recipe in RECIPES.values()]
        drafter = _closest(shapes, bytes_of["drafter"])
    return ModelSet(entry.name, closest_target(size, bytes_of["target"]), drafter, projector)


def closest_target(size: str, file_size: int | None) -> Shape:
    """The target of ``size`` (a key of ``SIZES``) in the quantisation of a file of this size."""
    return _closest([target_shape(size, recipe) for recipe in RECIPES.values()], file_size)


def _closest(shapes: list[Shape], file_size: int | None) -> Shape:
    """The quantisation of these whose file is the largest that is not larger than ``file_size``.

    What the file has beyond it is spread over the layers, as finer quantisations spread it.
    """
    if file_size is None:
        return shapes[0]
    weights = file_size - HEADER_BYTES
    smaller = [shape for shape in shapes if shape.nbytes <= weights + _HEADER_SLACK]
    best = max(smaller or [min(shapes, key=lambda s: s.nbytes)], key=lambda shape: shape.nbytes)
    beyond = (weights - best.nbytes) // best.layers
    if abs(beyond) * best.layers <= _HEADER_SLACK:
        return best
    extra = (Weight(f"blk.{i}.beyond", (beyond,), _BYTE) for i in range(best.layers))
    return replace(best, weights=(*best.weights, *extra))


def projector_of_header(header: Header) -> Projector:
    """A projector by the metadata of its file; raises as ``image_tokens`` does."""
    m, vision = header.metadata, "clip.vision."
    direct = m.string(vision + "projector_type", m.string("clip.projector_type", "")) == "gemma4uv"
    return Projector(
        nbytes=sum(tensor.nbytes for tensor in header.tensors.values()),
        blocks=0 if direct else m.uint32(vision + "block_count", 0),
        width=m.uint32(vision + "embedding_length", 0),
        feed_forward=m.uint32(vision + "feed_forward_length", 0),
        heads=m.uint32(vision + "attention.head_count", 1),
        out=m.uint32(vision + "projection_dim", 0),
        image_tokens=image_tokens(header),
    )
