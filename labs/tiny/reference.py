"""The published equations in 64-bit floating point, over a directory of `export.py`, with nothing quantised: one position after the other.

    python3 reference.py DIR --text "Once upon a time" --top 5      # the most likely next tokens at each position
    python3 reference.py DIR --tokens 17,250,3 --npz check.npz      # tokens and logits

Written from the equations alone, in numpy, and shares nothing with `model.py`: each holds the other (`--against-torch`).
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def rms(x, eps, gain=1.0):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Reference:
    """`logits(tokens)` are those of each position, (positions, vocabulary)."""

    def __init__(self, directory):
        self.config = json.loads((Path(directory) / "config.json").read_text())
        self.weights = {name: value.astype(np.float64) for name, value in load_file(Path(directory) / "model.safetensors").items()}

    def w(self, name):
        return self.weights[f"model.{name}.weight"]

    def rescale(self, x, like):
        return x * math.sqrt((like * like).mean()) / math.sqrt(max((x * x).mean(), 1e-5))

    def rotate(self, head, position, base):
        half = len(head) // 2
        angle = position * base ** -(np.arange(half) * 2.0 / len(head))
        a, b = head[:half], head[half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])

    def logits(self, tokens):
        c = self.config
        width, layers, eps, streams, per_layer = c["hidden_size"], c["num_hidden_layers"], c["rms_norm_eps"], c["altup_num_inputs"], c["hidden_size_per_layer_input"]
        head, heads, own = c["head_dim"], c["num_attention_heads"], layers - c["num_kv_shared_layers"]
        cache = {i: ([], []) for i in range(own)}
        deviations = {s: math.sqrt(2) * _erfinv(2 * s - 1) for s in set(c["activation_sparsity_pattern"]) if s > 0}
        out = []
        for position, token in enumerate(tokens):
            x0 = self.w("embed_tokens")[token] * math.sqrt(width)
            xs = [x0] + [self.rescale(self.w(f"altup_projections.{k}") @ x0, x0) for k in range(streams - 1)]
            projected = rms((self.w("per_layer_model_projection") @ x0 / math.sqrt(width)).reshape(layers, per_layer), eps, self.w("per_layer_projection_norm"))
            pli = (projected + self.w("embed_tokens_per_layer")[token].reshape(layers, per_layer) * math.sqrt(per_layer)) / math.sqrt(2)
            for i in range(layers):
                w = lambda name: self.w(f"layers.{i}.{name}")
                router = lambda x: np.tanh(w("altup.modality_router") @ (rms(x, eps, w("altup.router_norm")) / width))
                coefficients = (w("altup.prediction_coefs") @ router(xs[0])).reshape(streams, streams)
                pred = [xs[k] + sum(coefficients[k, j] * xs[j] for j in range(streams)) for k in range(streams)]
                n = rms(pred[0], eps, w("input_layernorm"))
                kind = c["layer_types"][i]
                base, window = (c["rope_theta"], c["max_position_embeddings"]) if kind == "full_attention" else (c["rope_local_base_freq"], c["sliding_window"])
                source = i if i < own else max(j for j in range(own) if c["layer_types"][j] == kind)
                if i < own:
                    cache[i][0].append(self.rotate(rms(w("self_attn.k_proj") @ n, eps, w("self_attn.k_norm")), position, base))
                    cache[i][1].append(rms(w("self_attn.v_proj") @ n, eps))
                keys, values = (np.array(each[-window:]) for each in cache[source])
                attended = []
                for q in (w("self_attn.q_proj") @ n).reshape(heads, head):
                    score = keys @ self.rotate(rms(q, eps, w("self_attn.q_norm")), position, base)
                    p = np.exp(score - score.max())
                    attended.append(p @ values / p.sum())
                laurel = n + rms(w("laurel.linear_right") @ (w("laurel.linear_left") @ n), eps, w("laurel.post_laurel_norm"))
                h = (pred[0] + rms(w("self_attn.o_proj") @ np.concatenate(attended), eps, w("post_attention_layernorm")) + laurel) / math.sqrt(2)
                f = rms(h, eps, w("pre_feedforward_layernorm"))
                gate = w("mlp.gate_proj") @ f
                if sparsity := c["activation_sparsity_pattern"][i]:
                    gate = np.maximum(0, gate - (gate.mean() + deviations[sparsity] * gate.std()))
                y = w("mlp.down_proj") @ (gelu(gate) * (w("mlp.up_proj") @ f))
                act = h + rms(y, eps, w("post_feedforward_layernorm"))
                correction = w("altup.correction_coefs") @ router(act) + 1
                xs = [pred[k] + correction[k] * (act - pred[0]) for k in range(streams)]
                e = gelu(w("per_layer_input_gate") @ (xs[0] * self.weights[f"model.layers.{i}.altup.correct_output_scale"])) * pli[i]
                e = rms(w("per_layer_projection") @ e, eps, w("post_per_layer_input_norm"))
                xs = [xs[0]] + [x + e for x in xs[1:]]
            xs = [xs[0]] + [self.rescale(self.w(f"altup_unembed_projections.{k}") @ xs[k + 1], xs[0]) for k in range(streams - 1)]
            x = rms(sum(xs) / streams, eps, self.w("norm"))
            cap = c["final_logit_softcapping"]
            out.append(cap * np.tanh(self.w("embed_tokens") @ x / cap))
        return np.array(out)


def _erfinv(y):
    """By bisection; 60 halvings of ±6."""
    low, high = -6.0, 6.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erf(middle) < y else (low, middle)
    return (low + high) / 2


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("directory", type=Path)
    options.add_argument("--text")
    options.add_argument("--tokens", help="numbers with commas between")
    options.add_argument("--top", type=int, default=3)
    options.add_argument("--npz", help="file for tokens and logits")
    options.add_argument("--against-torch", action="store_true", help="print how far model.py, in 64 bits and without quantisation, is from this")
    options = options.parse_args()
    tokenizer = None
    if (options.directory / "tokenizer.json").exists() and (options.text is not None or options.tokens is None):
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(options.directory / "tokenizer.json"))
    tokens = [int(token) for token in options.tokens.split(",")] if options.tokens else tokenizer.encode(options.text).ids
    logits = Reference(options.directory).logits(tokens)
    if options.npz:
        np.savez_compressed(options.npz, tokens=np.array(tokens, dtype=np.int32), logits=logits)
    for position, row in enumerate(logits):
        best = np.argsort(-row)[: options.top]
        print(position, tokens[position], " ".join(f"{token}{'' if tokenizer is None else repr(tokenizer.decode([int(token)]))}:{row[token]:.6f}" for token in best))
    if options.against_torch:
        import torch
        from safetensors.torch import load_file as load_torch

        from model import Tiny

        model = Tiny(quantised=False)
        model.load_state_dict(load_torch(options.directory / "model.safetensors"))
        ids = torch.tensor([tokens])
        with torch.no_grad():
            theirs = model.double()(ids, [mask.double() for mask in model.masks(torch.zeros_like(ids))])[0].numpy()
        print(f"largest difference from model.py: {np.abs(theirs - logits).max():.3g}")


if __name__ == "__main__":
    main()
