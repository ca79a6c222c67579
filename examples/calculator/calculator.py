"""A rollout that calls a calculator: it stops at a text, gets the value of the sum that it has written, and goes on over the keys and values that it
has. Needs Python 3.10 or later and no package.

    doorbell serve --model smollm2
    python examples/calculator/calculator.py --prompt "..." --stop "="

The server keeps the keys and values of prompts and answers. So each turn sends all tokens again, and the server makes only those that it does not have.
"""

from __future__ import annotations

import argparse
import ast
import json
import operator
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable

#: Positions that a block of keys and values has: only whole blocks are found again.
BLOCK = 32
PROMPT = """3 bags with 4 apples and 2 more apples: 3 * 4 + 2 = 14 apples.
10 birds, and 6 fly away: 10 - 6 = 4 birds.
5 boxes with 12 pens and 7 more pens: """
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.USub: operator.neg}


def value(node: ast.AST) -> float:
    """The value of a sum. Anything but numbers and the four operators is a ValueError."""
    match node:
        case ast.Expression(body):
            return value(body)
        case ast.Constant(int() | float() as number):
            return number
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](value(left), value(right))
        case ast.UnaryOp(op, operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](value(operand))
    raise ValueError(f"{ast.unparse(node)} is no sum")


def calculate(text: str) -> str:
    """The value of the last sum in a text, or a question mark if there is none that has one."""
    sums = re.findall(r"\d[\d.]*(?: *[-+*/] *\d[\d.]*)+", text)
    try:
        return f"{value(ast.parse(sums[-1].strip('.'), mode='eval')):g}" if sums else "?"
    except (ArithmeticError, SyntaxError, ValueError):
        return "?"


class Server:
    """The requests that a rollout needs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, endpoint: str, **fields: object) -> dict:
        request = urllib.request.Request(self.url + endpoint, json.dumps(fields).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def encode(self, text: str, begins: bool) -> list[int]:
        return self.post("/tokenize", prompt=text, add_special_tokens=begins)["tokens"]

    def decode(self, tokens: list[int]) -> str:
        return self.post("/detokenize", tokens=tokens)["prompt"]


def rollout(server: Server, prompt: str, stop: str, turns: int, most: int, seed: int, tell: Callable[[str], None]) -> tuple[str, list[dict]]:
    """Lets the model go on until it ends, has called the calculator `turns` times, or has `most` tokens at a time without a call. Returns the text,
    and of each turn the tokens that were sent and found, and what the calculator said."""
    tokens = server.encode(prompt, True)
    told = []
    for turn in range(turns + 1):
        answer = server.post(
            "/v1/completions", prompt=tokens, max_tokens=most, seed=seed + turn, temperature=0.8, stop=[stop], include_stop_str_in_output=True, return_token_ids=True,
        )  # fmt: skip
        choice, usage = answer["choices"][0], answer["usage"]
        found = usage["prompt_tokens_details"]["cached_tokens"]
        told.append({"sent": len(tokens), "found": found, "answer": choice["text"], "tool": None})
        # The tokens themselves: their text might be cut into others.
        tokens += choice["token_ids"]
        called = choice["stop_reason"] == stop and turn < turns
        if called:
            told[-1]["tool"] = calculate(server.decode(tokens))
            tokens += server.encode(f" {told[-1]['tool']}", False)
        tell(f"turn {turn}: {told[-1]['sent']} tokens sent, {found} found; {choice['text']!r} -> {told[-1]['tool']}")
        if not called:
            break
    return server.decode(tokens), told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--stop", default="=", help="the text that calls the calculator")
    parser.add_argument("--turns", type=int, default=4, help="calls at most")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of a turn at most")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        text, _ = rollout(Server(arguments.url), arguments.prompt, arguments.stop, arguments.turns, arguments.max_tokens, arguments.seed, print)
    except urllib.error.URLError as error:
        # What the server refused says so itself; else nothing answers there.
        why = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else error.reason
        sys.exit(f"calculator.py: {arguments.url} does not answer: {why}; start one with `doorbell serve`, or give --url")
    print(text)


if __name__ == "__main__":
    main()
