"""What must hold of every answer, whatever happened while it was made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from . import vocabulary as words
from .client import Choice, Running

#: Most that a log-probability may differ from the one by formula: the integers of a quantised model are within 0.02.
NEAR = 0.1

#: Rules, and what each says.
RULES = {
    "answer": "every request is answered: as many tokens and log-probabilities as its end says, and no error",
    "tokens": "tokens come once each, in order",
    "logprob": "log-probabilities are those of the draw at its temperature",
    "seed": "equal seeds draw equal tokens, whatever else runs",
    "update": "once an update has answered, requests that begin are answered by the new weights",
    "resume": "the same of an update during a pause, behind the resume",
    "refusal": "an update that fails leaves the weights before",
    "kv": "no request reads keys and values of weights that were replaced before it began",
    "flush": "once a flush has answered, nothing comes from the cache of prefixes",
    "pause": "once a pause has answered, no token is made until the resume, and nothing new begins",
    "wait": "a pause that waits answers when all that ran have ended, at their full length",
    "abort": "once an abort has answered, no token of its requests is made; others go on",
    "abort-tokens": "an aborted answer has the tokens that were made",
    "keep": "a request that is kept over a pause or an update loses no token, repeats none, and goes on under the new weights",
    "group": "answers to one prompt belong to one version, unless an update keeps them",
    "label": "the label of each token is the version that made it",
}

#: A broken rule shows in others too: what is behind it says nothing more.
HIDES = {
    "update": {"resume", "kv", "keep", "group", "label", "wait", "flush"},
    "resume": {"kv", "keep", "group", "label"},
    "wait": {"group", "keep"},
    "pause": {"abort", "group"},
    "tokens": {"keep"},
    # One that comes late ends requests of later checks.
    "abort": {"refusal"},
}


@dataclass(frozen=True)
class Finding:
    """A rule that is broken, where, and how."""

    rule: str
    check: str
    text: str


def primary(findings: list[Finding]) -> list[str]:
    """The rules that are broken, without those that only show another's breach."""
    found = {finding.rule for finding in findings}
    hidden = set().union(*(HIDES.get(rule, set()) for rule in found))
    return [rule for rule in RULES if rule in found - hidden]


@dataclass
class Version:
    """A version in the order of updates: from when on it may be resident, and since when it must be."""

    kind: int
    name: str | None
    sent: float
    done: float
    paused: bool = False


@dataclass
class Pause:
    """A pause, and its end if that has come."""

    mode: str
    sent: float
    done: float
    resumed: float | None = None


@dataclass
class History:
    """What was done to a server."""

    versions: list[Version] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)

    def possible(self, start: float, end: float) -> list[int]:
        """Versions, by their place, of which one may have been resident at some time from start to end."""
        last = len(self.versions) - 1
        return [
            place
            for place, version in enumerate(self.versions)
            if version.sent <= end and (place == last or self.versions[place + 1].done >= start)
        ]

    def disturbed(self, start: float, end: float) -> bool:
        """Whether anything was done meanwhile."""
        return any(start <= version.done and version.sent <= end for version in self.versions[1:]) or any(
            start <= (pause.resumed or end) and pause.sent <= end for pause in self.pauses
        )


def ranges(places: list[int]) -> str:
    """Places, as ranges."""
    parts, start = [], 0
    for at in range(1, len(places) + 1):
        if at == len(places) or places[at] != places[at - 1] + 1:
            first, last = places[start], places[at - 1]
            parts.append(str(first) if first == last else f"{first}..{last}")
            start = at
    return ", ".join(parts[:4]) + (", …" if len(parts) > 4 else "")


