"""One prompt, one answer: from the options of ``gemmtp run`` to text on stdout."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import get_args

from gemmtp import settings
from gemmtp.chat.sessions import Session
from gemmtp.chat.staging import embedded, is_image
from gemmtp.cli import structured
from gemmtp.cli.decoding import decode
from gemmtp.cli.fitting import fitted, opened
from gemmtp.cli.images import blind, opened_eyes, shape_of_projector
from gemmtp.cli.kept_kv import kept_kv
from gemmtp.cli.learned import learned
from gemmtp.cli.options import (
    ADAPTIVE_MOST,
    Options,
    biases,
    chosen_depth,
    chosen_rule,
    usual_depth,
)
from gemmtp.cli.output import output_of, start_line
from gemmtp.cli.progress import loading
from gemmtp.cli.pull import ensure
from gemmtp.cli.session import answered, open_session
from gemmtp.engine.combined import MOST as LONGEST_LOOKUP
from gemmtp.engine.depth import DepthChooser
from gemmtp.engine.engine import Request
from gemmtp.engine.media import Media
from gemmtp.engine.processors import LogitBias, Processor, SuppressTokens
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.errors import UsageError
from gemmtp.llama import library
from gemmtp.llama.context import ContextOptions, KvType
from gemmtp.llama.model import LoadOptions, Model
from gemmtp.llama.pair import CheckedPair, check_files
from gemmtp.prompt import source
from gemmtp.prompt.channels import Markers, stop_in_answer
from gemmtp.prompt.conversation import Conversation, Message, Text
from gemmtp.prompt.media import CheckedProjector, Eyes
from gemmtp.prompt.template import chat_tokens, chosen_template
from gemmtp_models.memory_choice import Setting
from gemmtp_models.names import ModelFiles, find

DEFAULT_CTX = 8192
GEMMA_SAMPLING = SamplingParameters(temperature=1.0, top_k=64, top_p=0.95)
"""Gemma 4's own defaults, for files that name none."""

MAX_CTX = 1 << 22
KV_BLOCK = 32


def answer(options: Options) -> None:
    """Check everything that can be checked, load, decode, and write the answer.

    Raises :class:`~gemmtp.errors.GemmtpError` for everything the user should know about.
    """
    if options.raw and options.session.named:
        raise UsageError(
            "--raw continues a text; a session is a conversation.", "Leave one of them out."
        )
    options = replace(options, images=options.images.with_mentioned(options.prompt or ""))
    ensure(options.model, options.pull)
    files = find(options.model, settings.data_dir())
    if options.drafter is not None:
        files = replace(files, drafter=options.drafter)
    depth = chosen_depth(options, usual_depth(files))
    off = "switched off by --no-mtp" if options.no_mtp else None
    if off is None and depth.most == 0:
        off = "draft depth 0"
    checked = check_files(files.target, files.drafter, off or _missing(files))
    sampling = chosen_sampling(options, files, checked)
    context = chosen_context(options, checked, depth)
    if options.chats:
        # A chat may change its depth: /mtp N.
        context = replace(context, max_depth=max(context.max_depth, ADAPTIVE_MOST))
    lookup = options.lookup and off is None
    if lookup:
        context = replace(context, max_depth=max(context.max_depth, LONGEST_LOOKUP))
    projector = options.images.projector(files, checked) if options.sees else None
    plan = fitted(
        files.name,
        checked,
        context,
        _load(options),
        _fixed(options),
        projector=shape_of_projector(projector),
        image_tokens=0 if projector is None else projector.tokens,
        projector_on_gpu=options.images.offload is not False,
    )
    shape = structured.asked(options)
    chats = options.chats
    message = Message("user")
    if chats:
        # The line editor takes a while to import; llama.cpp loads beside it.
        importing = ("prompt_toolkit.shortcuts.prompt",)
        threading.Thread(target=import_module, args=importing, daemon=True).start()
    else:
        message = _message(options, checked, projector, plan.context.n_ctx)
    with (
        open_session(options.session, options.model, files, chat=chats) as session,
        library.log.shown(_to_stderr if options.verbose else None),
        loading(files.name) as progress,
        opened(plan, depth, progress, lookup=lookup) as (pair, plan),
        learned(depth, plan.files, plan.context, plan.load),
        kept_kv(session, pair, plan.files, plan.context, save=options.session.save_kv) as kept,
        opened_eyes(projector, pair, plan) as eyes,
    ):
        progress.close()
        if chats:
            from gemmtp.cli.chatting import Loaded, converse

            loaded = Loaded(files, checked, pair, plan, eyes, kept)
            converse(options, loaded, session, sampling, shape)
            return
        output = output_of(options, files, pair.model, session)
        output.start(start_line(files.name, pair, plan))
        request = _request(
            options, files, checked, pair.model, message, sampling, shape, session, eyes
        )
        if options.system and options.system != session.replay.system:
            session.record_system(options.system)
        session.record_user(message)
        decode(pair, request, output, session)


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")


