"""``gemmtp run MODEL`` on a terminal without a prompt: the loaded pair made into a chat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from gemmtp import settings
from gemmtp.chat.commands import COMMANDS
from gemmtp.chat.dialogue import Dialogue
from gemmtp.chat.parameters import PENALTIES
from gemmtp.chat.reader import PlainReader, Reader
from gemmtp.chat.repl import Repl
from gemmtp.chat.screen import Screen, is_dumb
from gemmtp.chat.sessions import Session
from gemmtp.chat.staging import Staging
from gemmtp.chat.terminal import kept_modes
from gemmtp.cli import structured
from gemmtp.cli.fitting import Fitted
from gemmtp.cli.images import STDIN, blind
from gemmtp.cli.kept_kv import Kept
from gemmtp.cli.oneshot import chosen_processors
from gemmtp.cli.options import Options, chosen_depth, chosen_overflow, chosen_rule, usual_depth
from gemmtp.cli.output import start_line
from gemmtp.engine.depth import DepthChooser
from gemmtp.engine.penalties import PenaltyParameters
from gemmtp.engine.processors import Processor
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.errors import UsageError
from gemmtp.llama.pair import CheckedPair, Pair
from gemmtp.prompt.media import Eyes
from gemmtp.prompt.template import chosen_template
from gemmtp_models.names import ModelFiles

HISTORY = "history"
"""The file of what was typed, in the folder of the state."""

_PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens")
"""Those that the command line leaves open with None."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was opened for the chat."""

    files: ModelFiles
    checked: CheckedPair
    pair: Pair
    plan: Fitted
    eyes: Eyes | None
    kept: Kept


def converse(
    options: Options,
    loaded: Loaded,
    session: Session,
    sampling: SamplingParameters,
    shape: structured.Shape,
) -> None:
    """Talk until the user leaves.

    Raises :class:`~gemmtp.errors.UsageError` on options that a chat cannot follow.
    """
    how = chosen_overflow(options.overflow)
    pair, plan, name = loaded.pair, loaded.plan, loaded.files.name
    screen = Screen.of_terminal()
    screen.say(start_line(name, pair, plan))
    dialogue = _dialogue(options, loaded, sampling, shape, screen)
    eyes = loaded.eyes
    staging = Staging(blind=blind(name))
    if eyes is not None:
        staging.frame, staging.unload = eyes.frame, eyes.close
        dialogue.see = eyes.conversation
    repl = Repl(
        dialogue,
        session,
        screen,
        _reader(lambda columns: repl.status(name).line(columns)),
        staging,
        depth_of=lambda word: _depth_of(word, options, loaded),
        draft=options.draft,
        hide_thinking=options.hide_thinking,
    )
    dialogue.overflow = repl.decide if how is None else lambda needed, free: how
    if session.replay.messages or session.replay.settings:
        repl.resume(_given(options))
    if options.system:
        repl.set_system(options.system)
    for path in options.files:
        screen.say(staging.add_file(path))
    for image in options.images.files:
        if image == STDIN:
            raise UsageError("--image - reads an image from standard input; a chat types there.")
        screen.say(staging.add_image_file(Path(image)))
    try:
        with kept_modes():
            repl.run()
    finally:
        # Another one than at the beginning after /load.
        loaded.kept.session = repl.session
        repl.session.close()


def _dialogue(
    options: Options,
    loaded: Loaded,
    sampling: SamplingParameters,
    shape: structured.Shape,
    screen: Screen,
) -> Dialogue:
    model = loaded.pair.model
    template, note = chosen_template(
        loaded.files.chat_template or loaded.checked.target.chat_template
    )
    if note:
        screen.note(note)

    # A vocabulary is searched for DRY's breakers, which takes a moment.
    @cache
    def penalise(penalties: PenaltyParameters) -> tuple[Processor, ...]:
        return replace(options.repetition, penalties=penalties).processors(model)

    return Dialogue(
        loaded.pair,
        template,
        system=options.system or loaded.files.system or "",
        sampling=sampling,
        thinking=options.think,
        accept=chosen_rule(options.accept),
        max_tokens=options.max_tokens,
        stop=options.stop,
        checkpoint_bytes=loaded.plan.checkpoint_bytes,
        processors=chosen_processors(options, model),
        penalties=options.repetition.penalties,
        penalise=penalise,
        form=structured.form_of(shape, model),
    )


def _reader(status: Callable[[int], str]) -> Reader:
    if is_dumb():
        return PlainReader()
    from gemmtp.chat.completion import ChatCompleter
    from gemmtp.chat.editing import EditingReader

    return EditingReader(settings.state_dir() / HISTORY, ChatCompleter(COMMANDS), status)


def _depth_of(word: str, options: Options, loaded: Loaded) -> DepthChooser:
    """The depth that ``word`` asks for; what was learned about ``--draft`` is kept."""
    if word == options.draft:
        return loaded.pair.engine.depth
    depth = chosen_depth(replace(options, draft=word), usual_depth(loaded.files))
    most = loaded.plan.context.max_depth
    if depth.most > most:
        raise UsageError(
            f"This chat was opened for drafts of at most {most} tokens.",
            f"Leave, and go on with: gemmtp run {options.model} -c --draft {word}",
        )
    return depth


def _given(options: Options) -> frozenset[str]:
    """The settings that were typed on the command line: they win over the session's."""
    given = {name for name in _PARAMETERS if getattr(options, name) is not None}
    typed, usual = options.repetition.penalties, PenaltyParameters()
    given |= {
        name for name, field in PENALTIES.items() if getattr(typed, field) != getattr(usual, field)
    }
    given |= {"accept"} if options.accept != "auto" else set()
    given |= {"draft"} if options.draft != "auto" else set()
    return frozenset(given | ({"think"} if options.think else set()))
