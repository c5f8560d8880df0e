"""The compute graphs of a Gemma 4 target and of its drafter, by the sizes of their tensors.

After ``src/models/gemma4.cpp``, ``src/models/gemma4-assistant.cpp`` and ``src/llama-graph.cpp`` of
llama.cpp. What is reserved is a prompt's batch with as many output rows as verification may need.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmtp_models.memory_graph import HOST, Graph, Node
from gemmtp_models.shapes import Shape

F32, I32, I64, F16 = 4, 4, 8, 2
_ROTATED_V = 64
"""Side of the Hadamard matrix that rotates quantised values (``build_input_v_rot``)."""

BORROWED_FROM = 32
"""From so many rows on a GPU borrows the weights that lie in host memory (``op_offload``)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is reserved: ``rows`` computed at once, ``outputs`` of them with logits.

    ``cells`` and ``cells_swa`` are the KV cells that the attention sees; ``flash`` whether flash
    attention is on; ``quantised`` whether the KV cache is.
    """

    rows: int
    outputs: int
    cells: int
    cells_swa: int
    flash: bool
    quantised: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """Which device computes what: 0 is the host, GPUs count from 1.

    ``layers`` and ``output`` are the devices whose memory holds the weights; ``experts`` those of
    each layer's experts, which may be apart.
    """

    layers: tuple[int, ...]
    output: int
    experts: tuple[int, ...]


class _Inputs:
    """The leaves that all layers share."""

    def __init__(self, s: Shape, batch: Batch) -> None:
        n = batch.rows
        mask = F16 if batch.flash else F32
        widest = max(s.head(i) * s.kv_heads[i] for i in range(s.layers))
        values = n * I64 * (1 if batch.flash else widest)
        self.tokens = Node(n * I32, is_input=True)
        self.rows = Node(n * s.backbone * F32, is_input=True)
        self.positions = Node(n * I32, is_input=True)
        self.outputs = Node(batch.outputs * I32, is_input=True)
        self.key_places = {swa: Node(n * I64, is_input=True) for swa in (False, True)}
        self.value_places = {swa: Node(values, is_input=True) for swa in (False, True)}
        cells = {False: batch.cells, True: batch.cells_swa}
        self.mask = {swa: Node(cells[swa] * n * mask, is_input=True) for swa in (False, True)}
        self.rotated: dict[bool, tuple[Node, Node]] = {}
        if batch.quantised:
            heads = {False: s.head_size, True: s.head_size_swa}
            side = {swa: _power_of_two(size) for swa, size in heads.items() if size % 64 == 0}
            self.rotated = {
                swa: (
                    Node(n * n * F32, is_input=True),
                    Node(_ROTATED_V**2 * F32, is_input=True),
                )
                for swa, n in side.items()
            }


class _Builder:
    """One graph under construction."""

    def __init__(self, s: Shape, batch: Batch, placement: Placement, gpus: int) -> None:
        self.s, self.batch, self.placement = s, batch, placement
        self.n = batch.rows
        self.graph = Graph()
        self.inputs = _Inputs(s, batch)
        self.device = HOST
        self.weight_bytes = {weight.name: weight.nbytes for weight in s.weights}
        self.gpu = 1 if gpus else HOST

    # Elementary operations, named as in ggml.

    def new(self, width: int, *sources: Node, rows: int = 0, depth: int = 1) -> Node:
        """A fresh float32 tensor of ``width`` by ``rows`` (the batch's rows without)."""
        rows = rows or self.n
        size = width * rows * depth * F32
        return Node(size, sources, (width, rows, depth), device=self.device)

    def same(self, node: Node, *others: Node) -> Node:
        """An operation that may overwrite its first operand."""
        size = node.size or (node.view_of.size if node.view_of else 0)
        return Node(size, (node, *others), node.layout, in_place=True, device=self.device)

    def view(self, node: Node, *layout: object) -> Node:
        """Another look at the same memory."""
        root = node.view_of or node
        return Node(node.size or root.size, (node,), layout, view_of=root, device=root.device)

    def weight(self, name: str, device: int) -> Node:
        """A weight; a copy of it when a GPU borrows it from host memory for a large batch."""
        borrowed = device == HOST and self.gpu and self.n >= BORROWED_FROM
        if not borrowed:
            return Node(0, device=device)
        return Node(self.weight_bytes.get(name, 0), (Node(0),), device=self.gpu)

    def matrix(self, name: str, width: int, x: Node, *, device: int, rows: int = 0) -> Node:
        """``x`` times a weight."""
        weight = self.weight(name, device)
        self.device = weight.device
        return self.new(width, weight, x, rows=rows)

    def norm(self, node: Node, *, scaled: bool = True) -> Node:
        """Root mean square norm, in place where nobody else needs the operand."""
        normed = self.same(node)
        return self.same(normed) if scaled else normed

    # Parts of a layer.

    def queries(self, layer: int, x: Node, device: int) -> Node:
        s = self.s
        head, heads = s.head(layer), s.heads[layer]
        flat = self.matrix(f"blk.{layer}.attn_q.weight", head * heads, x, device=device)
        shaped = self.view(flat, head, heads, self.n)
        return self.same(self.norm(shaped), self.inputs.positions)

    def attention(self, layer: int, q: Node, keys: Node | None, values: Node | None) -> Node:
        """From queries to the attention's output before the residual."""
        s, n, swa = self.s, self.n, self.s.sliding[layer]
        device, batch = self.placement.layers[layer], self.batch
        rotation = self.inputs.rotated.get(swa)
        if rotation is not None:
            q = self.hadamard(q, rotation[0])
            keys = keys and self.hadamard(keys, rotation[0])
            values = values and self.hadamard(values, rotation[1])
        for node in (q, keys, values):
            if node is not None:
                self.graph.expand(node)
        if keys is not None:
            self.store(keys, self.inputs.key_places[swa], device)
        if values is not None:
            self.store_values(layer, values, self.inputs.value_places[swa], device)
        head, heads = s.head(layer), s.heads[layer]
        cells = batch.cells_swa if swa else batch.cells
        cache = self.cache(layer, cells, device)
        asked = self.view(self.view(q, "4d"), "permuted")
        if batch.flash:
            seen = self.new(head * heads, asked, *cache, self.inputs.mask[swa])
            out = self.view(seen, head * heads, n)
            if batch.quantised and self.device != HOST:
                # CUDA unpacks the layer's keys and values behind the result (fattn-common.cuh).
                seen.size += 2 * cells * head * s.kv_heads[layer] * F16
        else:
            kq = self.new(cells, cache[0], asked, depth=heads)
            weights = self.same(kq, self.inputs.mask[swa])
            kqv = self.new(head, cache[1], weights, depth=heads)
            out = self.new(head * heads, self.view(kqv, "permuted"))
        self.graph.expand(out)
        if rotation is not None:
            out = self.hadamard(out, rotation[1])
        return self.matrix(f"blk.{layer}.attn_output.weight", s.width, out, device=device)

    def cache(self, layer: int, cells: int, device: int) -> tuple[Node, Node]:
        """Keys and values; a GPU that works for a host layer gets copies of them."""
        if device != HOST or self.device == HOST:
            return Node(0), Node(0)
        size = cells * self.s.head(layer) * self.s.kv_heads[layer] * F16
        return (
            Node(size, (Node(0),), device=self.device),
            Node(size, (Node(0),), device=self.device),
        )

    def hadamard(self, node: Node, rotation: Node) -> Node:
        size = node.size or (node.view_of.size if node.view_of else 0)
        turned = Node(size, (rotation, self.view(node, "2d")), ("2d", size), device=self.device)
        return self.view(turned, *node.layout)

    def store(self, node: Node, places: Node, device: int) -> None:
        cache = Node(0, device=device)
        rows = self.view(node, "rows")
        self.graph.expand(Node(0, (rows, places, cache), view_of=cache, device=device))

    def store_values(self, layer: int, node: Node, places: Node, device: int) -> None:
        """Without flash attention values are stored transposed, padded to the widest layer."""
        s = self.s
        if not self.batch.flash:
            own = s.head(layer) * s.kv_heads[layer]
            widest = max(s.head(i) * s.kv_heads[i] for i in range(s.layers))
            node = self.view(node, own, self.n)
            if own < widest:
                node = self.new(widest, node)
        self.store(node, places, device)

    def feed_forward(self, layer: int, x: Node, device: int) -> Node:
        inner, block = self.s.feed_forward[layer], f"blk.{layer}."
        gate = self.matrix(block + "ffn_gate.weight", inner, x, device=device)
        up = self.matrix(block + "ffn_up.weight", inner, x, device=device)
        both = self.new(inner, gate, up)
        return self.matrix(block + "ffn_down.weight", self.s.width, both, device=device)


def _power_of_two(size: int) -> int:
    """The largest power of two that divides ``size`` (``build_input_k_rot``)."""
    return size & -size


def target_graph(s: Shape, batch: Batch, placement: Placement, gpus: int = 0) -> Graph:
    """The target's graph for one batch on a host with so many GPUs."""
    return _Target(s, batch, placement, gpus).build()


def drafter_graph(s: Shape, batch: Batch, placement: Placement, gpus: int = 0) -> Graph:
    """The drafter's graph for one draft step."""
    return _Drafter(s, batch, placement, gpus).build()


class _Target(_Builder):
    def build(self) -> Graph:
        s, n, graph, inputs = self.s, self.n, self.graph, self.inputs
        embedded = Node(n * s.width * F32, (Node(0), inputs.tokens), (s.width, n, 1))
        graph.expand(embedded)
        graph.expand(inputs.rows)
        x = self.same(embedded)
        per_layer = self.per_layer_inputs(x) if s.per_layer else None
        for layer in self.representatives():
            x = self.layer(layer, x, per_layer)
        self.device = self.placement.output or (self.gpu if n >= BORROWED_FROM else HOST)
        hidden = self.norm(x)
        hidden.output = True
        m = self.batch.outputs
        last = self.new(s.width, hidden, inputs.outputs, rows=m)
        last.output = True
        logits = self.matrix(
            "token_embd.weight", s.vocabulary, last, device=self.placement.output, rows=m
        )
        for _ in range(3 if s.softcap else 0):
            logits = self.same(logits)
        logits.output = True
        graph.expand(logits)
        return graph

    def representatives(self) -> list[int]:
        """The layers without those periods that repeat the two before them exactly.

        The allocator is in the same state after each such period, so they add nothing.
        """
        s, at = self.s, self.placement
        kinds = [
            (s.sliding[i], i < s.own_kv, s.feed_forward[i], kv, at.layers[i], at.experts[i])
            for i, kv in enumerate(s.kv_heads)
        ]
        period = s.sliding.index(False) + 1
        kept = list(range(s.layers))
        i = 2 * period
        while i + period <= len(kept):
            window = [kinds[layer] for layer in kept[i - 2 * period : i + period]]
            if window[:period] == window[period : 2 * period] == window[2 * period :]:
                del kept[i : i + period]
            else:
                i += 1
        return kept

    def per_layer_inputs(self, x: Node) -> Node:
        """E2B and E4B: one slice a layer, from the table in host memory and the embeddings."""
        s, n = self.s, self.n
        rows = s.per_layer * s.layers
        tokens = Node(n * I32, is_input=True)
        table = Node(n * rows * F32, (Node(0), tokens), (rows, n, 1))
        table = self.same(self.view(table, s.per_layer, s.layers, n))
        self.graph.expand(table)
        first = self.placement.layers[0]
        projected = self.same(self.matrix("per_layer_model_proj.weight", rows, x, device=first))
        projected = self.norm(self.view(projected, s.per_layer, s.layers, n))
        mixed = self.same(self.same(projected, table))
        return self.new(rows, self.view(mixed, "permuted"))

    def layer(self, layer: int, x: Node, per_layer: Node | None) -> Node:
        s, n, block = self.s, self.n, f"blk.{layer}."
        device = self.placement.layers[layer]
        self.device = device or (self.gpu if n >= BORROWED_FROM else HOST)
        normed = self.norm(x)
        q = self.queries(layer, normed, device)
        keys = values = None
        if layer < s.own_kv:
            head, kv = s.head(layer), s.kv_heads[layer]
            flat = self.matrix(block + "attn_k.weight", head * kv, normed, device=device)
            flat_values = flat
            if s.sliding[layer] or not s.keys_are_values:
                flat_values = self.matrix(block + "attn_v.weight", head * kv, normed, device=device)
            keys_view = self.view(flat, head, kv, n)
            values_view = self.view(flat_values, head, kv, n)
            keys = self.norm(keys_view)
            values = self.norm(values_view, scaled=False)
            keys = self.same(keys, self.inputs.positions)
        attended = self.norm(self.attention(layer, q, keys, values))
        middle = self.same(attended, x)
        if s.experts:
            out = self.experts(layer, middle, device)
        else:
            out = self.feed_forward(layer, self.norm(middle), device)
        out = self.same(self.norm(out), middle)
        if per_layer is not None:
            out = self.per_layer_part(layer, out, per_layer, device)
        return self.same(out)

    def per_layer_part(self, layer: int, x: Node, per_layer: Node, device: int) -> Node:
        s, block = self.s, f"blk.{layer}."
        gate = self.same(self.matrix(block + "inp_gate.weight", s.per_layer, x, device=device))
        gated = self.same(gate, self.view(per_layer, "slice"))
        return self.same(
            x, self.norm(self.matrix(block + "proj.weight", s.width, gated, device=device))
        )

    def experts(self, layer: int, x: Node, device: int) -> Node:
        """26B-A4B: a dense branch beside the chosen experts (``build_moe_ffn``)."""
        s, n, graph, block = self.s, self.n, self.graph, f"blk.{layer}."
        used, inner, count = s.experts_used, s.expert_feed_forward, s.experts
        dense = self.norm(self.feed_forward(layer, self.norm(x), device))
        chosen_from = self.norm(x)
        scored = self.same(self.same(self.same(x)))
        logits = self.matrix(block + "ffn_gate_inp.weight", count, scored, device=device)
        shares = self.same(logits)
        order = self.new(count, shares)
        chosen = self.view(order, "top")
        picked = self.new(used, self.view(shares, 1, count, n), chosen)
        picked_flat = self.view(picked, used, n)
        total = self.view(self.new(1, picked_flat), "clamped")
        weights = self.view(self.same(picked_flat, total), 1, used, n)
        graph.expand(weights)
        held = self.placement.experts[layer]
        rows = self.view(chosen_from, s.width, 1, n)
        both = self.by_expert(block + "ffn_gate_up_exps.weight", 2 * inner, rows, chosen, held)
        halves = self.view(both, "gate"), self.view(both, "up")
        active = self.new(inner, *halves, depth=used)
        out = self.by_expert(block + "ffn_down_exps.weight", s.width, active, chosen, held)
        scales = self.new(count, self.view(Node(0), "scales"))
        out = self.same(out, self.new(used, scales, chosen))
        out = self.same(out, weights)
        graph.expand(out)
        parts = [self.view(out, "part", i) for i in range(used)]
        for part in parts:
            graph.expand(part)
        summed = self.new(s.width, *parts[:2]) if used > 1 else self.new(s.width, parts[0])
        graph.expand(summed)
        for part in parts[2:]:
            summed = self.same(summed, part)
            graph.expand(summed)
        return self.same(dense, self.norm(summed))

    def by_expert(self, name: str, width: int, x: Node, chosen: Node, device: int) -> Node:
        weight = self.weight(name, device)
        self.device = weight.device
        return self.new(width, weight, x, chosen, depth=self.s.experts_used)


class _Drafter(_Builder):
    def build(self) -> Graph:
        s, n, graph, inputs = self.s, self.n, self.graph, self.inputs
        device = self.placement.layers[0]
        embedded = Node(n * s.backbone * F32, (Node(0), inputs.tokens), (s.backbone, n, 1))
        self.device = device
        both = self.new(2 * s.backbone, self.same(embedded), inputs.rows)
        x = self.matrix("nextn.pre_projection.weight", s.width, both, device=device)
        for layer in range(s.layers):
            device = self.placement.layers[layer]
            self.device = device or HOST
            q = self.queries(layer, self.norm(x), device)
            attended = self.attention(layer, q, None, None)
            if layer == s.layers - 1:
                m = self.batch.outputs
                attended = self.new(s.width, attended, inputs.outputs, rows=m)
                x = self.new(s.width, x, inputs.outputs, rows=m)
                self.n = m
            middle = self.same(self.norm(attended), x)
            out = self.feed_forward(layer, self.norm(middle), device)
            x = self.same(self.same(self.norm(out), middle))
        last = self.norm(x)
        output = self.placement.output
        logits = self.matrix("token_embd.weight", s.vocabulary, last, device=output)
        hidden = self.matrix("nextn.post_projection.weight", s.backbone, last, device=device)
        logits.output = hidden.output = True
        graph.expand(logits)
        graph.expand(hidden)
        return graph
