"""tiny's weights as floating-point numbers: from its image, and as a directory of safetensors that `doorbell serve` takes.

The image holds 8-bit weights (docs/engine.md, The image). Here they become the tensors of transformers' Gemma3nForCausalLM from which the importer makes
the same image again, bit for bit: `python weights.py IMAGE DIR` writes them, and `doorbell model import DIR -o AGAIN` gives an image with the same weights."""

import hashlib
import json
import sys
from pathlib import Path

import numpy
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lm/tiny"))

# Number of each kind of entry, with its name in a layer.
LAYER = {
    16: "input_layernorm", 17: "self_attn.q_proj", 18: "self_attn.k_proj", 19: "self_attn.v_proj", 20: "self_attn.o_proj", 21: "pre_feedforward_layernorm",
    22: "mlp.gate_proj", 23: "mlp.up_proj", 24: "mlp.down_proj", 25: "altup.router_norm", 26: "altup.modality_router", 27: "altup.prediction_coefs",
    28: "altup.correction_coefs", 29: "self_attn.q_norm", 30: "self_attn.k_norm", 32: "post_attention_layernorm", 33: "laurel.linear_left",
    34: "laurel.linear_right", 35: "laurel.post_laurel_norm", 36: "post_feedforward_layernorm", 40: "per_layer_input_gate", 41: "per_layer_projection",
    42: "post_per_layer_input_norm",
}
ABOUT, TOKENS, LAST_GAIN, TOKENIZER, SPLIT, MERGE, EMBEDDING, PROJECTION, PROJECTION_GAIN = 4, 1, 2, 5, 7, 8, 37, 38, 39
GAINS = {LAST_GAIN, PROJECTION_GAIN, 16, 21, 25, 29, 30, 31, 32, 35, 36, 42}
MATRICES = {TOKENS, SPLIT, MERGE, EMBEDDING, PROJECTION, 17, 18, 19, 20, 22, 23, 24, 26, 27, 28, 33, 34, 40, 41}
HEADS = {17, 18, 29, 30}  # their channels are turned, as neighbours in an image and as halves in transformers


def entries(image):
    """(kind, layer) and the values of each entry, in 64 bits; texts as bytes."""
    numbers = lambda kind, at, count: numpy.frombuffer(image, f"<{kind}", count, at)
    for at in range(128, 128 + 32 * int(numbers("u4", 60, 1)[0]), 32):
        kind, layer = (int(x) for x in numbers("u2", at, 2))
        exponent, (rows, columns), (offset, size) = int(numbers("i4", at + 4, 1)[0]), (int(x) for x in numbers("u4", at + 8, 2)), (int(x) for x in numbers("u8", at + 16, 2))
        if kind in MATRICES:
            stride = -(-columns // 64) * 64
            weights = numbers("i1", offset, rows * stride).reshape(rows, stride)[:, :columns].astype(numpy.float64)
            scales = numbers("u2", offset + rows * stride, rows).astype(numpy.float64)
            yield (kind, layer), weights * scales[:, None] * 2.0**exponent
        elif kind in GAINS:
            yield (kind, layer), numbers("i2", offset, columns) * 2.0**exponent
        elif kind in (ABOUT, TOKENIZER):
            yield (kind, layer), image[offset : offset + size]


def halves(values, head):
    """Channels of heads as transformers has them: the first of each pair, then the second."""
    pairs = values.reshape(-1, head // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def read(path, shape):
    """The tensors by name, float32, and tokenizer.json."""
    held = dict(entries(Path(path).read_bytes()))
    width, each = shape.width**0.5, shape.per_layer**0.5
    factor = {25: width**2, 29: shape.head**-0.5}  # what the importer divides by
    tensors = {
        "model.embed_tokens.weight": held[TOKENS, 0] / width,
        "model.embed_tokens_per_layer.weight": numpy.concatenate([held[EMBEDDING, i] for i in range(shape.layers)], 1) / (each * 0.5**0.5),
        "model.per_layer_model_projection.weight": numpy.concatenate([held[PROJECTION, i] for i in range(shape.layers)]) * width,
        "model.per_layer_projection_norm.weight": held[PROJECTION_GAIN, 0] / 0.5**0.5,
        "model.norm.weight": held[LAST_GAIN, 0] * width,
    }
    for stream in range(1, shape.streams):
        tensors[f"model.altup_projections.{stream - 1}.weight"] = held[SPLIT, stream]
        tensors[f"model.altup_unembed_projections.{stream - 1}.weight"] = held[MERGE, stream]
    for (kind, layer), values in held.items():
        if kind not in LAYER:
            continue
        values = values * factor.get(kind, 1.0)
        if kind in HEADS:
            values = halves(values, shape.head)
        if kind in (27, 28):
            values = values[:, : shape.streams]
        tensors[f"model.layers.{layer}.{LAYER[kind]}.weight"] = values
    for layer in range(shape.layers):
        # It is in the columns of per_layer_input_gate already.
        tensors[f"model.layers.{layer}.altup.correct_output_scale"] = numpy.ones(shape.width)
    tensors = {name: numpy.ascontiguousarray(values, numpy.float32) for name, values in tensors.items()}
    return tensors, held[TOKENIZER, 0]


def write(directory, tensors, tokenizer, shape):
    """A directory of Hugging Face."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(shape.config(0)))
    (directory / "tokenizer.json").write_bytes(tokenizer)
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}))


def eight_bits(tensors, shape):
    """The 8-bit weights that the importer makes of the matrices (lm/src/quantise.rs)."""
    bits = {}
    for name, values in tensors.items():
        if values.ndim != 2:
            continue
        parts = [values.astype(numpy.float64)]
        if name.endswith("per_layer_input_gate.weight"):
            parts = [parts[0] * tensors[name.replace("per_layer_input_gate.weight", "altup.correct_output_scale")]]
        elif name == "model.embed_tokens_per_layer.weight":
            # A matrix for each layer, and a constant that is no power of 2.
            parts = numpy.split(parts[0] * (shape.per_layer**0.5 * 0.5**0.5), shape.layers, 1)
        elif name == "model.per_layer_model_projection.weight":
            parts = numpy.split(parts[0], shape.layers)
        bits[name] = numpy.stack([_rows(part.astype(numpy.float32).astype(numpy.float64)) for part in parts])
    return bits


def _rows(values):
    nearest = lambda x: numpy.copysign(numpy.floor(numpy.abs(x) + 0.5), x)
    scale = numpy.abs(values).max(1) / 127
    exponent = numpy.floor(numpy.log2(scale.max())) - 15
    unit = nearest(scale * 2.0**-exponent).clip(1, 65535) * 2.0**exponent
    return nearest(values / unit[:, None]).clip(-127, 127).astype(numpy.int8)


def digest(tensors):
    """sha256 of all tensors, by name."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(tensors[name].tobytes())
    return whole.hexdigest()


if __name__ == "__main__":
    from model import Shape

    tensors, tokenizer = read(sys.argv[1], Shape())
    write(sys.argv[2], tensors, tokenizer, Shape())
