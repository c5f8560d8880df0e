"""What running a set would take here, said before it is fetched."""

from __future__ import annotations

DEFAULT_CTX = 8192


def prospect(model: str) -> str | None:
    """One sentence about memory for a set of the catalogue; None when it says too little."""
    from gemmtp import settings
    from gemmtp.llama.plan import machine
    from gemmtp_models.catalogue import find_entry
    from gemmtp_models.memory import Wish
    from gemmtp_models.memory_choice import choose
    from gemmtp_models.memory_sets import of_entry
    from gemmtp_models.memory_words import gib, memory_words

    entry = None if model.startswith("hf:") else find_entry(model, settings.config_dir())
    models = None if entry is None else of_entry(entry)
    if entry is None or models is None:
        return None
    wish = Wish(
        ctx=min(DEFAULT_CTX, models.target.context_length),
        depth=entry.parameters.draft_depth,
        drafting=models.drafter is not None,
    )
    choice = choose(models, wish, machine())
    placed = choice.estimate
    if not placed.fits:
        return (
            f"It does not fit into memory here: {gib(placed.missing)} GiB are missing "
            f"(gemmtp plan {entry.name} says what would fit)."
        )
    words = f"It fits into memory: {memory_words(placed)}"
    if choice.steps:
        words += f", with {', '.join(step.what for step in choice.steps)}"
    return words + "."
