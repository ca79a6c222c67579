"""The suite against `doorbell serve`: a plain server breaks no rule, and each planted fault is found and named."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from doorbell_lifecycle import CHECKS
from doorbell_lifecycle.__main__ import main

#: The rule that each fault breaks, words of a report that names it, and the checks that find it.
FAULTS = {
    "stale-kv": ("kv", "read keys and values of version", ["keys"]),
    "late-label": ("label", "carry version", ["moments"]),
    "abort-loses-tokens": ("abort-tokens", "aborted with 0 tokens", ["abort"]),
    "pause-leaks": ("pause", "pause (abort)", ["pause"]),
    "resume-old-weights": ("resume", "behind a resume from the update", ["resume"]),
    "half-group": ("group", "over a pause (wait)", ["group"]),
    "no-flush": ("flush", "come from the cache that was flushed", ["flush"]),
    "other-temperature": ("logprob", "at temperature", ["answers"]),
    "seed-ignored": ("seed", "of the same prompt and seed", ["seed"]),
    "keep-doubles": ("keep", "again", ["keep"]),
    "keep-drops": ("keep", "tokens are lost", ["keep"]),
    "wait-returns-early": ("wait", "when the pause (wait) had answered", ["pause"]),
    "abort-returns-early": ("abort", "when the abort answered", ["abort"]),
    "update-not-resident": ("update", "after the update to", ["update"]),
}


def check(capsys: pytest.CaptureFixture[str], url: str, directories: list[Path], *arguments: str) -> tuple[int, dict]:
    """Runs the command; gives its exit code and its report."""
    weights = [argument for directory in directories for argument in ("--weights", str(directory))]
    capsys.readouterr()
    code = main(["--url", url, "--json", "--logprobs", "drawn", "--patience", "30", *weights, *arguments])
    told = capsys.readouterr()
    assert told.out, told.err
    return code, json.loads(told.out)


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_plain_server_breaks_no_rule(
    serve: Callable[..., str], directories: list[Path], capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest, dialect: str
) -> None:
    long = request.config.getoption("--long")
    # Both dialects lead to the same engine: the short form leaves the longest checks to one of them.
    checks = CHECKS if long or dialect == "vllm" else [name for name in CHECKS if name not in ("pause", "abort", "keep")]
    only = [f"--only={name}" for name in checks]
    code, told = check(capsys, serve(), directories, "--dialect", dialect, *only, *([] if long else ["--short"]))
    assert told["findings"] == []
    assert code == 0
    assert told["updates"] >= 10 and told["requests"] >= 150
    assert told["seconds"] <= 120


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(
    serve: Callable[..., str], directories: list[Path], capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest, fault: str
) -> None:
    rule, words, checks = FAULTS[fault]
    arguments = [] if request.config.getoption("--long") else ["--short", *(f"--only={name}" for name in checks)]
    code, told = check(capsys, serve("--fault", fault), directories, *arguments)
    assert code == 1
    assert told["broken"] == [rule], told["findings"]
    assert any(words in finding["text"] for finding in told["findings"] if finding["rule"] == rule), told["findings"]


def test_every_fault_of_serve_is_here(serve: Callable[..., str]) -> None:
    with pytest.raises(AssertionError) as ended:
        serve("--fault", "none")
    named = re.search(r"there are ([a-z, -]+)", str(ended.value))
    assert named is not None and set(named[1].split(", ")) == set(FAULTS)


def test_a_model_that_tells_no_version_is_refused(program: Path, directories: list[Path], capsys: pytest.CaptureFixture[str], serve) -> None:
    weights = [argument for directory in directories for argument in ("--weights", str(directory))]
    assert main(["--url", serve(model="micro"), *weights]) == 2
    assert "tell no version" in capsys.readouterr().err


def test_checks_are_tests_of_pytest(serve: Callable[..., str], directories: list[Path]) -> None:
    weights = [argument for directory in directories for argument in ("--lifecycle-weights", str(directory))]

    def run(url: str) -> subprocess.CompletedProcess[str]:
        options = ["-q", "-p", "doorbell_lifecycle.plugin", "-p", "no:cacheprovider", "--pyargs", "doorbell_lifecycle.checks"]
        command = [sys.executable, "-m", "pytest", *options, "--lifecycle-url", url, *weights, "--lifecycle-short", "-k", "update or keys"]
        return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=120)

    plain = run(serve())
    assert plain.returncode == 0 and "2 passed" in plain.stdout, plain.stdout + plain.stderr
    broken = run(serve("--fault", "stale-kv"))
    assert broken.returncode == 1 and "1 failed, 1 passed" in broken.stdout, broken.stdout + broken.stderr
    assert "read keys and values of version" in broken.stdout
