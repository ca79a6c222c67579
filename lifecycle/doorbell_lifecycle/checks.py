"""Each check as a test of pytest, with the plugin's fixture `lifecycle`."""

import pytest

from .judge import RULES
from .suite import CHECKS, Suite


@pytest.mark.parametrize("check", CHECKS)
def test_lifecycle(lifecycle: Suite, check: str) -> None:
    """The server breaks no rule under this check."""
    found = lifecycle.run_one(check)
    assert not found, "\n".join(f"{finding.rule} ({RULES[finding.rule]}): {finding.text}" for finding in found)
