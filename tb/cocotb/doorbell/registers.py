"""The register port."""

from cocotbext.axi import AxiLiteMaster, AxiResp

from .contract import Register


class Refused(Exception):
    """The device answered SLVERR."""


class Registers:
    """Registers by their names in the contract, on an AXI4-Lite master."""

    def __init__(self, master: AxiLiteMaster) -> None:
        self.master = master

    async def read(self, register: Register, *, function: int = 0, queue: int = 0) -> int:
        return await self.read_at(register.at(function, queue), register.name)

    async def write(self, register: Register, value: int, *, function: int = 0, queue: int = 0) -> None:
        await self.write_at(register.at(function, queue), value.to_bytes(4, "little"), register.name)

    async def write64(self, low: Register, high: Register, value: int, *, function: int = 0, queue: int = 0) -> None:
        """A register of two halves."""
        await self.write(low, value & 0xFFFF_FFFF, function=function, queue=queue)
        await self.write(high, value >> 32, function=function, queue=queue)

    async def count(self, counter: Register, *, queue: int = 0) -> int:
        """A counter, of which neither half waits for the other: where the high one moves, the low one is read again."""
        address = counter.at(queue=queue)
        high = await self.read_at(address + 4)
        low = await self.read_at(address)
        again = await self.read_at(address + 4)
        if again != high:
            low = await self.read_at(address)
        return again << 32 | low

    async def read_at(self, address: int, name: str = "?") -> int:
        answer = await self.master.read(address, 4)
        if answer.resp != AxiResp.OKAY:
            raise Refused(f"read of {name} at {address:#07x}: {answer.resp.name}")
        return int.from_bytes(answer.data, "little")

    async def write_at(self, address: int, data: bytes, name: str = "?") -> None:
        answer = await self.master.write(address, data)
        if answer.resp != AxiResp.OKAY:
            raise Refused(f"write of {data[::-1].hex()} to {name} at {address:#07x}: {answer.resp.name}")
