"""Hostile clients against `doorbell serve`: the others' answers stay right, memory stays bounded, and errors are JSON as a client of that endpoint reads
them. With `--long` there are 10^4 connections and requests of 100 MB."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import struct
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

#: Bytes that the server may take of one request, and what its memory may grow by: texts, JSON and prompts of the few long requests that it reads at
#: a time, and what waits. In the long form as by default.
SHORT = {"body": 1 << 20, "connections": 64, "timeout": 1, "idle": 300, "long": 8 << 20, "growth": 64 << 20}
LONG = {"body": 32 << 20, "connections": 1024, "timeout": 4, "idle": 10_000, "long": 100 << 20, "growth": 512 << 20}
ENDPOINTS = ("/v1/completions", "/v1/chat/completions", "/inference/v1/generate", "/generate")


class Crowd:
    def __init__(self, url: str, size: dict[str, int], directories: list[Path], broken: list[Path]) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.host, self.port, self.size = host, int(port), size
        self.directories, self.broken = directories, broken

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.wait_for(asyncio.open_connection(self.host, self.port), 120)

    async def send(self, *parts: bytes, wait: float = 0.0, hang_up: bool = False) -> tuple[int, bytes]:
        """What the server answers to these bytes; 0 if it hangs up without a word."""
        reader, writer = await self.connect()
        try:
            for part in parts:
                writer.write(part)
                # It may have answered and gone before it has read all.
                await asyncio.wait_for(writer.drain(), 60)
                await asyncio.sleep(wait)
            if hang_up:
                return 0, b""
            told = await asyncio.wait_for(reader.read(), 60)
        except ConnectionError:
            told = b""
        finally:
            writer.close()
        head, _, body = told.partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1.1 (\d+)", head)
        if b"chunked" in head.lower():
            body = b"".join(re.findall(rb"\r\n(.*?)\r\n", b"\r\n" + body, re.S))
        return (int(found[1]) if found else 0), body

    async def post(self, endpoint: str, body: object, *codes: int) -> None:
        """A whole request that is answered with one of these codes, and an error as clients read it."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.is_error(await self.send(head("POST", endpoint, len(data)) + data), *codes)

    @staticmethod
    def is_error(told: tuple[int, bytes], *codes: int) -> None:
        code, body = told
        assert code in codes, told
        if code:
            error = json.loads(body)["error"]
            assert error["message"] and error["code"] == code and error["type"], error


def head(method: str, endpoint: str, length: int | None) -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return f"{method} {endpoint} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{framing}\r\n\r\n".encode()


async def slow_body(crowd: Crowd) -> None:
    # It hears of it while it still sends.
    steps = crowd.size["timeout"] * 5 + 5
    reader, writer = await crowd.connect()
    writer.write(head("POST", "/generate", 500))
    told = asyncio.ensure_future(reader.read())
    for _ in range(steps):
        writer.write(b" ")
        await asyncio.wait([told], timeout=0.2)
    code, _, body = (await told).partition(b"\r\n\r\n")
    writer.close()
    crowd.is_error((int(code.split()[1]), body), 408)


async def slow_head(crowd: Crowd) -> None:
    code, _ = await crowd.send(*[bytes([byte]) for byte in b"POST /generate HTTP/1.1\r\nhost: xxxxx\r\n"], wait=0.2)
    assert code in (0, 408)


async def half_head(crowd: Crowd) -> None:
    await crowd.send(b"POST /v1/compl", hang_up=True)


async def half_body(crowd: Crowd) -> None:
    await crowd.send(head("POST", "/v1/completions", 1000) + b'{"prompt": [1, 2', wait=0.1, hang_up=True)


async def idle(crowd: Crowd) -> None:
    """Connections that never say anything, many more than there are places: the server hangs up on those that it has let in."""
    rounds = crowd.size["idle"] / crowd.size["connections"]

    async def one() -> bool:
        reader, writer = await crowd.connect()
        try:
            return await asyncio.wait_for(reader.read(), 3 * rounds * crowd.size["timeout"] + 10) == b""
        except TimeoutError:
            return False
        finally:
            writer.close()

    ended = await asyncio.gather(*(one() for _ in range(crowd.size["idle"])))
    # Beyond the system's queue some are connections on this side alone.
    assert sum(ended) >= min(len(ended), 4096), f"{sum(ended)} of {len(ended)}"


async def declared_long(crowd: Crowd) -> None:
    crowd.is_error(await crowd.send(head("POST", "/v1/completions", 100 << 20)), 413)


