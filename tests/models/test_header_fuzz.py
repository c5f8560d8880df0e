"""Ten thousand damaged headers: a clear error or a right reading, and llama.cpp survives."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gemmtp.errors import GemmtpError
from gemmtp_models.header import Header, read_header
from gemmtp_models.metadata import ArraySlice, ValueType
from gemmtp_models.pairing import check_drafter, check_pair, check_target
from tests.support.llama_probe import RAN, REFUSED, probe
from tests.support.mutants import Mutator
from tests.support.tiny_pair import write_drafter, write_target

MUTANTS = 10_000
PROBED = 400
SEED = 20


def _fields(data: bytes, header: Header) -> tuple[int, ...]:
    """Where the numbers of metadata values and tensor entries lie in ``data``."""
    found: list[int] = []
    for name, entry in header.metadata.items():
        at = data.index(name.encode()) + len(name) + 4
        if entry.type is not ValueType.ARRAY:
            found.append(at)
        elif isinstance(entry.value, ArraySlice):
            found += [at, at + 4]
        else:
            found += [at, at + 4, at + 12, at + 13]
    for name, tensor in header.tensors.items():
        at = data.index(name.encode()) + len(name)
        found += [at, at + 4, at + 4 + 8 * len(tensor.shape)]
    return tuple(found)


def _mutator(path: Path, seed: int) -> Mutator:
    data, header = path.read_bytes(), read_header(path)
    return Mutator(data, header.data_offset, _fields(data, header), seed)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("originals")
    return [
        write_target(folder / "target.gguf"),
        write_drafter(folder / "drafter.gguf"),
        write_target(folder / "experts.gguf", experts=4),
        write_target(folder / "shared.gguf", per_layer_embedding=8, shared_kv_layers=2),
    ]


def _check(path: Path, original: Path) -> bool:
    """Whether our checks let the mutant through; any error but ours fails the test."""
    try:
        header = read_header(path)
        (check_drafter if original.stem == "drafter" else check_target)(header)
    except GemmtpError as error:
        clear = error.exit_code == 3 and path.name in error.message
        return False if clear else pytest.fail(f"unclear: {error!r}")
    assert header.file_size == path.stat().st_size
    ends = [tensor.offset + tensor.nbytes for tensor in header.tensors.values()]
    assert max(ends) <= header.file_size
    return True


def test_every_mutant_ends_in_a_clear_error_or_a_right_reading(
    originals: list[Path], tmp_path: Path
) -> None:
    outcomes: Counter[bool] = Counter()
    path = tmp_path / "mutant.gguf"
    # One file overwritten in place: some file systems flush a file that is made anew.
    with path.open("wb", buffering=0) as file:
        for number, original in enumerate(originals):
            mutator = _mutator(original, SEED + number)
            for _ in range(MUTANTS // len(originals)):
                mutant = mutator.next()
                # The data behind the header is a hole: it is never read.
                file.seek(0)
                file.write(mutant[: mutator.header_bytes])
                file.truncate(len(mutant))
                outcomes[_check(path, original)] += 1
    # Damage in a token, a name or an unused value changes nothing that can be checked.
    assert outcomes.total() == MUTANTS
    assert outcomes[False] > MUTANTS * 0.7
    assert outcomes[True] > 0


def test_llama_cpp_survives_every_mutant_that_passes(originals: list[Path], tmp_path: Path) -> None:
    """Loads, contexts, a decode and a draft step, each file in a process of its own."""
    pairs: list[tuple[Path, Path | None]] = []
    for number, original in enumerate(originals):
        mutator = _mutator(original, SEED + 100 + number)
        passed = 0
        while passed < PROBED // len(originals):
            path = tmp_path / f"{original.stem}-{passed}.gguf"
            path.write_bytes(mutator.next())
            if _check(path, original):
                passed += 1
                pairs.append(_pair(path, original, originals))
    answers = Counter(probe(pairs))
    assert set(answers) <= {RAN, REFUSED}, answers
    assert answers[RAN] > PROBED * 0.8


def _pair(path: Path, original: Path, originals: list[Path]) -> tuple[Path, Path | None]:
    """The mutant with its counterpart; a drafter that does not match is not opened."""
    target, drafter = originals[0], originals[1]
    if original == drafter:
        drafter = path
    else:
        target = path
    matches = check_pair(read_header(target), read_header(drafter)).matches
    return target, drafter if matches else None
