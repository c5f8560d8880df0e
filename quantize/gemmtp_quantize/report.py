"""What a plan or a parity check says to people."""

from __future__ import annotations

from gemmtp_quantize.plan import FilePlan, SetPlan

MEBI = 2**20


def plan_table(plan: SetPlan) -> str:
    """Every tensor of all files with its types, shape and size, and the sums."""
    lines = [f"recipe {plan.recipe.name}: {plan.recipe.description}"]
    for role, file in plan.files.items():
        lines += ["", f"{role}: {plan.sources[role].name}", *_rows(file)]
        lines.append(f"  {_sum(file)}")
    total = sum(file.final_bytes for file in plan.files.values())
    lines += ["", f"together: {total / MEBI:,.1f} MiB, fingerprint {plan.fingerprint[:12]}"]
    return "\n".join(lines) + "\n"


def _rows(file: FilePlan) -> list[str]:
    width = max(len(tensor.spec.name) for tensor in file.tensors)
    rows = []
    for tensor in file.tensors:
        source = tensor.spec.source.dtype if tensor.spec.source else "made"
        shape = " x ".join(str(size) for size in reversed(tensor.spec.shape))
        rows.append(
            f"  {tensor.spec.name:{width}}  {source:>4} -> {tensor.final:5}  {shape:>16}  "
            f"{tensor.final_bytes / MEBI:10,.3f} MiB"
        )
    return rows


def _sum(file: FilePlan) -> str:
    elements = sum(tensor.spec.elements for tensor in file.tensors)
    return (
        f"{len(file.tensors)} tensors, {elements / 1e6:,.1f} M weights, "
        f"{file.final_bytes / MEBI:,.1f} MiB, {8 * file.final_bytes / elements:.2f} bits a weight"
    )
