"""Writes a Llama-shaped model with random weights in the format of Hugging Face: make_model.py DIR."""

import json
import sys
from pathlib import Path

try:
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
except ModuleNotFoundError as missing:
    sys.exit(
        f"make_model.py: the Python package {missing.name} is missing; "
        "install what the script needs: python3 -m venv venv && . venv/bin/activate && pip install numpy safetensors tokenizers"
    )

if len(sys.argv) != 2:
    sys.exit("usage: make_model.py DIR")

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, HIDDEN, VOCABULARY = 64, 2, 2, 1, 32, 128, 320

directory = Path(sys.argv[1])
directory.mkdir(parents=True, exist_ok=True)

# A tokenizer of single bytes: 256 letters and a few special tokens.
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=VOCABULARY,
    special_tokens=["<end>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
)
tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
tokenizer.save(str(directory / "tokenizer.json"))

random = np.random.default_rng(1)


def matrix(rows, columns):
    return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)


weights = {"model.embed_tokens.weight": matrix(tokenizer.get_vocab_size(), WIDTH)}
for layer in range(LAYERS):
    for name, rows, columns in [
        ("self_attn.q_proj", HEADS * HEAD, WIDTH),
        ("self_attn.k_proj", KV_HEADS * HEAD, WIDTH),
        ("self_attn.v_proj", KV_HEADS * HEAD, WIDTH),
        ("self_attn.o_proj", WIDTH, HEADS * HEAD),
        ("mlp.gate_proj", HIDDEN, WIDTH),
        ("mlp.up_proj", HIDDEN, WIDTH),
        ("mlp.down_proj", WIDTH, HIDDEN),
    ]:
        weights[f"model.layers.{layer}.{name}.weight"] = matrix(rows, columns)
    for name in ["input_layernorm", "post_attention_layernorm"]:
        weights[f"model.layers.{layer}.{name}.weight"] = np.ones(WIDTH, np.float32)
weights["model.norm.weight"] = np.ones(WIDTH, np.float32)
save_file(weights, str(directory / "model.safetensors"))

(directory / "config.json").write_text(
    json.dumps(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": WIDTH,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD,
            "intermediate_size": HIDDEN,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "hidden_act": "silu",
            "bos_token_id": None,
            "eos_token_id": 0,
            "torch_dtype": "float32",
        },
        indent=2,
    )
)
