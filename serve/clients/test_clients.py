"""Clients of RL stacks, unchanged, against `doorbell serve`. `cargo xtask clients` runs this."""

import asyncio
import importlib
import logging
import math
import sys
import threading
import time
import types
from pathlib import Path

import requests
from conftest import bare, stand_in

PROMPT = [3, 1, 4, 1, 5]


def answer(url, **fields):
    """The same answer by the plainest way."""
    body = {"prompt": PROMPT, "logprobs": 0, "return_token_ids": True, **fields}
    response = requests.post(url + "/v1/completions", json=body, timeout=60)
    response.raise_for_status()
    return response.json()["choices"]


def while_asked(ask, act):
    """What `ask` gives if `act` happens meanwhile."""
    got = []
    thread = threading.Thread(target=lambda: got.append(ask()))
    thread.start()
    time.sleep(0.002)
    act()
    thread.join(timeout=60)
    return got[0]


def test_openai(server):
    from openai import OpenAI

    client = OpenAI(base_url=server.url + "/v1", api_key="none")
    assert [model.id for model in client.models.list().data] == ["micro"]
    expected = answer(server.url, n=2, seed=7, max_tokens=20)
    told = client.completions.create(model="micro", prompt=PROMPT, n=2, seed=7, max_tokens=20, logprobs=0)
    for choice, of in zip(told.choices, expected):
        assert (choice.text, choice.finish_reason) == (of["text"], of["finish_reason"])
        assert choice.logprobs.token_logprobs == of["logprobs"]["token_logprobs"]
        assert len(choice.logprobs.tokens) == len(choice.logprobs.text_offset) == len(of["token_ids"])
    stream = client.completions.create(model="micro", prompt=PROMPT, seed=7, max_tokens=20, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == expected[0]["text"]

    messages = [{"role": "user", "content": "hello"}]
    chat = client.chat.completions.create(model="micro", messages=messages, seed=1, max_tokens=12, logprobs=True)
    content = chat.choices[0].message.content
    assert len(chat.choices[0].logprobs.content) == chat.usage.completion_tokens
    stream = client.chat.completions.create(
        model="micro", messages=messages, seed=1, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == content
    assert chunks[-1].usage == chat.usage


class Renderer:
    """What the client asks of a renderer, for tokens that are there already."""

    supports_tools = True

    def get_stop_token_ids(self):
        return [9]

    def parse_response(self, tokens, **_):
        return types.SimpleNamespace(content=str(tokens), reasoning_content=None, tool_calls=[], reasoning_complete=True)


def test_renderers(server):
    """The client of prime-rl and verifiers: tokens, and evidence of each."""
    from openai import AsyncOpenAI
    from renderers.client import generate

    async def ask():
        client = AsyncOpenAI(base_url=server.url + "/v1", api_key="none")
        params = {"temperature": 1.0, "max_tokens": 24, "seed": 5}
        return await generate(
            client=client, renderer=Renderer(), messages=[], model="micro", prompt_ids=PROMPT, sampling_params=params,
            cache_salt="1", priority=0,
        )

    told = asyncio.run(ask())
    expected = answer(server.url, seed=5, max_tokens=24, stop_token_ids=[9])[0]
    assert told["completion_ids"] == expected["token_ids"]
    assert told["completion_logprobs"] == expected["logprobs"]["token_logprobs"]
    assert told["finish_reason"] == expected["finish_reason"]


def test_verifiers(server, monkeypatch):
    """An environment of verifiers, with two turns a task and two episodes of each: answers are those of the chat endpoint, and rewards those of their texts."""
    import verifiers.v1 as vf

    # Nothing of an account is asked for.
    monkeypatch.setenv("NONE", "none")
    config = vf.SingleAgentEnvConfig(
        taskset=vf.TasksetConfig(id="words_env"),
        agent=vf.AgentConfig(harness=vf.HarnessConfig(id="words_env"), runtime=vf.SubprocessConfig()),
    )
    sampling = vf.SamplingConfig(max_tokens=20, temperature=1.0, seed=3)
    client = vf.EvalClientConfig(base_url=server.url + "/v1", api_key_var="NONE")
    context = vf.ModelContext(model="micro", client=client, sampling=sampling)

    async def episodes():
        env = vf.SingleAgentEnv(config)
        async with env.serving():
            slots = [slot for task in env.taskset for slot in env.slots(task, 2)]
            return await asyncio.gather(*(env.run_slot(slot, context) for slot in slots))

    told = asyncio.run(episodes())
    assert len(told) == 6
    for episode in told:
        assert episode.ok and not episode.errors, episode.errors
        (trace,) = episode.traces
        messages = [{"role": "user", "content": episode.task.data.prompt}]
        for said in trace.assistant_messages:
            body = {"messages": messages, "max_tokens": 20, "seed": 3}
            answered = requests.post(server.url + "/v1/chat/completions", json=body, timeout=60).json()
            assert said.content == answered["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": "go on"}]
        assert len(trace.assistant_messages) == 2 and trace.usage.completion_tokens > 0
        assert trace.reward == said.content.count("a") / max(len(said.content), 1)


def test_skyrl(server):
    bare("skyrl")
    bare("skyrl.backends")
    bare("skyrl.backends.skyrl_train")
    bare("skyrl.backends.skyrl_train.inference_servers")
    module = importlib.import_module("skyrl.backends.skyrl_train.inference_servers.remote_inference_client")

    async def ask():
        client = module.RemoteInferenceClient(
            proxy_url=server.url, server_urls=[server.url], data_parallel_size=1, model_name="micro"
        )
        params = {"temperature": 1.0, "max_tokens": 40, "seed": 3, "logprobs": 0, "ignore_eos": True}
        request = {"prompt_token_ids": [PROMPT], "sampling_params": params, "session_ids": ["a"]}
        whole = await client.generate(request)
        waiting = asyncio.create_task(client.generate(request))
        await asyncio.sleep(0.001)
        await client.pause_generation()
        await asyncio.sleep(0.02)
        await client.reset_prefix_cache()
        await client.resume_generation()
        kept = await waiting
        waiting = asyncio.create_task(client.generate(request))
        await client.pause(mode="abort")
        aborted = await asyncio.wait({waiting}, timeout=0.2)
        await client.resume()
        late = await waiting
        world = await client.get_world_size()
        text = await client.detokenize([PROMPT])
        await client.aclose()
        return whole, kept, late, world, text, aborted

    whole, kept, late, world, text, _ = asyncio.run(ask())
    expected = answer(server.url, seed=3, max_tokens=40, ignore_eos=True)[0]
    assert whole["response_ids"] == kept["response_ids"] == [expected["token_ids"]]
    assert whole["response_logprobs"] == kept["response_logprobs"] == [expected["logprobs"]["token_logprobs"]]
    # It came after the pause, or was ended by it.
    count = len(late["response_ids"][0])
    assert late["response_ids"][0] == expected["token_ids"][:count]
    assert late["stop_reasons"] == ["abort" if count < 40 else "length"]
    assert world == (1, 1)
    assert len(text) == 1


def trl():
    bare("trl")
    stand_in("trl.import_utils", is_requests_available=lambda: True, is_vllm_available=lambda **_: True)
    nn = stand_in("torch.nn")
    stand_in("torch", nn=nn)
    stand_in("transformers.utils")
    stand_in("accelerate")
    stand_in("accelerate.logging", get_logger=logging.getLogger)
    for name in ["utils", "utils.network_utils", "distributed", "distributed.weight_transfer"]:
        stand_in("vllm." + name)
    for name in ["nccl_common", "packed_tensor", "nccl_engine"]:
        stand_in("vllm.distributed.weight_transfer." + name)


def test_trl(server):
    trl()
    bare("trl.generation")
    module = importlib.import_module("trl.generation.vllm_client")
    client = module.VLLMClient(base_url=server.url)
    assert client.get_world_size() == 1
    told = client.generate([PROMPT, [2, 7]], n=3, max_tokens=16, temperature=1.0, generation_kwargs={"seed": 4})
    assert told["prompt_ids"] == [PROMPT, [2, 7]]
    expected = answer(server.url, seed=4, n=3, max_tokens=16)
    assert told["completion_ids"][:3] == [choice["token_ids"] for choice in expected]
    assert len(told["completion_ids"]) == 6
    for tokens, ids, logps in zip(told["completion_ids"], told["logprob_token_ids"], told["logprobs"]):
        assert [each[0] for each in ids] == tokens
        assert all(math.isfinite(each[0]) for each in logps)
    with_values = [choice["logprobs"]["token_logprobs"] for choice in expected]
    assert [[each[0] for each in logps] for logps in told["logprobs"][:3]] == with_values


def test_trl_asynchronous(server):
    trl()
    bare("trl.experimental")
    bare("trl.experimental.async_grpo")
    module = importlib.import_module("trl.experimental.async_grpo.vllm_client")
    client = module.VLLMClient(server.url)
    client.wait_for_server_ready()
    assert client.get_max_model_len() == requests.get(server.url + "/v1/models", timeout=9).json()["data"][0]["max_model_len"]
    assert client.get_dtype().startswith("torch.")
    assert client.get_world_size() == 1

    def paused():
        client.pause()
        client.start_weight_update()
        client.finish_weight_update()
        client.resume()

    fields = {"seed": (1 << 62) + 5, "max_tokens": 60, "ignore_eos": True}
    expected = answer(server.url, **fields)
    assert while_asked(lambda: answer(server.url, **fields), paused) == expected


def test_areal(server):
    """The requests that AReaL's back ends make of vLLM and of SGLang, sent as they are, and its reading of the answers."""
    bare("areal")
    for name in ["torch", "torchdata", "torchdata.stateful_dataloader", "pybase64", "numpy"]:
        stand_in(name)
    stand_in("areal.api")
    stand_in("areal.api.cli_args")
    record = lambda name: type(name, (), {"__init__": lambda self, **fields: self.__dict__.update(fields)})
    names = ["HttpRequest", "HttpGenerationResult", "WeightUpdateRequests", "ModelRequest", "ModelResponse"]
    stand_in("areal.api.io_struct", get_versioned_lora_name=None, **{name: record(name) for name in names})
    stand_in("areal.infra")
    stand_in("areal.infra.platforms", current_platform=None)
    stand_in("areal.infra.utils")
    stand_in("areal.infra.utils.launcher", TRITON_CACHE_PATH="")
    stand_in("areal.utils", logging=logging, perf_tracer=None, stats_tracker=None)
    stand_in("areal.utils.network", format_host_for_url=None)
    bare("areal.engine")
    config = types.SimpleNamespace(
        top_p=1.0, top_k=0, max_new_tokens=24, greedy=False, temperature=1.0, stop_token_ids=[9], ignore_eos=False,
        skip_special_tokens=False, use_beam_search=False, lora_name=None, stop=None, frequency_penalty=0.0,
        max_tokens=None, min_new_tokens=0,
    )
    request = types.SimpleNamespace(gconfig=config, input_ids=PROMPT, vision_msg_vllm=None, image_data=None, rid="x", metadata={})
    for name, backend in [("vllm_remote", "VLLMBackend"), ("sglang_remote", "SGLangBackend")]:
        backend = getattr(importlib.import_module("areal.engine." + name), backend)()
        sent = backend.build_generation_request(request, False, 0)
        response = requests.post(server.url + sent.endpoint, json=sent.payload, timeout=60)
        response.raise_for_status()
        got = backend.parse_generation_response(response.json())
        assert len(got.output_tokens) == len(got.output_logprobs) > 0
        assert got.stop_reason in ("stop", "length")
        for asked in [backend.get_pause_request(), backend.get_resume_request()]:
            method = getattr(asked, "method", "POST")
            response = requests.request(method, server.url + asked.endpoint, json=asked.payload, timeout=60)
            response.raise_for_status()
        health = backend.get_health_check_request()
        requests.get(server.url + health.endpoint, timeout=60).raise_for_status()


def test_slime_shaped(server):
    """What slime sends to SGLang's endpoints and reads back, as its rollout function does."""
    url = server.url
    params = {
        "temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 40, "stop": None, "stop_token_ids": None,
        "skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False,
    }
    body = {"input_ids": PROMPT, "sampling_params": params, "return_logprob": True}
    told = requests.post(url + "/generate", json=body, timeout=60).json()
    meta = told["meta_info"]
    tokens = [entry[1] for entry in meta["output_token_logprobs"]]
    assert tokens == told["output_ids"] and len(tokens) == meta["completion_tokens"]
    assert meta["finish_reason"]["type"] in ("stop", "length")
    assert meta["weight_version"] == "0" and meta["cached_tokens"] == 0 and meta["prompt_tokens"] == len(PROMPT)
    assert requests.get(url + "/workers", timeout=9).json()["workers"][0]["url"] == url

    def abort():
        assert requests.post(url + "/abort_request", json={"abort_all": True}, timeout=60).status_code == 200
        while requests.get(url + "/v1/loads?include=core", timeout=9).json()["loads"][0]["num_reqs"]:
            time.sleep(0.001)

    ignoring = {**params, "ignore_eos": True}
    ask = lambda: requests.post(url + "/generate", json={**body, "sampling_params": ignoring}, timeout=60).json()
    aborted = while_asked(ask, abort)
    assert aborted["meta_info"]["finish_reason"]["type"] in ("abort", "length")
    for endpoint in ["/pause_generation", "/flush_cache", "/continue_generation"]:
        assert requests.post(url + endpoint, json={}, timeout=60).status_code == 200


def test_calculator(server):
    """The example: a rollout stops at a text, gets a value, and goes on over the keys and values that it has."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples/calculator"))
    from calculator import BLOCK, Server, calculate, rollout

    assert [calculate(text) for text in ("3 * 4 + 2 =", "1 / 0", "2 and 3", "5 - 8, so")] == ["14", "?", "?", "-3"]
    told = []
    for seed in range(24):
        text, turns = rollout(Server(server.url), "lily had 12 + 30 apples, and ", "e", 4, 60, 10 * seed, told.append)
        assert all(f" {turn['tool']}" in text for turn in turns if turn["tool"])
        made = 0
        for before, turn in zip([None, *turns], turns):
            if before:
                # All of the sequence so far but the last block, which is not whole.
                assert made - BLOCK < turn["found"] + 1 <= turn["sent"], turns
                assert before["tool"] is not None
            made = turn["sent"] + len(turn["answer"])
    # Most are called more than once.
    assert len(told) > 30 and any("-> 42" in line for line in told), told