class Judge:
    """Judges answers to requests by what was done meanwhile."""

    def __init__(self, history: History, patience: float, logprobs: str = "either") -> None:
        self.history = history
        self.patience = patience
        self.conventions = ("drawn", "raw") if logprobs == "either" else (logprobs,)

    def answers(self, running: Running, check: str, aborts: bool = False) -> list[Finding]:
        """Findings of a request that is over, or should be; `aborts` says that it may be aborted."""
        found: list[Finding] = []
        name = running.name

        def broken(rule: str, text: str) -> None:
            found.append(Finding(rule, check, f"{name}: {text}"))

        if not running.wait(self.patience):
            broken("answer", f"no end within {self.patience:.0f} s, after {running.count} tokens")
            return found
        if running.error is not None:
            broken("answer", running.error)
            return found
        for member, choice in enumerate(running.choices):
            of = f"answer {member}, " if running.ask.n > 1 else ""
            self._choice(running, choice, aborts, lambda rule, text, of=of: broken(rule, of + text))
        return found

    def _choice(self, running: Running, choice: Choice, aborts: bool, broken) -> None:
        ask, tokens = running.ask, choice.tokens
        ended = running.ended or running.sent
        disturbed = self.history.disturbed(running.sent, ended)
        kept = "keep" if disturbed else "answer"
        if choice.finish == "length":
            if len(tokens) != ask.most:
                broken(kept, f"{len(tokens)} tokens, and the end says that there are {ask.most}")
        elif choice.finish == "abort":
            if not aborts:
                broken("abort", "it was aborted, and nobody asked for that")
        else:
            told = "nothing" if choice.finish is None else repr(choice.finish)
            broken("answer", f"its end says {told} after {len(tokens)} of {ask.most} tokens, expected length or abort")
        if ask.logprobs and len(choice.logprobs) != len(tokens):
            broken("answer", f"{len(choice.logprobs)} log-probabilities for {len(tokens)} tokens")
        told = [words.read(token) for token in tokens]
        if None in told:
            at = told.index(None)
            broken("tokens", f"token {at} is {tokens[at]}, which no version of these weights draws")
            return
        before = words.count(ask.prompt[-1])
        for at, token in enumerate(told):
            if token.count != (before + 1) % words.COUNTS:
                what = "is token {} again".format(at - 1) if token.count == before else "does not follow the one before: tokens are lost"
                broken("keep" if disturbed else "tokens", f"token {at} {what}")
                break
            before = token.count
        self._values(running, choice, told, broken)
        self._labels(choice, told, broken)
        if ask.logprobs and len(choice.logprobs) == len(tokens):
            self._logprobs(ask.temperature, told, choice.logprobs, broken)

    def _values(self, running: Running, choice: Choice, told: list[words.Token], broken) -> None:
        history = self.history
        place, wrong, stale, back = 0, {}, {}, None
        for at, token in enumerate(told):
            possible = history.possible(running.sent, choice.times[at])
            places = [place for place in possible if history.versions[place].kind == token.version]
            if not places:
                wrong.setdefault(token.version, []).append(at)
                continue
            if places[-1] < place and back is None:
                back = at
            place = max(place, places[0])
            # Those that it read were made after it was sent, or are of the version that was resident then.
            if not any(history.versions[of].kind == token.keys for of in possible if of <= places[-1]):
                stale.setdefault(token.keys, []).append(at)
        since = history.versions[history.possible(running.sent, running.sent)[-1]]
        for kind, places in wrong.items():
            rule = "resume" if since.paused else "update"
            when = "behind a resume from" if since.paused else "after"
            broken(
                rule,
                f"tokens {ranges(places)} are of version {words.NAMES[kind]}, and it was sent {when} the update to {words.NAMES[since.kind]}",
            )
        for kind, places in stale.items():
            broken(
                "kv",
                f"tokens {ranges(places)} read keys and values of version {words.NAMES[kind]}, which was replaced by {words.NAMES[since.kind]} "
                "before the request was sent",
            )
        if back is not None:
            broken("keep", f"token {back} is of an older version than the one before it")

    def _labels(self, choice: Choice, told: list[words.Token], broken) -> None:
        kinds: dict[str, int] = {}
        for version in self.history.versions:
            if version.name is not None:
                kinds[version.name] = version.kind
        if choice.spans is None:
            if choice.label is not None and told and kinds.get(choice.label) != told[-1].version:
                kind = words.NAMES[told[-1].version]
                broken("label", f"the answer carries version {choice.label!r}, and its last token is of {kind}")
            return
        at = 0
        for span in choice.spans:
            if span.start != at or span.end <= span.start:
                broken("label", f"the span {span.start}..{span.end} does not begin where the one before ends, at {at}")
                return
            at = span.end
            kind = kinds.get(span.version)
            if kind is None:
                broken("label", f"tokens {span.start}..{span.end - 1} carry version {span.version!r}, which nobody gave")
                continue
            others: dict[int, list[int]] = {}
            for number in range(span.start, min(span.end, len(told))):
                if told[number].version != kind:
                    others.setdefault(told[number].version, []).append(number)
            for other, places in others.items():
                broken(
                    "label",
                    f"tokens {ranges(places)} carry version {words.NAMES[kind]} ({span.version}) and are of {words.NAMES[other]}",
                )
        if at != len(told):
            broken("label", f"the spans cover {at} of {len(told)} tokens")

    def _logprobs(self, temperature: float, told: list[words.Token], logprobs: list[float], broken) -> None:
        if not told or temperature == 0:
            return
        if any(not math.isfinite(logprob) or logprob > 1e-6 for logprob in logprobs):
            broken("logprob", "a log-probability is not finite, or above 0")
            return
        by_convention = {"drawn": words.odds(temperature), "raw": words.odds(1.0)}
        errors = {
            convention: max(abs(logprob - by_convention[convention][token.draw]) for token, logprob in zip(told, logprobs))
            for convention in self.conventions
        }
        if min(errors.values()) <= NEAR:
            return
        at = next(
            at for at, (token, logprob) in enumerate(zip(told, logprobs))
            if abs(logprob - by_convention[self.conventions[0]][token.draw]) > NEAR
        )
        expected = by_convention[self.conventions[0]][told[at].draw]
        broken(
            "logprob",
            f"token {at} has {logprobs[at]:.3f}; at temperature {temperature:g} it has {expected:.3f}, and these fit {_fit(told, logprobs)}",
        )


def _fit(told: list[words.Token], logprobs: list[float]) -> str:
    """The temperature whose odds these are, if there is one."""
    def error(temperature: float) -> float:
        odds = words.odds(temperature)
        return max(abs(logprob - odds[token.draw]) for token, logprob in zip(told, logprobs))

    temperature = min((1.05**power for power in range(-60, 61)), key=error)
    return f"temperature {temperature:.2f}" if error(temperature) <= NEAR else "no temperature"
