"""The command `doorbell-lifecycle`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from http.client import HTTPException
from pathlib import Path

from . import judge, suite, weights
from .client import Refused, Server, resident


def parser() -> argparse.ArgumentParser:
    """Its arguments."""
    top = argparse.ArgumentParser(
        prog="doorbell-lifecycle",
        description="Checks what a rollout server makes of requests that it pauses, aborts, updates under and resumes. "
        "`doorbell-lifecycle weights OUT` writes the weights that the server has to serve.",
    )
    top.add_argument("--url", required=True, help="where the server listens")
    top.add_argument("--dialect", choices=["auto", "vllm", "sglang"], default="auto", help="whose endpoints are used")
    top.add_argument(
        "--weights", action="append", type=Path, metavar="DIR", required=True,
        help="a directory that `weights` wrote, as the server sees it; the first is the one that it serves. Give at least two",
    )
    top.add_argument(
        "--update", choices=["disk", "rpc"], default="disk",
        help="how weights come: by the dialect's own request, or by vLLM's /collective_rpc and /update_weight_version",
    )
    top.add_argument("--only", action="append", choices=list(suite.CHECKS), help="run this check; may be given several times")
    top.add_argument("--short", action="store_true", help="check fewer moments")
    top.add_argument("--no-live", action="store_true", help="update during pauses only")
    top.add_argument(
        "--logprobs", choices=["either", "drawn", "raw"], default="either",
        help="which log-probabilities are right: those at the temperature (drawn), those at 1 (raw)",
    )
    top.add_argument("--grace", type=float, default=suite.GRACE, help="seconds that a token which was made may take to come")
    top.add_argument("--patience", type=float, default=120.0, help="seconds that an answer may take")
    top.add_argument("--api-key", help="sent as a bearer")
    top.add_argument("--json", action="store_true", help="report in JSON")
    return top


def report(run: suite.Suite, took: float) -> dict:
    """What a run has found."""
    return {
        "dialect": run.server.dialect,
        "model": run.server.model,
        "seconds": round(took, 1),
        "requests": run.requests,
        "updates": len(run.history.versions) - 1,
        "pauses": len(run.history.pauses),
        "broken": judge.primary(run.findings),
        "findings": [{"rule": f.rule, "check": f.check, "text": f.text} for f in run.findings],
        "notes": run.notes,
    }


def show(told: dict) -> None:
    """Prints it."""
    for rule in told["broken"]:
        of = [finding for finding in told["findings"] if finding["rule"] == rule]
        print(f"BROKEN {rule}: {judge.RULES[rule]}")
        for finding in of[:5]:
            print(f"  [{finding['check']}] {finding['text']}")
        if len(of) > 5:
            print(f"  and {len(of) - 5} more")
    others = sorted({finding["rule"] for finding in told["findings"]} - set(told["broken"]))
    if others:
        print(f"follows from these: {', '.join(others)}")
    for note in told["notes"]:
        print(f"note: {note}")
    print(
        f"{told['requests']} requests, {told['updates']} updates, {told['pauses']} pauses in {told['seconds']} s ({told['dialect']}): "
        + (f"broken: {', '.join(told['broken'])}" if told["broken"] else "all rules hold")
    )


def write_weights(arguments: list[str]) -> int:
    """`doorbell-lifecycle weights`."""
    top = argparse.ArgumentParser(prog="doorbell-lifecycle weights", description="Writes weights whose tokens tell the version.")
    top.add_argument("out", type=Path, help="the directory that gets version-0, version-1 and so on")
    top.add_argument("--versions", type=int, default=3, choices=[2, 3], help="how many")
    given = top.parse_args(arguments)
    try:
        for directory in weights.write_all(given.out, given.versions):
            print(directory)
    except OSError as error:
        print(f"doorbell-lifecycle: cannot write weights to {given.out}: {error.strerror or error}; give another directory", file=sys.stderr)
        return 2
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; gives back its exit code: 0 if all rules hold, 1 if one is broken, 2 if nothing could be checked."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["weights"]:
        return write_weights(arguments[1:])
    given = parser().parse_args(arguments)
    if len(given.weights) < 2:
        print("doorbell-lifecycle: give --weights at least twice: an update needs another version", file=sys.stderr)
        return 2
    start = time.monotonic()
    try:
        server = Server(given.url, given.dialect, given.api_key, given.patience, given.update)
        kind = resident(server)
        if kind is None:
            print(
                "doorbell-lifecycle: the model's tokens tell no version; serve the first directory of `doorbell-lifecycle weights`",
                file=sys.stderr,
            )
            return 2
        options = suite.Options(given.weights, given.logprobs, given.short, not given.no_live, given.grace)
        run = suite.Suite(server, options, kind)
        run.run(given.only)
    except (OSError, HTTPException, Refused, KeyError, ValueError) as error:
        print(f"doorbell-lifecycle: cannot check {given.url}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    told = report(run, time.monotonic() - start)
    if given.json:
        print(json.dumps(told, indent=1))
    else:
        show(told)
    return 1 if told["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
