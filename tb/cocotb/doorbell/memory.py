"""The memory that host and device share, and its AXI4 port."""

from collections.abc import Coroutine, Iterator
from random import Random

import cocotb
from cocotb.task import Task
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import AxiBurstType, AxiBus, AxiResp, AxiSlaveRead, AxiSlaveWrite
from cocotbext.axi.sparse_memory import SparseMemory


class Memory:
    """What the host sees at once and the device through its port."""

    def __init__(self, size: int = 1 << 64) -> None:
        self._bytes = SparseMemory(size)

    def read(self, address: int, length: int) -> bytes:
        return bytes(self._bytes[address : address + length])

    def write(self, address: int, data: bytes) -> None:
        self._bytes[address : address + len(data)] = data


class MemoryPort:
    """The device's way to the memory: the target of the two halves of a `MemorySlave`.

    An access takes 0 to `latency` cycles, drawn each time; one that touches an address in `faults` is answered with
    SLVERR and does nothing, and one that touches `held` waits until that is no more. A write has reached the memory
    before it returns, and so before its B: on that the device builds (rules R3 and R7).
    """

    def __init__(self, memory: Memory, clock, random: Random, latency: int) -> None:
        self.faults: list[range] = []
        self.held: list[range] = []
        self.writes = 0
        self._memory = memory
        self._clock = clock
        # One stream for each direction: which of them draws first in a cycle is the simulator's affair.
        self._reads, self._writes = Random(random.getrandbits(64)), Random(random.getrandbits(64))
        self._latency = latency

    async def read(self, address: int, length: int) -> bytes:
        await self._access(self._reads, address, length)
        return self._memory.read(address, length)

    async def write(self, address: int, data: bytes) -> None:
        await self._access(self._writes, address, len(data))
        self.writes += 1
        self._memory.write(address, data)

    async def _access(self, random: Random, address: int, length: int) -> None:
        def touches(ranges: list[range]) -> bool:
            return any(address < one.stop and one.start < address + length for one in ranges)

        cycles = random.randint(0, self._latency)
        if cycles:
            await ClockCycles(self._clock, cycles)
        while touches(self.held):
            await RisingEdge(self._clock)
        if touches(self.faults):
            raise MemoryError(f"a fault is planted at {address:#x}")


class MemorySlave:
    """An AXI4 memory that answers IDs independently of each other, as `AxiSlave` does not: responses of one ID come in
    the order of its bursts, those of different IDs in any."""

    def __init__(self, bus: AxiBus, clock, reset, target: MemoryPort) -> None:
        self.write_if = _WriteSlave(bus.write, clock, reset, target, reset_active_level=False)
        self.read_if = _ReadSlave(bus.read, clock, reset, target, reset_active_level=False)


class _Turns:
    """Bursts that are being answered, those of one ID one after the other."""

    def __init__(self) -> None:
        self._last: dict[int, Task] = {}

    def add(self, id_: int, answer: Coroutine) -> None:
        self._last[id_] = cocotb.start_soon(self._behind(self._last.get(id_), answer))

    def forget(self) -> None:
        for task in self._last.values():
            task.cancel()
        self._last.clear()

    @staticmethod
    async def _behind(before: Task | None, answer: Coroutine) -> None:
        if before is not None:
            await before
        await answer


class _WriteSlave(AxiSlaveWrite):
    async def _process_write(self) -> None:
        turns = _Turns()
        try:
            while True:
                aw = await self.aw_channel.recv()
                beats = [await self.w_channel.recv() for _ in range(int(aw.awlen) + 1)]
                assert [int(beat.wlast) for beat in beats] == [0] * int(aw.awlen) + [1], (
                    "AXI: WLAST is of the last beat"
                )
                turns.add(int(aw.awid), self._answer(aw, beats))
        finally:
            turns.forget()

    async def _answer(self, aw, beats) -> None:
        b = self.b_channel._transaction_obj(bid=int(aw.awid), bresp=AxiResp.OKAY)
        for address, beat in zip(addresses(aw, "aw"), beats, strict=True):
            data = int(beat.wdata).to_bytes(self.byte_lanes, "little")
            for lanes in strobed(int(beat.wstrb), self.byte_lanes):
                try:
                    await self._write(address + lanes.start, data[lanes.start : lanes.stop])
                except MemoryError:
                    b.bresp = AxiResp.SLVERR
        await self.b_channel.send(b)


class _ReadSlave(AxiSlaveRead):
    async def _process_read(self) -> None:
        turns = _Turns()
        try:
            while True:
                ar = await self.ar_channel.recv()
                turns.add(int(ar.arid), self._answer(ar))
        finally:
            turns.forget()

    async def _answer(self, ar) -> None:
        places = addresses(ar, "ar")
        for address in places:
            r = self.r_channel._transaction_obj(rid=int(ar.arid), rresp=AxiResp.OKAY, rlast=address == places[-1])
            try:
                r.rdata = int.from_bytes(await self._read(address, self.byte_lanes), "little")
            except MemoryError:
                r.rresp = AxiResp.SLVERR
            await self.r_channel.send(r)


def addresses(burst, channel: str) -> range:
    """Where the beats of a burst lie."""
    start, length, size, kind = (int(getattr(burst, channel + name)) for name in ("addr", "len", "size", "burst"))
    bytes_ = 1 << size
    assert kind == AxiBurstType.INCR, f"AXI: a burst of type {kind}"
    assert start % bytes_ == 0, f"AXI: {start:#x} is no multiple of the {bytes_} bytes of a beat"
    assert start // 4096 == (start + length * bytes_) // 4096, f"AXI: a burst at {start:#x} crosses 4 KiB"
    return range(start, start + (length + 1) * bytes_, bytes_)


def strobed(strobe: int, lanes: int) -> Iterator[range]:
    """The runs of lanes that a strobe selects."""
    at = 0
    while at < lanes:
        end = at
        while end < lanes and strobe >> end & 1:
            end += 1
        if end > at:
            yield range(at, end)
        at = end + 1


class Allocator:
    """Hands out regions of an address range, one behind the other."""

    def __init__(self, base: int, size: int) -> None:
        self.window = range(base, base + size)
        self._next = base

    def take(self, size: int, align: int = 64) -> range:
        start = -(-self._next // align) * align
        if start + size > self.window.stop:
            raise MemoryError(f"{size} bytes are more than what is left of {self.window}")
        self._next = start + size
        return range(start, start + size)
