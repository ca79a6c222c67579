"""Random work for a queue pair."""

from random import Random

from . import contract as c


class Traffic:
    """Makes descriptors whose `user_data` differ and whose tokens lie apart."""

    def __init__(self, random: Random, token_bytes: int) -> None:
        self._random = random
        self._end = token_bytes
        self._offset = 0
        self._made = 0

    def desc(self, opcode: c.Opcode, **fields: int) -> c.HwDesc:
        """A descriptor of no group, with what is given."""
        self._made += 1
        none = {"prefix_id": c.PREFIX_NONE, "member": c.MEMBER_NONE, "user_data": self._made << 32 | self._made}
        return c.HwDesc(**{"opcode": opcode} | none | fields)

    def decode(self, rollout_id: int, max_tokens: int, **fields: int) -> c.HwDesc:
        """A DECODE with room of its own, at any multiple of 4."""
        offset = self._offset + 4 * self._random.randrange(4)
        self._offset = offset + 4 * max_tokens
        assert self._offset <= self._end, "the token region is too small for this traffic"
        own = {"rollout_id": rollout_id, "max_tokens": max_tokens, "delta_offset": offset}
        drawn = {"seed": self._random.getrandbits(32), "seq_len": self._random.randrange(1 << 16)}
        return self.desc(c.Opcode.DECODE, **own | drawn | fields)

    def mixed(self, rollouts: int) -> list[c.HwDesc]:
        """The descriptors of some rollouts, in the order of a host that serves them all: DECODEs with checkpoints and
        ends of sequence, scored, stopped, or gone on with, and what adds no token between them."""
        chains = [self._chain(rollout) for rollout in range(1, rollouts + 1)]
        merged = []
        while chains:
            chain = self._random.choice(chains)
            merged.append(chain.pop(0))
            if not chain:
                chains.remove(chain)
        return merged

    def _chain(self, rollout_id: int) -> list[c.HwDesc]:
        draw = self._random
        chain = []
        for _ in range(draw.randint(1, 3)):
            flags = c.DescFlags(0)
            if draw.random() < 0.5:
                flags |= c.DescFlags.EOS_STOPS
            if draw.random() < 0.1:
                flags |= c.DescFlags.FENCE
            checkpoint = draw.choice([0, c.CHECKPOINT_NEVER, draw.randint(1, 24)])
            decode = self.decode(rollout_id, draw.randint(1, 40), flags=flags, checkpoint=checkpoint)
            chain.append(decode)
            behind = draw.random()
            if behind < 0.4:
                scored = {"delta_offset": decode.delta_offset, "max_tokens": decode.max_tokens}
                chain.append(self.desc(c.Opcode.REWARD, rollout_id=rollout_id, **scored))
            elif behind < 0.6:
                chain.append(self.desc(c.Opcode.STOP, rollout_id=rollout_id))
            elif behind < 0.7:
                chain.append(self.desc(c.Opcode.NOP, rollout_id=rollout_id, seq_len=draw.getrandbits(31)))
        return chain
