"""`tiny`: Gemma 3N's architecture in PyTorch, under transformers' parameter names, with or without the devices' quantisation in the loop.

With quantisation each number that a device holds in 8 bits is rounded as a device rounds it, and gradients pass through as if
nothing had been rounded (straight-through estimators). docs/tiny.md tells what is rounded.
"""

import math
from dataclasses import asdict, dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    width: int = 64
    layers: int = 6
    heads: int = 2
    kv_heads: int = 1
    head: int = 32
    hidden: int = 192
    per_layer: int = 64
    laurel: int = 32
    streams: int = 4
    vocabulary: int = 1024
    context: int = 512
    window: int = 64
    shared_layers: int = 2
    sparse_layers: int = 2
    sparsity: float = 0.95
    eps: float = 1e-6
    softcap: float = 30.0
    local_base: float = 1e4
    global_base: float = 1e6

    def is_global(self, layer):
        return layer % 3 == 2

    def has_own_kv(self, layer):
        return layer < self.layers - self.shared_layers

    def source(self, layer):
        """The layer whose keys and values this one reads: the last of its type that has its own."""
        own = range(self.layers - self.shared_layers)
        return layer if layer in own else max(i for i in own if self.is_global(i) == self.is_global(layer))

    def cutoff(self):
        """How many deviations above the mean a gate must lie: 1.6448536 for 0.95."""
        return torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(self.sparsity, dtype=torch.float64)).item()

    def config(self, end):
        """As transformers' Gemma3nTextConfig has it."""
        kinds = ["full_attention" if self.is_global(i) else "sliding_attention" for i in range(self.layers)]
        return {
            "architectures": ["Gemma3nForCausalLM"], "model_type": "gemma3n_text", "torch_dtype": "float32",
            "hidden_size": self.width, "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head,
            "intermediate_size": [self.hidden] * self.layers, "hidden_size_per_layer_input": self.per_layer, "vocab_size": self.vocabulary,
            "vocab_size_per_layer_input": self.vocabulary, "laurel_rank": self.laurel, "altup_num_inputs": self.streams, "altup_active_idx": 0,
            "altup_correct_scale": True, "altup_coef_clip": None, "num_kv_shared_layers": self.shared_layers, "layer_types": kinds,
            "activation_sparsity_pattern": [self.sparsity if i < self.sparse_layers else 0.0 for i in range(self.layers)],
            "hidden_activation": "gelu_pytorch_tanh", "sliding_window": self.window, "max_position_embeddings": self.context, "rope_theta": self.global_base,
            "rope_local_base_freq": self.local_base, "rms_norm_eps": self.eps, "final_logit_softcapping": self.softcap, "attention_bias": False, "attention_dropout": 0.0,
            "tie_word_embeddings": True, "bos_token_id": end, "eos_token_id": end, "pad_token_id": end,
        }


def through(exact, rounded):
    """`rounded` forwards, the gradient of `exact` backwards."""
    return exact + (rounded - exact).detach()


def rows8(w):
    """A matrix in 8 bits with a scale for each row."""
    with torch.no_grad():
        scale = w.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
        rounded = (w / scale).round() * scale
    return through(w, rounded)


def bits(magnitude):
    return torch.floor(torch.log2(magnitude.clamp(min=1e-30))) + 1


def activate(x):
    """A vector as multipliers take it: 15 bits in all, then 8-bit mantissas with a shift for each block of 32 channels."""
    with torch.no_grad():
        unit = torch.exp2(bits(x.abs().amax(-1, keepdim=True)) - 15)
        half = (x / unit).round().clamp(-32767, 32767)
        blocks = half.unflatten(-1, (-1, min(32, x.shape[-1])))
        step = torch.exp2((bits(blocks.abs().amax(-1, keepdim=True)) - 7).clamp(min=0))
        rounded = ((blocks / step).round().clamp(-127, 127) * step).flatten(-2) * unit
    return through(x, rounded)


def stored(x):
    """A query, key or value of a head: 8 bits with one scale."""
    with torch.no_grad():
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
        rounded = (x / scale).round() * scale
    return through(x, rounded)


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return rms(x, self.eps) * self.weight


def rms(x, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rescale(x, like):
    magnitude = like.square().mean(-1, keepdim=True).clamp(min=1e-12).sqrt()
    return x * magnitude * torch.rsqrt(x.square().mean(-1, keepdim=True).clamp(min=1e-5))


class Matrix(nn.Module):
    def __init__(self, columns, rows, std=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns) * (columns**-0.5 if std is None else std))


