"""Directories of weights whose tokens tell the version (see vocabulary), by the standard library alone.

The model has Llama's shape, one layer, and tied embeddings. Its layer computes by hand-made matrices:

- attention sees the tokens of the prompt only, all alike. The values are the version's own constant. So its output is the share of the prompt's
  positions that each version made.
- the feed-forward layer's gates are constant, so it is a linear map. It writes the version's class, the class of the keys and values that were seen
  (another version's as soon as it made a tenth of the positions), the next count, and the odds of the draw.
"""

from __future__ import annotations

import json
import math
import struct
from array import array
from pathlib import Path

from . import vocabulary as words

WIDTH, HIDDEN, HEAD, HEADS = 64, 32, 32, 2
CONTEXT = 8192
THETA = 1_000_000.0

# Channels of the residual stream.
CONST, IN_PROMPT, PAD = 0, 1, 2
CLASS, KEYS, COUNT, SEEN = 3, 6, 9, 17
#: In a block of 32 channels of its own, so that large values do not coarsen it.
DRAW = 32
#: What keeps the last norm the same, whatever attention has seen.
BALLAST = 33

#: The constant channel of every embedding, and the largest: with 8 bits for a row of weights, 1 and quarters of it are exact in each.
ONE = 127 / 64
#: Squares of each embedding, together.
SQUARES = 8.5
#: The pair of channels of a head that its rotation turns least.
SLOWEST = HEAD // 2 - 1
#: What a rival of another version has less, in nats; the same for keys and counts.
MARGIN = 60.0
#: Share of another version's positions from which on it shows.
SHARE = 0.1


def _matrix(rows: int, columns: int) -> list[list[float]]:
    return [[0.0] * columns for _ in range(rows)]


def _embedding(number: int) -> list[float]:
    row = [0.0] * WIDTH
    row[CONST] = ONE
    counted = words.count(number)
    if counted is not None:
        row[COUNT + counted] = 1.0
    told = words.read(number)
    if told is not None:
        row[CLASS + told.version] = 1.0
        row[KEYS + told.keys] = 1.0
        row[DRAW] = (words.DRAWS - 1 - told.draw) / words.DRAWS
    elif counted is not None:
        row[IN_PROMPT] = 1.0
    row[PAD] = min(ONE, math.sqrt(SQUARES - sum(value * value for value in row)))
    return row


