"""GRPO on tiny, which learns to tell stories of thirty words: docs/grpo.md.

    python3 train.py --out out                              # fixed lag, on the golden model
    python3 train.py --out out --schedule asynchronous      # rollouts go on while weights change
"""

import argparse
import dataclasses
import json
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

try:
    import torch
except ModuleNotFoundError as missing:
    sys.exit(f"train.py: the Python package {missing.name} is missing; install what examples/grpo/requirements.txt names")

import task
import weights
from learner import Learner
from model import Shape
from oracle import Oracle
from rollouts import Asynchronous, FixedLag, Server

ROOT = Path(__file__).resolve().parents[2]
KEPT = 12  # versions: rollouts that are read may have begun under one that is older than the last


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", required=True, type=Path, help="directory for log.jsonl and the last weights")
    options.add_argument("--schedule", choices=["fixed", "asynchronous"], default="fixed")
    options.add_argument("--lag", type=int, default=1, help="of the fixed schedule: batch t is made by version t - lag")
    options.add_argument("--device", default="model", help="model, rtl or gpu")
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--prompts", type=int, default=16, help="prompts of a batch")
    options.add_argument("--group", type=int, default=8, help="rollouts of a prompt")
    options.add_argument("--tokens", type=int, default=task.TOKENS, help="of an answer at most")
    options.add_argument("--rate", type=float, default=5e-4)
    options.add_argument("--every", type=int, default=10, help="steps between evaluations on held-out prompts; 0: none")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--threads", type=int, default=1, help="of torch; with 1 the same rollouts give the same weights")
    options.add_argument("--fault", help="one that is planted in the server, such as late-label")
    options.add_argument("--program", default=ROOT / "target/release/doorbell", help="built with the feature serve")
    options.add_argument("--library", default=ROOT / "target/release/libdoorbell.so", help="of capi")
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)

    # An answer that is cut more often is under way longer, and an update comes between its parts.
    wants = ["--model", "tiny", "--device", options.device, "--checkpoint", "2", "--max-prompt", "32", "--max-answer", str(options.tokens)]
    # The server ends with its trainer.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server = Server(options.program, wants + (["--fault", options.fault] if options.fault else []))
    try:
        train(options, server)
    finally:
        server.stop()


def train(options, server):
    begun, shape = time.monotonic(), Shape()
    tensors, tokenizer = weights.read(ROOT / "lm/models/tiny.doorbell", shape)
    learner, oracle = Learner(tensors, options.rate), Oracle(options.library)
    place = lambda version: options.out / f"version-{version}"
    weights.write(place(0), tensors, tokenizer, shape)
    oracle.open("0", place(0))
    bits = weights.eight_bits(tensors, shape)

    def groups(batch):
        """What is asked for a batch: prompt, seed, answers, tokens."""
        prompts = task.PROMPTS[: options.prompts]
        return [(prompt, (options.seed << 40) + (batch << 10) + number, options.group, options.tokens) for number, prompt in enumerate(prompts)]

    def held_out():
        """Mean reward on prompts that are not learnt from, always with the same seeds."""
        with ThreadPoolExecutor(len(task.HELD_OUT)) as pool:
            ask = lambda number: server.group(task.HELD_OUT[number], (1 << 60) + number, 8, options.tokens)
            rewards = [rollout.reward for group in pool.map(ask, range(len(task.HELD_OUT))) for rollout in group]
        return sum(rewards) / len(rewards)

    with open(options.out / "log.jsonl", "w") as log:
        def tell(**values):
            values["seconds"] = round(time.monotonic() - begun, 1)
            values["cpu"] = round(time.process_time() + server.seconds(), 1)
            log.write(json.dumps(values) + "\n")
            log.flush()
            print("  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()), flush=True)

        if options.every:
            tell(version=0, held_out=held_out())
        schedule = (FixedLag if options.schedule == "fixed" else Asynchronous)(server, groups, options.lag)
        try:
            for version in range(options.steps):
                batch = schedule.take()
                if options.schedule == "fixed":
                    made = str(max(version - options.lag, 0))
                    assert all(of == made for rollout in batch for of, _ in rollout.spans), f"a batch of version {made} has tokens of another"
                spanned = sum(len({of for of, _ in rollout.spans}) > 1 for rollout in batch)
                told = learner.step(oracle, batch, options.group, version)
                tensors, before = learner.tensors(), bits
                bits = weights.eight_bits(tensors, shape)
                changed = sum(int((bits[name] != before[name]).sum()) for name in bits)
                weights.write(place(version + 1), tensors, tokenizer, shape)
                schedule.publish(place(version + 1), version + 1)
                oracle.open(str(version + 1), place(version + 1))
                # Version 0 stays, as what divergence is measured from.
                if version + 1 > KEPT:
                    oracle.close(str(version + 1 - KEPT))
                    shutil.rmtree(place(version + 1 - KEPT))
                tell(version=version + 1, **dataclasses.asdict(told), spanned=spanned, changed=changed)
                if options.every and ((version + 1) % options.every == 0 or version + 1 == options.steps):
                    tell(version=version + 1, held_out=held_out())
        finally:
            schedule.stop()
        tell(sha256=weights.digest(tensors))


if __name__ == "__main__":
    main()
