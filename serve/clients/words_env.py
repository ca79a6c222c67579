"""A small environment of verifiers: each task asks for an answer to a few letters, and is worth the share of a letter in it. Its harness asks
in this process, and asks again with what it got."""

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.runtimes import ProgramResult


class WordsData(vf.TaskData):
    wanted: str = "a"


class Words(vf.Task[WordsData]):
    @vf.reward
    async def share(self, trace: vf.Trace) -> float:
        text = trace.assistant_messages[-1].content or ""
        return text.count(self.data.wanted) / max(len(text), 1)


class WordsTaskset(vf.Taskset[Words]):
    def load(self):
        for prompt in ["abc", "hello", "a b c d"]:
            yield Words(WordsData(prompt=prompt), self.config.task)


class Asks(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        client = AsyncOpenAI(base_url=endpoint, api_key=secret)
        messages = [{"role": "user", "content": data.prompt}]
        for _ in range(2):
            told = await client.chat.completions.create(model=ctx.model, messages=messages)
            messages.append({"role": "assistant", "content": told.choices[0].message.content})
            messages.append({"role": "user", "content": "go on"})
        return ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["WordsTaskset", "Asks"]
