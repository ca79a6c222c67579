"""The driver of one queue pair."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cocotb.triggers import ClockCycles, RisingEdge

from . import contract as c
from .arithmetic import U32, check_word, words
from .memory import Allocator, Memory
from .registers import Refused, Registers

PHASE_OF_LENGTH = 1 << 31
"""The phase of a completion's first half, in `final_seq_len`."""
PHASE_OF_BYTE = 1 << 7
"""The phase of its second half, in `phase`."""
MESSAGE = bytes.fromhex("c0ffee01")
"""What its interrupt writes."""
FILL = 0xA5
"""What the token region holds where no token was written."""


class Timeout(Exception):
    """A wait has reached its bound (rule R15)."""


class QueueFull(Exception):
    """The submission queue has no slot left: take completions first."""


class BadConfig(Exception):
    """ENABLE was refused."""


@dataclass
class Region:
    """Where a queue pair's regions lie: submission queue, completion queue, tokens."""

    sq: range
    cq: range
    tokens: range

    @classmethod
    def take(cls, allocator: Allocator, sq_slots: int, cq_slots: int, token_bytes: int) -> "Region":
        return cls(
            allocator.take(sq_slots * c.HwDesc.LAYOUT.size),
            allocator.take(cq_slots * c.HwCompletion.LAYOUT.size),
            allocator.take(token_bytes),
        )


