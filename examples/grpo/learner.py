"""One step of GRPO: from rollouts to new weights.

Values are the oracle's, whole numbers of 2^-16; torch gives gradients alone, by tiny's straight-through forward pass (lm/tiny/model.py). For a token of an
answer with advantage A, log-probability b under the version that made it and l under the present weights, and torch's score s, the loss is

    - A * exp(l - b) * exp(s - sg(s))

whose value is that of the policy gradient's surrogate, since exp(s - sg(s)) is 1, and whose gradient is A * exp(l - b) * grad s. It counts for nothing where
PPO's clip has it count for nothing."""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from model import Shape, Tiny
from oracle import ONE

CLIP = 0.2
ROWS = 32  # rollouts in one pass of torch


@dataclass
class Told:
    """What a step tells of its batch."""
    reward: float  # mean
    difference: float  # largest difference of the device's log-probability from the oracle's, nats
    kl: float  # to version 0, nats a token
    entropy: float  # nats a token
    lag: float  # versions, mean over tokens
    ratio: float  # largest exp(l - b)
    clipped: float  # share of tokens
    gap: float  # mean |s - l|: what torch's floating-point forward is off by


class Learner:
    def __init__(self, tensors, rate):
        self.model = Tiny(Shape(), quantised=True)
        self.model.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in tensors.items()})
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=rate, betas=(0.9, 0.95))

    def tensors(self):
        return {name: value.detach().numpy() for name, value in self.model.state_dict().items()}

    def step(self, oracle, batch, group, version):
        """Learns from a batch, in which `group` rollouts of a prompt stand together; `version` is that of the present weights."""
        terms, sums, count = [], dict(kl=0.0, lag=0, clipped=0, gap=0.0, entropy=0.0), sum(len(rollout.tokens) for rollout in batch)
        difference, ratio = 0, 0.0
        for rollout, advantage in zip(batch, advantages(batch, group)):
            whole, first = rollout.prompt + rollout.tokens, len(rollout.prompt)
            made = oracle.score(rollout.spans, whole, first)
            difference = max(difference, *(abs(a - b) for a, b in zip(made, rollout.logps)))
            now = oracle.score([(str(version), len(whole))], whole, first)
            base = oracle.score([("0", len(whole))], whole, first)
            coefficients = []
            for before, present, reference, of in zip(made, now, base, rollout.versions):
                times, away = math.exp((present - before) / ONE), (reference - present) / ONE
                clipped = advantage > 0 and times > 1 + CLIP or advantage < 0 and times < 1 - CLIP
                coefficients.append(0.0 if clipped else advantage * times)
                ratio = max(ratio, times)
                sums["kl"] += math.expm1(away) - away
                sums["lag"] += version - int(of)
                sums["clipped"] += clipped
            terms.append((whole, first, coefficients, now))
        # Rows of a like length, so that little is computed for nothing.
        terms.sort(key=lambda term: len(term[0]))
        self.optimiser.zero_grad()
        for at in range(0, len(terms), ROWS):
            gap, entropy = self.backward(terms[at : at + ROWS], count)
            sums["gap"] += gap
            sums["entropy"] += entropy
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        mean = {name: value / count for name, value in sums.items()}
        return Told(reward=sum(rollout.reward for rollout in batch) / len(batch), difference=difference / ONE, ratio=ratio, **mean)

    def backward(self, terms, count):
        """Adds the gradient of some rollouts' loss; the sums of |s - l| and of the entropy."""
        longest = max(len(whole) for whole, *_ in terms) - 1
        tokens, targets = torch.zeros(2, len(terms), longest, dtype=torch.long)
        coefficients, now, counts = torch.zeros(3, len(terms), longest)
        for row, (whole, first, of, present) in enumerate(terms):
            places = slice(first - 1, len(whole) - 1)
            tokens[row, : len(whole) - 1] = torch.tensor(whole[:-1])
            targets[row, : len(whole) - 1] = torch.tensor(whole[1:])
            coefficients[row, places] = torch.tensor(of)
            now[row, places] = torch.tensor(present) / ONE
            counts[row, places] = 1.0
        # What stands behind a row's end is seen by nothing before it.
        logs = F.log_softmax(self.model(tokens, self.model.masks(torch.zeros_like(tokens))), -1)
        s = logs.gather(-1, targets[..., None])[..., 0]
        (-(coefficients * torch.exp(s - s.detach())).sum() / count).backward()
        logs = logs.detach()
        entropy = -(logs.exp() * logs).sum(-1)
        return ((s.detach() - now).abs() * counts).sum().item(), (entropy * counts).sum().item()


def advantages(batch, group):
    """Each reward, less the mean of its group, in units of the group's deviation."""
    for at in range(0, len(batch), group):
        rewards = [rollout.reward for rollout in batch[at : at + group]]
        mean = sum(rewards) / group
        deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / group)
        yield from ((reward - mean) / (deviation + 0.05) for reward in rewards)
