"""The options of ``gemmtp run`` against repetition, and the processors that they ask for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from gemmtp.engine.dry import BREAKERS
from gemmtp.engine.penalties import PenaltyParameters
from gemmtp.engine.processors import Processor
from gemmtp.errors import UsageError
from gemmtp.llama.model import Model
from gemmtp_models.metadata import ValueType

MAX_BREAKERS = 64
SPACE = "\u2581"
"""How a vocabulary of Gemma spells a space."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """Penalties as typed; ``dry_breakers`` empty takes the usual ones."""

    penalties: PenaltyParameters = field(default_factory=PenaltyParameters)
    dry_breakers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.dry_breakers) > MAX_BREAKERS:
            raise UsageError(
                f"At most {MAX_BREAKERS} DRY breakers are possible.", "Keep the commonest."
            )
        if not all(self.dry_breakers):
            raise UsageError("A DRY breaker must not be empty.", "Leave the option out.")

    def processors(self, model: Model) -> tuple[Processor, ...]:
        """What the numbers ask for over ``model``'s vocabulary.

        A breaker is every token whose text holds one of the texts, as in llama.cpp. Tokens that end
        an answer are no repetition: they stand behind every turn of the prompt.
        """
        breakers: frozenset[int] = frozenset()
        if self.penalties.dry_multiplier:
            breakers = _holding(model, self.dry_breakers or BREAKERS)
        return self.penalties.processors(model.end_tokens, breakers | model.end_tokens)


def _holding(model: Model, texts: Sequence[str]) -> frozenset[int]:
    """The tokens whose text holds one of ``texts``.

    The file's own spellings rule most of them out: llama.cpp takes a second for 262,144 tokens.
    """
    wanted = [text.encode() for text in texts]
    spelled = [re.escape(text.replace(" ", SPACE).encode()) for text in texts]
    may_hold = re.compile(b"<0x|" + b"|".join(spelled)).search
    spellings = model.header.metadata.array("tokenizer.ggml.tokens", ValueType.STRING).strings()
    return frozenset(
        token
        for token, spelling in enumerate(spellings)
        if may_hold(spelling) and any(text in model.token_bytes(token) for text in wanted)
    )
