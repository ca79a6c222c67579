"""The rival of `doorbell bench decode`: SmolLM2-135M's shape in torch, written for speed.

Fixed shapes, fused QKV and gate/up, grouped queries without repeats, a static KV cache, sampling (Gumbel) and
log-probability compiled, one CUDA graph a step. The weights are random: speed is the same. Prints the GPU's own read
rate, then for each batch the time of a step, tokens a second, and the fraction of its own floor.
"""

import argparse

import torch
import torch._inductor.config as inductor
import torch.nn.functional as F

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_WIDTH, HIDDEN, VOCABULARY = 576, 30, 9, 3, 64, 1536, 49152
GROUP = HEADS // KV_HEADS
# Steps before the cache's last position is reached and begins again at the context.
STEPS = 60

parser = argparse.ArgumentParser()
parser.add_argument("--batches", default="1,8,64,256")
parser.add_argument("--kinds", default="bf16,int8")
parser.add_argument("--context", type=int, default=256)
parser.add_argument("--mode", default="max-autotune-no-cudagraphs")
parser.add_argument("--no-prefill", action="store_true")
arguments = parser.parse_args()

CONTEXT = arguments.context
POSITIONS = CONTEXT + 64
DEVICE, BF16 = "cuda", torch.bfloat16
inductor.coordinate_descent_tuning = True
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


def weight(kind, rows, columns):
    """A matrix, and the scales of its rows where it is of bytes."""
    values = torch.randn(rows, columns, device=DEVICE, dtype=BF16) * 0.02
    if kind == "bf16":
        return values, None
    scales = values.abs().amax(1).float() / 127
    return (values.float() / scales[:, None]).round().to(torch.int8), scales.to(BF16)


def linear(x, matrix):
    values, scales = matrix
    return F.linear(x, values) if scales is None else F.linear(x, values.to(x.dtype)) * scales


def normalise(x, gain):
    return F.rms_norm(x, (WIDTH,), gain, 1e-5)


angles = torch.arange(POSITIONS + 4096, device=DEVICE)[:, None]
angles = angles * (10000.0 ** (-torch.arange(0, HEAD_WIDTH, 2, device=DEVICE) / HEAD_WIDTH))[None]
COS, SIN = angles.cos().to(BF16), angles.sin().to(BF16)


