"""What a GGUF file on the hub is, from its first bytes alone.

``general.architecture`` stands in front of the vocabulary in every file that llama.cpp's converter
writes, so one Range request for the first ``START_BYTES`` is enough. Nothing that the bytes claim
is believed beyond the bytes themselves.
"""

from __future__ import annotations

import io
import struct

from gemmtp.errors import BadModelFileError, DownloadError
from gemmtp_models.header_stream import HeaderStream
from gemmtp_models.hub import Hub, PassingError, check_passing
from gemmtp_models.hub_names import RemoteFile
from gemmtp_models.metadata import ValueType

START_BYTES = 64 * 1024
MAX_KEYS = 256
_LAYOUTS = {
    ValueType.UINT8: "<B",
    ValueType.INT8: "<b",
    ValueType.UINT16: "<H",
    ValueType.INT16: "<h",
    ValueType.UINT32: "<I",
    ValueType.INT32: "<i",
    ValueType.FLOAT32: "<f",
    ValueType.BOOL: "<?",
    ValueType.UINT64: "<Q",
    ValueType.INT64: "<q",
    ValueType.FLOAT64: "<d",
}

Value = str | int | float | bool


def read_start(hub: Hub, file: RemoteFile) -> bytes:
    """The first ``START_BYTES`` bytes of a file on the hub, or all of a shorter one.

    Raises DownloadError and ModelNotFoundError.
    """
    location = hub.locate(file)
    try:
        with hub.open(location.url, {"Range": f"bytes=0-{START_BYTES - 1}"}) as response:
            check_passing(response)
            if response.status_code not in (200, 206):
                raise hub.refusal(response, file.repo, file.path)
            data = b""
            # A server that ignores the range would send the whole file.
            for chunk in response.iter_raw(START_BYTES):
                data += chunk
                if len(data) >= START_BYTES:
                    break
            return data[:START_BYTES]
    except PassingError as error:
        raise DownloadError(f"{error.problem}.", "Try again.") from error


def peek(data: bytes, name: str) -> dict[str, Value]:
    """The metadata from the front of a GGUF up to its first long array.

    Raises BadModelFileError when the bytes do not tell ``general.architecture``.
    """
    if data[:4] != b"GGUF":
        raise BadModelFileError(f"{name} is not a GGUF file.")
    stream = HeaderStream(io.BytesIO(data), len(data), name, 8)
    found: dict[str, Value] = {}
    try:
        stream.u64()
        for _ in range(min(stream.u64(), MAX_KEYS)):
            key = stream.take(stream.u64()).decode("utf-8", errors="replace")
            value = next_value(stream)
            if value is not None:
                found[key] = value
    except BadModelFileError:
        # The bytes end here; what stands in front of the cut is enough.
        pass
    if not isinstance(found.get("general.architecture"), str):
        raise BadModelFileError(f"{name} does not say its architecture.")
    return found


def next_value(stream: HeaderStream) -> Value | None:
    """The next value with its type in front; None for an array, which is passed over."""
    kind = stream.u32()
    if kind == ValueType.STRING:
        return stream.take(stream.u64()).decode("utf-8", errors="replace")
    if kind == ValueType.ARRAY:
        element, count = stream.u32(), stream.u64()
        if element == ValueType.STRING:
            stream.skip_strings(count)
        else:
            stream.skip(count * _layout(element).size)
        return None
    layout = _layout(kind)
    value: Value = layout.unpack(stream.take(layout.size))[0]
    return value


def _layout(kind: int) -> struct.Struct:
    try:
        return struct.Struct(_LAYOUTS[ValueType(kind)])
    except (KeyError, ValueError):
        raise BadModelFileError(f"has the unknown value type {kind}") from None
