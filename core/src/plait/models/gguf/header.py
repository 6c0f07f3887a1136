"""The header of a GGUF file: its metadata and the list of its tensors. Tensor data is never read here.

Layout, versions 2 and 3, little-endian (public GGUF specification, `docs/gguf.md` of the ggml project):
magic, version, tensor count, metadata count; then per metadata entry key, type, value; then per tensor name, number of
axes, axes (innermost first), type, offset into the data section, which begins at the next multiple of the alignment.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import attrs

from plait.errors import CheckpointError
from plait.models.gguf.metadata import Metadata, Value
from plait.models.gguf.tensor_type import READABLE, TensorType, type_name

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_UINT32, _STRING, _ARRAY, _FLOAT64 = 4, 8, 9, 12
_MAX_AXES = 4
_MAX_READ = 64 * 2**20  # no real metadata value is longer; a corrupt length must not make us read a whole file
_DEFAULT_ALIGNMENT = 32


@attrs.frozen
class TensorInfo:
    """One tensor as the header describes it.

    Attributes:
        name: GGUF name.
        shape: axes in MLX's order, outermost first.
        type: storage type.
        offset: bytes from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int


@attrs.frozen
class GgufHeader:
    """What a GGUF file says before its data: version, metadata, tensors by name."""

    path: Path
    version: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]


def read_header(path: Path) -> GgufHeader:
    """Reads and checks the header.

    Raises:
        CheckpointError: the file is missing, truncated or corrupt, or uses what Plait or MLX cannot read.
    """
    try:
        with path.open("rb") as file:
            return _HeaderReader(path, file).read()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot read the GGUF file: {error.strerror or error}") from error


class _HeaderReader:
    """A cursor over the file that knows where it ends and says what it was reading when something is wrong."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file = path, file
        self.size = os.fstat(file.fileno()).st_size
        self.at = 0
        self.alignment = _DEFAULT_ALIGNMENT

    def read(self) -> GgufHeader:
        if (magic := self.take(4, "the magic bytes")) != b"GGUF":
            self.fail(f"is not a GGUF file: it begins with {magic!r}, not b'GGUF'")
        version: int = self.scalar("I", "the version")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            kind = f"big-endian version {swapped}" if swapped in (2, 3) else f"version {version}"
            self.fail(f"is GGUF {kind}; Plait reads little-endian versions 2 and 3: convert the model again")
        tensor_count: int = self.scalar("Q", "the tensor count")
        metadata_count: int = self.scalar("Q", "the metadata count")
        metadata = self.metadata(metadata_count)
        tensors = self.tensors(tensor_count)
        return GgufHeader(self.path, version, Metadata(self.path, metadata), tensors)

    def metadata(self, count: int) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for index in range(count):
            key = self.string(f"the key of metadata entry {index + 1} of {count}")
            if key in values:
                self.fail(f"names the metadata key {key!r} twice")
            kind: int = self.scalar("I", f"the type of {key!r}")
            values[key] = self.value(kind, key)
            if key == "general.alignment":
                self.alignment = self.checked_alignment(kind, values[key])
        return values

    def value(self, kind: int, key: str) -> Value:
        what = f"the value of {key!r}"
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], what)  # type: ignore[no-any-return]
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            element: int = self.scalar("I", what)
            length: int = self.scalar("Q", what)
            if element == _STRING:
                return [self.string(what) for _ in range(length)]
            if element in _SCALARS:
                code = _SCALARS[element]
                return list(struct.unpack(f"<{length}{code}", self.take(length * struct.calcsize(f"<{code}"), what)))
            kind = element
        # MLX's reader loses its place after a 64-bit float and then reads wild addresses, so it must never see one.
        names = {_FLOAT64: "a 64-bit float", _ARRAY: "a list of lists"}
        self.fail(f"holds {names.get(kind, f'a value of unknown type {kind}')} under {key!r}, which MLX cannot read")

    def tensors(self, count: int) -> dict[str, TensorInfo]:
        found: list[TensorInfo] = []
        for index in range(count):
            name = self.string(f"the name of tensor {index + 1} of {count}")
            axes: int = self.scalar("I", f"the number of axes of {name!r}")
            if not 1 <= axes <= _MAX_AXES:
                self.fail(f"gives the tensor {name!r} {axes} axes; GGUF allows 1 to {_MAX_AXES}")
            shape = struct.unpack(f"<{axes}Q", self.take(8 * axes, f"the shape of {name!r}"))[::-1]
            kind: int = self.scalar("I", f"the type of {name!r}")
            offset: int = self.scalar("Q", f"the offset of {name!r}")
            if kind not in READABLE:
                readable = ", ".join(known.name for known in READABLE.values())
                self.fail(
                    f"stores the tensor {name!r} as {type_name(kind)}, which Plait cannot read through MLX "
                    f"(it reads {readable}); quantise the model again, to Q8_0 or Q4_1"
                )
            found.append(TensorInfo(name, shape, READABLE[kind], offset))
        start = -(-self.at // self.alignment) * self.alignment
        placed = [attrs.evolve(tensor, offset=start + tensor.offset) for tensor in found]
        self.check_places(placed)
        return {tensor.name: tensor for tensor in placed}

    def check_places(self, tensors: list[TensorInfo]) -> None:
        """Every tensor lies inside the file, on the alignment, and on bytes of its own."""
        if len(names := {tensor.name for tensor in tensors}) != len(tensors):
            twice = next(name for name in names if sum(name == tensor.name for tensor in tensors) > 1)
            self.fail(f"names the tensor {twice!r} twice")
        end, before = 0, ""
        for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
            shape, kind = tensor.shape, tensor.type
            if 0 in shape or shape[-1] % kind.block:
                self.fail(f"gives {tensor.name!r} ({kind.name}) the shape {shape}; rows are blocks of {kind.block}")
            if tensor.offset % self.alignment:
                self.fail(f"puts {tensor.name!r} at byte {tensor.offset}, not on its alignment of {self.alignment}")
            if tensor.offset < end:
                self.fail(f"lets {tensor.name!r} at byte {tensor.offset} overlap {before!r}, which ends at {end}")
            end, before = tensor.offset + kind.file_bytes(shape), tensor.name
            if end > self.size:
                self.fail(
                    f"is truncated or lies: {tensor.name!r} ({kind.name}, shape {shape}) ends at byte {end:,}, "
                    f"but the file has {self.size:,}; fetch it again"
                )

    def checked_alignment(self, kind: int, value: Value) -> int:
        if kind != _UINT32 or not isinstance(value, int) or value < 8 or value & (value - 1):
            self.fail(f"has a 'general.alignment' of {value!r}; it must be a 32-bit power of two of at least 8")
        return value

    def string(self, what: str) -> str:
        data = self.take(self.scalar("Q", what), what)
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.fail(f"is corrupt: {what} at byte {self.at - len(data):,} is not UTF-8 ({data[:20]!r}...)")

    def scalar(self, code: str, what: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))[0]

    def take(self, size: int, what: str) -> bytes:
        if size > min(self.size - self.at, _MAX_READ):
            self.fail(
                f"is truncated or corrupt: {what} at byte {self.at:,} wants {size:,} bytes, and the file has "
                f"{self.size - self.at:,} left; fetch it again"
            )
        self.at += size
        return self.file.read(size)

    def fail(self, problem: str) -> NoReturn:
        raise CheckpointError(f"{self.path} {problem}")