def _missing(files: ModelFiles) -> str | None:
    return files.no_drafter if files.drafter is None else None


def _load(options: Options) -> LoadOptions:
    return LoadOptions() if options.gpu_layers is None else LoadOptions(options.gpu_layers)


def _fixed(options: Options) -> frozenset[Setting]:
    """What the user chose, which a plan does not change."""
    given: dict[Setting, bool] = {
        "ctx": options.ctx is not None,
        "kv": options.kv is not None,
        "layers": options.gpu_layers is not None,
        "drafting": options.draft != "auto" or options.drafter is not None,
        "projector": options.images.offload is not None,
    }
    return frozenset(setting for setting, is_given in given.items() if is_given)


def chosen_sampling(
    options: Options, files: ModelFiles, checked: CheckedPair
) -> SamplingParameters:
    """The options over the set's defaults, over the file's, over Gemma's."""
    metadata = checked.target.metadata
    base = GEMMA_SAMPLING
    if files.parameters is not None:
        p = files.parameters
        base = SamplingParameters(p.temperature, p.top_k, p.top_p, p.min_p)
    elif "general.sampling.temp" in metadata:
        base = SamplingParameters(
            metadata.float32("general.sampling.temp"),
            metadata.int32("general.sampling.top_k", base.top_k),
            metadata.float32("general.sampling.top_p", base.top_p),
            metadata.float32("general.sampling.min_p", base.min_p),
        )
    return options.sampling(base)


def chosen_context(options: Options, checked: CheckedPair, depth: DepthChooser) -> ContextOptions:
    """Sizes of the context; without ``--ctx`` no more than the model was trained for."""
    kv_name = options.kv or "f16"
    if kv_name not in get_args(KvType):
        raise UsageError(f"{options.kv!r} is no KV type.", "Use f16, q8_0 or q4_0.")
    _check_kv_blocks(kv_name, checked)
    trained = checked.geometry.context_length
    n_ctx = options.ctx if options.ctx is not None else min(DEFAULT_CTX, trained)
    if not 1 <= n_ctx <= MAX_CTX:
        raise UsageError(
            f"A context has from 1 to {MAX_CTX:,} positions, not {n_ctx}.",
            f"gemmtp plan {options.model} says how many fit into memory.",
        )
    if n_ctx > trained:
        sys.stderr.write(f"note: the model was trained for {trained:,} positions, not {n_ctx:,}\n")
    if options.threads < 0:
        raise UsageError("The number of threads cannot be negative.", "0 takes the physical cores.")
    kv: KvType = kv_name  # type: ignore[assignment]
    return ContextOptions(n_ctx=n_ctx, max_depth=depth.most, kv=kv, threads=options.threads)