class QueuePair:
    """Submits descriptors and takes completions, by the contract's rules for hosts."""

    def __init__(
        self, dut, registers: Registers, memory: Memory, region: Region, *, number: int = 0, function: int = 0
    ) -> None:
        self.number = number
        self.function = function
        self.region = region
        self.bound = 20_000
        """Cycles that a wait may take."""
        self.message = 0
        """Where its interrupt writes, once `Bench.route` has said so."""
        self._dut = dut
        self._registers = registers
        self._memory = memory
        self._sq_slots = len(region.sq) // c.HwDesc.LAYOUT.size
        self._cq_slots = len(region.cq) // c.HwCompletion.LAYOUT.size

    # ------------------------------------------------------------ registers

    async def read(self, register: c.Register) -> int:
        return await self._registers.read(register, function=self.function, queue=self.number)

    async def write(self, register: c.Register, value: int) -> None:
        await self._registers.write(register, value, function=self.function, queue=self.number)

    async def count(self, counter: c.Register) -> int:
        return await self._registers.count(counter, queue=self.number)

    async def _write64(self, low: c.Register, high: c.Register, value: int) -> None:
        await self._registers.write64(low, high, value, function=self.function, queue=self.number)

    # ------------------------------------------------------------ life

    async def enable(self, *, key: int, sq_start: int = 0, cq_start: int = 0) -> None:
        """Clears the rings and starts the queue pair at these running indices, with a key of its own each time."""
        self._key = key
        self._draining = False
        self._tail = self._consumed = sq_start
        self._head = cq_start
        self._memory.write(self.region.sq.start, bytes(len(self.region.sq)))
        self._memory.write(self.region.tokens.start, bytes([FILL]) * len(self.region.tokens))
        for index in range(cq_start, cq_start + self._cq_slots):
            # Not the phase that the slot's first use will carry: it does not look fresh.
            stale = 1 - self._phase(index)
            slot = c.HwCompletion(final_seq_len=stale * PHASE_OF_LENGTH, phase=stale * PHASE_OF_BYTE)
            self._memory.write(self._cq_slot(index), slot.pack())

        await self._write64(c.Reg.SQ_BASE_LO, c.Reg.SQ_BASE_HI, self.region.sq.start)
        await self._write64(c.Reg.CQ_BASE_LO, c.Reg.CQ_BASE_HI, self.region.cq.start)
        await self._write64(c.Reg.TOKEN_BASE_LO, c.Reg.TOKEN_BASE_HI, self.region.tokens.start)
        await self._write64(c.Reg.TOKEN_SIZE_LO, c.Reg.TOKEN_SIZE_HI, len(self.region.tokens))
        await self.write(c.Reg.SQ_SIZE, self._sq_slots)
        await self.write(c.Reg.CQ_SIZE, self._cq_slots)
        await self.write(c.Reg.SQ_START, sq_start)
        await self.write(c.Reg.CQ_START, cq_start)
        await self.write(c.Reg.SQ_KEY, key)
        await self.write(c.Reg.ERROR, U32)
        await self.write(c.Reg.CONTROL, c.Control.ENABLE)
        if not await self.state() & c.State.ACTIVE:
            raise BadConfig(f"queue pair {self.number}: {c.DeviceFault(await self.read(c.Reg.ERROR))!r}")

    async def state(self) -> c.State:
        return c.State(await self.read(c.Reg.STATE))

    async def disable(self) -> None:
        """Stops the queue pair; when it returns, the memory is the host's again (rule R12)."""
        await self.write(c.Reg.CONTROL, 0)
        await self.inactive()

    async def drain(self) -> None:
        """No doorbell any more: what is published completes, then the queue pair stops by itself."""
        self._draining = True
        await self.write(c.Reg.CONTROL, c.Control.ENABLE | c.Control.DRAIN)

    async def inactive(self) -> None:
        """Waits for the end of a disable or a drain."""
        for _ in range(self.bound // 16):
            if not await self.state() & c.State.ACTIVE:
                return
            await ClockCycles(self._dut.clk_i, 16)
        raise Timeout(f"queue pair {self.number}: still active after {self.bound} cycles")

    # ------------------------------------------------------------ submission

    @property
    def room(self) -> int:
        """Free slots of the submission queue, as far as completions have told."""
        return self._sq_slots - (self._tail - self._consumed & U32)

    def post(self, desc: c.HwDesc, *, damage: int = 0) -> int:
        """Writes a descriptor into the next slot and returns its running index; `damage` is XORed to its check word."""
        if not self.room:
            raise QueueFull(f"queue pair {self.number}")
        index = self._tail
        desc.check = check_word(desc.pack(), index, self._key) ^ damage
        self._memory.write(self._sq_slot(index), desc.pack())
        self._tail = index + 1 & U32
        return index

    async def ring(self) -> None:
        """Publishes what was posted. Each simulated write to memory is visible at once: a host needs a barrier here."""
        await self.write(c.Reg.DOORBELL, self._tail)

    async def submit(self, *descs: c.HwDesc) -> None:
        for desc in descs:
            self.post(desc)
        await self.ring()

    # ------------------------------------------------------------ completions

    def peek(self) -> c.HwCompletion | None:
        """The next completion without its phases, once both of its halves are fresh (rule R4)."""
        completion = c.HwCompletion.unpack(self._memory.read(self._cq_slot(self._head), c.HwCompletion.LAYOUT.size))
        phase = self._phase(self._head)
        halves = completion.final_seq_len // PHASE_OF_LENGTH, completion.phase // PHASE_OF_BYTE
        if halves != (phase, phase):
            return None
        completion.final_seq_len &= PHASE_OF_LENGTH - 1
        completion.phase &= PHASE_OF_BYTE - 1
        return completion

    async def take(self) -> list[c.HwCompletion]:
        """All completions that are there, maybe none, released to the device."""
        taken = []
        while (completion := self.peek()) is not None:
            taken.append(completion)
            self._head = self._head + 1 & U32
            self._consumed = completion.sq_head
        if taken:
            try:
                await self.write(c.Reg.CQ_HEAD, self._head)
            except Refused:
                # A drain that has come to its end takes no release, and needs none.
                if not self._draining:
                    raise
        return taken

    async def collect(self, count: int) -> list[c.HwCompletion]:
        """The next `count` completions or more, by looking at memory again and again."""
        found: list[c.HwCompletion] = []
        for _ in range(self.bound // 8):
            found += await self.take()
            if len(found) >= count:
                return found
            await ClockCycles(self._dut.clk_i, 8)
        raise Timeout(f"queue pair {self.number}: {len(found)} of {count} completions after {self.bound} cycles")

    async def run(self, descs: Iterable[c.HwDesc], judge: Callable[[c.HwCompletion], None], *, batch: int = 4) -> None:
        """Submits all, `batch` for each doorbell at most and as there is room, and hands each completion on."""
        waiting = list(descs)
        left = len(waiting)
        quiet = 0
        while left:
            posted = min(self.room, batch, len(waiting))
            if posted:
                await self.submit(*waiting[:posted])
                del waiting[:posted]
            taken = await self.take()
            for completion in taken:
                judge(completion)
            left -= len(taken)
            quiet = 0 if taken or posted else quiet + 1
            if quiet > self.bound // 8:
                raise Timeout(f"queue pair {self.number}: {left} completions are missing after {self.bound} cycles")
            if not taken:
                await ClockCycles(self._dut.clk_i, 8)

    # ------------------------------------------------------------ interrupt

    async def arm(self) -> None:
        """Arms at the completion that would be read next, and forgets a message that has come (rule R14)."""
        self._memory.write(self.message, bytes(4))
        await self.write(c.Reg.ARM, self._head)

    def told(self) -> bool:
        """Whether the message has come since it was last armed."""
        return self._memory.read(self.message, 4) == MESSAGE

    async def interrupt(self) -> None:
        """Arms, and waits for the message."""
        await self.arm()
        for _ in range(self.bound):
            await RisingEdge(self._dut.clk_i)
            if self.told():
                return
        raise Timeout(f"queue pair {self.number}: no interrupt after {self.bound} cycles")

    # ------------------------------------------------------------ memory

    def tokens(self, offset: int, count: int) -> list[int]:
        """What stands in the token region."""
        return list(words(self._memory.read(self.region.tokens.start + offset, 4 * count)))

    def _sq_slot(self, index: int) -> int:
        return self.region.sq.start + index % self._sq_slots * c.HwDesc.LAYOUT.size

    def _cq_slot(self, index: int) -> int:
        return self.region.cq.start + index % self._cq_slots * c.HwCompletion.LAYOUT.size

    def _phase(self, index: int) -> int:
        """1 on the first pass from index 0, 0 on the second, and so on."""
        return 1 ^ (index & U32) // self._cq_slots & 1