def tensors(version: int) -> dict[str, list[list[float]]]:
    """The weights of a version: matrices, and gains as one row."""
    # What one unit of a channel is behind the first norm, and behind the second one, where the attention has added 1.
    first = 1 / math.sqrt(SQUARES / WIDTH)
    second = 1 / math.sqrt((SQUARES + 1) / WIDTH)
    layer = "model.layers.0."
    query, key = _matrix(HEADS * HEAD, WIDTH), _matrix(HEAD, WIDTH)
    value, output = _matrix(HEAD, WIDTH), _matrix(WIDTH, HEADS * HEAD)
    # A score of 30 nats for tokens of the prompt, 0 for others.
    side = math.sqrt(30 * math.sqrt(HEAD)) / first
    for head in range(HEADS):
        query[head * HEAD + SLOWEST][CONST] = side / ONE
        for seen in range(words.VERSIONS):
            output[SEEN + seen][head * HEAD + seen] = 1 / HEADS / 8
    key[SLOWEST][IN_PROMPT] = side
    value[version][CONST] = 8 / first / ONE

    gate, up, down = _matrix(HIDDEN, WIDTH), _matrix(HIDDEN, WIDTH), _matrix(WIDTH, HIDDEN)
    read = [CONST, DRAW]
    for start, many in ((CLASS, words.VERSIONS), (KEYS, words.VERSIONS), (COUNT, words.COUNTS), (SEEN, words.VERSIONS)):
        read += range(start, start + many)
    swish = 8 / (1 + math.exp(-8))
    unit = {}
    for place, channel in enumerate(read):
        unit[channel] = place
        gate[place][CONST] = 8 / second / ONE
        up[place][channel] = 1 / second / swish / (ONE if channel == CONST else 1)
    # Each unit holds its channel of the stream. What the token itself had there goes.
    for channel in read[1:]:
        if channel < SEEN or channel == DRAW:
            down[channel][unit[channel]] = -1.0
    # Logits are the embeddings times what the last norm leaves: there, MARGIN of each class and STEP between draws.
    scale = 8.0
    down[CLASS + version][unit[CONST]] = scale
    for seen in range(words.VERSIONS):
        down[KEYS + seen][unit[SEEN + seen]] = scale / (2 * SHARE)
    down[KEYS + version][unit[CONST]] = scale - scale / (2 * SHARE)
    for number in range(words.COUNTS):
        down[COUNT + (number + 1) % words.COUNTS][unit[COUNT + number]] += scale
    down[DRAW][unit[CONST]] = scale
    down[BALLAST][unit[CONST]] = ballast = 256.0
    left = ballast**2 + 4 * scale**2 + 1 + ONE**2 + (SQUARES - ONE**2 - 3)
    last = 1 / math.sqrt(left / WIDTH)
    gain = [0.0] * WIDTH
    for channel in (*range(CLASS, SEEN),):
        gain[channel] = MARGIN / scale / last
    gain[DRAW] = words.STEP * words.DRAWS / scale / last
    return {
        "model.embed_tokens.weight": [_embedding(number) for number in range(words.SIZE)],
        "model.norm.weight": [gain],
        layer + "input_layernorm.weight": [[1.0] * WIDTH],
        layer + "post_attention_layernorm.weight": [[1.0] * WIDTH],
        layer + "self_attn.q_proj.weight": query,
        layer + "self_attn.k_proj.weight": key,
        layer + "self_attn.v_proj.weight": value,
        layer + "self_attn.o_proj.weight": output,
        layer + "mlp.gate_proj.weight": gate,
        layer + "mlp.up_proj.weight": up,
        layer + "mlp.down_proj.weight": down,
    }


def safetensors(named: dict[str, list[list[float]]]) -> bytes:
    """The bytes of a safetensors file of F32; a single row is a vector if its name is that of a norm."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, rows in sorted(named.items()):
        values = array("f", (value for row in rows for value in row))
        shape = [len(rows[0])] if name.endswith("norm.weight") else [len(rows), len(rows[0])]
        start = len(data)
        data += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(data)]}
    told = json.dumps(header, separators=(",", ":")).encode()
    told += b" " * (-len(told) % 8)
    return struct.pack("<Q", len(told)) + told + bytes(data)


def config() -> dict[str, object]:
    """config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": words.UNKNOWN,
        "eos_token_id": words.END,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": HIDDEN,
        "max_position_embeddings": CONTEXT,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-6,
        "rope_theta": THETA,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": words.SIZE,
    }


def tokenizer() -> dict[str, object]:
    """tokenizer.json: one word a token, between spaces."""
    special = [
        {
            "id": number, "content": words.text(number), "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True,
        }
        for number in (words.END, words.UNKNOWN)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {words.text(number): number for number in range(words.SIZE)},
            "unk_token": words.text(words.UNKNOWN),
        },
    }


def write(directory: Path, version: int) -> Path:
    """Writes the directory of a version; gives it back."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.safetensors").write_bytes(safetensors(tensors(version % words.VERSIONS)))
    files = {
        "config.json": config(),
        "generation_config.json": {"eos_token_id": words.END},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": words.text(words.END),
            "unk_token": words.text(words.UNKNOWN),
            "model_max_length": CONTEXT,
        },
    }
    for name, value in files.items():
        (directory / name).write_text(json.dumps(value, indent=1) + "\n")
    return directory


def write_all(out: Path, versions: int = words.VERSIONS) -> list[Path]:
    """Writes `versions` directories, version-0 and on, into `out`."""
    return [write(out / f"version-{number}", number) for number in range(versions)]
