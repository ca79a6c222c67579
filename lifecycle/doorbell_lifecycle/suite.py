"""The checks: what is done to a server, at which moment, and what must come of it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import vocabulary as words
from .client import Ask, Refused, Running, Server
from .judge import Finding, History, Judge, Pause, Version

#: Seconds that a token which was made before may take to be seen.
GRACE = 0.4
#: Tokens of a usual prompt: four blocks of 16 and one token.
PROMPT = 65


@dataclass
class Options:
    """How a server is checked."""

    #: Directories of weights: of the classes 0, 1 and so on.
    weights: list[Path]
    logprobs: str = "either"
    #: Fewer moments.
    short: bool = False
    #: Updates without a pause too.
    live: bool = True
    grace: float = GRACE


class Suite:
    """A server under check, with all that was done to it."""

    def __init__(self, server: Server, options: Options, kind: int = 0) -> None:
        self.server = server
        self.options = options
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.requests = 0
        self._salts = itertools.count(1)
        self._check = ""
        now = time.monotonic()
        name = server.version()
        if name is None:
            self.notes.append("the server does not say which version is resident")
        self.history = History([Version(kind, name, now, now)])
        self.judge = Judge(self.history, server.patience, options.logprobs)
        self._tag = f"{int(time.time()) % 100000}"
        self._updates = 0
        # Tokens a second of one of eight streams.
        self.rate = 100.0
        self.room = server.context - PROMPT - 1

    # What checks use.

    def broken(self, rule: str, text: str) -> None:
        """A rule is broken."""
        self.findings.append(Finding(rule, self._check, text))

    def prompt(self, length: int = PROMPT) -> list[int]:
        """A prompt that was not there before."""
        return words.prompt(length, next(self._salts))

    def ask(self, most: int, prompt: list[int] | None = None, **fields) -> Running:
        """Sends a request."""
        self.requests += 1
        return self.server.ask(Ask(prompt or self.prompt(), most, **fields))

    def tokens(self, seconds: float) -> int:
        """About as many tokens as one of eight streams takes so long for."""
        return max(24, min(self.room, 4000, int(self.rate * seconds)))

    def long(self) -> int:
        """Tokens of requests that still run when something was done to them."""
        return self.tokens(0.8 if self.options.short else 1.6)

    def arrived(self, requests: list[Running]) -> None:
        """Waits until the server has got requests: what is sent side by side may come in any order."""
        limit = time.monotonic() + 2.0
        while time.monotonic() < limit:
            load = self.server.load()
            if load is None:
                time.sleep(self.options.grace)
                return
            if load >= sum(running.ended is None for running in requests):
                return
            time.sleep(0.005)

    def begun(self) -> int:
        """Tokens of one request, from which on those that were sent with it have begun too."""
        return min(96, self.long() // 4)

    def over(self, requests: list[Running], aborts: bool = False) -> None:
        """Waits for requests, and judges them."""
        for running in requests:
            self.findings += self.judge.answers(running, self._check, aborts)

    def update(self, paused: bool = False) -> int:
        """Updates to the next version; gives back its class."""
        kind = (self.history.versions[-1].kind + 1) % len(self.options.weights)
        self._updates += 1
        name = f"lc-{self._tag}-{self._updates}"
        version = Version(kind, name, time.monotonic(), float("inf"), paused)
        self.history.versions.append(version)
        try:
            self.server.update(str(self.options.weights[kind].resolve()), name)
        except Refused:
            self.history.versions.pop()
            raise
        version.done = time.monotonic()
        told = self.server.version()
        if told is not None and told != name:
            self.broken("update", f"the update to {name!r} has answered, and the server says that version {told!r} is resident")
            version.name = told
        return kind

    def pause(self, mode: str) -> Pause:
        """Pauses."""
        sent = time.monotonic()
        self.server.pause(mode)
        pause = Pause(mode, sent, time.monotonic())
        self.history.pauses.append(pause)
        return pause

    def resume(self) -> None:
        """Ends the last pause."""
        if self.history.pauses:
            self.history.pauses[-1].resumed = time.monotonic()
        self.server.resume()

    def label(self, kind: int) -> str:
        """A version, as reports name it."""
        return words.NAMES[kind]

    @contextlib.contextmanager
    def paused(self, mode: str) -> Iterator[Pause]:
        """A pause that ends whatever happens."""
        pause = self.pause(mode)
        try:
            yield pause
        finally:
            self.resume()

    def burst(self, most: int) -> list[Running]:
        """Several requests at once: streamed, whole, and groups."""
        asked = [self.ask(most, stream=True), self.ask(most), self.ask(most, stream=True, temperature=0.0)]
        asked.append(self.ask(max(24, most // 2), stops=True))
        asked.append(self.ask(max(24, most // 2), n=4, logprobs=False))
        return asked

    def calibrate(self) -> None:
        """Measures how fast eight streams are."""
        many = 64
        while True:
            start = time.monotonic()
            asked = [self.ask(many, stream=True, logprobs=False) for _ in range(8)]
            for running in asked:
                running.wait(self.server.patience)
            took = time.monotonic() - start
            self.rate = many / max(took, 1e-3)
            self.over(asked)
            if took > 0.2 or many * 4 > self.tokens(1e9) or any(running.error for running in asked):
                return
            many *= 4

    def run(self, only: list[str] | None = None) -> None:
        """Runs checks: all, or those of these names."""
        self._check = "calibrate"
        self.calibrate()
        for name, check in CHECKS.items():
            if only is None or name in only:
                self.run_one(name, check)

    def run_one(self, name: str, check: Callable[[Suite], None] | None = None) -> list[Finding]:
        """Runs a check; gives back what it found."""
        self._check, before = name, len(self.findings)
        try:
            (check or CHECKS[name])(self)
        except (Refused, OSError) as error:
            self.broken("refusal" if name == "refusal" else "answer", f"{type(error).__name__}: {error}")
            with contextlib.suppress(Refused, OSError):
                self.server.resume()
        return self.findings[before:]


def answers(suite: Suite) -> None:
    """Requests while nothing else happens."""
    most = suite.tokens(0.1)
    asked = [suite.ask(most, stream=stream, temperature=t) for stream in (False, True) for t in (0.0, 0.5, 1.0, 2.0)]
    asked += [suite.ask(most, n=4), suite.ask(most, n=4, stream=True), suite.ask(1), suite.ask(1, stream=True)]
    suite.over(asked)


def seed(suite: Suite) -> None:
    """One request several times, alone and among others."""
    prompt = suite.prompt()

    def draw(number: int, **fields) -> Running:
        return suite.ask(64, prompt, seed=number, **fields)

    first = draw(7)
    suite.over([first])
    load = [suite.ask(suite.tokens(0.3)) for _ in range(6)]
    again = [draw(7), draw(7, stream=True), draw(8)]
    suite.over(load + again)
    expected = first.choices[0].tokens
    for running in again[:2]:
        told = running.choices[0].tokens
        at = next((at for at, pair in enumerate(zip(expected, told)) if pair[0] != pair[1]), None)
        if at is not None and not running.error:
            suite.broken("seed", f"{running.name}: token {at} differs from that of {first.name}, of the same prompt and seed")
    if again[2].choices[0].tokens == expected:
        suite.broken("seed", f"seeds 7 and 8 draw the same {len(expected)} tokens")


def update(suite: Suite) -> None:
    """Updates while nothing runs."""
    for _ in range(len(suite.options.weights)):
        suite.update()
        suite.over([suite.ask(32), suite.ask(32, stream=True), suite.ask(16, n=4)])


def refusal(suite: Suite) -> None:
    """An update from a directory that is not there, while requests run."""
    running = suite.ask(suite.tokens(0.3), stream=True)
    before = suite.server.version()
    try:
        suite.server.update(str(suite.options.weights[0].resolve() / "missing"), "lc-missing")
    except Refused as refused:
        if refused.status >= 500:
            suite.notes.append(f"weights that are not there are answered with {refused.status}, as a fault of the server")
    else:
        suite.broken("refusal", "an update from a directory that is not there answers that it was done")
    for asked in (running, suite.ask(32)):
        for finding in suite.judge.answers(asked, "refusal"):
            suite.broken("refusal", f"after an update that failed: {finding.text}")
    after = suite.server.version()
    if after != before:
        suite.broken("refusal", f"an update that failed has changed the version from {before!r} to {after!r}")


def keys(suite: Suite) -> None:
    """One prompt before and after an update."""
    for paused in ("keep", "abort", None):
        if paused is None and not suite.options.live:
            continue
        prompts = [suite.prompt(), suite.prompt(16 * 32 + 1), suite.prompt(17)]
        for _ in range(2):
            suite.over([suite.ask(16, prompt, n=2) for prompt in prompts])
        if paused is None:
            suite.update()
        else:
            with suite.paused(paused):
                suite.update(paused=True)
        suite.over([suite.ask(16, prompt, n=2) for prompt in prompts])


def flush(suite: Suite) -> None:
    """One prompt before and after the cache is flushed."""
    prompt = suite.prompt(129)
    cached = []
    for _ in range(2):
        running = suite.ask(8, prompt)
        suite.over([running])
        cached.append(running.cached)
    suite.server.flush()
    running = suite.ask(8, prompt)
    suite.over([running])
    if running.cached is None:
        suite.notes.append("the server does not say how many tokens come from the cache: a flush cannot be checked")
    elif running.cached > 0:
        suite.broken("flush", f"{running.name}: {running.cached} of 129 tokens come from the cache that was flushed")
    elif not cached[1]:
        suite.notes.append("no prompt came from a cache")


def resume(suite: Suite) -> None:
    """Updates during a pause, while nothing runs; requests that come during the pause."""
    for mode in suite.server.modes:
        with suite.paused(mode):
            early = suite.ask(32, stream=True)
            suite.update(paused=True)
            late = suite.ask(32)
        suite.over([early, late, suite.ask(32), suite.ask(16, n=4)])


def pause(suite: Suite) -> None:
    """Pauses while requests run: nothing moves until the resume."""
    for mode in suite.server.modes:
        most = suite.long()
        asked = [suite.ask(most, stream=True, logprobs=False) for _ in range(5)] + [suite.ask(most)]
        for running in asked[:5]:
            running.until(17, suite.server.patience)
        suite.arrived(asked)
        with suite.paused(mode) as held:
            at_pause = [running.count for running in asked]
            new = suite.ask(24, stream=True)
            time.sleep(suite.options.grace)
            early = [running.count for running in asked]
            time.sleep(suite.options.grace / 2)
            moved = [now.count - then for now, then in zip(asked, early)]
            for running, seen, more in zip(asked, at_pause, moved):
                if mode == "wait":
                    if running.ended is None or running.ask.stream and seen <= most // 2:
                        suite.broken("wait", f"{running.name} had {seen} of {most} tokens when the pause (wait) had answered, and went on")
                elif more > 0 and running.ask.stream:
                    suite.broken("pause", f"{running.name} got {more} tokens more than {suite.options.grace:g} s after the pause ({mode}) had answered")
                elif running.ask.stream and seen <= most // 2 and running.count >= most:
                    suite.broken("pause", f"{running.name} had {seen} of {most} tokens when the pause ({mode}) answered, and went on to its end")
                elif mode == "abort" and running.ended is None:
                    suite.broken("pause", f"{running.name} lives on after a pause that aborts has answered")
                elif mode == "keep" and (running.ended or 0) > held.done + suite.options.grace:
                    suite.broken("pause", f"{running.name} ended during the pause ({mode})")
            if new.count > 0:
                suite.broken("pause", f"{new.name} was sent during the pause ({mode}) and got {new.count} tokens")
        suite.over(asked, aborts=mode == "abort")
        suite.over([new])


def abort(suite: Suite) -> None:
    """Aborts: one of several, all, by a client that goes away."""
    grace = suite.options.grace
    for one in (True, False):
        most = suite.long()
        asked = [suite.ask(most, stream=number < 4, logprobs=False) for number in range(10)] + [suite.ask(most, n=2)]
        for running in asked[:4]:
            running.until(2, suite.server.patience)
        suite.arrived(asked)
        gone = [asked[0], asked[4], asked[-1]] if one else asked
        suite.server.abort([running.name for running in gone] if one else None)
        seen = [running.count for running in gone]
        time.sleep(grace)
        later = [running.count for running in gone]
        for running, at, then in zip(gone, seen, later):
            if running.ended is None:
                suite.broken("abort", f"{running.name} had {at} tokens when the abort answered, and lives on {grace:g} s later, with {then}")
            elif running.ask.stream and at <= most // 2 and running.choices[0].finish == "length":
                suite.broken("abort", f"{running.name} had {at} of {most} tokens when the abort answered, and went on to its end")
        load = suite.server.load()
        if not one and load:
            suite.broken("abort", f"{load} requests live after all were aborted")
        suite.over(gone, aborts=True)
        if one:
            rest = [running for running in asked if running not in gone]
            for running in rest:
                if running.wait(suite.server.patience) and running.choices[0].finish == "abort":
                    suite.broken("abort", f"{running.name} was aborted with others that were named")
            suite.over(rest)
    _abort_whole(suite)
    running = suite.ask(suite.tokens(1e9), stream=True, logprobs=False)
    running.until(1, suite.server.patience)
    if suite.server.load() and running.ended is None:
        running.hang_up()
        time.sleep(grace)
        if load := suite.server.load():
            suite.broken("abort", f"{load} requests live after their client has gone")


def _abort_whole(suite: Suite) -> None:
    """Aborts requests that are not streamed: what they have is in their answers."""
    for _ in range(3):
        most = suite.long()
        whole = [suite.ask(most, stops=True, logprobs=False) for _ in range(7)]
        suite.arrived(whole)
        asked = [suite.ask(most, stream=True, logprobs=False), *whole]
        asked[0].until(suite.begun(), suite.server.patience)
        suite.server.abort()
        suite.over(asked, aborts=True)
        whole = [running.choices[0] for running in asked[1:] if running.choices[0].finish == "abort"]
        # Some servers end them before others have begun: then there is nothing to see.
        if len(whole) < 4:
            continue
        # A server need not have begun all of them; that it has begun none of these, but the one that is streamed, is no chance.
        if asked[0].count and not any(choice.tokens for choice in whole):
            suite.broken(
                "abort-tokens",
                f"{len(whole)} answers were aborted with 0 tokens each, while {asked[0].name}, which was sent after them, was streamed {asked[0].count}",
            )
        return
    suite.notes.append("requests that are not streamed ended before an abort reached them: whether an abort keeps their tokens cannot be checked")


def keep(suite: Suite) -> None:
    """Requests that are not streamed, over pauses that keep them, with an update and without."""
    for updates in (True, False):
        for _ in range(3):
            asked = [suite.ask(suite.long(), stream=number == 0, stops=True) for number in range(6)]
            asked[0].until(suite.begun(), suite.server.patience)
            with suite.paused("keep"):
                if updates:
                    suite.update(paused=True)
            suite.over(asked)
            told = [{token.version for token in map(words.read, running.choices[0].tokens) if token} for running in asked[1:]]
            if not updates or any(len(versions) > 1 for versions in told):
                break
        else:
            suite.notes.append("no request that is not streamed ran under two versions")


def group(suite: Suite) -> None:
    """Groups over a pause that waits or aborts, with an update."""
    for mode in suite.server.modes:
        most = suite.tokens(0.6)
        asked = [suite.ask(most, n=4, stream=True, logprobs=False), suite.ask(most, n=4, logprobs=False)]
        asked[0].until(17, suite.server.patience)
        with suite.paused(mode) as held:
            time.sleep(0.02)
            suite.update(paused=True)
        suite.over(asked, aborts=mode == "abort")
        if mode == "keep":
            continue
        for running in asked:
            _one_version(suite, running, held)


def _one_version(suite: Suite, running: Running, held: Pause) -> None:
    """All members of a group are of one version, as the pause does not keep them."""
    if running.error:
        return
    kinds: dict[tuple[int, ...], list[int]] = {}
    for member, choice in enumerate(running.choices):
        told = {token.version for token in map(words.read, choice.tokens) if token}
        if told:
            kinds.setdefault(tuple(sorted(told)), []).append(member)
    if len(kinds) > 1 or any(len(kind) > 1 for kind in kinds):
        parts = [f"{members} of {' and '.join(map(suite.label, kind))}" for kind, members in kinds.items()]
        suite.broken("group", f"{running.name}: answers {', '.join(parts)}, over a pause ({held.mode}) that keeps none")


def moments(suite: Suite) -> None:
    """Every way of an update, and an abort, at every moment of a request."""
    ways = [*suite.server.modes, *(["live"] if suite.options.live else []), "abort-all"]
    whens = ("prefill", "streaming") if suite.options.short else ("waiting", "prefill", "first token", "streaming", "end", "crowd")
    for way, when in itertools.product(ways, whens):
        _moment(suite, way, when)


def _moment(suite: Suite, way: str, when: str) -> None:
    most = suite.tokens(0.4)
    asked: list[Running] = []
    if when == "waiting":
        # More than most servers take at a time.
        asked = [suite.ask(suite.tokens(0.05), stream=number % 2 == 0, logprobs=False) for number in range(48)]
    elif when == "crowd":
        asked = [running for _ in range(3) for running in suite.burst(most // 2)]
        asked[0].until(max(1, most // 4), suite.server.patience)
    else:
        length = min(suite.room // 2, 1025) if when == "prefill" else PROMPT
        asked = [suite.ask(most, suite.prompt(length), stream=True), suite.ask(most, suite.prompt(length), stops=True)]
        asked += suite.burst(most)
        until = {"prefill": 0, "first token": 1, "streaming": most // 3, "end": most - 1}[when]
        asked[0].until(until, suite.server.patience)
    seen = [running.count for running in asked]
    if way == "abort-all":
        suite.server.abort()
        # What was on its way when the abort came was not aborted.
        suite.over(asked, aborts=True)
        return
    if way == "live":
        kind = suite.update()
        suite.over([suite.ask(24), *asked], aborts=True)
        return
    with suite.paused(way) as held:
        during = suite.ask(24, stream=True)
        kind = suite.update(paused=True)
    suite.over(asked, aborts=way == "abort")
    suite.over([during, suite.ask(24)])
    for running, before in zip(asked, seen):
        if running.error or running.ended is None:
            continue
        if running.ask.n > 1 and way != "keep":
            _one_version(suite, running, held)
        if way == "keep" and running.ask.stream and 0 < before <= running.ask.most // 4:
            last = words.read(running.choices[0].tokens[-1])
            if last is not None and last.version != kind:
                suite.broken(
                    "keep",
                    f"{running.name} had {before} of {running.ask.most} tokens at the pause, and ends under version {suite.label(last.version)}, "
                    f"not under {suite.label(kind)}",
                )


CHECKS: dict[str, Callable[[Suite], None]] = {
    "answers": answers,
    "seed": seed,
    "update": update,
    "keys": keys,
    "flush": flush,
    "resume": resume,
    "pause": pause,
    "abort": abort,
    "keep": keep,
    "group": group,
    "moments": moments,
    # Last: some servers do not outlive it.
    "refusal": refusal,
}
