"""What ``run`` says about sessions: which one is opened, and with which model."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from gemmtp import settings
from gemmtp.chat import shelf
from gemmtp.chat.sessions import Origin, Session, load
from gemmtp.cli.output import hashes
from gemmtp.errors import ModelError, ModelNotFoundError, UsageError
from gemmtp.prompt.conversation import Message
from gemmtp_models import names, ollama
from gemmtp_models.names import ModelFiles


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options: ``--session NAME``, ``-c``, ``--no-session``, ``--save-kv``."""

    name: str | None = None
    resume: bool = False
    never: bool = False
    save_kv: bool = False

    @property
    def named(self) -> bool:
        """Whether a certain session is meant."""
        return self.name is not None or self.resume


def chosen(model: str | None, prompt: str | None, wanted: Wanted) -> tuple[str, str | None, Wanted]:
    """MODEL, which may be the session's own, the prompt, and the session with its name.

    With a session, words with a space in the place of MODEL are the prompt.

    Raises :class:`~gemmtp.errors.UsageError` on options that contradict each other, without a
    model, and for a session that is not there;
    :class:`~gemmtp.errors.ModelNotFoundError` when the session's model is not there.
    """
    if wanted.name is not None and wanted.resume:
        raise UsageError("-c and --session exclude each other.", "-c is the session used last.")
    if wanted.never and (wanted.named or wanted.save_kv):
        raise UsageError(
            "--no-session excludes what keeps one.", "Leave --session, -c or --save-kv out."
        )
    if wanted.resume:
        wanted = replace(wanted, name=shelf.latest_name())
    if wanted.named and prompt is None and model and " " in model and not names.is_local(model):
        model, prompt = None, model
    if model is not None:
        return model, prompt, wanted
    if wanted.name is None:
        raise UsageError(
            "MODEL is missing.", "gemmtp list says which are here; -c goes on with a session's own."
        )
    return _models_of(wanted.name), prompt, wanted


def open_session(wanted: Wanted, model: str, files: ModelFiles, *, chat: bool) -> Session:
    """The session to record into; a ``chat`` without a name is kept under the date.

    What is new about the model is said on stderr. Raises as
    :meth:`gemmtp.chat.sessions.Session.open` does.
    """
    origin = Origin(_name(model, files), hashes(files))
    if wanted.save_kv and not chat and not wanted.named:
        raise UsageError("--save-kv needs a session.", "--session NAME begins one.")
    if wanted.name is None:
        if not chat or wanted.never or not shelf.kept():
            return Session.unrecorded(origin)
        return Session.create(origin)
    if wanted.resume:
        session = Session.open(wanted.name)
    else:
        session = Session.open_or_create(wanted.name, origin)
    if note := session.go_on_with(origin):
        sys.stderr.write(f"note: {note}\n")
    return session


def answered(session: Session) -> list[Message]:
    """What was said in ``session``, as a prompt has it: answers without a word are left out."""
    return [m for m in session.messages() if m.role != "assistant" or m.parts or m.tool_calls]


def _models_of(name: str) -> str:
    model = load(name).model
    try:
        names.find(model, settings.data_dir())
    except ModelError as error:
        raise ModelNotFoundError(
            f"The session {name} was with {model or 'no model'}, which is not here.",
            f"Fetch it, or go on with another one: gemmtp run MODEL --session {name}",
        ) from error
    return model


def _name(model: str, files: ModelFiles) -> str:
    """A name under which the model is found again, wherever gemmtp is started."""
    if names.is_local(model):
        return str(Path(model).expanduser().absolute())
    if model == names.DEMO or model.startswith(ollama.PREFIX):
        return model
    return files.name
