"""``gemmtp run --image``: a picture in, words out, drafted all the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmtp.cli.images import Images
from gemmtp.errors import PairMismatchError
from gemmtp.llama.pair import check_files
from gemmtp_models.names import ModelFiles
from tests.cli.conftest import Cli
from tests.support.pictures import noise, png, saved
from tests.support.tiny_pair import write_drafter, write_target
from tests.support.tiny_projector import seeing, write_projector

ARGS = ("--temperature", "0", "--threads", "1", "--ctx", "512", "--image-tokens", "70")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Target, drafter and projector of a set that can see, a blind target, and two pictures."""
    folder = tmp_path_factory.mktemp("images")
    write_target(folder / "target.gguf", **seeing())
    write_target(folder / "blind.gguf")
    write_drafter(folder / "drafter.gguf", **seeing())
    write_projector(folder / "projector.gguf")
    write_projector(folder / "other.gguf", out=48)
    (folder / "cat.png").write_bytes(png())
    (folder / "dog.jpg").write_bytes(saved(noise(64, 48, seed=1), "JPEG"))
    return folder


@pytest.fixture
def run(folder: Path) -> tuple[object, ...]:
    pair = ("run", folder / "target.gguf", "--drafter", folder / "drafter.gguf")
    return (*pair, "--mmproj", folder / "projector.gguf", *ARGS)


def test_an_image_is_answered_with_drafting_on(
    cli: Cli, folder: Path, run: tuple[object, ...]
) -> None:
    given = (*run, "what?", "--image", folder / "cat.png", "--max-tokens", 16)
    drafted = cli(*given, "--draft", 3, "--json")
    assert drafted.code == 0
    assert "drafting on, 3 · vision: projector in RAM\n" in drafted.err
    report = json.loads(drafted.out)
    assert report["prompt_tokens"]["images"] == 63
    assert report["prompt_tokens"]["evaluated"] > 63
    assert report["mtp"]["enabled"] is True
    assert report["mtp"]["drafted"] > 0
    plain = cli(*given, "--no-mtp", "--json")
    assert json.loads(plain.out)["text"] == report["text"]
    blind = json.loads(cli(*run, "what?", "--max-tokens", 16, "--json").out)
    assert blind["prompt_tokens"]["images"] == 0


def test_the_start_line_is_quiet_about_vision_without_an_image(
    cli: Cli, folder: Path, run: tuple[object, ...]
) -> None:
    result = cli("run", folder / "target.gguf", *ARGS, "what?", "--max-tokens", 2)
    assert "vision" not in result.err


def test_several_images_and_one_from_standard_input(
    cli: Cli, folder: Path, run: tuple[object, ...]
) -> None:
    images = ("--image", folder / "dog.jpg", "--image", "-")
    result = cli(*run, "what?", *images, "--max-tokens", 4, "--json", stdin=png())
    assert result.code == 0
    assert json.loads(result.out)["prompt_tokens"]["images"] == 2 * 63


def test_an_image_may_be_named_in_the_words(
    cli: Cli, folder: Path, run: tuple[object, ...]
) -> None:
    result = cli(*run, f"what is @{folder / 'cat.png'} of?", "--max-tokens", 2, "--json")
    assert json.loads(result.out)["prompt_tokens"]["images"] == 63


def test_an_image_needs_no_words(cli: Cli, folder: Path, run: tuple[object, ...]) -> None:
    assert cli(*run, "--image", folder / "cat.png", "--max-tokens", 4).code == 0


def test_a_raw_prompt_says_where_an_image_goes(
    cli: Cli, folder: Path, run: tuple[object, ...]
) -> None:
    image = ("--image", folder / "cat.png", "--raw", "--max-tokens", 4)
    placed = cli(*run, "look: <|image|> the", *image, "--json")
    assert json.loads(placed.out)["prompt_tokens"]["images"] == 63
    missing = cli(*run, "look: the", *image)
    assert missing.code == 2
    assert missing.err.splitlines()[-2:] == [
        "gemmtp: The prompt has 0 places for images, and 1 images were given.",
        "hint: Each <|image|> of a raw prompt takes one.",
    ]


def test_a_marker_in_the_words_is_no_place_for_an_image(
    cli: Cli, folder: Path, run: tuple[object, ...]
) -> None:
    image = ("--image", folder / "cat.png", "--max-tokens", 4, "--json")
    result = cli(*run, "what is <|image|>?", *image)
    assert json.loads(result.out)["prompt_tokens"]["images"] == 63


def test_a_set_without_eyes_says_how_to_get_some(cli: Cli, folder: Path) -> None:
    result = cli("run", folder / "target.gguf", *ARGS, "what?", "--image", folder / "cat.png")
    assert result.code == 2
    assert result.out == ""
    message, hint = result.err.splitlines()
    assert message == "gemmtp: target.gguf has no projector, so it cannot see images."
    assert hint.startswith("hint: Take a set that has one, such as gemma4:")
    assert hint.endswith("or give its file by --mmproj F.")


