"""Draws what train.py logged: python3 plot.py PICTURE.svg out/fixed/log.jsonl [out/asynchronous/log.jsonl ...]. A run has the name of its directory."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "grpo"  # the same picture from the same logs
from matplotlib import pyplot

PANELS = [
    ("held_out", "reward on held-out prompts"),
    ("reward", "reward of the batch"),
    ("kl", "divergence from version 0, nats a token"),
    ("entropy", "entropy, nats a token"),
    ("lag", "versions between rollout and step, mean"),
    ("changed", "8-bit weights that a step changed"),
]


def main():
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6.5), layout="constrained")
    for log in sys.argv[2:]:
        lines = [json.loads(line) for line in open(log)]
        for axis, (key, title) in zip(axes.flat, PANELS):
            points = [(line["version"], line[key]) for line in lines if key in line]
            axis.plot(*zip(*points), marker="o" if key == "held_out" else None, label=Path(log).resolve().parent.name)
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("version")
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylim(0, 1)
    axes[0, 1].set_ylim(0, 1)
    axes[0, 0].legend()
    figure.savefig(sys.argv[1], metadata={"Date": None})


if __name__ == "__main__":
    main()
