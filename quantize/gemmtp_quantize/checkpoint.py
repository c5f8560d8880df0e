"""A checkpoint folder: config, tokenizer files, and tensors in one or many safetensors files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmtp.errors import BadModelFileError, ModelNotFoundError
from gemmtp_quantize.documents import MAX_TOKENIZER_BYTES, read_bytes, read_object
from gemmtp_quantize.safetensors import StoredTensor, read_tensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Enough of each tensor to tell two checkpoints apart without reading all of either.
SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class Checkpoint:
    """A folder as transformers saves it; every header is read and checked, no weights are."""

    directory: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def name(self) -> str:
        """The folder's name, or the repository's for a snapshot in the Hugging Face cache."""
        if self.directory.parent.name == "snapshots":
            return self.directory.parent.parent.name.rpartition("--")[2]
        return self.directory.name

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors.values())

    def identity(self) -> str:
        """SHA-256 (hex) over config, tokenizer, and of every tensor its description and samples.

        Samples are 4 KiB from its beginning, middle and end. This tells checkpoints apart,
        fine-tunes included, in a fraction of a second; it is no checksum of all the bytes.
        """
        digest = hashlib.sha256()
        digest.update(json.dumps(self.config, sort_keys=True).encode())
        tokenizer = self.directory / "tokenizer.json"
        if tokenizer.is_file():
            digest.update(hashlib.sha256(read_bytes(tokenizer, MAX_TOKENIZER_BYTES)).digest())
        for name in sorted(self.tensors):
            tensor = self.tensors[name]
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            with tensor.path.open("rb") as file:
                sample = min(SAMPLE_BYTES, tensor.size)
                for part in (0, 1, 2):
                    file.seek(tensor.offset + part * (tensor.size - sample) // 2)
                    digest.update(file.read(sample))
        return digest.hexdigest()


def open_checkpoint(directory: Path) -> Checkpoint:
    """The checkpoint in ``directory``.

    Raises ModelNotFoundError when the folder or its weights are missing, and BadModelFileError
    when a shard is missing or broken or the index says something else than the shards.
    """
    directory = directory.resolve()
    if not directory.is_dir():
        raise ModelNotFoundError(f"There is no checkpoint folder {directory}.")
    config = read_object(directory / "config.json")
    if (directory / INDEX).is_file():
        tensors = _sharded(directory)
    elif (directory / SINGLE).is_file():
        tensors = read_tensors(directory / SINGLE)
    else:
        raise ModelNotFoundError(
            f"{directory} holds neither {SINGLE} nor {INDEX}.",
            hint="Only safetensors checkpoints are read, not pickles.",
        )
    if not tensors:
        raise BadModelFileError(f"The checkpoint {directory} holds no tensors.")
    return Checkpoint(directory, config, tensors)


def _sharded(directory: Path) -> dict[str, StoredTensor]:
    weight_map = read_object(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadModelFileError(f"{directory / INDEX} has no weight_map.")
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted({_shard_name(directory, name) for name in weight_map.values()}):
        path = directory / shard
        if not path.is_file():
            raise BadModelFileError(
                f"The shard {shard} that {INDEX} names is missing in {directory}.",
                hint="Fetch the checkpoint again.",
            )
        for name, tensor in read_tensors(path).items():
            if weight_map.get(name) != shard:
                raise BadModelFileError(
                    f"{INDEX} does not say that tensor {name} is in {shard}, but it is."
                )
            tensors[name] = tensor
    for name, shard in weight_map.items():
        if name not in tensors:
            raise BadModelFileError(
                f"{INDEX} says that tensor {name} is in {shard}, but it is not."
            )
    return tensors


def _shard_name(directory: Path, name: Any) -> str:
    if not isinstance(name, str) or not name or Path(name).name != name:
        raise BadModelFileError(
            f"{directory / INDEX} names the shard {name!r}, which is no plain file name."
        )
    return name
