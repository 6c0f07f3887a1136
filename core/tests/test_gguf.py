"""The GGUF reader, on small files written here byte by byte."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plait  # noqa: F401  before MLX
from plait.errors import CheckpointError
from plait.models.gguf import GgufCheckpoint

import mlx.core as mx  # isort: skip
import mlx.nn as nn  # isort: skip
from mlx.utils import tree_flatten  # isort: skip
from mlx_lm.models.llama import Model, ModelArgs  # isort: skip

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 64, 4, 2, 16, 96, 2
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>", "<tool>"]

Tensor = tuple[int, tuple[int, ...], bytes]  # type id, shape in MLX's order, data
Typed = tuple[int, bytes]  # a metadata value given as its type id and its bytes
Change = Callable[[dict[str, Any], dict[str, Tensor]], None]


def byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte: itself, or the next one from U+0100 on."""
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in kept else next(spare)) for byte in range(256)]


TOKENS = [*SPECIAL, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def typed(value: Any) -> Typed:
    match value:
        case tuple():
            return value
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, text(value)
        case [str(), *_]:
            return 9, struct.pack("<IQ", 8, len(value)) + b"".join(map(text, value))
        case _:
            return 9, struct.pack(f"<IQ{len(value)}i", 5, len(value), *value)


def write_gguf(
    path: Path, metadata: dict[str, Any], tensors: dict[str, Tensor], magic: bytes = b"GGUF\3\0\0\0"
) -> Path:
    out = bytearray(magic + struct.pack("<QQ", len(tensors), len(metadata)))
    for key, value in metadata.items():
        kind, raw = typed(value)
        out += text(key) + struct.pack("<I", kind) + raw
    data = bytearray()
    for name, (type_id, shape, raw) in tensors.items():
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], type_id, len(data))
        data += raw + bytes(-len(raw) % 32)
    path.write_bytes(out + bytes(-len(out) % 32) + data)
    return path


def llama_metadata() -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 5000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3, 3, 4, *[1] * (len(TOKENS) - 4)],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}",
    }


def f32(array: np.ndarray) -> Tensor:
    return 0, array.shape, array.astype("<f4").tobytes()


def reference_model(**settings: Any) -> Model:
    """A random llama as Hugging Face writes it: half-split rotary pairs."""
    mx.random.seed(7)
    arguments = ModelArgs(
        "llama", HIDDEN, LAYERS, INNER, HEADS, 1e-5, len(TOKENS), num_key_value_heads=KV_HEADS, rope_theta=5000.0,
        max_position_embeddings=128, **settings,
    )  # fmt: skip
    model = Model(arguments)
    weights = [(name, mx.random.normal(array.shape) * 0.3) for name, array in tree_flatten(model.parameters())]
    model.load_weights(weights)
    return model


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def gguf_tensors(model: Model) -> dict[str, Tensor]:
    """What the public converter does: other names, and the rows of q and k interleaved within each head."""
    tensors = {}
    for name, array in tree_flatten(model.parameters()):
        rows = np.array(array)
        if "q_proj" in name or "k_proj" in name:
            heads = HEADS if "q_proj" in name else KV_HEADS
            rows = rows.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(rows.shape)
        for theirs, ours in GGUF_NAMES.items():
            name = name.replace(theirs, ours)
        tensors[name] = f32(rows)
    return tensors


def write_llama(path: Path, change: Change = lambda metadata, tensors: None, **settings: Any) -> Path:
    metadata, tensors = llama_metadata(), gguf_tensors(reference_model(**settings))
    change(metadata, tensors)
    return write_gguf(path, metadata, tensors)


