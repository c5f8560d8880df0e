"""Pictures through projector, prompt and engine: the text is the same drafted and plain."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.engine import Finished, Request, Token
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.errors import EngineError, UnsupportedModelError, UsageError
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.model import Model
from gemmtp.llama.pair import Pair, check_files
from gemmtp.llama.projector import RowCache
from gemmtp.prompt.attachments import Frame, Picture, data_url, read_picture
from gemmtp.prompt.conversation import Audio, Image, Message, Text
from gemmtp.prompt.media import CheckedProjector, Eyes, ImageMarkers, with_pictures
from tests.support.pictures import png
from tests.support.tiny_pair import write_drafter, write_target
from tests.support.tiny_projector import seeing, write_projector

GREEDY = SamplingParameters(temperature=0)
CAUSAL, BIDIRECTIONAL = 1536, 32
"""E2B's width, whose image rows llama.cpp reads causally, and one whose rows see each other."""


@pytest.fixture(scope="module", params=[BIDIRECTIONAL, CAUSAL], ids=["sees all", "causal"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with target, drafter and projector of a width."""
    folder, width = tmp_path_factory.mktemp("eyes"), request.param
    write_target(folder / "target.gguf", hidden=width, **seeing())
    write_drafter(folder / "drafter.gguf", backbone=width, **seeing())
    write_projector(folder / "projector.gguf", out=width)
    return folder


class Loaded:
    """A pair with eyes, which answers a question about pictures."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        checked = check_files(folder / "target.gguf", folder / "drafter.gguf")
        options = ContextOptions(n_ctx=512, threads=1, max_depth=4)
        self.pair = stack.enter_context(Pair.open(checked, FixedDepth(3), options))
        projector = CheckedProjector.read(folder / "projector.gguf", self.pair.model.n_embd, 70)
        self.eyes = stack.enter_context(Eyes(projector, self.pair.model, threads=1))

    def tokens(self, pictures: int, words: str) -> list[int]:
        model = self.pair.model
        return model.tokenize("<|image|>" * pictures + words, special=True, bos=True)

    def answer(
        self, prompt: list[int], pictures: list[Picture], depth: int = 3
    ) -> tuple[list[int], Finished]:
        """Twenty tokens about ``pictures``, and how it went."""
        ids, media = self.eyes.prompt(prompt, pictures)
        request = Request(ids, GREEDY, max_tokens=20, depth=FixedDepth(depth), media=media)
        events = list(self.pair.engine.generate(request))
        finished = events[-1]
        assert isinstance(finished, Finished)
        return [event.token for event in events if isinstance(event, Token)], finished


@pytest.fixture
def loaded(files: Path) -> Iterator[Loaded]:
    with ExitStack() as stack:
        yield Loaded(files, stack)


def picture(loaded: Loaded, seed: int = 0) -> Picture:
    return read_picture(png(seed=seed), f"picture {seed}", loaded.eyes.frame)


def test_drafting_goes_on_after_an_image_and_changes_nothing(loaded: Loaded) -> None:
    pictures = [picture(loaded, 0), picture(loaded, 1)]
    prompt = loaded.tokens(2, "the thin man")
    drafted, finished = loaded.answer(prompt, pictures, depth=3)
    plain, _ = loaded.answer(prompt, pictures, depth=0)
    assert drafted == plain
    statistics = finished.statistics
    assert statistics.drafted > 0
    assert statistics.rounds_at[3] > 0
    assert statistics.evaluated == len(prompt) + 2 * (63 + 1)


def test_what_the_picture_shows_reaches_the_target(loaded: Loaded) -> None:
    prompt = loaded.tokens(1, "the")
    loaded.answer(prompt, [picture(loaded, 0)])
    first = np.array(loaded.pair.engine.hidden(0))
    loaded.answer(prompt, [picture(loaded, 1)])
    assert not np.allclose(first, loaded.pair.engine.hidden(0), atol=1e-4)


def test_a_second_question_reads_nothing_again(loaded: Loaded) -> None:
    seen = picture(loaded)
    prompt = loaded.tokens(1, "the thin man")
    answer, _ = loaded.answer(prompt, [seen])
    again = read_picture(png(), "the same file", loaded.eyes.frame)
    more = [*prompt, *answer, *loaded.pair.model.tokenize("and the thin man")]
    fresh, finished = loaded.answer(more, [again])
    assert loaded.eyes.encoded == 1
    assert finished.statistics.evaluated <= 40
    assert finished.statistics.cached >= seen.tokens + 2
    loaded.answer(loaded.tokens(0, "something else"), [])
    assert loaded.answer(more, [again])[0] == fresh
    assert loaded.eyes.encoded == 1


def test_closed_eyes_open_again_for_a_new_picture_alone(loaded: Loaded) -> None:
    eyes = loaded.eyes
    assert not eyes.is_open
    rows = eyes.encode(picture(loaded, 0))
    assert eyes.is_open
    eyes.close()
    assert np.array_equal(eyes.encode(picture(loaded, 0)), rows)
    assert not eyes.is_open
    assert not np.array_equal(eyes.encode(picture(loaded, 1)), rows)
    assert eyes.is_open
    assert eyes.encoded == 2


def test_rows_are_of_the_targets_width_and_come_out_the_same(loaded: Loaded) -> None:
    shown = picture(loaded)
    rows = loaded.eyes.encode(shown)
    assert rows.shape == (shown.tokens, loaded.pair.model.n_embd)
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()


def test_ctrl_c_stops_reading_and_leaves_the_eyes_as_they_were(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf", **seeing())
    path = write_projector(tmp_path / "slow.gguf", blocks=40)
    with Model.open(target) as model:
        eyes = Eyes(CheckedProjector.read(path, model.n_embd, 560), model, threads=1)
        large = read_picture(png(), "large", eyes.frame)
        small = read_picture(png(), "small", Frame(70))
        with eyes:
            rows = eyes.encode(small)
            # Seconds of work, of which a moment is done when Ctrl-C comes.
            threading.Timer(0.1, _thread.interrupt_main).start()
            with pytest.raises(KeyboardInterrupt):
                eyes.encode(large)
            assert eyes.encoded == 1
            assert np.array_equal(eyes.encode(small), rows)
        with Eyes(eyes.projector, model, threads=1) as fresh:
            assert np.array_equal(fresh.encode(small), rows)


def test_a_projector_that_llama_cpp_refuses_says_why(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf", **seeing())
    sound = {"clip.has_audio_encoder": True}
    path = write_projector(tmp_path / "sound.gguf", metadata=sound)
    with Model.open(target) as model:
        eyes = Eyes(CheckedProjector.read(path, model.n_embd), model, threads=1)
        with pytest.raises(
            EngineError, match=r"could not load sound\.gguf: .*unknown projector type"
        ):
            eyes.encode(read_picture(png(), "x", eyes.frame))


def test_llama_cpp_agrees_on_which_rows_see_each_other(loaded: Loaded) -> None:
    from gemmtp.llama.library import mtmd

    loaded.eyes.encode(picture(loaded))
    projector = loaded.eyes._open
    assert projector is not None
    non_causal = mtmd().mtmd_decode_use_non_causal(projector.handle, None)
    assert loaded.eyes.causal is not non_causal


def test_a_conversation_carries_its_pictures(loaded: Loaded) -> None:
    part = Image(data_url(png()))
    messages = [
        Message("user", (part, Text("what?"))),
        Message.of("assistant", "a man"),
        Message("user", (Text("and"), part)),
    ]
    ids, media = loaded.eyes.conversation(loaded.tokens(2, "the"), messages)
    first, second = media
    assert first.n == second.n == 63
    assert ids[first.start : first.stop] == ids[second.start : second.stop]
    assert max(ids[first.start : first.stop]) < 0
    assert ids[first.start - 1] == loaded.eyes.markers.begin
    assert ids[first.stop] == loaded.eyes.markers.end


def test_sound_is_refused_in_one_sentence(loaded: Loaded) -> None:
    message = Message("user", (Audio("UklGRg==", "wav"), Text("what?")))
    with pytest.raises(UsageError, match=r"^Sound is not supported yet\.$"):
        loaded.eyes.conversation([1], [message])


def test_a_picture_for_another_projector_is_refused(loaded: Loaded) -> None:
    odd = read_picture(png(), "odd", Frame(70, side=40))
    with pytest.raises(EngineError, match="whole tokens of 48 pixels"):
        loaded.eyes.encode(odd)


MARKERS = ImageMarkers(placeholder=7, begin=8, end=9)


def nothing(picture: Picture) -> np.ndarray:
    raise AssertionError("nothing is read while a prompt is made")


def test_each_placeholder_becomes_rows_between_markers() -> None:
    shown = read_picture(png(), "x", Frame(70))
    ids, (media,) = with_pictures([1, 7, 2], [shown], MARKERS, nothing, causal=False)
    assert ids[:2] == [1, 8]
    assert ids[-2:] == [9, 2]
    assert (media.start, media.n, media.causal) == (2, shown.tokens, False)
    assert len(ids) == 3 + shown.tokens + 1


@pytest.mark.parametrize("tokens", [[1, 2], [7, 7]])
def test_places_and_pictures_have_to_be_as_many(tokens: list[int]) -> None:
    shown = read_picture(png(), "x", Frame(70))
    with pytest.raises(UsageError, match="places for images, and 1 images were given"):
        with_pictures(tokens, [shown], MARKERS, nothing, causal=False)


def test_a_vocabulary_without_images_says_so() -> None:
    with pytest.raises(UnsupportedModelError, match=r"has no <.image.>"):
        ImageMarkers.of(lambda text: None)


def test_the_cache_forgets_the_oldest_rows() -> None:
    cache = RowCache(limit=1000)
    for key in (b"a", b"b", b"c"):
        cache.put(key, np.zeros((1, 100), np.float32))
        cache.get(b"a")
    assert cache.get(b"b") is None
    assert cache.get(b"a") is not None
    assert cache.get(b"c") is not None
    assert cache.nbytes == 800
    cache.put(b"huge", np.zeros((1, 1000), np.float32))
    assert len(cache) == 2