class Attention(nn.Module):
    def __init__(self, s, layer):
        super().__init__()
        self.q_proj, self.o_proj = Matrix(s.width, s.heads * s.head), Matrix(s.heads * s.head, s.width)
        self.q_norm = Norm(s.head, s.eps)
        if s.has_own_kv(layer):
            self.k_proj, self.v_proj = Matrix(s.width, s.kv_heads * s.head), Matrix(s.width, s.kv_heads * s.head)
            self.k_norm = Norm(s.head, s.eps)


class AltUp(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.correct_output_scale = nn.Parameter(torch.ones(s.width))
        self.prediction_coefs = Matrix(s.streams, s.streams**2, 0.02)
        self.correction_coefs = Matrix(s.streams, s.streams, 0.02)
        self.modality_router = Matrix(s.width, s.streams, 1.0)
        self.router_norm = Norm(s.width, s.eps)


class Laurel(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.linear_left, self.linear_right = Matrix(s.width, s.laurel), Matrix(s.laurel, s.width)
        self.post_laurel_norm = Norm(s.width, s.eps)


class Mlp(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = Matrix(s.width, s.hidden), Matrix(s.width, s.hidden), Matrix(s.hidden, s.width)


class Layer(nn.Module):
    def __init__(self, s, layer):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(s.width, s.eps), Norm(s.width, s.eps)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = Norm(s.width, s.eps), Norm(s.width, s.eps)
        self.post_per_layer_input_norm = Norm(s.width, s.eps)
        self.self_attn, self.altup, self.laurel, self.mlp = Attention(s, layer), AltUp(s), Laurel(s), Mlp(s)
        self.per_layer_input_gate, self.per_layer_projection = Matrix(s.width, s.per_layer), Matrix(s.per_layer, s.width)


class Table(nn.Module):
    def __init__(self, rows, columns, std):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns) * std)


class Stacked(nn.Module):
    """Matrices of a list, under transformers' names `0.weight`, `1.weight`, …"""

    def __init__(self, count, width):
        super().__init__()
        for k in range(count):
            self.add_module(str(k), Matrix(width, width))

    def __getitem__(self, k):
        return getattr(self, str(k))


class Body(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed_tokens = Table(s.vocabulary, s.width, 0.08)
        self.embed_tokens_per_layer = Table(s.vocabulary, s.layers * s.per_layer, s.per_layer**-0.5)
        self.per_layer_model_projection = Matrix(s.width, s.layers * s.per_layer)
        self.per_layer_projection_norm = Norm(s.per_layer, s.eps)
        self.altup_projections, self.altup_unembed_projections = Stacked(s.streams - 1, s.width), Stacked(s.streams - 1, s.width)
        self.layers = nn.ModuleList(Layer(s, i) for i in range(s.layers))
        self.norm = Norm(s.width, s.eps)


class Tiny(nn.Module):
    """`forward(tokens, masks)` gives logits; tokens are (rows, positions), masks come from `masks`."""

    def __init__(self, shape=Shape(), quantised=True):
        super().__init__()
        self.shape, self.quantised, self.model = shape, quantised, Body(shape)
        turns = {}
        for name, base in (("local", shape.local_base), ("global", shape.global_base)):
            angle = torch.arange(shape.context, dtype=torch.float64)[:, None] * base ** -(torch.arange(0, shape.head, 2, dtype=torch.float64) / shape.head)
            turns[name] = angle
            self.register_buffer(f"cos_{name}", angle.cos().float(), persistent=False)
            self.register_buffer(f"sin_{name}", angle.sin().float(), persistent=False)
        self.cut = shape.cutoff()

    def masks(self, documents):
        """What is added to scores, of local and of global layers: nobody sees what comes later, or another document."""
        at = torch.arange(documents.shape[1], device=documents.device)
        back = at[:, None] - at[None, :]
        sees = (back >= 0) & (documents[:, :, None] == documents[:, None, :])
        add = lambda sees: torch.where(sees, 0.0, float("-inf"))[:, None]
        return add(sees & (back < self.shape.window)), add(sees)

    def mul(self, matrix, x, weight=None):
        weight = matrix.weight if weight is None else weight
        return F.linear(activate(x), rows8(weight)) if self.quantised else F.linear(x, weight)

    def held(self, x):
        return stored(x) if self.quantised else x

    def rotate(self, x, kind):
        """x is (rows, heads, positions, channels); channel i turns with i + half."""
        cos, sin = getattr(self, f"cos_{kind}")[: x.shape[-2]], getattr(self, f"sin_{kind}")[: x.shape[-2]]
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attend(self, layer, block, n, masks, cache):
        s, a = self.shape, block.self_attn
        kind = "global" if s.is_global(layer) else "local"
        split = lambda x, heads: x.unflatten(-1, (heads, s.head)).transpose(1, 2)
        q = self.held(self.rotate(a.q_norm(split(self.mul(a.q_proj, n), s.heads)), kind))
        if s.has_own_kv(layer):
            k = self.held(self.rotate(a.k_norm(split(self.mul(a.k_proj, n), s.kv_heads)), kind))
            v = self.held(rms(split(self.mul(a.v_proj, n), s.kv_heads), s.eps))
            cache[layer] = k.expand(-1, s.heads, -1, -1), v.expand(-1, s.heads, -1, -1)
        k, v = cache[s.source(layer)]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=masks[int(s.is_global(layer))].expand(-1, s.heads, -1, -1), scale=1.0)
        return self.mul(a.o_proj, out.transpose(1, 2).flatten(-2))

    def router(self, altup, x):
        return torch.tanh(self.mul(altup.modality_router, altup.router_norm(x) / self.shape.width))

    def layer(self, i, xs, pli, masks, cache):
        s, b = self.shape, self.model.layers[i]
        coefficients = self.mul(b.altup.prediction_coefs, self.router(b.altup, xs[0])).unflatten(-1, (s.streams, s.streams))
        pred = [xs[k] + sum(coefficients[..., k, j, None] * xs[j] for j in range(s.streams)) for k in range(s.streams)]
        n = b.input_layernorm(pred[0])
        laurel = n + b.laurel.post_laurel_norm(self.mul(b.laurel.linear_right, self.mul(b.laurel.linear_left, n)))
        h = (pred[0] + b.post_attention_layernorm(self.attend(i, b, n, masks, cache)) + laurel) * 0.5**0.5
        f = b.pre_feedforward_layernorm(h)
        gate = self.mul(b.mlp.gate_proj, f)
        if i < s.sparse_layers:
            gate = F.relu(gate - (gate.mean(-1, keepdim=True) + self.cut * gate.var(-1, correction=0, keepdim=True).clamp(min=1e-12).sqrt()))
        y = self.mul(b.mlp.down_proj, F.gelu(gate, approximate="tanh") * self.mul(b.mlp.up_proj, f))
        act = h + b.post_feedforward_layernorm(y)
        c = self.mul(b.altup.correction_coefs, self.router(b.altup, act)) + 1
        xs = [pred[k] + c[..., k, None] * (act - pred[0]) for k in range(s.streams)]
        # The importer multiplies the scale into the matrix's columns, so that is what is rounded.
        gate = self.mul(b.per_layer_input_gate, xs[0], b.per_layer_input_gate.weight * b.altup.correct_output_scale)
        e = b.post_per_layer_input_norm(self.mul(b.per_layer_projection, F.gelu(gate, approximate="tanh") * pli[..., i, :]))
        return [xs[0]] + [x + e for x in xs[1:]]

    def forward(self, tokens, masks):
        s, m = self.shape, self.model
        embeddings, ple = m.embed_tokens.weight, m.embed_tokens_per_layer.weight.unflatten(-1, (s.layers, s.per_layer))
        if self.quantised:
            embeddings, ple = rows8(embeddings), rows8(ple)
        x0 = F.embedding(tokens, embeddings) * s.width**0.5
        xs = [x0] + [rescale(self.mul(m.altup_projections[k], x0), x0) for k in range(s.streams - 1)]
        projected = (self.mul(m.per_layer_model_projection, x0) * s.width**-0.5).unflatten(-1, (s.layers, s.per_layer))
        own = F.embedding(tokens, ple.flatten(-2)).unflatten(-1, (s.layers, s.per_layer)) * s.per_layer**0.5
        pli = (m.per_layer_projection_norm(projected) + own) * 0.5**0.5
        cache = {}
        for i in range(s.layers):
            xs = self.layer(i, xs, pli, masks, cache)
        total = xs[0] + sum(rescale(self.mul(m.altup_unembed_projections[k], xs[k + 1]), xs[0]) for k in range(s.streams - 1))
        x = m.norm(total / s.streams)
        logits = F.linear(activate(x) if self.quantised else x, embeddings)
        return s.softcap * torch.tanh(logits / s.softcap)


def describe(shape):
    return asdict(shape)