@pytest.mark.parametrize(
    ("settings", "extra"),
    [
        ({}, {}),
        ({"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}, {}),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, {"llama.rope.scaling.factor": 4.0}),
        ({}, {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0, "llama.expert_count": 0}),
    ],
)
def test_logits_equal_the_model_that_was_converted(
    tmp_path: Path, settings: dict[str, Any], extra: dict[str, Any]
) -> None:
    path = write_llama(tmp_path / "a.gguf", lambda metadata, tensors: metadata.update(extra), **settings)
    checkpoint = GgufCheckpoint(path)
    model = Model(ModelArgs.from_dict(checkpoint.config))
    model.load_weights(list(checkpoint.load_weights().items()))
    assert checkpoint.weight_bytes == sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    ids = mx.array([[5, 9, 200, 31, 77, 3, 140]])
    expected = np.array(reference_model(**settings)(ids))
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(np.array(model(ids)), expected, atol=2e-4)


def quantised(rows: np.ndarray, type_id: int) -> tuple[Tensor, np.ndarray]:
    """ggml's blocks of 32 from random numbers, and the numbers they stand for (public block layouts)."""
    blocks = rows.reshape(-1, 32)
    low, top = {2: (-8, 7), 3: (0, 15), 8: (-127, 127)}[type_id]
    least = blocks.min(1, keepdims=True) if type_id == 3 else np.zeros((len(blocks), 1))
    scale = (np.abs(blocks - least).max(1, keepdims=True) / top).astype("<f2")
    least = least.astype("<f2")
    levels = np.clip(np.round((blocks - least) / scale), low, top)
    if type_id == 8:
        packed = levels.astype("i1").view("u1")
    else:
        raised = (levels - low).astype("u1")
        packed = raised[:, :16] | raised[:, 16:] << 4
    parts = [scale.view("u1"), *([least.view("u1")] if type_id == 3 else []), packed]
    values = (levels * scale.astype("f4") + least.astype("f4")).reshape(rows.shape)
    return (type_id, rows.shape, np.hstack(parts).tobytes()), values


def q6_k(rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
    """Random super-blocks of 256 and the numbers they stand for (public block layout)."""
    raw = np.random.default_rng(3).integers(0, 256, (rows.size // 256, 210), dtype="u1")
    raw[:, 208:] = np.full((len(raw), 1), 0.001, "<f2").view("u1")
    low, high = raw[:, :128].reshape(-1, 2, 2, 32), raw[:, 128:192].reshape(-1, 2, 1, 32)
    nibbles = np.concatenate([low & 15, low >> 4], axis=2)
    pairs = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    levels = (nibbles | pairs << 4).reshape(-1, 16, 16).astype("f4") - 32
    scales = raw[:, 192:208].view("i1").astype("f4")[..., None] * raw[:, 208:].copy().view("<f2")[..., None].astype(
        "f4"
    )
    return (14, rows.shape, raw.tobytes()), (levels * scales).reshape(rows.shape)


def test_storage_types_hold_the_numbers_they_stand_for(tmp_path: Path) -> None:
    """F32, F16, BF16, Q4_0, Q4_1, Q8_0 and Q6_K side by side in one model of 256 columns."""
    rng = np.random.default_rng(0)
    metadata = {
        **llama_metadata(), "llama.block_count": 1, "llama.embedding_length": 256, "llama.feed_forward_length": 256,
        "llama.attention.key_length": HEAD_DIM, "llama.attention.value_length": HEAD_DIM,
    }  # fmt: skip
    shapes = {"token_embd": (len(TOKENS), 256), "blk.0.attn_q": (64, 256), "blk.0.attn_k": (32, 256),
              "blk.0.attn_v": (32, 256), "blk.0.attn_output": (256, 64), "blk.0.ffn_gate": (256, 256),
              "blk.0.ffn_up": (256, 256), "blk.0.ffn_down": (256, 256), "output_norm": (256,),
              "blk.0.attn_norm": (256,), "blk.0.ffn_norm": (256,)}  # fmt: skip
    tensors, expected = {}, {}
    for name, shape in shapes.items():
        tensors[f"{name}.weight"], expected[f"{name}.weight"] = f32(rows := rng.normal(size=shape).astype("f4")), rows
    for name, type_id in (("token_embd", 8), ("blk.0.attn_q", 2), ("blk.0.attn_k", 3), ("blk.0.attn_output", 3)):
        tensors[f"{name}.weight"], expected[f"{name}.weight"] = quantised(expected[f"{name}.weight"], type_id)
    tensors["blk.0.ffn_up.weight"], six = q6_k(expected["blk.0.ffn_up.weight"])
    expected["blk.0.ffn_up.weight"] = six.astype("f2").astype("f4")
    half = expected["blk.0.ffn_gate.weight"].astype("<f2")
    tensors["blk.0.ffn_gate.weight"], expected["blk.0.ffn_gate.weight"] = (1, half.shape, half.tobytes()), half
    brain = (expected["blk.0.ffn_down.weight"].view("u4") >> 16).astype("<u2")
    tensors["blk.0.ffn_down.weight"] = (30, brain.shape, brain.tobytes())
    expected["blk.0.ffn_down.weight"] = (brain.astype("u4") << 16).view("f4").astype("f2")

    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "a.gguf", metadata, tensors))
    weights = checkpoint.load_weights()
    assert checkpoint.weight_bytes == sum(array.nbytes for array in weights.values())
    bits = {}
    for parameter in [name for name in weights if name.endswith(".weight")]:
        module, name = parameter.removesuffix(".weight"), parameter
        for theirs, ours in GGUF_NAMES.items():
            name = name.replace(theirs, ours)
        value = weights[parameter]
        if asked := checkpoint.quantization(module):
            scales, biases = (weights[f"{module}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            value = mx.dequantize(value, scales, biases, group_size=asked["group_size"], bits=asked["bits"])
            bits[name.removesuffix(".weight")] = asked
        np.testing.assert_allclose(np.array(value.astype(mx.float32)), expected[name], rtol=1e-6, atol=1e-6)
    assert {name: asked["bits"] for name, asked in bits.items()} == {
        "token_embd": 8, "blk.0.attn_q": 4, "blk.0.attn_k": 4, "blk.0.attn_output": 4
    }  # fmt: skip
    assert {asked["group_size"] for asked in bits.values()} == {32}
    model = Model(ModelArgs.from_dict(checkpoint.config))
    nn.quantize(model, class_predicate=lambda path, module: checkpoint.quantization(path) or False)
    model.load_weights(list(weights.items()))
    assert np.isfinite(np.array(model(mx.array([[1, 2, 3]])).astype(mx.float32))).all()


def test_metadata_that_says_nothing_about_the_model_is_read_over(tmp_path: Path) -> None:
    odd = {
        "general.alignment": 32,
        "a.empty": [],
        "a.bools": (9, struct.pack("<IQ3?", 7, 3, True, False, True)),
        "a.long": (10, struct.pack("<Q", 2**63)),
        "a.byte": (1, struct.pack("<b", -5)),
        "a.longs": (9, struct.pack("<IQ2q", 11, 2, -1, 1)),
        "a.words": ["x", "", "ü"],
    }
    path = write_llama(tmp_path / "a.gguf", lambda metadata, tensors: metadata.update(odd))
    plain = write_llama(tmp_path / "b.gguf")
    weights, expected = GgufCheckpoint(path).load_weights(), GgufCheckpoint(plain).load_weights()
    assert weights.keys() == expected.keys()
    assert all(bool((weights[name] == expected[name]).all()) for name in expected)


def put(key: str, value: Any) -> Change:
    return lambda metadata, tensors: metadata.update({key: value})


def drop(key: str) -> Change:
    return lambda metadata, tensors: (metadata if key in metadata else tensors).pop(key)  # type: ignore[return-value]


def tensor(name: str, type_id: int, shape: tuple[int, ...], size: int) -> Change:
    return lambda metadata, tensors: tensors.update({name: (type_id, shape, bytes(size))})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("general.architecture", "qwen2"), ["'qwen2'", "'llama' only"]),
        (drop("general.architecture"), ["no 'general.architecture'"]),
        (drop("llama.block_count"), ["no 'llama.block_count'"]),
        (drop("llama.attention.layer_norm_rms_epsilon"), ["no 'llama.attention.layer_norm_rms_epsilon'"]),
        (drop("tokenizer.ggml.tokens"), ["no 'tokenizer.ggml.tokens'"]),
        (put("llama.context_length", "long"), ["'llama.context_length' is 'long'", "whole number"]),
        (put("llama.context_length", 0), ["'llama.context_length' is 0", "at least 1"]),
        (put("llama.rope.freq_base", float("nan")), ["'llama.rope.freq_base' is nan", "positive number"]),
        (put("llama.attention.head_count_kv", [2, 2]), ["'llama.attention.head_count_kv' is a list of 2"]),
        (put("llama.attention.head_count_kv", 3), ["4 heads on 3 key-value heads"]),
        (put("llama.rope.dimension_count", 8), ["8 rotated dimensions"]),
        (put("llama.expert_count", 8), ["does not know", "llama.expert_count"]),
        (put("llama.logit_scale", 2.0), ["does not know", "llama.logit_scale"]),
        (put("llama.rope.scaling.type", "yarn"), ["rotary scaling 'yarn'"]),
        (put("llama.block_count", 2**31), ["2,147,483,648", "only 20 tensors"]),
        (put("llama.block_count", 1), ["does not know the tensors blk.1.attn_k.weight", "and 4 more"]),
        (put("llama.block_count", 3), ["missing: blk.2.attn_norm.weight", "and 4 more"]),
        (put("llama.vocab_size", 7), ["has 265 rows", "'llama.vocab_size' is 7"]),
        (put("llama.feed_forward_length", 128), ["blk.0.ffn_gate.weight", "(96, 64)", "wants (128, 64)"]),
        (put("general.alignment", 48), ["'general.alignment' of 48", "power of two"]),
        (put("a.double", (12, struct.pack("<d", 1.0))), ["64-bit float", "'a.double'"]),
        (put("a.nested", (9, struct.pack("<IQ", 9, 0))), ["list of lists", "'a.nested'"]),
        (put("a.strange", (99, b"")), ["unknown type 99", "'a.strange'"]),
        (put("a.lying", (9, struct.pack("<IQ", 0, 2**60))), ["'a.lying'", "wants 1,152,921,504,606,846,976 bytes"]),
        (put("a.bytes", (8, struct.pack("<Q", 1) + b"\xff")), ["'a.bytes'", "not UTF-8"]),
        (drop("token_embd.weight"), ["'token_embd.weight' is missing"]),
        (drop("blk.1.ffn_up.weight"), ["missing: blk.1.ffn_up.weight"]),
        (tensor("rope_freqs.weight", 0, (8,), 32), ["does not know the tensors rope_freqs.weight"]),
        (tensor("blk.1.attn_q.bias", 0, (64,), 256), ["does not know the tensors blk.1.attn_q.bias"]),
        (tensor("blk.0.ffn_up.weight", 12, (96, 256), 13_824), ["'blk.0.ffn_up.weight' as Q4_K", "Q4_0, Q4_1, Q8_0"]),
        (tensor("blk.0.ffn_up.weight", 77, (96, 64), 64), ["'blk.0.ffn_up.weight' as unknown type 77"]),
        (tensor("blk.0.attn_norm.weight", 8, (64,), 68), ["'blk.0.attn_norm.weight' is a vector stored as Q8_0"]),
        (tensor("blk.0.ffn_up.weight", 3, (96, 48), 2_880), ["(Q4_1) the shape (96, 48)", "blocks of 32"]),
        (tensor("blk.0.ffn_up.weight", 0, (96, 0), 0), ["the shape (96, 0)"]),
        (tensor("blk.0.ffn_up.weight", 0, (1, 1, 1, 96, 64), 24_576), ["5 axes", "1 to 4"]),
        (tensor("blk.0.ffn_up.weight", 0, (96, 64), 24_000), ["overlap 'blk.0.ffn_up.weight'"]),
        (tensor("z", 0, (2**40, 2**40), 4), ["truncated or lies: 'z'", "but the file has"]),
    ],
)
def test_what_cannot_be_served_faithfully_is_refused_by_name(tmp_path: Path, change: Change, words: list[str]) -> None:
    path = write_llama(tmp_path / "a.gguf", change)
    with pytest.raises(CheckpointError) as caught:
        GgufCheckpoint(path)
    assert [word for word in [str(path), *words] if word not in str(caught.value)] == [], caught.value


@pytest.mark.parametrize(
    ("magic", "words"),
    [
        (b"GGML\3\0\0\0", "begins with b'GGML'"),
        (b"GGUF\1\0\0\0", "version 1"),
        (b"GGUF\0\0\0\3", "big-endian version 3"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, magic: bytes, words: str) -> None:
    path = write_gguf(tmp_path / "a.gguf", {}, {}, magic)
    with pytest.raises(CheckpointError, match=words):
        GgufCheckpoint(path)
    with pytest.raises(CheckpointError, match="No such file"):
        GgufCheckpoint(tmp_path / "b.gguf")


def test_truncated_and_doubled_entries_are_refused(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "a.gguf")
    whole = path.read_bytes()
    for size in [*range(0, 8_000, 97), len(whole) - 33]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"is truncated or corrupt|truncated or lies"):
            GgufCheckpoint(path)
    for old, new in (
        (b"llama.context_length", b"llama.rope.freq_base"),
        (b"blk.0.attn_q.weight", b"blk.0.attn_k.weight"),
    ):
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(CheckpointError, match=f"{new.decode()!r} twice"):
            GgufCheckpoint(path)


def test_damaged_headers_raise_checkpoint_errors_only(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "a.gguf")
    whole, outcomes = path.read_bytes(), set()
    for seed in range(150):
        chance = random.Random(seed)
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[chance.randrange(6_000)] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            GgufCheckpoint(path).load_weights()
            outcomes.add("loads")
        except CheckpointError:
            outcomes.add("refused")
    assert outcomes == {"loads", "refused"}


def test_weights_that_mlx_reads_otherwise_than_planned_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = GgufCheckpoint(write_llama(tmp_path / "a.gguf"))
    arrays: Any = mx.load(str(tmp_path / "a.gguf"))
    arrays["output_norm.weight"] = mx.zeros((HIDDEN,), mx.float16)
    monkeypatch.setattr(mx, "load", lambda *_, **__: arrays)
    with pytest.raises(CheckpointError, match=r"float16.*'output_norm\.weight' \(F32\), where float32 \(64,\)"):
        checkpoint.load_weights()
    monkeypatch.undo()
    (tmp_path / "a.gguf").unlink()
    with pytest.raises(CheckpointError, match="MLX cannot load"):
        checkpoint.load_weights()


def test_tokenizer_follows_the_merges_and_the_special_tokens(tmp_path: Path) -> None:
    tokenizer = GgufCheckpoint(write_llama(tmp_path / "a.gguf")).tokenizer()

    def pieces(plain: str) -> list[str]:
        return list(tokenizer.convert_ids_to_tokens(tokenizer.encode(plain)))

    assert pieces("hello world") == ["hello", "Ġw", "o", "r", "l", "d"]
    assert pieces("<|im_start|>he<tool>") == ["<|im_start|>", "he", "<tool>"]
    assert pieces(" w12") == ["Ġw", "1", "2"]
    for plain in ("", "naïve  \n\tßß 😀 一二三 ١٢ é", "a <|im_end|>b", "".join(map(chr, range(1, 300)))):
        assert tokenizer.decode(tokenizer.encode(plain)) == plain
    assert tokenizer.decode(tokenizer.encode("a<|im_end|>"), skip_special_tokens=True) == "a"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)
    assert tokenizer.unk_token is None
    assert (len(tokenizer), tokenizer.model_max_length) == (len(TOKENS), 128)
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert rendered == "<|im_start|>hello<|im_end|>"


def test_ends_are_added_and_a_lacking_byte_is_left_out(tmp_path: Path) -> None:
    def change(metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        metadata.update({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True})
        metadata.update({"tokenizer.ggml.eot_token_id": 0})
        metadata["tokenizer.ggml.tokens"] = [f"[{ord(token)}]" if token == "z" else token for token in TOKENS]

    checkpoint = GgufCheckpoint(write_llama(tmp_path / "a.gguf", change))
    tokenizer = checkpoint.tokenizer()
    assert tokenizer.encode("xzy") == [1, TOKENS.index("x"), TOKENS.index("y"), 2]
    assert tokenizer.encode("xzy", add_special_tokens=False) == [TOKENS.index("x"), TOKENS.index("y")]
    assert checkpoint.config["eos_token_id"] == [0, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("tokenizer.ggml.model", "llama"), "'gpt2'.*'llama'"),
        (put("tokenizer.ggml.pre", "tekken"), "pre-tokenizer 'tekken'"),
        (drop("tokenizer.ggml.pre"), "no 'tokenizer.ggml.pre'"),
        (drop("tokenizer.ggml.merges"), "no 'tokenizer.ggml.merges'"),
        (put("tokenizer.ggml.merges", ["h e", "q§ u"]), "merge 1 .*'q§ u'"),
        (put("tokenizer.ggml.merges", ["he"]), "merge 0 .*'he'"),
        (put("tokenizer.ggml.tokens", [*TOKENS[:-1], "he"]), "'he' twice"),
        (put("tokenizer.ggml.token_type", [1, 3]), "265 tokens but 2 token types"),
        (put("tokenizer.ggml.eos_token_id", 999), "'tokenizer.ggml.eos_token_id' is 999"),
        (put("tokenizer.ggml.add_space_prefix", True), "add_space_prefix"),
        (put("tokenizer.ggml.add_bos_token", 1), "add_bos_token' is 1, but must be true or false"),
    ],
)
def test_tokenizers_that_plait_does_not_know_are_refused_by_name(tmp_path: Path, change: Change, words: str) -> None:
    checkpoint = GgufCheckpoint(write_llama(tmp_path / "a.gguf", change))
    with pytest.raises(CheckpointError, match=words):
        checkpoint.tokenizer()
