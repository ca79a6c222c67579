"""Trains the tokenizer of `tiny`, a byte-level BPE of 1,024 entries with `<end>` as 0, and turns stories into tokens.

    python3 tokenizer.py --stories stories.txt --out tokenizer.json --tokens tokens.bin

`tokens.bin` is `<end> story <end> story … <end>`, 16 bits a token.
"""

import argparse
import json

import numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<end>"
SIZE = 1024


def train(stories):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(stories, trainer)
    assert tokenizer.get_vocab_size() == SIZE and tokenizer.token_to_id(END) == 0
    return tokenizer


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--stories", required=True)
    options.add_argument("--out", required=True)
    options.add_argument("--tokens", required=True)
    options.add_argument("--given", action="store_true", help="take the tokenizer that is there")
    options = options.parse_args()
    stories = open(options.stories).read().splitlines()
    tokenizer = Tokenizer.from_file(options.out) if options.given else train(stories)
    if not options.given:
        compact = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
        open(options.out, "w").write(compact)
    tokens = [0]
    for encoding in tokenizer.encode_batch(stories):
        tokens += encoding.ids + [0]
    numpy.array(tokens, dtype="<u2").tofile(options.tokens)
    print(f"{len(stories)} stories, {len(tokens)} tokens, {sum(map(len, stories)) / len(tokens):.2f} characters a token")


if __name__ == "__main__":
    main()