async def long_text(crowd: Crowd) -> None:
    data = b'{"prompt": "' + b"a" * crowd.size["long"] + b'"}'
    code, body = await crowd.send(head("POST", "/v1/completions", len(data)), data)
    crowd.is_error((code, body), 413, 0)


async def long_chunked(crowd: Crowd) -> None:
    piece = b"10000\r\n" + b"1," * (1 << 15) + b"\r\n"
    parts = [b'c\r\n{"prompt": [\r\n'] + [piece] * (crowd.size["long"] >> 16)
    crowd.is_error(await crowd.send(head("POST", "/v1/completions", None), *parts), 413, 0)


async def many_tokens(crowd: Crowd) -> None:
    data = b'{"prompt": [' + b"1," * ((crowd.size["body"] - 64) // 2) + b"1]}"
    await crowd.post("/v1/completions", data, 400)


async def many_letters(crowd: Crowd) -> None:
    data = b'{"prompt": "' + b"ab " * ((crowd.size["body"] - 64) // 3) + b'"}'
    await crowd.post("/v1/completions", data, 400)


async def much_junk(crowd: Crowd) -> None:
    data = b'{"junk": [' + b"1," * ((crowd.size["body"] - 64) // 2) + b'1], "prompt": []}'
    await crowd.post("/v1/completions", data, 400)


async def deep(crowd: Crowd) -> None:
    for endpoint in ENDPOINTS:
        await crowd.post(endpoint, b'{"prompt":' + b"[" * 30_000 + b"]" * 30_000 + b"}", 400)


async def wrong_types(crowd: Crowd) -> None:
    for value in (None, True, -1, 1.5, "x", [], {}, [None], [[["x"]]], {"a": []}):
        for endpoint, field in zip(ENDPOINTS, ("prompt", "messages", "token_ids", "input_ids")):
            if not (endpoint == "/v1/completions" and isinstance(value, str)):
                await crowd.post(endpoint, {field: value}, 400)
    for field in ("n", "temperature", "max_tokens", "seed", "stop", "stream", "stop_token_ids"):
        await crowd.post("/v1/completions", {"prompt": [1], field: {"no": 1}}, 400)


async def wrong_numbers(crowd: Crowd) -> None:
    for fields in ('"n": 1000000000', '"max_tokens": 4294967295', '"temperature": 1e308', '"temperature": NaN', '"seed": 1e400', '"top_p": -0.0', '"min_p": 2'):
        await crowd.post("/v1/completions", f'{{"prompt": [1], {fields}}}'.encode(), 400)
    await crowd.post("/v1/completions", {"prompt": [2**31]}, 400)


async def no_utf8(crowd: Crowd) -> None:
    await crowd.post("/v1/completions", b'{"prompt": "\xff\xfe\x80"}', 400)


async def no_http(crowd: Crowd) -> None:
    code, _ = await crowd.send(bytes(range(256)) * 20)
    assert code in (0, 400)


async def long_path(crowd: Crowd) -> None:
    code, _ = await crowd.send(b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert code in (0, 400, 414, 431)


async def wrong_doors(crowd: Crowd) -> None:
    crowd.is_error(await crowd.send(head("GET", "/v1/completions", 0)), 405)
    crowd.is_error(await crowd.send(head("POST", "/v1/none", 0)), 404)


async def hangs_up(crowd: Crowd) -> None:
    for place in range(12):
        data = json.dumps({"prompt": [64 + place], "max_tokens": 2000, "stream": place % 2 == 0, "n": 4}).encode()
        await crowd.send(head("POST", "/v1/completions", len(data)) + data, wait=0.05, hang_up=True)


async def reads_nothing(crowd: Crowd) -> None:
    data = json.dumps({"prompt": [70], "max_tokens": 3000, "stream": True, "logprobs": 0, "n": 8}).encode()
    reader, writer = await crowd.connect()
    writer.write(head("POST", "/v1/completions", len(data)) + data)
    await asyncio.sleep(2)
    writer.close()
    del reader


async def pipelines(crowd: Crowd) -> None:
    data = json.dumps({"prompt": [71], "max_tokens": 1}).encode()
    one = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
    await crowd.send(one * 200, wait=0.2, hang_up=True)


async def floods(crowd: Crowd) -> None:
    """More prompts than may wait: refused, and none of them runs."""
    await crowd.post("/v1/completions", {"prompt": [[80]] * 600, "n": 8, "max_tokens": 400}, 429)


async def salts(crowd: Crowd) -> None:
    """Prompts that nobody else has, which push others' out of what is kept."""
    for place in range(10):
        data = json.dumps({"prompt": [place + 5] * 1500, "cache_salt": str(place), "max_tokens": 1}).encode()
        code, _ = await crowd.send(head("POST", "/v1/completions", len(data)) + data)
        assert code == 200


async def broken_weights(crowd: Crowd) -> None:
    """Weights that are no numbers, cut off, no weights at all, or not there."""
    for path in [*crowd.broken, Path("/dev/null"), Path("/dev/zero"), Path("/nonexistent")]:
        await crowd.post("/update_weights_from_disk", {"model_path": str(path), "weight_version": "bad"}, 400)


async def wrong_control(crowd: Crowd) -> None:
    await crowd.post("/pause?mode=never", {}, 400)
    await crowd.post("/abort_request", {"rid": 7}, 400)
    await crowd.post("/update_weights_from_disk", {"model_path": 7}, 400)
    await crowd.post("/update_weights", {"weight_dir": str(crowd.directories[0]), "mode": "never"}, 400)
    crowd.is_error(await crowd.send(head("POST", "/abort_requests", 9) + b'{"a": {]}'), 400)


ALL: list[Callable[[Crowd], Awaitable[None]]] = [
    slow_body, slow_head, half_head, half_body, idle, declared_long, long_text, long_chunked, many_tokens, many_letters, much_junk, deep,
    wrong_types, wrong_numbers, no_utf8, no_http, long_path, wrong_doors, hangs_up, reads_nothing, pipelines, floods, salts, broken_weights, wrong_control,
]  # fmt: skip


def broken(directory: Path, to: Path) -> list[Path]:
    """Directories whose weights have a NaN, an infinity, or lack their end."""
    made = []
    for name, value in (("nan", float("nan")), ("infinity", float("inf")), ("cut", None)):
        shutil.copytree(directory, to / name)
        file = to / name / "model.safetensors"
        data = bytearray(file.read_bytes())
        (length,) = struct.unpack_from("<Q", data)
        tensors = json.loads(data[8 : 8 + length])
        if value is None:
            data = data[: len(data) * 2 // 3]
        else:
            where, kind = next((of["data_offsets"][0], of["dtype"]) for of in tensors.values() if "dtype" in of)
            number = struct.pack("<f", value)
            number = number[2:] if kind == "BF16" else number if kind == "F32" else struct.pack("<e", value)
            data[8 + length + where : 8 + length + where + len(number)] = number
        file.write_bytes(data)
        made.append(to / name)
    return made


def memory(process: int) -> int:
    """The most bytes that it had in memory so far."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())[1]) << 10


def answer(url: str, number: int) -> object:
    """What a client gets that means well."""
    body = {"prompt": [number, 9, 11] * 20, "seed": number, "max_tokens": 24, "n": 2, "return_token_ids": True, "logprobs": 0}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json", "connection": "close"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)["choices"]


def test_hostile_clients_disturb_nobody(
    serve: Callable[..., str], directories: list[Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    size = LONG if request.config.getoption("--long") else SHORT
    options = {"--max-body": size["body"], "--max-connections": size["connections"], "--request-timeout": size["timeout"], "--max-waiting": 500}
    url = serve(*(str(word) for option in options.items() for word in option))
    process = serve.running[-1].pid
    crowd = Crowd(url, size, directories, broken(directories[0], tmp_path))
    expected = [answer(url, number) for number in range(4)]
    before = memory(process)

    async def means_well(number: int, over: asyncio.Event) -> int:
        asked = 0
        while not over.is_set():
            assert await asyncio.to_thread(answer, url, number) == expected[number]
            asked += 1
        return asked

    async def everyone() -> list[int]:
        over = asyncio.Event()
        others = [asyncio.ensure_future(means_well(number, over)) for number in range(4)]
        # A failure of either ends all.
        attacks = asyncio.gather(*(attack(crowd) for attack in ALL))
        try:
            await attacks
        finally:
            over.set()
            asked = await asyncio.gather(*others)
        return asked

    asked = asyncio.run(everyone())
    assert len(ALL) >= 24 and all(count >= 1 for count in asked), asked
    grown = memory(process) - before
    assert grown < size["growth"], f"{grown >> 20} MiB more"
    assert [answer(url, number) for number in range(4)] == expected
    with urllib.request.urlopen(f"{url}/get_weight_version", timeout=10) as response:
        assert json.load(response)["weight_version"] == "0", "an update that was refused is resident"
    with urllib.request.urlopen(f"{url}/v1/loads", timeout=10) as response:
        load = json.load(response)
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0), load
    print(f"{sum(asked)} answers, {grown >> 20} MiB more at most")
