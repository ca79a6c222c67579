"""Rollouts by `doorbell serve`, over HTTP: groups of answers to a prompt, evaluations, and weights that change meanwhile."""

import http.client
import json
import os
import queue
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from oracle import ONE
from task import reward


@dataclass
class Rollout:
    prompt: list  # token ids
    tokens: list  # token ids, <end> among them
    logps: list  # the device's log-probabilities of `tokens`, whole numbers of 2^-16
    spans: list  # pairs of a version and the place behind the last token that it made, the prompt before the answer
    reward: float

    @property
    def versions(self):
        """The version of each token of the answer."""
        ends = [end - len(self.prompt) for _, end in self.spans]
        return [next(version for (version, _), end in zip(self.spans, ends) if place < end) for place in range(len(self.tokens))]


class Server:
    """A process of `doorbell serve`."""

    def __init__(self, program, options):
        command = [str(program), "serve", "--listen", "127.0.0.1:0", "--weight-version", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            if found := re.search(r"http://([\d.]+):(\d+)", line):
                self.address = found[1], int(found[2])
                break
            print(line, end="")
        else:
            raise RuntimeError(f"{program} ended: {self.process.wait()}")
        # So that the pipe never fills.
        threading.Thread(target=lambda: [None for _ in self.process.stdout], daemon=True).start()

    def post(self, endpoint, body):
        connection = http.client.HTTPConnection(*self.address, timeout=900)
        connection.request("POST", endpoint, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        told = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{endpoint} answers {answer.status}: {told.decode()}")
        return json.loads(told)

    def group(self, prompt, seed, count, most):
        """`count` answers to a prompt. The same seed gives the same answers, on any device."""
        told = self.post("/v1/completions", {
            "prompt": prompt, "n": count, "seed": seed, "max_tokens": most, "temperature": 1.0, "logprobs": 0, "return_token_ids": True,
        })
        return [rollout(choice) for choice in told["choices"]]

    def update(self, directory, version):
        """New weights. Rollouts that run go on under them, with the keys and values that they have."""
        self.post("/update_weights_from_disk", {"model_path": str(directory), "weight_version": str(version), "mode": "keep"})

    def seconds(self):
        """CPU time that it has taken."""
        fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        self.process.wait()


def rollout(choice):
    prompt, tokens = choice["prompt_token_ids"], choice["token_ids"]
    logps = [round(logp * ONE) for logp in choice["logprobs"]["token_logprobs"]]
    # The step that adds a token makes keys and values of the one before it.
    spans = [(span["version"], span["end"] + 1) for span in choice["prompt_weight_versions"]]
    spans += [(span["version"], len(prompt) + span["end"]) for span in choice["weight_versions"]]
    return Rollout(prompt, tokens, logps, spans, reward(choice["text"], choice["finish_reason"] == "stop"))


class FixedLag:
    """Batch t is made by version t - lag as a whole (by version 0 before there is such a one), and is the t-th to be taken."""

    def __init__(self, server, groups, lag):
        self.server, self.groups, self.lag = server, groups, lag
        self.pool = ThreadPoolExecutor(len(groups(0)))
        self.asked = [self.ask(batch) for batch in range(lag + 1)]

    def ask(self, batch):
        return [self.pool.submit(self.server.group, *group) for group in self.groups(batch)]

    def take(self):
        return [rollout for group in self.asked.pop(0) for rollout in group.result()]

    def publish(self, directory, version):
        for batch in self.asked:
            for group in batch:
                group.result()
        self.server.update(directory, version)
        self.asked.append(self.ask(version + self.lag))

    def stop(self):
        self.pool.shutdown(cancel_futures=True)


class Asynchronous:
    """Rollouts go on while weights change. A batch is whatever groups have ended first."""

    def __init__(self, server, groups, _):
        self.server, self.each, self.over = server, len(groups(0)), False
        # A worker that finds the queue full waits, so no group waits longer than a step or two.
        self.ended = queue.Queue(self.each)
        numbers = iter(range(1 << 60))
        lock = threading.Lock()

        def work():
            while not self.over:
                with lock:
                    number = next(numbers)
                group = groups(number // self.each)[number % self.each]
                try:
                    answers = self.server.group(*group)
                except Exception as error:
                    answers = error
                while not self.over:
                    try:
                        self.ended.put(answers, timeout=0.2)
                        break
                    except queue.Full:
                        pass

        self.workers = [threading.Thread(target=work, daemon=True) for _ in range(self.each)]
        for worker in self.workers:
            worker.start()
        self.next = None

    def take(self):
        batch, self.next = self.next or self.first(), None
        return batch

    def first(self):
        batch = []
        for _ in range(self.each):
            group = self.ended.get()
            if isinstance(group, Exception):
                raise group
            batch += group
        return batch

    def publish(self, directory, version):
        # Before the update, so that workers that waited have rollouts under way while it comes.
        self.next = self.first()
        self.server.update(directory, version)

    def stop(self):
        self.over = True
        for worker in self.workers:
            worker.join()
