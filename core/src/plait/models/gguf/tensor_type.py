"""How a GGUF tensor's numbers are stored in the file, and how MLX holds them once loaded.

Ids, block sizes and names: `ggml.h` of the public ggml project. What MLX holds: read off `mlx.core.load`.
"""

from __future__ import annotations

import math

import attrs

GROUP_SIZE = 32  # weights per scale in every quantised type that MLX keeps quantised
_WORD_BITS = 32  # MLX packs quantised weights into uint32


@attrs.frozen
class TensorType:
    """One storage type that MLX reads faithfully.

    Attributes:
        name: ggml's name.
        block: weights per block in the file.
        block_bytes: bytes per block in the file.
        dtype: MLX dtype of the loaded numbers (of the scales and biases, if quantised).
        bits: bits per weight if MLX keeps the tensor quantised, else None.
    """

    name: str
    block: int
    block_bytes: int
    dtype: str
    bits: int | None = None

    def file_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of `shape` in the file; the last axis is a multiple of `block`."""
        return math.prod(shape) // self.block * self.block_bytes

    def arrays(self, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
        """The arrays that MLX makes of a tensor of `shape`: name's last part to (shape, dtype)."""
        if self.bits is None:
            return {"": (shape, self.dtype)}
        *rows, columns = shape
        scales = ((*rows, columns // GROUP_SIZE), self.dtype)
        return {
            "weight": ((*rows, columns * self.bits // _WORD_BITS), "uint32"),
            "scales": scales,
            "biases": scales,
        }

    def held_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of the same tensor in MLX's memory."""
        return sum(math.prod(part) * _ITEM_BYTES[dtype] for part, dtype in self.arrays(shape).values())


_ITEM_BYTES = {"uint32": 4, "float32": 4, "float16": 2}

READABLE = {
    0: TensorType("F32", 1, 4, "float32"),
    1: TensorType("F16", 1, 2, "float16"),
    2: TensorType("Q4_0", 32, 18, "float16", bits=4),
    3: TensorType("Q4_1", 32, 20, "float16", bits=4),
    8: TensorType("Q8_0", 32, 34, "float16", bits=8),
    14: TensorType("Q6_K", 256, 210, "float16"),
    30: TensorType("BF16", 1, 2, "float16"),
}

# Known by name only, so that a refusal can say it. Q4_K belongs here because MLX 0.32 gets every second group of 32 of
# its weights wrong; the others it cannot read, or turns them into something a language model's weights never are.
_UNREADABLE = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8",
    25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
    41: "Q1_0",
}  # fmt: skip


def type_name(type_id: int) -> str:
    """ggml's name of a type id, or "unknown type N"."""
    if type_id in READABLE:
        return READABLE[type_id].name
    return _UNREADABLE.get(type_id, f"unknown type {type_id}")
