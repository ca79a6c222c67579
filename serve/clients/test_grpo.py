"""The trainer of examples/grpo as far as it needs no torch: rollouts that go on while weights change, and the oracle's log-probabilities of them by
the C interface, which are the device's to the last bit."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples/grpo"), str(ROOT / "lifecycle")]

from doorbell_lifecycle.vocabulary import PROMPT
from doorbell_lifecycle.weights import write_all
from oracle import Oracle
from rollouts import Asynchronous, Server

DEVICE = os.environ.get("DOORBELL_DEVICE", "model")
# The RTL makes some hundred tokens a second.
UPDATES, GROUPS, TOKENS = (3, 3, 48) if DEVICE == "rtl" else (12, 8, 96)


def groups(batch):
    prompt = [PROMPT + place % 16 for place in range(20)]
    return [(prompt[: 5 + number], 100 * batch + number, 4, TOKENS) for number in range(GROUPS)]


def run(weights, *options):
    """The largest difference of a token's log-probability, and how many answers more than one version made."""
    oracle = Oracle(os.environ["DOORBELL_LIBRARY"])
    oracle.open("0", weights[0])
    wants = ["--model", str(weights[0]), "--device", DEVICE, "--checkpoint", "2", "--max-prompt", "64", "--max-answer", str(TOKENS)]
    server = Server(os.environ.get("DOORBELL", "doorbell"), [*wants, *options])
    difference, spanned = 0, 0
    try:
        schedule = Asynchronous(server, groups, 0)
        for version in range(1, UPDATES + 1):
            for rollout in schedule.take():
                first = len(rollout.prompt)
                scores = oracle.score(rollout.spans, rollout.prompt + rollout.tokens, first)
                assert len(scores) == len(rollout.logps) == len(rollout.versions)
                difference = max(difference, *(abs(a - b) for a, b in zip(scores, rollout.logps)))
                spanned += len(set(rollout.versions)) > 1
            directory = weights[version % len(weights)]
            schedule.publish(directory, version)
            oracle.open(str(version), directory)
        schedule.stop()
    finally:
        server.stop()
    return difference, spanned


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("weights"))


def test_the_trainer_has_the_devices_log_probabilities(weights):
    difference, spanned = run(weights)
    assert difference == 0 and spanned > 0


def test_a_label_that_comes_late_shows(weights):
    difference, _ = run(weights, "--fault", "late-label")
    assert difference > 0
