"""What the projector needs: its file, and work space that grows with the image.

After ``tools/mtmd/models/gemma4v.cpp`` and ``gemma4uv.cpp`` of llama.cpp. A token stands for 3 x 3
patches of 16 x 16 pixels; 12B projects such squares directly, the others run a vision tower first.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmtp_models.memory_graph import Graph, Node
from gemmtp_models.shapes import SIZES

IMAGE_BUDGETS = (70, 140, 280, 560, 1120)
"""Tokens an image may take, as Gemma 4 was trained."""

DEFAULT_IMAGE_TOKENS = 280
"""What an image may take where a projector's file says nothing, as in Gemma 4's own processor."""

F32, F16 = 4, 2
_PATCH_PIXELS = 16 * 16 * 3
_PATCHES = 9
"""Patches to a token."""


@dataclass(frozen=True, slots=True)
class Projector:
    """A projector by its size in bytes and its tower; ``blocks`` 0 is a direct projection.

    ``image_tokens`` is what an image may take where nobody asks for another budget.
    """

    nbytes: int
    blocks: int
    width: int
    feed_forward: int
    heads: int
    out: int
    image_tokens: int = DEFAULT_IMAGE_TOKENS

    def compute(self, tokens: int, *, flash: bool = True) -> int:
        """Bytes of work space for an image of ``tokens``, which mtmd takes at the first image."""
        graph = _tower if self.blocks else _direct
        return graph(self, tokens, flash).reserve([32])[0]


def budget_words() -> str:
    """ "70, 140, 280, 560 or 1120" """
    return f"{', '.join(map(str, IMAGE_BUDGETS[:-1]))} or {IMAGE_BUDGETS[-1]}"


_TOWERS = {"e2b": (16, 768, 3072, 12), "e4b": (16, 768, 3072, 12), "12b": (0, 3840, 0, 0)}
_LARGE_TOWER = (27, 1152, 4304, 16)
"""Blocks, width, feed-forward length and heads; the sizes of published files confirm them."""


def projector_of(size: str) -> Projector:
    """The published BF16 projector of ``size`` (a key of ``SIZES``)."""
    row = SIZES[size]
    return Projector(row.projector, *_TOWERS.get(size, _LARGE_TOWER), row.width)


def _new(size: int, *sources: Node, layout: object = None) -> Node:
    return Node(size, sources, (layout, size))


def _same(node: Node, *others: Node) -> Node:
    return Node(node.size, (node, *others), node.layout, in_place=True)


def _view(node: Node, layout: object) -> Node:
    root = node.view_of or node
    return Node(root.size, (node,), (layout, root.size), view_of=root)


def _direct(p: Projector, tokens: int, flash: bool) -> Graph:
    graph, pixels = Graph(), tokens * _PATCHES * _PATCH_PIXELS * F32
    image = Node(pixels, is_input=True)
    columns = _new(pixels, image)
    normed = _same(_same(_new(pixels, _view(columns, "2d"))))
    x = _same(_new(tokens * p.width * F32, Node(0), normed))
    x = _same(_same(_new(tokens * p.width * F32, x)))
    x = _with_positions(x, tokens, p.width)
    x = _same(_same(_new(tokens * p.width * F32, x)))
    out = _new(tokens * p.out * F32, Node(0), _same(x))
    out.output = True
    graph.expand(out)
    return graph


def _with_positions(x: Node, rows: int, width: int) -> Node:
    for _ in range(2):
        places = Node(rows * F32, is_input=True)
        x = _same(x, _new(rows * width * F32, Node(0), places))
    return x


def _tower(p: Projector, tokens: int, flash: bool) -> Graph:
    graph, n = Graph(), tokens * _PATCHES
    row = n * p.width * F32
    image = Node(n * _PATCH_PIXELS * F32, is_input=True)
    columns = _new(n * _PATCH_PIXELS * F32, _same(image))
    embedded = _new(row, _view(columns, "2d"), Node(0))
    x = _with_positions(_new(row, _view(embedded, "turned")), n, p.width)
    x = _view(x, "flat")
    places = Node(n * F32, is_input=True)
    for _ in range(min(p.blocks, 3)):
        x = _block(graph, p, x, n, places, flash)
    pooled = _new(row, _view(x, "turned"))
    small = _new(tokens * p.width * F32, pooled)
    small = _same(_new(tokens * p.width * F32, _view(small, "turned")))
    out = _new(tokens * p.out * F32, Node(0), _same(_same(_same(small))))
    out.output = True
    graph.expand(out)
    return graph


def _block(graph: Graph, p: Projector, x: Node, n: int, places: Node, flash: bool) -> Node:
    """One block; every block is alike, so three stand for all."""
    row = n * p.width * F32
    normed = _same(_new(row, x, layout="row"))
    q, k, v = (_view(_new(row, Node(0), normed), "heads") for _ in range(3))
    q, k = (_same(_same(_same(_new(row, part, layout="heads")), places), places) for part in (q, k))
    v = _new(row, v, layout="heads")
    for part in (q, k, v):
        graph.expand(part)
    if flash:
        halves = [_new(row // 2, _view(part, "turned")) for part in (k, v)]
        seen = _view(_new(row, _view(q, "turned"), *halves), "flat")
    else:
        turned = _new(row, _view(v, "turned"))
        scores = _same(_new(n * n * p.heads * F32, _view(k, "turned"), _view(q, "turned")))
        seen = _new(row, _view(_new(row, turned, scores), "turned"))
    attended = _same(_same(_new(row, Node(0), seen, layout="row")))
    x = _same(attended, x)
    normed = _same(_new(row, x, layout="row"))
    inner = n * p.feed_forward * F32
    up, gate = _new(inner, Node(0), normed), _new(inner, Node(0), normed)
    down = _new(row, Node(0), _new(inner, gate, up), layout="row")
    return _same(_same(_same(down)), x)