def _check_kv_blocks(kv: str, checked: CheckedPair) -> None:
    """A quantised cache stores whole blocks of 32 values; llama.cpp refuses other head sizes."""
    g = checked.geometry
    sizes = {g.key_length, g.value_length, g.key_length_swa, g.value_length_swa}
    odd = sorted(size for size in sizes if size % KV_BLOCK)
    if kv.startswith("q") and odd:
        raise UsageError(
            f"A {kv} KV cache needs heads of a multiple of {KV_BLOCK} values, not {odd[0]}.",
            "Use --kv f16.",
        )


def _words(options: Options, checked: CheckedPair, n_ctx: int) -> str:
    """The prompt's text, read and bounded before the model is loaded."""
    argument = source.checked_argument(options.prompt or "")
    paths = [*options.files, *(p for p in source.mentioned(argument) if not is_image(p))]
    files = source.attached([(path, source.read_file(path)) for path in paths])
    piped = ""
    # Without a terminal or a pipe (a closed standard input) Python has no stdin at all.
    if sys.stdin is not None and not sys.stdin.isatty() and not options.images.take_stdin:
        piped = source.read_text(sys.stdin.buffer)
    text = source.joined(piped, argument, files)
    if not text and (options.raw or not options.images.files):
        raise UsageError("The prompt is empty.", "Say something, or pipe a text in.")
    if len(text) > n_ctx:
        longest = max(map(len, checked.geometry.vocabulary.tokens.strings()))
        source.check_size(text, longest, n_ctx)
    return text


def _message(
    options: Options, checked: CheckedPair, projector: CheckedProjector | None, n_ctx: int
) -> Message:
    """What the user says: images first, as Gemma was trained, then the words."""
    text = _words(options, checked, n_ctx)
    shown = options.images.read(projector)
    return Message("user", (*(image for _, image in shown), *([Text(text)] if text else [])))


def _request(
    options: Options,
    files: ModelFiles,
    checked: CheckedPair,
    model: Model,
    message: Message,
    sampling: SamplingParameters,
    shape: structured.Shape,
    session: Session,
    eyes: Eyes | None,
) -> Request:
    messages = [message]
    if options.raw:
        prompt = model.tokenize(message.text, special=True, bos=True)
    else:
        messages = [*map(embedded, answered(session)), message]
        if system := options.system or session.replay.system or files.system:
            messages.insert(0, Message.of("system", system))
        template, note = chosen_template(files.chat_template or checked.target.chat_template)
        if note:
            sys.stderr.write(f"note: {note}\n")
        prompt = chat_tokens(
            Conversation(tuple(messages)).for_template(),
            lambda part: model.tokenize(part, special=True),
            template=template,
            thinking=options.think,
            tools=shape.tools,
        )
    media: tuple[Media, ...] = ()
    if any(said.media for said in messages):
        if eyes is None:
            raise blind(files.name)
        prompt, media = eyes.conversation(prompt, messages)
    grammar = structured.processor_of(shape, options, model, sampling)
    return Request(
        prompt,
        sampling,
        max_tokens=options.max_tokens,
        stop_tokens=model.end_tokens,
        stop=_stop(options, model),
        processors=(
            *chosen_processors(options, model),
            *options.repetition.processors(model),
            *([grammar] if grammar else []),
        ),
        accept=chosen_rule(options.accept),
        media=media,
        quick=sampling.seed is None and not sampling.greedy,
    )


def _stop(options: Options, model: Model) -> Callable[[int], bool] | None:
    """Whether a stop string is complete, asked of every token; only the answer is looked at."""
    markers = Markers() if options.raw else Markers.of(model.marker)
    return stop_in_answer(options.stop, markers, model.token_bytes)


def chosen_processors(options: Options, model: Model) -> tuple[Processor, ...]:
    """What the file and the options forbid or change, penalties apart."""
    processors: list[Processor] = []
    if model.suppressed:
        processors.append(SuppressTokens(model.suppressed))
    if options.logit_bias:
        processors.append(LogitBias(biases(options.logit_bias), model.n_vocab))
    return tuple(processors)
