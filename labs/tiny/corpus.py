"""Makes stories of trajectories: each answer behind the opening of its prompt, cleaned; what is no whole story is dropped.

    doorbell trajectories export log --parquet step.parquet
    python3 corpus.py --prompts prompts.jsonl --parquet step.parquet --model-tokenizer smollm2.json --out stories.txt

`smollm2.json` is SmolLM2's tokenizer.json, which stands in its image (docs/engine.md, The image, entry 5). A line of `stories.txt` is a story.
"""

import argparse
import collections
import json
import random
import re

import pyarrow.parquet
from tokenizers import Tokenizer

QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u2014": "-", "\u2013": "-", "\u2026": "...", "\u00a0": " "})
# Words with which a model speaks about the story in place of telling it, and those of other worlds.
META = re.compile(r"\b(story|stories|version|rewrit\w*|retell\w*|retold|narrat\w*|detail\w*|character\w*|sentence\w*|paragraph\w*|assistant|prompt|title|reader\w*|moral|theme\w*|example|http\w*|words?)\b|[*#\[\]{}<>|_=/\\@^~`:;()0-9]", re.I)


def clean(text):
    """A story on one line, or why it is none."""
    text = text.translate(QUOTES)
    if not text.isascii():
        return None, "not ASCII"
    # The story's own paragraphs, up to the first that speaks about it.
    kept = []
    for paragraph in filter(None, (re.sub(r"\s+", " ", part).strip() for part in text.split("\n"))):
        if META.search(paragraph.replace("told a story", "").replace("bedtime story", "")):
            break
        kept.append(paragraph)
    text = " ".join(kept)
    if not kept:
        return None, "speaks about the story"
    if text[-1] not in '.!?"':
        return None, "breaks off"
    if text.count('"') % 2:
        return None, "quotes do not pair"
    words = re.findall(r"[a-z']+", text.lower())
    if len(words) < 25:
        return None, "too short"
    if len(words) > 190:
        return None, "too long"
    fours = collections.Counter(zip(words, words[1:], words[2:], words[3:]))
    again = sum(count - 1 for count in fours.values())
    if again > 0.08 * len(words) or max(fours.values()) > 3:
        return None, "repeats itself"
    if len(set(words)) < 0.4 * len(words) or re.search(r"\b(\w+)( \1){2}\b", text.lower()) or max(map(len, words)) > 14:
        return None, "repeats itself"
    return text, None


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--prompts", required=True)
    options.add_argument("--parquet", required=True, nargs="+")
    options.add_argument("--model-tokenizer", required=True)
    options.add_argument("--out", required=True)
    options.add_argument("--rare", type=int, default=4, help="drop stories with a word that fewer stories than this have")
    options.add_argument("--seed", type=int, default=1)
    options = options.parse_args()
    tokenizer = Tokenizer.from_file(options.model_tokenizer)
    openings = [json.loads(line)["prompt"].rsplit("<|im_start|>assistant\n", 1)[1] for line in open(options.prompts)]
    stories, dropped, tokens, answers = {}, collections.Counter(), 0, 0
    for path in options.parquet:
        table = pyarrow.parquet.read_table(path, columns=["request", "member", "tokens", "outcome"]).sort_by([("request", "ascending"), ("member", "ascending")])
        for request, answer, outcome in zip(*(table[name].to_pylist() for name in ("request", "tokens", "outcome"))):
            answers, tokens = answers + 1, tokens + len(answer)
            if outcome != "eos":
                dropped["no end"] += 1
                continue
            story, why = clean(openings[request] + tokenizer.decode(answer))
            if why is None and story in stories:
                why = "told before"
            if why is None:
                stories[story] = None
            else:
                dropped[why] += 1
    words = {story: set(re.findall(r"[a-z']+", story.lower())) for story in stories}
    seen = collections.Counter(word for each in words.values() for word in each)
    kept = [story for story in stories if min(seen[word] for word in words[story]) >= options.rare]
    dropped["has a rare word"] = len(stories) - len(kept)
    random.Random(options.seed).shuffle(kept)
    open(options.out, "w").write("".join(story + "\n" for story in kept))
    print(json.dumps({"answers": answers, "tokens of answers": tokens, "stories": len(kept), "bytes": sum(map(len, kept)) + len(kept),
                      "different words": len({word for story in kept for word in words[story]}), "dropped": dict(dropped.most_common())}, indent=1))


if __name__ == "__main__":
    main()
