"""Trains `tiny`, with the devices' quantisation in the loop or, as a twin, without; goes on from its checkpoint.

    python3 train.py --tokens tokens.bin --steps 12000 --out tiny.pt            # --float for the twin
    python3 train.py --tokens tokens.bin --seconds 240 --out tiny.pt            # measures a step, then takes as many as fit

Twins take the same steps over the same data from the same weights: both follow from --seed alone.
"""

import argparse
import json
import math
import os
import time

import numpy
import torch
from torch.nn import functional as F

from model import Shape, Tiny

HELD_OUT = 0.01


def stories(tokens):
    """Places of `<end> story`, each with its length."""
    ends = numpy.flatnonzero(tokens == 0)
    return numpy.stack([ends[:-1], numpy.diff(ends)], 1)


def rows(tokens, places, order, length):
    """Stories in this order, packed into rows that begin with one; the last of a row breaks off there, and begins the next row."""
    out, at, row, filled = [], 0, numpy.zeros(length, numpy.int64), 0
    while at < len(order):
        start, size = places[order[at]]
        take = min(size, length - filled)
        row[filled : filled + take] = tokens[start : start + take]
        filled += take
        if filled == length:
            out.append(row)
            row, filled = numpy.zeros(length, numpy.int64), 0
            at += take == size
        else:
            at += 1
    return numpy.stack(out)


def documents(tokens, mode):
    """Which story a position belongs to: mode 0, `<end>` begins one; 1, it ends one, so that stories begin without; 2, all are one."""
    ends = tokens == 0
    begun = ends.cumsum(1)
    return torch.where(mode[:, None] == 0, begun, torch.where(mode[:, None] == 1, begun - ends.long(), 0))


