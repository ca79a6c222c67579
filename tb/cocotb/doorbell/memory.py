"""The memory that host and device share."""

from random import Random

from cocotb.triggers import ClockCycles
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
    """The device's way to the memory: the target of an `AxiSlave`.

    An access takes 0 to `latency` cycles, drawn each time; one that touches an address in `faults` is answered with
    SLVERR and does nothing. A write has reached the memory before it returns, and so before its B: on that the
    device builds (rules R3 and R7).
    """

    def __init__(self, memory: Memory, clock, random: Random, latency: int) -> None:
        self.faults: list[range] = []
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
        cycles = random.randint(0, self._latency)
        if cycles:
            await ClockCycles(self._clock, cycles)
        if any(address < fault.stop and fault.start < address + length for fault in self.faults):
            raise MemoryError(f"a fault is planted at {address:#x}")


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
