"""Tokens that tell by their value which weights made them.

A token of an answer names four things:

- *version*: the class of the weights that drew it (0, 1 or 2);
- *keys*: the class of the weights that made the keys and values of the prompt that it read;
- *count*: one more than that of the token before it, modulo 8;
- *draw*: 0 to 3, drawn with known odds; every other part is certain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

VERSIONS = 3
COUNTS = 8
DRAWS = 4
END = 0
UNKNOWN = 1
PROMPT = 16
PROMPTS = 16
FIRST = 32
SIZE = FIRST + VERSIONS * VERSIONS * COUNTS * DRAWS
NAMES = "ABC"
#: Nats at temperature 1 between one draw and the next.
STEP = 0.7


@dataclass(frozen=True)
class Token:
    """What a token of an answer says."""

    version: int
    keys: int
    count: int
    draw: int


def token(version: int, keys: int, count: int, draw: int) -> int:
    """The id of a token of an answer."""
    return FIRST + ((version * VERSIONS + keys) * COUNTS + count) * DRAWS + draw


def read(number: int) -> Token | None:
    """What the token with this id says; None if answers have no such token."""
    if not FIRST <= number < SIZE:
        return None
    rest, draw = divmod(number - FIRST, DRAWS)
    rest, count = divmod(rest, COUNTS)
    version, keys = divmod(rest, VERSIONS)
    return Token(version, keys, count, draw)


def count(number: int) -> int | None:
    """The count of a token of a prompt or an answer."""
    if PROMPT <= number < PROMPT + PROMPTS:
        return (number - PROMPT) % COUNTS
    told = read(number)
    return told.count if told else None


def text(number: int) -> str:
    """The word that stands for a token."""
    if number == END:
        return "<end>"
    if PROMPT <= number < PROMPT + PROMPTS:
        return f"p{number - PROMPT}"
    told = read(number)
    if told is None:
        return f"<{number}>"
    return f"{NAMES[told.version]}{NAMES[told.keys].lower()}{told.count}{'wxyz'[told.draw]}"


def prompt(length: int, salt: int) -> list[int]:
    """A prompt of so many tokens, another one for each salt."""
    made, state = [], (salt * 2654435761 + 1) & 0xFFFFFFFF
    for _ in range(length):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        made.append(PROMPT + (state >> 20) % PROMPTS)
    return made


def odds(temperature: float) -> list[float]:
    """Log-probabilities of the draws at a temperature."""
    logits = [-STEP * draw / temperature for draw in range(DRAWS)]
    total = math.log(sum(math.exp(logit) for logit in logits))
    return [logit - total for logit in logits]
