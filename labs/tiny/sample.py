"""Continues beginnings of stories with a checkpoint, quantised as it was trained.

    python3 sample.py --checkpoint tiny.pt --tokenizer tokenizer.json --temperature 0.7 "Once upon a time" "One sunny day, Tom"
"""

import argparse

import torch
from tokenizers import Tokenizer

from model import Tiny


@torch.no_grad()
def go_on(model, tokens, temperature, most, generator):
    """All beginnings at once; each pass takes the whole text, which is dear and simple."""
    rows, done = [list(each) for each in tokens], [False] * len(tokens)
    while not all(done) and max(map(len, rows)) < most:
        length = max(map(len, rows))
        batch = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        logits = model(batch, model.masks(torch.zeros_like(batch)))
        for i, row in enumerate(rows):
            if not done[i]:
                last = logits[i, len(row) - 1].float()
                token = last.argmax() if temperature == 0 else torch.multinomial((last / temperature).softmax(0), 1, generator=generator)
                row.append(int(token))
                done[i] = row[-1] == 0
    return rows


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--checkpoint", required=True)
    options.add_argument("--tokenizer", required=True)
    options.add_argument("--temperature", type=float, default=0.7)
    options.add_argument("--most", type=int, default=250)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("begin", nargs="+")
    options = options.parse_args()
    there = torch.load(options.checkpoint, map_location="cpu")
    model = Tiny(quantised=not there["float"])
    model.load_state_dict(there["model"])
    tokenizer = Tokenizer.from_file(options.tokenizer)
    begins = [tokenizer.encode(text).ids for text in options.begin]
    for row in go_on(model, begins, options.temperature, options.most, torch.Generator().manual_seed(options.seed)):
        print(tokenizer.decode([token for token in row if token != 0]) + ("" if row[-1] == 0 else " …") + "\n")


if __name__ == "__main__":
    main()
