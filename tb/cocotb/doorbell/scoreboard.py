"""What each completion must say, and each byte of the token region must be."""

from collections import defaultdict
from struct import pack

from . import contract as c
from .arithmetic import digest, draw, score, words
from .queue_pair import FILL, QueuePair


class Scoreboard:
    """Holds a queue pair to the contract: expect every descriptor, judge every completion, then finish.

    Descriptors are known again by their `user_data`, which must differ; those of one rollout complete in their order
    (rule R5). A DECODE with a STOP behind it may be cut (rule R8): then its tokens are a prefix of the full answer.
    """

    def __init__(self, queue: QueuePair, *, eos_threshold: int = 0) -> None:
        self.done = 0
        self.groups_done = 0
        self._queue = queue
        self._eos_threshold = eos_threshold
        self._image = bytearray([FILL]) * len(queue.region.tokens)
        self._rollouts: dict[int, list[c.HwDesc]] = defaultdict(list)
        self._by_user_data: dict[int, c.HwDesc] = {}

    def expect(self, *descs: c.HwDesc) -> None:
        for desc in descs:
            assert desc.user_data not in self._by_user_data, "user_data tells descriptors apart"
            self._by_user_data[desc.user_data] = desc
            self._rollouts[desc.rollout_id].append(desc)

    def judge(self, completion: c.HwCompletion) -> None:
        desc = self._by_user_data.pop(completion.user_data, None)
        assert desc is not None, f"R3: {completion} is of no descriptor, or comes twice"
        rollout = self._rollouts[desc.rollout_id]
        assert rollout[0] is desc, f"R5: {completion} comes before {rollout[0]}"
        rollout.pop(0)

        added, status = self._decoded(desc, completion, rollout)
        full = self._expected(desc, added, status)
        flags = completion.flags & ~c.CompletionFlags.GROUP_DONE
        found = {name: getattr(completion, name) for name in c.HwCompletion.COMPARED} | {"flags": flags}
        wanted = {name: getattr(full, name) for name in c.HwCompletion.COMPARED}
        assert found == wanted, f"{desc}: {found}, not {wanted}"
        self.groups_done += bool(completion.flags & c.CompletionFlags.GROUP_DONE)

        # They must be there by now: a completion comes behind its tokens (rule R3).
        assert self._queue.tokens(desc.delta_offset, len(added)) == added, f"R3: {desc}: its tokens are others"
        self._image[desc.delta_offset : desc.delta_offset + 4 * len(added)] = pack(f"<{len(added)}I", *added)
        self.done += 1

    def finish(self) -> None:
        """Nothing is missing, and no byte of the token region is other than what was judged (rule R11)."""
        assert not self._by_user_data, f"R3: no completion for {list(self._by_user_data.values())}"
        found = self._queue.tokens(0, len(self._image) // 4)
        for word, (is_, wanted) in enumerate(zip(found, words(self._image), strict=True)):
            assert is_ == wanted, f"R11: word {word} of the token region is {is_:#x}, not {wanted:#x}"

    def answer(self, desc: c.HwDesc) -> tuple[list[int], c.Status]:
        """The tokens of a DECODE that nothing cuts short, and how it ends."""
        tokens: list[int] = []
        while True:
            token, eos = self._draw(desc, len(tokens))
            tokens.append(token)
            if (eos and desc.flags & c.DescFlags.EOS_STOPS) or len(tokens) == desc.max_tokens:
                return tokens, c.Status.DONE
            if len(tokens) == (desc.checkpoint or c.CHECKPOINT_NEVER):
                return tokens, c.Status.REWARD_NEEDED

    def _draw(self, desc: c.HwDesc, at: int) -> tuple[int, bool]:
        return draw(desc, desc.seq_len + at, self._eos_threshold)

    def _decoded(
        self, desc: c.HwDesc, completion: c.HwCompletion, behind: list[c.HwDesc]
    ) -> tuple[list[int], c.Status | None]:
        """The tokens that the descriptor has added, and how it has ended, if it is a DECODE."""
        if desc.opcode != c.Opcode.DECODE:
            return [], None
        tokens, status = self.answer(desc)
        if completion.status != c.Status.STOPPED:
            return tokens, status
        assert any(other.opcode == c.Opcode.STOP for other in behind), (
            f"R8: {desc} is stopped, without a STOP behind it"
        )
        length = completion.final_seq_len - desc.seq_len
        # With its last token it is DONE, whatever is behind it; at a checkpoint the STOP comes first.
        longest = len(tokens) - (status == c.Status.DONE)
        assert 0 <= length <= longest, f"R8: {desc} is stopped after {length} tokens of {len(tokens)}"
        return tokens[:length], c.Status.STOPPED

    def _expected(self, desc: c.HwDesc, added: list[int], decoded: c.Status | None) -> c.HwCompletion:
        status, flags, result = c.Status.DONE, c.CompletionFlags(0), 0
        if decoded is not None:
            status, result = decoded, digest(added)
            if any(self._draw(desc, at)[1] for at in range(len(added))):
                flags = c.CompletionFlags.EOS
        elif desc.opcode == c.Opcode.REWARD:
            scored = self._image[desc.delta_offset : desc.delta_offset + 4 * desc.max_tokens]
            status, result = c.Status.SCORED, score(digest(words(scored)))
        elif desc.opcode == c.Opcode.STOP:
            status = c.Status.STOPPED
        return c.HwCompletion(
            user_data=desc.user_data,
            rollout_id=desc.rollout_id,
            final_seq_len=desc.seq_len + len(added),
            result=result,
            reward_model_id=desc.reward_model_id,
            error=c.ErrorCode.NONE,
            flags=flags,
            status=status,
        )
