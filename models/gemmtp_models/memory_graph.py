"""How much memory a compute graph needs: ggml's graph allocator, replayed on sizes alone.

ggml reserves a compute buffer by walking the graph once and giving each tensor the best fitting
free block, reusing a parent's block where an operation may work in place and freeing blocks after
their last use (``ggml/src/ggml-alloc.c``). Doing the same here gives the same number of bytes, for
any context, batch and device. Where several devices share a graph, tensors that cross are copied
(``ggml_backend_sched_split_graph``).
"""

from __future__ import annotations

from collections.abc import Sequence

Layout = tuple[object, ...]
HOST = 0
"""The device number of host memory; GPUs count from 1."""


class Node:
    """One tensor of a graph: ``size`` in bytes, 0 for what lies in memory already.

    ``layout`` is equal for tensors that could share a block in place. ``view_of`` is the tensor
    whose memory a view shares.
    """

    __slots__ = (
        "allocated", "children", "device", "in_place", "is_input", "layout", "offset", "output",
        "size", "sources", "view_of", "views", "visited",
    )  # fmt: skip

    def __init__(
        self,
        size: int,
        sources: tuple[Node, ...] = (),
        layout: Layout = (),
        *,
        in_place: bool = False,
        view_of: Node | None = None,
        is_input: bool = False,
        device: int = HOST,
    ) -> None:
        self.size, self.sources, self.layout = size, sources, layout
        self.in_place, self.view_of, self.is_input = in_place, view_of, is_input
        self.device = device
        self.output = self.visited = self.allocated = False
        self.children = self.views = self.offset = 0


class Graph:
    """Nodes in the order in which llama.cpp would compute them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.leaves: list[Node] = []

    def expand(self, node: Node) -> None:
        """Add ``node`` after everything it needs, depth first (``ggml_build_forward_expand``)."""
        if node.visited:
            return
        node.visited = True
        for source in node.sources:
            self.expand(source)
        (self.nodes if node.sources else self.leaves).append(node)

    def reserve(self, alignments: Sequence[int], copies: int = 1) -> list[int]:
        """Bytes of the compute buffer of each device, the host first.

        ``alignments`` has one value a device; ``copies`` is how many batches are in flight when
        several GPUs work as a pipeline, each with inputs of its own.
        """
        nodes, leaves = self._with_copies(len(alignments), copies)
        buffers = [_Buffer(alignment) for alignment in alignments]
        for leaf in leaves:
            _allocate(leaf, buffers)
        for node in nodes:
            if node.view_of is not None:
                node.view_of.views += 1
            for source in node.sources:
                source.children += 1
        for node in nodes:
            _allocate(node, buffers)
            for source in node.sources:
                _release(source, buffers)
        return [buffer.most for buffer in buffers]

    def _with_copies(self, devices: int, copies: int) -> tuple[list[Node], list[Node]]:
        """The graph with a copy of every tensor that is needed on another device."""
        if devices == 1:
            return self.nodes, self.leaves
        made: dict[tuple[int, int], Node] = {}
        nodes: list[Node] = []
        leaves = list(self.leaves)
        for node in self.nodes:
            sources = []
            for source in node.sources:
                root = source.view_of or source
                if node.view_of is None and root.device != node.device and root.size:
                    copy = made.get((id(source), node.device))
                    if copy is None:
                        size = source.size or root.size
                        copy = Node(size, (source,), source.layout, device=node.device)
                        made[(id(source), node.device)] = copy
                        if root.is_input and copies > 1:
                            leaves += (Node(size, device=node.device) for _ in range(copies - 1))
                        nodes.append(copy)
                    source = copy
                sources.append(source)
            node.sources = tuple(sources)
            nodes.append(node)
        return nodes, leaves


class _Buffer:
    """One growing buffer with a list of free blocks, ordered by offset; the last has no end."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.most = 0
        self.free = [(0, 1 << 62)]

    def take(self, size: int) -> int:
        size = self._aligned(size)
        free = self.free
        best, best_size = len(free) - 1, 1 << 62
        for i in range(len(free) - 1):
            if size <= free[i][1] <= best_size:
                best, best_size = i, free[i][1]
        offset, room = free[best]
        if room == size:
            del free[best]
        else:
            free[best] = (offset + size, room - size)
        self.most = max(self.most, offset + size)
        return offset

    def give(self, offset: int, size: int) -> None:
        size = self._aligned(size)
        free = self.free
        i = 0
        while i < len(free) and free[i][0] < offset:
            i += 1
        if i < len(free) and offset + size == free[i][0]:
            size += free[i][1]
            del free[i]
        if i and sum(free[i - 1]) == offset:
            free[i - 1] = (free[i - 1][0], free[i - 1][1] + size)
        else:
            free.insert(i, (offset, size))

    def _aligned(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment


def _allocate(node: Node, buffers: list[_Buffer]) -> None:
    """``ggml_gallocr_allocate_node``; ``allocated`` says that the node owns its block."""
    if not node.size or node.view_of is not None or node.allocated:
        return
    node.allocated = True
    if node.in_place:
        for parent in node.sources:
            # A view owns nothing, so what stands on a view never works in place.
            if (
                parent.allocated
                and not parent.output
                and parent.device == node.device
                and parent.layout == node.layout
                and parent.children == 1
                and parent.views == 0
            ):
                node.offset = parent.offset
                parent.allocated = False
                return
    node.offset = buffers[node.device].take(node.size)


def _release(node: Node, buffers: list[_Buffer]) -> None:
    """One user of ``node`` is done; free its block after the last one."""
    node.children -= 1
    if node.children or node.views:
        return
    owner = node
    if node.view_of is not None:
        owner = node.view_of
        owner.views -= 1
        if owner.views or owner.children:
            return
    if owner.allocated and not owner.output:
        buffers[owner.device].give(owner.offset, owner.size)
        owner.allocated = False
