"""Markdown coloured while it streams; nothing that was printed is ever printed again.

Every character of the text comes out, in order and once: colours are put around the markers, which
stay. What a line is shows in its first few characters, so only those wait; a line of code waits for
its end. Taking the colours out again gives back the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

RESET = "\x1b[0m"
BOLD, DIM, ITALIC = "1", "2", "3"
HEADING, QUOTE, MARKER, CODE = "1;36", "32", "36", "33"

Span = tuple[str, str]
"""An SGR code, empty for none, and the text it is for."""

Highlight = Callable[[str], list[Span]]
"""Lines of one block of code, in their order, to spans."""

MAX_HELD = 4096
"""The beginning of a line, or a line of code, longer than this is not waited for."""

_PIECES = re.compile(r"[^\n]*\n|[^\n]+")
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`\n]*\n?\Z)|~{3,})([^\n]*)\n?")
_UNDECIDED = re.compile(r"[ \t]*(?:#{1,6}|`{1,2}|~{1,2}|[-+*]|[0-9]{1,9}[.)]?)?")
_HEADING = re.compile(r"[ \t]{0,3}#{1,6}[ \t]")
_BULLET = re.compile(r"([ \t]*)([-+*]|[0-9]{1,9}[.)])(?=[ \t])")
_QUOTED = re.compile(r"([ \t]*)(>)")


def plain_code(line: str) -> list[Span]:
    """A line of code in one colour."""
    return [(CODE, line)]


class Markdown:
    """Text in, the same text with colours out.

    ``highlighter`` takes a block's language, as its fence names it, and gives what colours it.
    """

    def __init__(self, highlighter: Callable[[str], Highlight] = lambda _: plain_code) -> None:
        self._highlighter = highlighter
        self._inline = _Inline()
        self._begin()

    def _begin(self) -> None:
        self._held = ""
        """The beginning of a line that is not decided yet, or a line of code."""
        self._fence: tuple[str, Highlight] | None = None
        """What opened the block of code we are in, and what colours its lines."""
        self._deciding = True

    def feed(self, text: str) -> str:
        """What of the text can be printed now; the colours are back to normal at its end."""
        spans: list[Span] = []
        for piece in _PIECES.findall(text):
            if self._fence is not None:
                self._code(piece, self._fence, spans)
            elif self._deciding:
                self._held += piece
                self._decide(spans, final=len(self._held) > MAX_HELD)
            else:
                self._prose(piece, spans)
        return styled(spans)

    def finish(self) -> str:
        """The rest, when no more text comes; the next text begins anew."""
        spans: list[Span] = []
        if self._fence is not None:
            self._code_line(self._fence, spans)
        else:
            self._decide(spans, final=True)
        spans += self._inline.end()
        self._begin()
        return styled(spans)

    def _decide(self, spans: list[Span], *, final: bool) -> None:
        """What kind of line begins here, once its first characters are known."""
        while self._held:
            held, final = self._held, final or self._held.endswith("\n")
            fence = _FENCE.fullmatch(held)
            if not final and (fence or _UNDECIDED.fullmatch(held)):
                return
            if fence:
                self._held = ""
                self._fence = (fence[1], self._highlighter(fence[2].strip()))
                spans.append((DIM, held))
            elif prefix := _BULLET.match(held) or _QUOTED.match(held):
                if prefix.re is _QUOTED:
                    self._inline.base = QUOTE
                spans += [("", prefix[1]), (MARKER, prefix[2])]
                self._held = held[prefix.end() :]
            else:
                self._held = ""
                self._deciding = False
                if _HEADING.match(held):
                    self._inline.base = HEADING
                self._inline.table = held.lstrip(" \t").startswith("|")
                self._prose(held, spans)

    def _prose(self, text: str, spans: list[Span]) -> None:
        spans += self._inline.feed(text.removesuffix("\n"))
        if text.endswith("\n"):
            spans += [*self._inline.end(), ("", "\n")]
            self._deciding = True

    def _code(self, piece: str, fence: tuple[str, Highlight], spans: list[Span]) -> None:
        self._held += piece
        if piece.endswith("\n") or len(self._held) > MAX_HELD:
            self._code_line(fence, spans)

    def _code_line(self, fence: tuple[str, Highlight], spans: list[Span]) -> None:
        line, self._held = self._held, ""
        mark, highlight = fence
        bare = line.strip("> \t\n")
        if bare.startswith(mark) and not bare.strip(mark[0]):
            self._fence = None
            self._inline.end()
            spans.append((DIM, line))
        else:
            spans += highlight(line)


class _Inline:
    """Emphasis and code spans within one line."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.base = ""
        self.table = False
        self._run = ""
        """Markers of one kind whose end is not seen yet."""
        self._before = " "
        self._code = 0
        """How many backticks close the code span we are in; 0 outside."""
        self._on: set[str] = set()
        self._escaped = False

    def feed(self, text: str) -> list[Span]:
        spans: list[Span] = []
        for character in text:
            if self._run and character != self._run[0]:
                spans.append(self._end_run(character))
            marks = "`" if self._code else "*_`"
            if character in marks and not self._escaped:
                self._run += character
                continue
            self._escaped = character == "\\" and not self._escaped and not self._code
            line = self.table and character == "|" and not self._code
            spans.append((DIM if line else self._style(), character))
            self._before = character
        return spans

    def end(self) -> list[Span]:
        """The line ends: what is open closes."""
        spans = [self._end_run(" ")] if self._run else []
        self._begin()
        return spans

    def _end_run(self, after: str) -> Span:
        """A run of markers is complete: it opens, closes, or is text."""
        run, before = self._run, self._before
        self._run, self._before = "", run[0]
        if run[0] == "`":
            if self._code in (0, len(run)):
                self._code = 0 if self._code else len(run)
            return CODE, run
        kinds = {1: {ITALIC}, 2: {BOLD}}.get(len(run), {ITALIC, BOLD})
        # x_1 and 2*3 are no emphasis; 中文**粗体**中文 is.
        within = before.isalnum() and (run[0] == "_" or len(run) == 1)
        if kinds <= self._on and not before.isspace() and not (run[0] == "_" and after.isalnum()):
            style = self._style()
            self._on -= kinds
            return style, run
        if not kinds & self._on and not after.isspace() and not within:
            self._on |= kinds
        return self._style(), run

    def _style(self) -> str:
        if self._code:
            return CODE
        return ";".join(part for part in (self.base, *sorted(self._on)) if part)


def styled(spans: list[Span]) -> str:
    """The spans as one text with as few codes as they need."""
    out: list[str] = []
    current = ""
    for code, text in spans:
        if not text:
            continue
        if code != current and not text.isspace():
            out.append((RESET if current else "") + (f"\x1b[{code}m" if code else ""))
            current = code
        if current and text.endswith("\n"):
            # Before the line end: what a terminal scrolls in takes the colours of the moment.
            text, current = text[:-1] + RESET + "\n", ""
        out.append(text)
    return "".join(out) + (RESET if current else "")
