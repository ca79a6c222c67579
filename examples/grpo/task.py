"""What is learnt: stories of thirty words. Prompts to learn from and prompts that are held out, and the reward."""

import random
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lm/tiny"))
from prompts import ANIMALS, HE, HOMES, SHE, TEMPERS

WORDS = 30
TOKENS = 96  # an answer that has no <end> by then is worth nothing
COUNT = 16


def _openings(count, seed):
    """Openings of stories as tiny knows them (lm/tiny/prompts.py), no two alike."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        name, who, temper, home = draw.choice(HE + SHE), draw.choice(ANIMALS), draw.choice(TEMPERS), draw.choice(HOMES)
        about = f"{'an' if temper[0] in 'aeiou' else 'a'} {temper} {who} named {name}"
        kinds = [f"Once upon a time, there was {about}.", f"Once there was {about}.", f"Once upon a time, {about} lived {home}.", f"{name} the {who} lived {home}."]
        opening = kinds[len(found) % len(kinds)]
        if opening not in found:
            found.append(opening)
    return found


_ALL = _openings(2 * COUNT, 1)
PROMPTS, HELD_OUT = _ALL[:COUNT], _ALL[COUNT:]


def words(text):
    return len(re.findall(r"[A-Za-z][A-Za-z'-]*", text))


def reward(text, has_end):
    """1 for an answer of 30 words, 0 for one of none or of 60, and for one without <end>."""
    return max(0.0, 1.0 - abs(words(text) - WORDS) / WORDS) if has_end else 0.0