def test_a_projector_of_another_target_is_refused(
    cli: Cli, folder: Path, run: tuple[object, ...]
) -> None:
    other = ("--mmproj", folder / "other.gguf", "--image", folder / "cat.png")
    result = cli("run", folder / "target.gguf", *ARGS, "what?", *other)
    assert result.code == 3
    assert result.err.startswith("gemmtp: other.gguf does not match: its rows have 48 values")


def test_a_target_without_image_markers_is_refused(cli: Cli, folder: Path) -> None:
    eyes = ("--mmproj", folder / "projector.gguf", "--image", folder / "cat.png")
    result = cli("run", folder / "blind.gguf", *ARGS, "what?", *eyes)
    assert result.code == 3
    assert "has no <|image|>" in result.err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ("--image", "https://example.com/a.png"),
            "https://example.com/a.png is on the network, and nothing is fetched from there.",
        ),
        (("--image", "missing.png"), "missing.png cannot be read: No such file or directory."),
        (("--image-tokens", "300"), "An image takes 70, 140, 280, 560 or 1120 tokens, not 300."),
        (("--image", "-", "--image", "-"), "Standard input holds one image."),
        (("--image", "-"), "Standard input is empty."),
    ],
)
def test_a_wrong_use_is_one_sentence(
    cli: Cli, run: tuple[object, ...], args: tuple[str, ...], sentence: str
) -> None:
    result = cli(*run, "what?", *args)
    assert result.code == 2
    assert result.err.splitlines()[0] == f"gemmtp: {sentence}"


def test_a_picture_larger_than_the_context_is_refused_with_both_counts(
    cli: Cli, folder: Path, run: tuple[object, ...]
) -> None:
    result = cli(*run, "what?", "--image", folder / "cat.png", "--image-tokens", 1120)
    assert result.code == 2
    assert "tokens, the context holds 512." in result.err


def test_a_batch_holds_the_largest_image(cli: Cli, folder: Path, run: tuple[object, ...]) -> None:
    image = ("--image", folder / "cat.png", "--image-tokens", 1120, "--ctx", 2048)
    result = cli(*run, "what?", *image, "--max-tokens", 4, "--json")
    assert result.code == 0
    assert json.loads(result.out)["prompt_tokens"]["images"] == 1064


def test_the_projector_stays_in_ram_when_asked(
    cli: Cli, folder: Path, run: tuple[object, ...]
) -> None:
    image = ("--image", folder / "cat.png", "--no-mmproj-offload", "--max-tokens", 2)
    assert " · vision: projector in RAM\n" in cli(*run, "what?", *image).err


def test_a_set_is_made_and_run_with_its_projector(cli: Cli, folder: Path, home: Path) -> None:
    files = [f"--{role}={folder / role}.gguf" for role in ("target", "drafter", "projector")]
    made = cli("create", "tiny:eyes", *files)
    assert made.code == 0
    shown = cli("show", "tiny:eyes")
    assert shown.out.endswith(
        "\nprojector: sees for this target: gemma4v, a tower of 2 blocks, 48 x 48 pixels a token, "
        "280 tokens an image by default\n"
    )
    image = ("--image", folder / "cat.png", "--max-tokens", 4, "--json")
    result = cli("run", "tiny:eyes", *ARGS, "what?", *image)
    assert json.loads(result.out)["prompt_tokens"]["images"] == 63
    planned = cli("plan", "tiny:eyes", "--image", "--json")
    assert json.loads(planned.out)["devices"][0]["uses"]["projector"] > 0


def test_a_set_with_the_wrong_projector_is_not_made(cli: Cli, folder: Path, home: Path) -> None:
    files = (f"--target={folder}/target.gguf", f"--projector={folder}/other.gguf")
    result = cli("create", "tiny:eyes", *files)
    assert result.code == 3
    assert "other.gguf does not match" in result.err


def test_a_plan_for_images_needs_a_projector(cli: Cli, folder: Path) -> None:
    result = cli("plan", folder / "target.gguf", "--image")
    assert result.code == 2
    assert "has no projector, so it cannot see images." in result.err


def test_the_doctor_looks_after_eyes(cli: Cli) -> None:
    assert "images            the encoder of images is there\n" in cli("doctor").out
    assert json.loads(cli("doctor", "--json").out)["images"] is True


def test_a_useless_projector_keeps_nobody_from_talking(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = check_files(folder / "target.gguf", None)
    files = ModelFiles("set", folder / "target.gguf", projector=folder / "other.gguf")
    assert Images().projector(files, checked) is None
    said = capsys.readouterr().err
    assert said.startswith("note: images are off: other.gguf does not match")
    with pytest.raises(PairMismatchError):
        Images(("cat.png",)).projector(files, checked)