def turn(x, cos, sin):
    low, high = x[..., : HEAD_WIDTH // 2], x[..., HEAD_WIDTH // 2 :]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def layer(x, position, mask, keys, values, qkv, output, gate_up, down, gain, hidden_gain):
    """A step of one layer. x is (batch, width); keys and values are (batch, KV heads, positions, head width)."""
    batch = x.shape[0]
    h = linear(normalise(x, gain), qkv)
    cos, sin = COS[position], SIN[position]
    q = turn(h[:, : HEADS * HEAD_WIDTH].view(batch, HEADS, HEAD_WIDTH), cos, sin)
    q = q.view(batch, KV_HEADS, GROUP, HEAD_WIDTH)
    k = h[:, HEADS * HEAD_WIDTH : (HEADS + KV_HEADS) * HEAD_WIDTH].view(batch, KV_HEADS, HEAD_WIDTH)
    v = h[:, (HEADS + KV_HEADS) * HEAD_WIDTH :].view(batch, KV_HEADS, HEAD_WIDTH)
    keys.index_copy_(2, position, turn(k, cos, sin).unsqueeze(2))
    values.index_copy_(2, position, v.unsqueeze(2))
    attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
    x = x + linear(attended.reshape(batch, HEADS * HEAD_WIDTH), output)
    gate, up = linear(normalise(x, hidden_gain), gate_up).chunk(2, -1)
    return x + linear(F.silu(gate) * up, down)


def sample(x, gain, embedding):
    """The next token by Gumbel noise, and its log-probability."""
    logits = linear(normalise(x, gain), embedding).float()
    noise = torch.rand_like(logits)
    token = (logits - torch.log(-torch.log(noise.clamp_min(1e-20)))).argmax(-1)
    return token, torch.log_softmax(logits, -1).gather(1, token[:, None])


def events():
    return [torch.cuda.Event(enable_timing=True) for _ in range(2)]


def read_rate():
    """GB/s of a kernel that reads and does nothing else."""
    x = torch.empty(1 << 30, dtype=torch.float32, device=DEVICE).normal_()
    total = torch.compile(lambda y: y.sum())
    total(x)
    start, end = events()
    start.record()
    for _ in range(5):
        total(x)
    end.record()
    torch.cuda.synchronize()
    return 5 * x.nbytes / start.elapsed_time(end) / 1e6


def layers(kind):
    ones = torch.ones(WIDTH, device=DEVICE, dtype=BF16)
    return [
        (
            weight(kind, (HEADS + 2 * KV_HEADS) * HEAD_WIDTH, WIDTH),
            weight(kind, WIDTH, HEADS * HEAD_WIDTH),
            weight(kind, 2 * HIDDEN, WIDTH),
            weight(kind, WIDTH, HIDDEN),
            ones,
            ones,
        )
        for _ in range(LAYERS)
    ]


def decode(kind, batch, rate, count=300):
    torch._dynamo.reset()
    weights, embedding = layers(kind), weight(kind, VOCABULARY, WIDTH)
    gain = torch.ones(WIDTH, device=DEVICE, dtype=BF16)
    table = torch.randn(VOCABULARY, WIDTH, device=DEVICE, dtype=BF16)
    shape = (batch, KV_HEADS, POSITIONS, HEAD_WIDTH)
    keys = [torch.zeros(shape, device=DEVICE, dtype=BF16) for _ in range(LAYERS)]
    values = [torch.zeros_like(keys[0]) for _ in range(LAYERS)]
    tokens = torch.zeros(batch, dtype=torch.long, device=DEVICE)
    position = torch.full((1,), CONTEXT, device=DEVICE)
    logprobs = torch.zeros(batch, 1, device=DEVICE)
    one_layer = torch.compile(layer, mode=arguments.mode, dynamic=False)
    one_sample = torch.compile(sample, mode=arguments.mode, dynamic=False)

    def step():
        x = table[tokens]
        mask = (torch.arange(POSITIONS, device=DEVICE) <= position)[None, None, None]
        for number in range(LAYERS):
            x = one_layer(x, position, mask, keys[number], values[number], *weights[number])
        token, logprob = one_sample(x, gain, embedding)
        tokens.copy_(token)
        logprobs.copy_(logprob)
        position.add_(1)

    with torch.inference_mode():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        position.fill_(CONTEXT)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()

        def timed(steps):
            position.fill_(CONTEXT)
            start, end = events()
            start.record()
            for number in range(steps):
                if number % STEPS == STEPS - 1:
                    position.fill_(CONTEXT)
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end) * 1e3 / steps

        timed(20)
        us = sorted(timed(count) for _ in range(3))[1]
    read = sum(matrix[0].nbytes for part in weights for matrix in part[:4]) + embedding[0].nbytes
    kept = batch * 2 * LAYERS * KV_HEADS * HEAD_WIDTH * 2 * (CONTEXT + STEPS // 2)
    floor = (read + kept) / rate / 1e3
    print(
        f"{kind} batch {batch:4d} {us:9.1f} us/step {batch * 1e6 / us:10.0f} tokens/s  "
        f"own floor {floor:7.1f} us: {floor / us:.2f}",
        flush=True,
    )


def prefill(length=2048):
    def one(x, qkv, output, gate_up, down, gain, hidden_gain):
        h = linear(normalise(x, gain), qkv)
        cos, sin = COS[:length, None], SIN[:length, None]
        q = turn(h[:, : HEADS * HEAD_WIDTH].view(length, HEADS, HEAD_WIDTH), cos, sin)
        k = h[:, HEADS * HEAD_WIDTH : (HEADS + KV_HEADS) * HEAD_WIDTH]
        k = turn(k.view(length, KV_HEADS, HEAD_WIDTH), cos, sin)
        v = h[:, (HEADS + KV_HEADS) * HEAD_WIDTH :].view(length, KV_HEADS, HEAD_WIDTH)
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0]
        x = x + linear(attended.transpose(0, 1).reshape(length, HEADS * HEAD_WIDTH), output)
        gate, up = linear(normalise(x, hidden_gain), gate_up).chunk(2, -1)
        return x + linear(F.silu(gate) * up, down)

    weights, compiled = layers("bf16"), torch.compile(one, dynamic=False)
    first = torch.randn(length, WIDTH, device=DEVICE, dtype=BF16)
    with torch.inference_mode():

        def everything():
            x = first
            for part in weights:
                x = compiled(x, *part)

        for _ in range(3):
            everything()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            everything()
        graph.replay()
        start, end = events()
        start.record()
        for _ in range(10):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        ms = start.elapsed_time(end) / 10
    print(f"prefill of {length}: {ms:.2f} ms, {length / ms * 1e3:.0f} tokens/s", flush=True)


def main():
    rate = read_rate()
    torch.cuda.empty_cache()
    name = torch.cuda.get_device_name()
    print(name, torch.__version__, f"read-only stream {rate:.0f} GB/s", flush=True)
    runs = [] if arguments.no_prefill else [("prefill", prefill)]
    for kind in arguments.kinds.split(","):
        for batch in map(int, arguments.batches.split(",")):
            runs.append((f"{kind} {batch}", lambda kind=kind, batch=batch: decode(kind, batch, rate)))
    for what, run in runs:
        try:
            run()
        except Exception as error:  # the others go on
            print(what, type(error).__name__, str(error)[:300], flush=True)
        torch.cuda.empty_cache()


main()
