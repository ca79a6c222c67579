"""Clock, resets and the two AXI ports of the device under test."""

import logging
import warnings
from collections.abc import Iterator
from random import Random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster
from cocotbext.axi.axi_channels import AxiARMonitor, AxiAWMonitor

from . import contract as c
from .memory import Allocator, Memory, MemoryPort, MemorySlave
from .queue_pair import MESSAGE, QueuePair, Region
from .registers import Registers

EVERYWHERE = range(1 << 64)
MESSAGES = 0x7_FFFF_0000
"""Where the interrupts write, a line for each queue pair: outside the windows that functions are given."""
MESSAGE_ID = 32
"""AWID of the message of queue pair 0."""


class Bench:
    """The device behind models of its buses, just out of reset. Each test makes one, and so depends on no other."""

    def __init__(self, dut, latency: int) -> None:
        self.dut = dut
        # cocotb derives this seed from that of the run and the test's name.
        self.random = Random(cocotb.RANDOM_SEED)
        self.registers = Registers(
            AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk_i, dut.rst_ni, reset_active_level=False)
        )
        self.memory = Memory()
        self.port = MemoryPort(self.memory, dut.clk_i, self.random, latency)
        self.slave = MemorySlave(AxiBus.from_prefix(dut, "m_axi"), dut.clk_i, dut.m_axi_rst_ni, self.port)
        self.windows: dict[int, list[range]] = {0: [EVERYWHERE]}
        """Where each function may be: a burst elsewhere ends the test (rule R11)."""
        self.messages: dict[int, int] = {}
        """Where the message of each AWID goes: the one write that lies in no window."""
        self.bursts: dict[int, int] = {}
        """Bursts of each function."""
        for monitor, bus in ((AxiAWMonitor, self.slave.write_if.bus.aw), (AxiARMonitor, self.slave.read_if.bus.ar)):
            cocotb.start_soon(self._watch(monitor(bus, dut.clk_i, dut.m_axi_rst_ni, reset_active_level=False)))

    @classmethod
    async def start(cls, dut, *, latency: int = 0, pauses: float = 0.0) -> "Bench":
        """Resets the device. An access to memory takes up to `latency` cycles more than none; `pauses` is the share of
        cycles in which a channel of either port holds back its VALID or READY."""
        # One line for each burst would bury what the tests have to say.
        logging.getLogger(f"cocotb.{dut._name}").setLevel(logging.WARNING)
        # cocotbext-axi calls what cocotb 2 still has, but calls by other names.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"cocotbext\.axi\.")
        Clock(dut.clk_i, 10, unit="ns").start()
        dut.rst_ni.value = 0
        dut.m_axi_rst_ni.value = 0
        await ClockCycles(dut.clk_i, 2)
        # The models look at the device's VALID and READY from now on, which have no value before the first clock.
        bench = cls(dut, latency)
        bench._pause(pauses)
        await ClockCycles(dut.clk_i, 4)
        dut.rst_ni.value = 1
        dut.m_axi_rst_ni.value = 1
        await ClockCycles(dut.clk_i, 2)
        return bench

    async def give(self, function: int, allocator: Allocator) -> None:
        """The owner of the device gives a function one window."""
        for low, high, value in (
            (c.Reg.WINDOW_0_BASE_LO, c.Reg.WINDOW_0_BASE_HI, allocator.window.start),
            (c.Reg.WINDOW_0_SIZE_LO, c.Reg.WINDOW_0_SIZE_HI, len(allocator.window)),
        ):
            await self.registers.write64(low, high, value, function=function)
        self.windows[function] = [allocator.window]

    def queue_pair(
        self,
        number: int = 0,
        function: int = 0,
        allocator: Allocator | None = None,
        *,
        sq_slots: int = 16,
        cq_slots: int = 16,
        token_bytes: int = 16 << 10,
    ) -> QueuePair:
        """A queue pair with memory of its own."""
        allocator = allocator or Allocator(0x1_2345_0000 + (number << 20), 1 << 20)
        region = Region.take(allocator, sq_slots, cq_slots, token_bytes)
        return QueuePair(self.dut, self.registers, self.memory, region, number=number, function=function)

    async def route(self, queue: QueuePair) -> None:
        """The owner of the device gives the queue pair's vector a message, and unmasks it (rule R14)."""
        queue.message = MESSAGES + 68 * queue.number
        self.memory.write(queue.message, bytes(4))
        self.messages[MESSAGE_ID + queue.number] = queue.message
        low, high = c.Reg.MESSAGE_ADDRESS_LO, c.Reg.MESSAGE_ADDRESS_HI
        await self.registers.write64(low, high, queue.message, queue=queue.number)
        await self.registers.write(c.Reg.MESSAGE_DATA, int.from_bytes(MESSAGE, "little"), queue=queue.number)
        await self.mask(queue, False)

    async def mask(self, queue: QueuePair, masked: bool) -> None:
        """Masks the queue pair's vector, or takes the mask back."""
        control = c.MessageControl.MASK if masked else 0
        await self.registers.write(c.Reg.MESSAGE_CONTROL, control, queue=queue.number)

    def key(self) -> int:
        """A key for the check words: another one each time."""
        return self.random.getrandbits(32)

    def _pause(self, share: float) -> None:
        if not share:
            return
        ports = self.registers.master, self.slave
        for port in ports:
            for channel in (
                port.write_if.aw_channel,
                port.write_if.w_channel,
                port.write_if.b_channel,
                port.read_if.ar_channel,
                port.read_if.r_channel,
            ):
                channel.set_pause_generator(self._pauses(share, Random(self.random.getrandbits(64))))

    @staticmethod
    def _pauses(share: float, random: Random) -> Iterator[bool]:
        while True:
            yield random.random() < share

    async def _watch(self, monitor) -> None:
        """Holds each burst to the windows of the function that AxUSER names, and messages to their vectors."""
        channel = "aw" if isinstance(monitor, AxiAWMonitor) else "ar"
        while True:
            burst = await monitor.recv()
            first, beats, size, function = (
                int(getattr(burst, channel + name)) for name in ("addr", "len", "size", "user")
            )
            last = first + (beats + 1 << size) - 1
            if channel == "aw" and int(burst.awid) >= MESSAGE_ID:
                message = self.messages.get(int(burst.awid), -1)
                assert first == message // 64 * 64, f"R14: a message at {first:#x}, and its vector names {message:#x}"
                continue
            self.bursts[function] = self.bursts.get(function, 0) + 1
            assert any(first in window and last in window for window in self.windows.get(function, [])), (
                f"R11: a burst of function {function} at {first:#x} to {last:#x} is outside its windows"
            )
