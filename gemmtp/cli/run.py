"""``gemmtp run``: its options. What it does lies in :mod:`gemmtp.cli.oneshot`."""

from __future__ import annotations

from pathlib import Path

import typer

from gemmtp.cli.complete import available_names, session_names


def run(
    model: str | None = typer.Argument(
        None,
        metavar="[MODEL]",
        help="A set's name or a GGUF file; a session has its own.",
        autocompletion=available_names,
    ),
    prompt: str | None = typer.Argument(
        None, metavar="[PROMPT]", help="The prompt; text piped in comes before it."
    ),
    drafter: Path | None = typer.Option(
        None, "--drafter", metavar="F", help="The drafter's GGUF, for a MODEL that is a file."
    ),
    system: str | None = typer.Option(None, "--system", help="A system message."),
    session: str | None = typer.Option(
        None,
        "--session",
        metavar="NAME",
        help="Go on with this session, or begin it.",
        autocompletion=session_names,
    ),
    overflow: str | None = typer.Option(
        None,
        "--context-overflow",
        metavar="HOW",
        help="When a chat fills the context: stop, shift or summarise; asks without.",
    ),
    resume: bool = typer.Option(False, "--continue", "-c", help="Go on with the last session."),
    no_session: bool = typer.Option(False, "--no-session", help="Keep no record of a chat."),
    save_kv: bool = typer.Option(
        False, "--save-kv", help="Keep the KV cache with the session, to go on at once."
    ),
    raw: bool = typer.Option(False, "--raw", help="Continue the prompt as it is, no template."),
    think: bool = typer.Option(False, "--think/--no-think", help="Let the model think first."),
    hide_thinking: bool = typer.Option(
        False, "--hide-thinking", help="Think, and do not show it on stderr."
    ),
    files: list[Path] = typer.Option(
        [], "--file", metavar="F", help="Put a text file before the prompt, as @F does; repeatable."
    ),
    tools: Path | None = typer.Option(
        None, "--tools", metavar="F", help="Functions the model may call, as JSON; prints calls."
    ),
    schema: str | None = typer.Option(
        None, "--schema", metavar="F|JSON", help="Answer in JSON of this JSON schema."
    ),
    grammar: Path | None = typer.Option(
        None, "--grammar", metavar="F", help="Answer in text of this GBNF grammar."
    ),
    no_mtp: bool = typer.Option(False, "--no-mtp", help="Decode plainly, without the drafter."),
    lookup: bool = typer.Option(
        True, "--lookup/--no-lookup", help="Draft what the text said before, where that pays."
    ),
    draft: str = typer.Option(
        "auto", "--draft", metavar="D", help="Draft depth: auto, heuristic[:N] or N (0 to 16)."
    ),
    accept: str = typer.Option(
        "auto", "--accept", metavar="RULE", help="Keep drafts by: auto, compare, reject or block."
    ),
    temperature: float | None = typer.Option(None, "--temperature", help="0 is greedy."),
    top_k: int | None = typer.Option(None, "--top-k", help="0 is off."),
    top_p: float | None = typer.Option(None, "--top-p", help="1 is off."),
    min_p: float | None = typer.Option(None, "--min-p", help="0 is off."),
    seed: int | None = typer.Option(None, "--seed", help="The same seed gives the same text."),
    logit_bias: list[str] = typer.Option(
        [], "--logit-bias", metavar="ID=B", help="Add B to a token's logit; -100 forbids it."
    ),
    repeat_penalty: float = typer.Option(
        1.0, "--repeat-penalty", help="Make recent tokens less likely; 1 is off."
    ),
    repeat_last_n: int = typer.Option(
        64, "--repeat-last-n", metavar="N", help="How many tokens that looks back on; -1: all."
    ),
    presence_penalty: float = typer.Option(
        0.0, "--presence-penalty", help="Less of what the answer has said; -2 to 2, 0 is off."
    ),
    frequency_penalty: float = typer.Option(
        0.0, "--frequency-penalty", help="The same for every time it was said."
    ),
    dry_multiplier: float = typer.Option(
        0.0, "--dry-multiplier", help="DRY against repeated sequences; 0 is off, 0.8 usual."
    ),
    dry_base: float = typer.Option(1.75, "--dry-base", help="How fast DRY grows with length."),
    dry_allowed_length: int = typer.Option(
        2, "--dry-allowed-length", metavar="N", help="DRY begins at sequences of so many tokens."
    ),
    dry_last_n: int = typer.Option(
        -1, "--dry-last-n", metavar="N", help="How many tokens DRY looks back on; -1: all."
    ),
    dry_breaker: list[str] = typer.Option(
        [], "--dry-breaker", metavar="TEXT", help="Ends DRY's sequences; repeatable."
    ),
    max_tokens: int | None = typer.Option(None, "--max-tokens", help="Stop after so many."),
    stop: list[str] = typer.Option([], "--stop", help="Stop before this text; repeatable."),
    ctx: int | None = typer.Option(None, "--ctx", help="Positions of the context."),
    kv: str | None = typer.Option(
        None, "--kv", help="KV cache: f16, q8_0 or q4_0; the plan decides without."
    ),
    gpu_layers: int | None = typer.Option(
        None, "--gpu-layers", help="Layers on the GPU, -1 for all; the plan decides without."
    ),
    threads: int = typer.Option(0, "--threads", help="0 takes the physical cores."),
    image: list[str] = typer.Option(
        [], "--image", metavar="F", help="Show an image, - from standard input; repeatable."
    ),
    image_tokens: int | None = typer.Option(
        None,
        "--image-tokens",
        metavar="N",
        help="At most 70, 140, 280, 560 or 1120 an image; the set's own, mostly 280, without.",
    ),
    mmproj: Path | None = typer.Option(
        None, "--mmproj", metavar="F", help="The projector's GGUF, for a MODEL that is a file."
    ),
    mmproj_offload: bool | None = typer.Option(
        None,
        "--mmproj-offload/--no-mmproj-offload",
        help="The projector on the GPU or in RAM; the plan decides without.",
    ),
    pull: str = typer.Option(
        "missing", "--pull", metavar="P", help="Fetch the set: missing, never or always."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object instead of text."),
    stream_json: bool = typer.Option(False, "--stream-json", help="JSON lines as they come."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="llama.cpp's log, statistics."),
) -> None:
    """Chat in the terminal, or answer one prompt on stdout."""
    from gemmtp.cli import oneshot, signals
    from gemmtp.cli.images import Images
    from gemmtp.cli.options import Options
    from gemmtp.cli.repetition import Repetition
    from gemmtp.cli.session import Wanted, chosen
    from gemmtp.engine.penalties import PenaltyParameters

    penalties = PenaltyParameters(
        repeat_penalty,
        repeat_last_n,
        presence_penalty,
        frequency_penalty,
        dry_multiplier,
        dry_base,
        dry_allowed_length,
        dry_last_n,
    )
    model, prompt, wanted = chosen(model, prompt, Wanted(session, resume, no_session, save_kv))
    with signals.handled():
        oneshot.answer(
            Options(
                model=model,
                prompt=prompt,
                drafter=drafter,
                system=system,
                raw=raw,
                think=think or hide_thinking,
                hide_thinking=hide_thinking,
                no_mtp=no_mtp,
                lookup=lookup,
                draft=draft,
                accept=accept,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                seed=seed,
                logit_bias=tuple(logit_bias),
                repetition=Repetition(penalties, tuple(dry_breaker)),
                max_tokens=max_tokens,
                stop=tuple(stop),
                ctx=ctx,
                kv=kv,
                gpu_layers=gpu_layers,
                threads=threads,
                images=Images(tuple(image), image_tokens, mmproj, mmproj_offload),
                json=as_json,
                stream_json=stream_json,
                verbose=verbose,
                pull=pull,
                files=tuple(files),
                tools=tools,
                schema=schema,
                grammar=grammar,
                session=wanted,
                overflow=overflow,
            )
        )
