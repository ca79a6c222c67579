"""A server of vLLM's or SGLang's shape, as its clients see it."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from . import vocabulary as words

_ids = itertools.count(1)


class Refused(Exception):
    """A request that was answered with an error."""

    def __init__(self, endpoint: str, status: int, message: str) -> None:
        super().__init__(f"{endpoint} answered {status}: {message[:300]}")
        self.status = status


@dataclass
class Span:
    """Tokens that the server says one version made."""

    version: str
    start: int
    end: int


@dataclass
class Choice:
    """One answer to a prompt, as far as it came."""

    tokens: list[int] = field(default_factory=list)
    #: When each of them came.
    times: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[Span] | None = None
    #: The one label of the answer, where there are no spans.
    label: str | None = None
    finish: str | None = None


@dataclass
class Ask:
    """A prompt, and how it is to be answered."""

    prompt: list[int]
    most: int
    n: int = 1
    temperature: float = 1.0
    seed: int | None = None
    stream: bool = False
    logprobs: bool = True
    #: With a text that ends the answer and never comes: a server has to look at the tokens as they come.
    stops: bool = False


class Running:
    """A request on its way. Its thread ends with its answer."""

    def __init__(self, server: Server, ask: Ask) -> None:
        self.ask = ask
        self.name = f"lifecycle-{next(_ids)}"
        self.sent = time.monotonic()
        self.ended: float | None = None
        self.error: str | None = None
        self.cached: int | None = None
        self.choices = [Choice() for _ in range(ask.n)]
        self._server = server
        self._connection: http.client.HTTPConnection | None = None
        self._gone = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._server._answer(self)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError, Refused) as error:
            if not self._gone:
                self.error = f"{type(error).__name__}: {error}"
        self.ended = time.monotonic()

    @property
    def count(self) -> int:
        """Tokens that came so far, of all answers."""
        return sum(len(choice.tokens) for choice in self.choices)

    def until(self, tokens: int, patience: float) -> bool:
        """Waits until so many tokens came, or the end; says whether they came."""
        limit = time.monotonic() + patience
        while self.count < tokens and self.ended is None and time.monotonic() < limit:
            time.sleep(0.001)
        return self.count >= tokens

    def wait(self, patience: float) -> bool:
        """Waits for the end; says whether it came."""
        self._thread.join(max(0.0, patience))
        return self.ended is not None

    def hang_up(self) -> None:
        """Goes away in the middle of the answer."""
        self._gone = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            connection.sock.shutdown(2)


class Server:
    """A server at a URL; `dialect` is vllm, sglang or auto; `update` is disk, or rpc for what vLLM has in its place."""

    def __init__(
        self, url: str, dialect: str = "auto", key: str | None = None, patience: float = 120.0, update: str = "disk"
    ) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._key = key
        self.patience = patience
        self._update = update
        if dialect == "auto":
            # Both have /v1/models; only SGLang's servers have this one. Servers that have both shapes are taken as vLLM's.
            is_vllm = self.has("GET", "/is_paused") or not self.has("GET", "/get_model_info")
            dialect = "vllm" if is_vllm else "sglang"
        self.dialect = dialect
        self.modes = ("keep", "abort", "wait") if dialect == "vllm" else ("keep", "abort")
        models = self.call("GET", "/v1/models")["data"]
        self.model = models[0]["id"]
        self.context = int(models[0].get("max_model_len") or 2048)

    def connect(self, patience: float | None = None) -> http.client.HTTPConnection:
        """A connection of its own."""
        return http.client.HTTPConnection(*self._address, timeout=patience or self.patience)

    def _headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        return headers

    def has(self, method: str, endpoint: str) -> bool:
        """Whether there is such an endpoint."""
        try:
            self.call(method, endpoint)
        except Refused as refused:
            return refused.status not in (404, 405, 501)
        return True

    def call(self, method: str, endpoint: str, body: object = None) -> dict:
        """Sends a request and gives back its answer, which is an object; an empty one where it has no JSON."""
        connection = self.connect()
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, endpoint, data, self._headers())
            response = connection.getresponse()
            told = response.read()
            if response.status >= 400:
                raise Refused(endpoint, response.status, told.decode(errors="replace"))
            try:
                value = json.loads(told) if told else {}
            except ValueError:
                value = {"text": told.decode(errors="replace")}
            return value if isinstance(value, dict) else {"value": value}
        finally:
            connection.close()

    # Control.

    def pause(self, mode: str) -> None:
        """Pauses: keep, abort or wait."""
        if self.dialect == "vllm":
            self.call("POST", f"/pause?{urlencode({'mode': mode})}")
        else:
            self.call("POST", "/pause_generation", {"mode": {"keep": "in_place"}.get(mode, mode)})

    def resume(self) -> None:
        """Lets requests go on."""
        self.call("POST", "/resume" if self.dialect == "vllm" else "/continue_generation", {})

    def abort(self, names: list[str] | None = None) -> None:
        """Aborts requests by name, or all."""
        if self.dialect == "vllm":
            # vLLM's engine knows a request of /v1/completions by another name than its client.
            ids = [made for name in names or [] for made in (name, f"cmpl-{name}", f"cmpl-{name}-0")]
            self.call("POST", "/abort_requests", {"request_ids": ids})
        elif names is None:
            self.call("POST", "/abort_request", {"abort_all": True})
        else:
            for name in names:
                self.call("POST", "/abort_request", {"rid": name})

    def update(self, directory: str, name: str) -> None:
        """Takes weights from a directory, as a version of this name."""
        if self._update == "rpc":
            self.call("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": directory}})
            self.call("POST", "/update_weight_version", {"new_version": name})
        elif self.dialect == "vllm":
            self.call("POST", "/update_weights", {"weight_dir": directory, "weight_version": name})
        else:
            told = self.call(
                "POST",
                "/update_weights_from_disk",
                {"model_path": directory, "weight_version": name, "abort_all_requests": False, "flush_cache": True},
            )
            if told.get("success") is False:
                raise Refused("/update_weights_from_disk", 400, str(told.get("message")))

    def version(self) -> str | None:
        """The name of the version that is resident, if the server says it."""
        endpoint = "/weight_info" if self.dialect == "vllm" else "/get_weight_version"
        try:
            told = self.call("GET", endpoint)
        except Refused:
            return None
        version = told.get("weight_version", told.get("version"))
        return None if version is None else str(version)

    def flush(self) -> None:
        """Empties the cache of prefixes."""
        self.call("POST", "/reset_prefix_cache" if self.dialect == "vllm" else "/flush_cache", {})

    def load(self) -> int | None:
        """Requests that live, if the server says it."""
        for endpoint, read in (
            ("/v1/loads?include=core", lambda told: sum(load["num_total_reqs"] for load in told["loads"])),
            ("/load", lambda told: told["server_load"]),
        ):
            try:
                return int(read(self.call("GET", endpoint)))
            except (Refused, KeyError, TypeError):
                continue
        return None

    # Generation.

    def ask(self, ask: Ask) -> Running:
        """Sends a request."""
        return Running(self, ask)

    def _body(self, running: Running) -> tuple[str, dict]:
        ask = running.ask
        common = {"temperature": ask.temperature, "n": ask.n, "ignore_eos": True}
        if ask.stops:
            common["stop"] = ["<never>"]
        if self.dialect == "vllm":
            body = common | {
                "model": self.model, "prompt": ask.prompt, "max_tokens": ask.most, "stream": ask.stream,
                "return_token_ids": True, "return_tokens_as_token_ids": True, "request_id": running.name,
            }
            if ask.logprobs:
                body["logprobs"] = 0
            if ask.seed is not None:
                body["seed"] = ask.seed
            return "/v1/completions", body
        params = common | {"max_new_tokens": ask.most}
        if ask.seed is not None:
            params["sampling_seed"] = ask.seed
        return "/generate", {
            "input_ids": ask.prompt, "sampling_params": params, "return_logprob": ask.logprobs, "stream": ask.stream,
            "rid": running.name,
        }

    def _answer(self, running: Running) -> None:
        endpoint, body = self._body(running)
        connection = running._connection = self.connect()
        try:
            connection.request("POST", endpoint, json.dumps(body), self._headers())
            response = connection.getresponse()
            if response.status >= 400:
                raise Refused(endpoint, response.status, response.read().decode(errors="replace"))
            values = _lines(response) if running.ask.stream else [json.loads(response.read())]
            for value in values:
                self._take(running, value)
        finally:
            connection.close()

    def _take(self, running: Running, value: object) -> None:
        now = time.monotonic()
        if isinstance(value, dict) and "error" in value:
            raise Refused("the stream", 500, json.dumps(value["error"]))
        if self.dialect == "vllm":
            details = (value.get("usage") or {}).get("prompt_tokens_details") or {}
            running.cached = details.get("cached_tokens", running.cached)
            for told in value["choices"]:
                choice = running.choices[told.get("index", 0)]
                logprobs = told.get("logprobs") or {}
                tokens = told.get("token_ids")
                if tokens is None:
                    tokens = [int(name.partition(":")[2]) for name in logprobs.get("tokens", [])]
                choice.tokens += tokens
                choice.times += [now] * len(tokens)
                choice.logprobs += logprobs.get("token_logprobs", [])
                if told.get("finish_reason"):
                    choice.finish = told["finish_reason"]
                    choice.spans = _spans(told.get("weight_versions"))
            return
        for place, told in enumerate(value if isinstance(value, list) else [value]):
            choice = running.choices[told.get("index", place)]
            meta = told["meta_info"]
            pairs = meta.get("output_token_logprobs") or []
            tokens = told.get("output_ids") or [pair[1] for pair in pairs]
            # Each line has all of the answer so far.
            choice.times += [now] * (len(tokens) - len(choice.times))
            choice.tokens = list(tokens)
            choice.logprobs = [pair[0] for pair in pairs]
            running.cached = meta.get("cached_tokens", running.cached)
            if meta.get("finish_reason"):
                choice.finish = meta["finish_reason"]["type"]
                choice.spans = _spans(meta.get("weight_versions"))
                if choice.spans is None and meta.get("weight_version") is not None:
                    choice.label = str(meta["weight_version"])


def _spans(told: list[dict] | None) -> list[Span] | None:
    if told is None:
        return None
    return [Span(str(span["version"]), int(span["start"]), int(span["end"])) for span in told]


def _lines(response: http.client.HTTPResponse) -> Iterator[object]:
    while line := response.readline():
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)


def resident(server: Server) -> int | None:
    """The class of the weights that a server has, by the tokens of an answer; None if they tell none."""
    running = server.ask(Ask(words.prompt(9, 0), 8, temperature=0.0))
    running.wait(server.patience)
    if running.error is not None:
        raise ValueError(running.error)
    kinds = {told.version if told else None for told in map(words.read, running.choices[0].tokens)}
    return kinds.pop() if len(kinds) == 1 else None