def loss_of(model, batch, mode):
    inputs, targets = batch[:, :-1], batch[:, 1:]
    logits = model(inputs, model.masks(documents(inputs, mode)))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tokens", required=True)
    options.add_argument("--out", required=True, help="checkpoint, from which it goes on if it is there")
    options.add_argument("--steps", type=int, help="steps in all")
    options.add_argument("--seconds", type=float, help="or time, of which as many steps are made as fit")
    options.add_argument("--stop-after", type=float, default=math.inf, help="seconds after which it stops with a checkpoint, to go on later")
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--rate", type=float, default=4e-3)
    options.add_argument("--decay", type=float, default=0.05)
    options.add_argument("--warmup", type=int, default=200)
    options.add_argument("--cool", type=float, default=0.4, help="share of the steps over which the rate goes to 0")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--float", action="store_true", help="without quantisation")
    options.add_argument("--eager", action="store_true", help="without torch.compile and CUDA graphs")
    options = options.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(options.seed)
    shape = Shape()
    model = Tiny(shape, quantised=not options.float).to(device)
    groups = [[p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() <= 1]]
    rate = torch.zeros((), device=device) if device == "cuda" else 0.0
    optimiser = torch.optim.AdamW(
        [{"params": groups[0], "weight_decay": options.decay}, {"params": groups[1], "weight_decay": 0.0}],
        lr=rate, betas=(0.9, 0.98), capturable=device == "cuda", fused=device == "cuda",
    )
    tokens = numpy.fromfile(options.tokens, dtype="<u2").astype(numpy.int64)
    places = stories(tokens)
    held = max(32, int(len(places) * HELD_OUT))
    judged = torch.tensor(rows(tokens, places[:held], numpy.arange(held), shape.context + 1), device=device)
    places = places[held:]

    def epoch(number):
        order = numpy.random.default_rng([options.seed, number]).permutation(len(places))
        return torch.tensor(rows(tokens, places, order, shape.context + 1), device=device)

    @torch.no_grad()
    def judge():
        """Nats a token of held-out stories, each alone."""
        total, count = 0.0, 0
        for part in judged.split(32):
            mode = torch.ones(len(part), dtype=torch.long, device=device)
            logits = model(part[:, :-1], model.masks(documents(part[:, :-1], mode)))
            total += F.cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten(), reduction="sum").item()
            count += part[:, 1:].numel()
        return total / count

    batch = torch.zeros((options.batch, shape.context + 1), dtype=torch.long, device=device)
    mode = torch.zeros(options.batch, dtype=torch.long, device=device)
    compiled = loss_of if options.eager else torch.compile(loss_of, dynamic=False)
    last = torch.zeros((), device=device)

    def step():
        optimiser.zero_grad(set_to_none=False)
        loss = compiled(model, batch, mode)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=device == "cuda")
        optimiser.step()
        last.copy_(loss.detach())

    begun = time.monotonic()
    if device == "cuda" and not options.eager:
        # What warming up and capturing does to weights and moments is undone.
        before = {name: value.clone() for name, value in model.state_dict().items()}
        batch.copy_(epoch(0)[: options.batch])
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        model.load_state_dict(before)
        for state in optimiser.state.values():
            for value in state.values():
                value.zero_()
        make = graph.replay
    else:
        make = step
    print(f"ready after {time.monotonic() - begun:.1f} s: {sum(p.numel() for p in model.parameters())} parameters, {len(tokens)} tokens, {len(places)} stories, {held} held out", flush=True)

    done, steps, lived = 0, options.steps, 0.0
    if os.path.exists(options.out):
        there = torch.load(options.out, map_location=device)
        model.load_state_dict(there["model"])
        if "moments" in there:
            for parameter, moments in zip((p for g in optimiser.param_groups for p in g["params"]), there["moments"]):
                for key, value in moments.items():
                    if parameter in optimiser.state:
                        optimiser.state[parameter][key].copy_(value)
                    else:
                        optimiser.state[parameter][key] = value.clone()
        done, steps, lived = there["done"], options.steps or there["steps"], there["seconds"]
        print(f"goes on at step {done} of {steps}", flush=True)

    def save():
        moments = [optimiser.state.get(p, {}) for g in optimiser.param_groups for p in g["params"]]
        torch.save({"model": model.state_dict(), "moments": moments, "done": done, "steps": steps, "seconds": lived + time.monotonic() - clock, "float": options.float,
                    "loss": history}, options.out + ".new")
        os.replace(options.out + ".new", options.out)

    data, number, history, clock, first = None, -1, [], time.monotonic(), done
    while steps is None or done < steps:
        per_epoch = len(data) // options.batch if data is not None else None
        if data is None:
            data, number = epoch(0), 0
            per_epoch = len(data) // options.batch
        if done // per_epoch != number:
            number = done // per_epoch
            data = epoch(number)
            # Packed otherwise, an epoch may have a row more or less: what is over is left out.
        at = min(done % per_epoch, len(data) // options.batch - 1) * options.batch
        batch.copy_(data[at : at + options.batch])
        draw = numpy.random.default_rng([options.seed, 1 << 20, done]).random(options.batch)
        mode.copy_(torch.from_numpy(numpy.select([draw < 0.3, draw < 0.85], [0, 1], 2)))
        left = 1.0 if steps is None else (steps - done) / max(1, options.cool * steps)
        now = options.rate * min(1.0, (done + 1) / options.warmup, left)
        if device == "cuda":
            rate.fill_(now)
        else:
            for group in optimiser.param_groups:
                group["lr"] = now
        make()
        done += 1
        if steps is None and done - first == 100:
            if device == "cuda":
                torch.cuda.synchronize()
            each = (time.monotonic() - clock) / 100
            steps = done + int((options.seconds - (time.monotonic() - clock)) / each * 0.97)
            print(f"{each * 1000:.2f} ms a step: {steps} steps", flush=True)
        if done % 500 == 0 or done == steps or (device == "cpu" and done % 10 == 0):
            history.append((done, last.item()))
            print(f"step {done}: {last.item():.4f}, {time.monotonic() - clock:.1f} s", flush=True)
            if done % 500 == 0 or done == steps:
                print(f"held out at {done}: {judge():.4f}", flush=True)
            if done % 4000 == 0 or done == steps:
                save()
            if time.monotonic() - clock > options.stop_after:
                break
    save()
    print(json.dumps({"float": options.float, "steps": done, "of": steps, "epochs": round(done * options.batch * (shape.context + 1) / len(tokens), 2), "held out": round(judge(), 4),
                      "seconds": round(time.monotonic() - clock, 1), "ms a step": round((time.monotonic() - clock) / max(1, done - first) * 1000, 2)}), flush=True)


if __name__ == "__main__":
    main()
