"""Plugin of pytest: `pytest --lifecycle-url URL --lifecycle-weights DIR … --pyargs doorbell_lifecycle.checks` runs each check as a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from .client import Server, resident
from .suite import Options, Suite


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the server under check."""
    group = parser.getgroup("doorbell-lifecycle")
    group.addoption("--lifecycle-url", help="where the server listens")
    group.addoption("--lifecycle-dialect", choices=["auto", "vllm", "sglang"], default="auto", help="whose endpoints are used")
    group.addoption("--lifecycle-weights", action="append", type=Path, default=[], help="a directory of weights; give two or three")
    group.addoption("--lifecycle-logprobs", choices=["either", "drawn", "raw"], default="either", help="which log-probabilities are right")
    group.addoption("--lifecycle-short", action="store_true", help="check fewer moments")


@pytest.fixture(scope="session")
def lifecycle(request: pytest.FixtureRequest) -> Suite:
    """The server that the options name, ready to be checked."""
    option = request.config.getoption
    if not option("--lifecycle-url"):
        pytest.skip("no --lifecycle-url")
    if len(option("--lifecycle-weights")) < 2:
        raise pytest.UsageError("give --lifecycle-weights at least twice: an update needs another version")
    server = Server(option("--lifecycle-url"), option("--lifecycle-dialect"))
    kind = resident(server)
    if kind is None:
        raise pytest.UsageError("the model's tokens tell no version; serve the first directory of `doorbell-lifecycle weights`")
    options = Options(option("--lifecycle-weights"), option("--lifecycle-logprobs"), option("--lifecycle-short"))
    suite = Suite(server, options, kind)
    suite.calibrate()
    return suite
