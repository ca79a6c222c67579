"""The device as a host sees it: through its registers and the memory that they share."""

from dataclasses import replace
from random import Random

import cocotb
from cocotb.triggers import ClockCycles
from doorbell import contract as c
from doorbell.bench import Bench
from doorbell.memory import Allocator
from doorbell.queue_pair import BadConfig, QueuePair
from doorbell.registers import Refused
from doorbell.scoreboard import Scoreboard
from doorbell.traffic import Traffic

EOS_THRESHOLD = 1000
"""About one token in 33 is an end of sequence."""


def traffic(bench: Bench, queue: QueuePair) -> Traffic:
    return Traffic(Random(bench.random.getrandbits(64)), len(queue.region.tokens))


async def refused(access) -> None:
    """An access that the device must answer with SLVERR."""
    try:
        await access
    except Refused:
        return
    raise AssertionError("the device took what it must refuse")


async def judged(queue: QueuePair, descs: list[c.HwDesc], *, eos_threshold: int = 0) -> Scoreboard:
    """Runs the descriptors and holds every completion and every byte of the token region to the contract."""
    scoreboard = Scoreboard(queue, eos_threshold=eos_threshold)
    scoreboard.expect(*descs)
    await queue.run(descs, scoreboard.judge)
    scoreboard.finish()
    assert scoreboard.done == len(descs)
    return scoreboard


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def bring_up(dut):
    """What the device says of itself is what it was built as."""
    bench = await Bench.start(dut)
    read = bench.registers.read
    assert await read(c.Reg.ID) == c.DEVICE_ID
    assert await read(c.Reg.VERSION) == c.CONTRACT_VERSION
    has = c.Capability(await read(c.Reg.CAPABILITY))
    wanted = c.Capability.REWARD | c.Capability.PREFILL | c.Capability.INTERRUPT | c.Capability.ISOLATED
    assert has & wanted == wanted, has
    assert not has & c.Capability.SLOT_POLLING, "this host publishes by the doorbell"
    for register, parameter in (
        (c.Reg.CAP_WORKERS, dut.Workers),
        (c.Reg.CAP_QUEUES, dut.Queues),
        (c.Reg.CAP_FUNCTIONS, dut.Functions),
    ):
        assert await read(register) == int(parameter.value), register.name
    for queue in range(int(dut.Queues.value)):
        assert await read(c.Reg.STATE, queue=queue) == c.State.IDLE


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def decodes_are_answered(dut):
    """A handful of DECODEs on one queue pair: every token, every field, and the counters."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair()
    await queue.enable(key=bench.key())
    make = traffic(bench, queue)
    lengths = [1, 15, 16, 17, 100, 2]
    await judged(queue, [make.decode(rollout, length) for rollout, length in enumerate(lengths)])

    assert await queue.state() == c.State.ACTIVE | c.State.IDLE
    assert await queue.count(c.QueueCounter.DESCRIPTORS) == len(lengths)
    assert await queue.count(c.QueueCounter.COMPLETIONS) == len(lengths)
    assert await queue.count(c.QueueCounter.TOKENS) == sum(lengths)
    assert await queue.count(c.QueueCounter.ERRORS) == 0


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_rollout_goes_on_at_its_checkpoint(dut):
    """R9: cut at checkpoints and continued by new descriptors, a rollout has the tokens of an uncut one."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair()
    await queue.enable(key=bench.key())
    make = traffic(bench, queue)
    whole = make.decode(7, 50)
    await judged(queue, [whole])

    scoreboard = Scoreboard(queue)
    part = make.decode(7, 50, seed=whole.seed, seq_len=whole.seq_len, checkpoint=20)
    start, left, statuses = part.delta_offset, whole.max_tokens, []
    while left:
        scoreboard.expect(part)
        await queue.submit(part)
        (completion,) = await queue.collect(1)
        scoreboard.judge(completion)
        statuses.append(completion.status)
        added = completion.final_seq_len - part.seq_len
        left -= added
        part = replace(
            part,
            user_data=part.user_data + 1,
            seq_len=completion.final_seq_len,
            max_tokens=left,
            delta_offset=part.delta_offset + 4 * added,
        )
    assert statuses == [c.Status.REWARD_NEEDED, c.Status.REWARD_NEEDED, c.Status.DONE]
    assert queue.tokens(start, 50) == queue.tokens(whole.delta_offset, 50)


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(
    (("latency", "pauses"), [(0, 0.0), (0, 0.5), (40, 0.0), (20, 0.3)]),
)
async def random_traffic(dut, latency: int, pauses: float):
    """DECODE, REWARD, STOP, NOP, fences, checkpoints, ends of sequence: the same answers whatever the buses do (R6)."""
    bench = await Bench.start(dut, latency=latency, pauses=pauses)
    queue = bench.queue_pair(token_bytes=32 << 10)
    await bench.registers.write(c.Reg.EOS_THRESHOLD, EOS_THRESHOLD)
    await queue.enable(key=bench.key())
    await judged(queue, traffic(bench, queue).mixed(60), eos_threshold=EOS_THRESHOLD)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_stop_ends_a_decode(dut):
    """R8: a DECODE that runs ends as STOPPED behind a prefix of its answer, and its rollout may start anew."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair()
    # Slow enough for the STOP to come in its midst.
    await bench.registers.write(c.Reg.WAIT_STATES, 20)
    await queue.enable(key=bench.key())
    make = traffic(bench, queue)
    scoreboard = Scoreboard(queue)
    descs = [make.decode(3, 400), make.desc(c.Opcode.STOP, rollout_id=3), make.decode(3, 10)]
    scoreboard.expect(*descs)
    await queue.submit(descs[0])
    await ClockCycles(dut.clk_i, 1000)
    await queue.submit(*descs[1:])
    completions = await queue.collect(3)
    for completion in completions:
        scoreboard.judge(completion)
    scoreboard.finish()
    cut = completions[0]
    assert cut.status == c.Status.STOPPED
    assert 0 < cut.final_seq_len - descs[0].seq_len < 400


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def rings_wrap_at_the_end_of_the_index(dut):
    """R13: both rings start just below 2^32 and go round many times, the completion queue the smaller one."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair(sq_slots=8, cq_slots=4)
    await queue.enable(key=bench.key(), sq_start=0xFFFF_FFF3, cq_start=0xFFFF_FFF9)
    make = traffic(bench, queue)
    descs = [make.decode(rollout % 5, 1 + rollout % 20) for rollout in range(40)]
    await judged(queue, descs)
    assert await queue.read(c.Reg.SQ_HEAD) == 0xFFFF_FFF3 + 40 & 0xFFFF_FFFF
    assert await queue.read(c.Reg.CQ_TAIL) == 0xFFFF_FFF9 + 40 & 0xFFFF_FFFF


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_full_completion_queue_holds_everything(dut):
    """R4: nothing is overwritten while the host reads no completion, and all come once it does."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair(sq_slots=16, cq_slots=4)
    await queue.enable(key=bench.key())
    make = traffic(bench, queue)
    scoreboard = Scoreboard(queue)
    descs = [make.decode(rollout, 20) for rollout in range(16)]
    scoreboard.expect(*descs)
    await queue.submit(*descs)
    await ClockCycles(dut.clk_i, 2000)
    assert await queue.read(c.Reg.CQ_TAIL) == 4
    assert await queue.count(c.QueueCounter.STALL_CQ) > 0
    for completion in await queue.collect(16):
        scoreboard.judge(completion)
    scoreboard.finish()


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_group_ends_once(dut):
    """R17, R14: of eight members, submitted right behind the PREFILL, the one that ends last carries GROUP_DONE, and
    interrupts."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair()
    await bench.route(queue)
    await queue.enable(key=bench.key())
    make = traffic(bench, queue)
    prefix = 0xC0DE
    # The PREFILL has to wait for its own rollout, and the members for it.
    before = make.decode(99, 100)
    prefill = make.desc(c.Opcode.PREFILL, rollout_id=99, prefix_id=prefix, max_tokens=8, seq_len=100)
    shared = {"prefix_id": prefix, "seq_len": 100, "flags": c.DescFlags.COW_PREFIX}
    members = [make.decode(member, bench.random.randint(1, 60), member=member, **shared) for member in range(8)]
    descs = [before, prefill, *members]
    scoreboard = Scoreboard(queue)
    scoreboard.expect(*descs)
    completions: list[c.HwCompletion] = []
    waiter = cocotb.start_soon(queue.interrupt())
    await queue.run(descs, lambda completion: (scoreboard.judge(completion), completions.append(completion)))
    scoreboard.finish()
    await waiter
    order = [completion.user_data for completion in completions]
    assert order[:2] == [before.user_data, prefill.user_data], "R17: no member starts before the PREFILL has completed"
    assert [bool(one.flags & c.CompletionFlags.GROUP_DONE) for one in completions] == [False] * 9 + [True]
    assert await bench.registers.count(c.Counter.PREFIXES) == 1


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def an_arming_brings_one_message(dut):
    """R14: what asks for an interrupt raises one, what does not raises none, and who arms late still gets it."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair(number=2)
    await bench.route(queue)
    await queue.enable(key=bench.key())
    make = traffic(bench, queue)
    scoreboard = Scoreboard(queue)
    quiet = make.decode(1, 30)
    loud, late, masked = (make.decode(rollout, 30, flags=c.DescFlags.INTERRUPT) for rollout in (2, 3, 4))
    scoreboard.expect(quiet, loud, late, masked)

    waiter = cocotb.start_soon(queue.interrupt())
    await queue.submit(quiet)
    for completion in await queue.collect(1):
        scoreboard.judge(completion)
    await ClockCycles(dut.clk_i, 100)
    assert not waiter.done(), "R14: nobody has asked for this interrupt"

    await queue.submit(loud)
    await waiter
    # An interrupt says that the completion is there: no waiting.
    (completion,) = await queue.take()
    scoreboard.judge(completion)

    await queue.submit(late)
    await ClockCycles(dut.clk_i, 500)
    await queue.interrupt()
    (completion,) = await queue.take()
    scoreboard.judge(completion)

    await bench.mask(queue, True)
    await queue.arm()
    await queue.submit(masked)
    for completion in await queue.collect(1):
        scoreboard.judge(completion)
    await ClockCycles(dut.clk_i, 100)
    assert not queue.told(), "R14: a masked vector sends nothing"
    assert await queue.read(c.Reg.MESSAGES_PENDING) == 1 << queue.number
    await bench.mask(queue, False)
    await ClockCycles(dut.clk_i, 100)
    assert queue.told() and await queue.read(c.Reg.MESSAGES_PENDING) == 0, "R14: what was pending is sent at the unmask"
    scoreboard.finish()


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def four_queue_pairs_in_two_functions(dut):
    """R11, R5: all run at once, and each burst stays in the window of the function that it names."""
    bench = await Bench.start(dut, latency=8, pauses=0.2)
    tenants = [Allocator(0x4_0000_0000, 1 << 20), Allocator(0xFFFF_0000_0000_0000, 1 << 20)]
    for function, allocator in enumerate(tenants):
        await bench.give(function, allocator)
    queues = []
    for number in range(4):
        function = number // 2
        await bench.registers.write(c.Reg.QUEUE_FUNCTION, function, queue=number)
        queues.append(bench.queue_pair(number, function, tenants[function]))
        await queues[-1].enable(key=bench.key(), sq_start=number << 30, cq_start=number << 29)
    runs = [cocotb.start_soon(judged(queue, traffic(bench, queue).mixed(12))) for queue in queues]
    for run in runs:
        await run
    assert set(bench.bursts) == {0, 1}, bench.bursts


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_function_is_kept_in_its_window(dut):
    """R11: a region in another function's window is refused at ENABLE, and so is another function's page."""
    bench = await Bench.start(dut)
    tenants = [Allocator(0x10_0000, 1 << 20), Allocator(0x20_0000, 1 << 20)]
    for function, allocator in enumerate(tenants):
        await bench.give(function, allocator)
    await bench.registers.write(c.Reg.QUEUE_FUNCTION, 1, queue=1)
    trespasser = bench.queue_pair(1, 1, tenants[1])
    trespasser.region.tokens = tenants[0].take(len(trespasser.region.tokens))
    try:
        await trespasser.enable(key=bench.key())
        raise AssertionError("R11: a token region outside the function's window was taken")
    except BadConfig:
        assert await trespasser.read(c.Reg.CONTROL) == 0
    await refused(bench.registers.read(c.Reg.SQ_SIZE, function=0, queue=1))
    await refused(bench.registers.write(c.Reg.CONTROL, c.Control.ENABLE, function=0, queue=1))
    assert not bench.bursts


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def what_is_malformed_is_refused_by_name(dut):
    """R10, R2: each bad descriptor completes with its error, writes nothing, and the good one behind it runs."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair()
    await queue.enable(key=bench.key(), sq_start=100)
    make = traffic(bench, queue)
    limit = len(queue.region.tokens)
    bad = [
        (make.desc(0x7E), c.ErrorCode.BAD_OPCODE),
        (make.decode(1, 4, flags=0x40), c.ErrorCode.RESERVED_SET),
        (make.decode(2, 4, model_id=1), c.ErrorCode.BAD_MODEL),
        (make.decode(3, 0), c.ErrorCode.BAD_LENGTH),
        (make.decode(4, 4, delta_offset=2), c.ErrorCode.BAD_REGION),
        (make.decode(5, 4, delta_offset=limit - 12), c.ErrorCode.BAD_REGION),
        (make.desc(c.Opcode.PREFILL), c.ErrorCode.BAD_PREFIX),
        (make.decode(6, 4, policy_version=9), c.ErrorCode.BAD_VERSION),
    ]
    for desc, error in bad:
        desc.reward_model_id = 0x55
        await queue.submit(desc)
        (completion,) = await queue.collect(1)
        found = completion.status, c.ErrorCode(completion.error), completion.flags, completion.result
        assert found == (c.Status.ERROR, error, 0, 0), f"{error.name}: {completion}"
        echo = completion.user_data, completion.rollout_id, completion.final_seq_len, completion.reward_model_id
        assert echo == (desc.user_data, desc.rollout_id, desc.seq_len, desc.reward_model_id), error.name

    # Of a slot whose check word does not fit nothing is echoed but its place.
    index = queue.post(make.decode(7, 4), damage=1 << bench.random.randrange(32))
    await queue.ring()
    (completion,) = await queue.collect(1)
    nothing = c.HwCompletion(
        result=index,
        status=c.Status.ERROR,
        error=c.ErrorCode.BAD_CHECK,
        flags=c.CompletionFlags.NO_ECHO,
        sq_head=completion.sq_head,
        worker_id=completion.worker_id,
    )
    assert completion == nothing, completion
    assert await queue.count(c.QueueCounter.ERRORS) == len(bad) + 1
    await judged(queue, [make.decode(8, 20)])


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_refused_doorbell_is_a_slverr(dut):
    """A doorbell beyond the ring or backwards, a release of what was not written, and writes that no register takes."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair(sq_slots=8)
    await refused(queue.write(c.Reg.DOORBELL, 1))
    await queue.enable(key=bench.key())
    make = traffic(bench, queue)
    await judged(queue, [make.decode(1, 5), make.decode(2, 5)])

    await refused(queue.write(c.Reg.DOORBELL, 2 + 9))
    await refused(queue.write(c.Reg.DOORBELL, 1))
    await refused(queue.write(c.Reg.CQ_HEAD, 3))
    assert await queue.read(c.Reg.STATUS) & 0xFF == 3, "STATUS counts what was refused"
    assert await queue.read(c.Reg.DOORBELL) == 2, "a refused doorbell changes nothing"

    await refused(bench.registers.write(c.Reg.ID, 0))
    await refused(queue.write(c.Reg.SQ_SIZE, 16))
    await refused(bench.registers.write_at(c.Reg.WAIT_STATES.address, b"\x01\x00"))
    await refused(bench.registers.read_at(0x3F000))
    # It still runs, in all of its slots.
    scoreboard = Scoreboard(queue)
    descs = [make.decode(rollout, 5) for rollout in range(8)]
    scoreboard.expect(*descs)
    await queue.submit(*descs)
    for completion in await queue.collect(8):
        scoreboard.judge(completion)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_completion_waits_for_its_tokens(dut):
    """R3: while the write of one line of tokens is not answered there is no completion, and with it all is there."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair()
    await queue.enable(key=bench.key())
    make = traffic(bench, queue)
    desc = make.decode(1, 64)
    at = queue.region.tokens.start + desc.delta_offset + 100
    bench.port.held.append(range(at, at + 4))
    scoreboard = Scoreboard(queue)
    scoreboard.expect(desc)
    await queue.submit(desc)
    await ClockCycles(dut.clk_i, 2000)
    assert queue.peek() is None, "R3: a completion before its tokens"
    assert not await queue.state() & c.State.IDLE
    bench.port.held.clear()
    (completion,) = await queue.collect(1)
    scoreboard.judge(completion)
    scoreboard.finish()


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_fault_of_memory_is_told(dut):
    """SLVERR on tokens and on a slot: DMA_FAULT in the completion, a bit in ERROR, and what follows runs."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair()
    await queue.enable(key=bench.key())
    make = traffic(bench, queue)
    desc = make.decode(1, 64)
    at = queue.region.tokens.start + desc.delta_offset + 100
    bench.port.faults.append(range(at, at + 4))
    await queue.submit(desc)
    (completion,) = await queue.collect(1)
    assert (completion.status, completion.error) == (c.Status.ERROR, c.ErrorCode.DMA_FAULT), completion
    assert completion.user_data == desc.user_data
    assert await queue.read(c.Reg.ERROR) == c.DeviceFault.DMA_WRITE
    assert await queue.state() & c.State.FAULT

    slot = queue.region.sq.start + c.HwDesc.LAYOUT.size
    bench.port.faults[:] = [range(slot, slot + 64)]
    await queue.submit(make.decode(2, 4))
    (completion,) = await queue.collect(1)
    assert (completion.status, completion.error) == (c.Status.ERROR, c.ErrorCode.DMA_FAULT), completion
    assert (completion.flags, completion.result) == (c.CompletionFlags.NO_ECHO, 1), completion

    bench.port.faults.clear()
    await queue.write(c.Reg.ERROR, c.DeviceFault.DMA_READ | c.DeviceFault.DMA_WRITE)
    assert not await queue.state() & c.State.FAULT
    good = make.decode(3, 30)
    await queue.submit(good)
    (completion,) = await queue.collect(1)
    scoreboard = Scoreboard(queue)
    scoreboard.expect(good)
    scoreboard.judge(completion)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_disable_in_mid_flight_is_clean(dut):
    """R12: once ACTIVE is 0 the memory is the host's; then the queue pair starts anew, at another index."""
    bench = await Bench.start(dut, latency=30, pauses=0.2)
    queue = bench.queue_pair(cq_slots=4)
    # In the midst of tokens; of wait states; with a full completion queue.
    for start, length, wait_states in ((0, 100, 0), (0xFFFF_FFFE, 300, 200), (1000, 2, 0)):
        await bench.registers.write(c.Reg.WAIT_STATES, wait_states)
        await queue.enable(key=bench.key(), sq_start=start, cq_start=start)
        make = traffic(bench, queue)
        await queue.submit(*(make.decode(rollout, length) for rollout in range(12)))
        await ClockCycles(dut.clk_i, bench.random.randrange(50, 1500))
        await queue.disable()
        assert await queue.read(c.Reg.SQ_HEAD) - start & 0xFFFF_FFFF <= 12
        assert await queue.read(c.Reg.STATUS) & 0xFFFF00 == 0, "R12: the queues are empty"
        writes, bursts = bench.port.writes, dict(bench.bursts)
        await ClockCycles(dut.clk_i, 300)
        assert (bench.port.writes, bench.bursts) == (writes, bursts), "R12: an access behind the disable"
    await queue.enable(key=bench.key())
    await judged(queue, traffic(bench, queue).mixed(10))


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_disable_waits_for_no_decode(dut):
    """R12: what runs is ended; the driver's patience is less than the rest of these would take."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair(token_bytes=512 << 10)
    await queue.enable(key=bench.key())
    make = traffic(bench, queue)
    await queue.submit(make.decode(1, 60_000), make.decode(2, 60_000))
    await ClockCycles(dut.clk_i, 500)
    assert await queue.count(c.QueueCounter.TOKENS) > 0
    await queue.disable()
    assert queue.peek() is None, "R12: what a disable interrupts never completes"


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_drain_loses_nothing(dut):
    """DRAIN completes what is published, takes no doorbell, and ends the queue pair by itself."""
    bench = await Bench.start(dut)
    queue = bench.queue_pair()
    await queue.enable(key=bench.key())
    make = traffic(bench, queue)
    scoreboard = Scoreboard(queue)
    descs = [make.decode(rollout, 50) for rollout in range(8)]
    scoreboard.expect(*descs)
    await queue.submit(*descs)
    await queue.drain()
    await refused(queue.write(c.Reg.DOORBELL, 9))
    for completion in await queue.collect(8):
        scoreboard.judge(completion)
    scoreboard.finish()
    await queue.inactive()
    assert await queue.read(c.Reg.CONTROL) == 0
