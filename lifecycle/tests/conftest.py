"""Servers for the tests: `doorbell serve`, plain or with a fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from doorbell_lifecycle import weights

ROOT = Path(__file__).resolve().parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run every check against every fault")


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Weights of three versions."""
    return weights.write_all(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="session")
def program() -> Path:
    """The program `doorbell`."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = Path(os.environ.get("DOORBELL", target / "release" / "doorbell"))
    if not path.is_file():
        pytest.fail(f"there is no {path}: build it by `cargo build --release -p doorbell --features full`, or name it by DOORBELL")
    return path


@pytest.fixture
def serve(program: Path, directories: list[Path]) -> Iterator[Callable[..., str]]:
    """Starts a server with these arguments; gives its URL."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str, model: Path | str = directories[0]) -> str:
        command = [program, "serve", "--model", model, "--listen", "127.0.0.1:0", "--slots", "32", *arguments]
        # Both streams: a server may say where it listens on either.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        running.append(process)
        told = []
        for line in process.stdout or ():
            told.append(line)
            if found := re.search(r"http://[\d.:]+", line):
                threading.Thread(target=lambda: [sys.stdout.write(line) for line in process.stdout], daemon=True).start()
                return found[0]
        raise AssertionError(f"the server ended: {''.join(told)}")

    start.running = running
    yield start
    for process in running:
        process.terminate()
        process.wait(20)
