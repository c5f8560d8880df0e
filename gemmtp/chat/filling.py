"""What fills the context, in lines: the words of ``/context``."""

from __future__ import annotations

from gemmtp.chat.context import Share, Usage

MAX_LINES = 20
"""Messages that are listed one by one; what came before them is added up."""

BAR = 40


def filling(usage: Usage) -> list[str]:
    """A bar, the messages with their tokens, and what is special about some of them."""
    share = usage.used / usage.n_ctx if usage.n_ctx else 0.0
    full = min(BAR, round(share * BAR))
    lines = [
        f"{usage.used:,} of {usage.n_ctx:,} tokens ({share:.0%}), {usage.free:,} free",
        f"[{'#' * full}{'.' * (BAR - full)}]",
    ]
    shares = list(usage.shares)
    if len(shares) > MAX_LINES:
        earlier, shares = shares[:-MAX_LINES], shares[-MAX_LINES:]
        tokens = sum(share.tokens for share in earlier)
        lines.append(f"{tokens:>8,}  {len(earlier)} earlier messages")
    lines += map(_line, shares)
    if usage.summary:
        lines.append(f"{usage.summary:>8,}  of them stand for turns that were dropped")
    if usage.thoughts:
        lines.append(
            f"{usage.thoughts:>8,}  thoughts of the last answer, which leave with the next"
        )
    return lines


def _line(share: Share) -> str:
    images = f" ({share.media:,} of images)" if share.media else ""
    words = share.words or ("(where the next answer begins)" if share.role == "model" else "")
    return f"{share.tokens:>8,}  {share.role or 'text':<6}  {words}{images}".rstrip()
