"""Checks of the life of requests on servers of vLLM's and SGLang's shape: see docs/lifecycle.md of Doorbell."""

from .client import Ask, Server
from .judge import RULES, Finding, primary
from .suite import CHECKS, Options, Suite

__all__ = ["CHECKS", "RULES", "Ask", "Finding", "Options", "Server", "Suite", "primary"]
