//! Engine 1 on the kernel: the tests of the golden model (R25 to R27), on the kernel's own text, compiled for the CPU; with
//! `DOORBELL_LANGUAGE=gpu` on a GPU, one after the other (`--test-threads 1`).

#[path = "../../verify/tests/language/capped.rs"]
mod capped;
#[path = "../../verify/tests/language/extremes.rs"]
mod extremes;
#[path = "../../verify/tests/language/gemma.rs"]
mod gemma;
#[path = "../../verify/tests/language/host.rs"]
#[allow(dead_code, reason = "what plants faults is not here")]
mod host;
#[path = "../../verify/tests/language/refusals.rs"]
mod refusals;
#[path = "../../verify/tests/language/rollouts.rs"]
mod rollouts;
#[path = "../../verify/tests/language/versions.rs"]
mod versions;
#[path = "../../verify/tests/language/wire.rs"]
mod wire;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use doorbell_contract::{
    Counter, DescFlags, ErrorCode, HwCompletion, HwDesc, HwSequence, PolicyMode, Register, Status,
};
use doorbell_gpu::{GpuDevice, GpuOptions, LanguageMemory, Pages};
use doorbell_gpu_cpu::{CpuKernel, Options, Teams};
use doorbell_host::{Device as _, Division, Driver, Platform, Ports, QueueConfig};
use doorbell_lm::sample::Sharpness;

/// What is tested.
type Device = GpuDevice;

/// Room for `micro` and `micro-gemma`; with `DOORBELL_LANGUAGE_TEAM=block` more of it, so that blocks run rollouts, and not warps.
fn memory() -> LanguageMemory {
    let model_bytes = if by_blocks() { LanguageMemory::SMALL + 64 } else { 1 << 19 };
    LanguageMemory { model_bytes, cache_bytes: 32 * host::BLOCK }
}

fn by_blocks() -> bool {
    std::env::var("DOORBELL_LANGUAGE_TEAM").is_ok_and(|team| team != "warp")
}

/// How blocks run rollouts on the CPU: `DOORBELL_LANGUAGE_TEAM=3/1/2` is three blocks, which are one team of two rollouts; `block` is one block.
fn teams() -> Teams {
    let name = std::env::var("DOORBELL_LANGUAGE_TEAM").unwrap_or_default();
    let numbers: Vec<usize> = name.split('/').filter_map(|number| number.parse().ok()).collect();
    match numbers[..] {
        [blocks, teams, columns] => Teams { blocks, teams, columns },
        _ => Teams::default(),
    }
}

/// Keys and values that stay with the device: of 16 blocks, or as many as `DOORBELL_LANGUAGE_PAGES` says, in sets of up to eight. Twelve rollouts have more.
fn pages() -> Pages {
    let pages = std::env::var("DOORBELL_LANGUAGE_PAGES").map_or(16, |pages| pages.parse().expect("a number"));
    let sets = u64::div_ceil(pages, 8).max(1);
    if pages == 0 {
        Pages::default()
    } else {
        Pages { sets: sets as u32, set_bytes: pages / sets * host::BLOCK }
    }
}

/// Whether lanes are interrupted at random.
fn stressed() -> bool {
    std::env::var("DOORBELL_LANGUAGE_PACE").is_ok_and(|pace| pace == "stress")
}

/// It, with so many queue pairs; a function has at least one.
fn device(queues: u8, _functions: u8) -> Device {
    device_of(queues.into(), host::config().shared_bytes().unwrap(), memory(), teams())
}

/// It, with so much memory, and on the CPU with such teams.
fn device_of(queues: usize, bytes: usize, memory: LanguageMemory, teams: Teams) -> Device {
    if is_gpu() {
        let options = GpuOptions { queues, bytes, language: Some(memory), ..GpuOptions::default() };
        return doorbell_gpu::open(options).expect("DOORBELL_LANGUAGE asks for a GPU");
    }
    let seed = std::env::var("DOORBELL_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let options = Options {
        queues,
        bytes,
        seed,
        stress: stressed(),
        teams,
        pages: pages(),
        language: Some(memory),
        fault: fault(),
        ..Options::default()
    };
    GpuDevice::new(Arc::new(CpuKernel::start(options).unwrap())).unwrap()
}

/// Two devices of one queue pair: kernels on the CPU, or two GPUs; `None` where there is one GPU alone.
fn two_devices() -> Option<Vec<Device>> {
    if !is_gpu() {
        return Some(vec![device(1, 1), device(1, 1)]);
    }
    if doorbell_gpu::describe().expect("DOORBELL_LANGUAGE asks for a GPU").len() < 2 {
        return None;
    }
    let bytes = host::config().shared_bytes().unwrap();
    let options =
        [0, 1].map(|gpu| GpuOptions { gpu, bytes, language: Some(memory()), ..GpuOptions::default() });
    Some(doorbell_gpu::open_all(&options).expect("two GPUs"))
}

/// R26: a rollout that is preempted on one device goes on on another, from the blocks that the host has of it.
#[test]
fn r26_a_rollout_that_is_preempted_goes_on_on_another_device() {
    const PROMPT: usize = 29;
    const TOKENS: u32 = 12;
    let Some(devices) = two_devices() else { return };
    let mut hosts: Vec<host::Host> = devices.into_iter().map(host::Host::over).collect();
    let prompt = host::Draws(11).prompt(PROMPT);
    let positions = PROMPT + TOKENS as usize;
    let mut whole = hosts[0].sequence(&prompt, positions, 1.0);
    hosts[0].prefill(&mut whole);
    hosts[0].decode(&mut whole, TOKENS, DescFlags::LOGP);
    for length in 1..TOKENS {
        let (from, to) = if length % 2 == 0 { (0, 1) } else { (1, 0) };
        let mut first = hosts[from].sequence(&prompt, positions, 1.0);
        (first.seed, first.rollout) = (whole.seed, whole.rollout);
        hosts[from].prefill(&mut first);
        hosts[from].decode(&mut first, length, DescFlags::LOGP);
        let held = hosts[from].blocks(&first);
        let mut then = hosts[to].sequence(&first.reference.tokens, positions, 1.0);
        for (bytes, &block) in held.iter().zip(&then.table) {
            hosts[to].regions.arenas[0].write(u64::from(block) * host::BLOCK, bytes).unwrap();
        }
        (then.seed, then.rollout, then.done) = (whole.seed, whole.rollout, first.done);
        then.reference = first.reference.clone();
        hosts[to].generation += 1;
        then.record.generation = hosts[to].generation;
        hosts[to].lay(&then);
        // Holds tokens, log-probabilities, keys and values to the oracle.
        hosts[to].decode(&mut then, TOKENS - length, DescFlags::LOGP);
        assert_eq!(then.reference.tokens, whole.reference.tokens, "preempted at {length}");
        for (host, sequence) in [(from, first), (to, then)] {
            hosts[host].free.splice(0..0, sequence.table);
        }
    }
}

/// The mistake that `DOORBELL_FAULT` names.
fn fault() -> Option<&'static str> {
    let name = std::env::var("DOORBELL_FAULT").ok()?;
    let fault = doorbell_gpu_cpu::faults().find(|fault| fault.to_str() == Ok(&name));
    Some(fault.unwrap_or_else(|| panic!("no fault {name}")).to_str().unwrap())
}

/// Three blocks that are one team, and two teams of two blocks, of three rollouts each: they give their lanes up to each other.
const ONE_TEAM: &str = "3/1/32";
const TWO_TEAMS: &str = "4/2/3";

/// A page for the blocks of all rollouts.
const ONE_PAGE: &str = "1";

/// Mistakes planted in engine 1, and a test that has to notice each.
const FAULTS: [(&str, &str); 35] = [
    ("ChangesTable", "rollouts::r06_"),
    ("DropsBin", "rollouts::r06_"),
    ("DropsLowestBin", "extremes::r06_the_third_bin"),
    ("ScalesAhead", "rollouts::r06_"),
    ("LosesRow", "gemma::r06_"),
    ("SwapsBlocks", "rollouts::r26_blocks_lie_in_any_order"),
    ("CopiesShort", "rollouts::r27_members_share_a_prefix"),
    ("TakesOldPrefix", "rollouts::r27_members_share_a_prefix"),
    ("SwitchesInStep", "versions::"),
    ("ForgetsDigest", "rollouts_that_wait_for_blocks_take_turns"),
    ("RepeatsStep", "rollouts_that_wait_for_blocks_take_turns"),
    ("SharesLast", "gemma::r06_"),
    ("SeesBefore", "gemma::r06_"),
    ("CutsMore", "gemma::r06_"),
    ("SwapsStreams", "gemma::r06_"),
    ("AddsToFirst", "gemma::r06_"),
    ("SwitchesInStep", "gemma::r25_"),
    ("KeepsOneMore", "wire::r06_truncated"),
    ("ScoresEarly", "wire::r27_a_prefill_scores"),
    ("LeavesFunction", "r19_no_model_is_loaded_over_one"),
    ("KeepsUnstarted", "r17_r18_a_prefill_waits"),
    ("SwapsColumns", "rollouts::r27_members_share_a_prefix"),
    ("TakesLongChunk", "refusals::r26_a_token_beyond_the_vocabulary"),
    ("KeepsOldPages", "wire::r26_bytes_that_the_host_swaps"),
    ("OverlooksWriters", "wire::r26_what_is_written"),
    ("TakesPartPages", "wire::r26_what_is_written"),
    ("SharesPages", "wire::r26_what_is_kept_of_a_function_is_its_own"),
    ("KeepsFunction", "wire::r26_what_is_kept_of_a_function_ends"),
    ("FreesUnderReader", "rollouts_that_wait_for_blocks_share_a_prefix"),
    ("HelpsElsewhere", "rollouts::r27_a_prompt_may"),
    ("MeetsNobody", "rollouts::r06_"),
    ("SkipsRows", "rollouts::r06_"),
    ("SwapsTile", "rollouts::r06_"),
    ("JoinsLate", "rollouts_that_wait_for_blocks_take_turns"),
    ("SwitchesInStep", "versions::"),
];

/// Those of teams of blocks: the last ones, and the number of them.
const OF_TEAMS: usize = 5;

/// Each in a process of its own, as what it breaks may not end.
#[test]
fn what_is_planted_is_noticed() {
    if is_gpu() || fault().is_some() || by_blocks() {
        return;
    }
    for (k, (fault, test)) in FAULTS.into_iter().enumerate() {
        // Rows that are lost are those of blocks, whose weights pass through shared memory; and blocks alone take chunks.
        let team = match fault {
            _ if k >= FAULTS.len() - OF_TEAMS => ONE_TEAM,
            "LosesRow" | "SwapsColumns" | "TakesLongChunk" => "block",
            // Nor does a warp keep anything.
            "KeepsOldPages" | "OverlooksWriters" | "TakesPartPages" | "SharesPages" | "KeepsFunction" => {
                "block"
            }
            "FreesUnderReader" | "HelpsElsewhere" => TWO_TEAMS,
            _ => "warp",
        };
        // Two mistakes show only while others run: two teams meet at a page in about half of all runs, and a busy machine may hide the other one.
        let (pages, tries) = match fault {
            "FreesUnderReader" => (ONE_PAGE, 16),
            "LeavesFunction" => ("16", 5),
            _ => ("16", 1),
        };
        let is_noticed = (0..tries).any(|_| {
            let mut run = others(test);
            run.env("DOORBELL_FAULT", fault).env("DOORBELL_LANGUAGE_TEAM", team);
            fails(run.env("DOORBELL_LANGUAGE_PAGES", pages))
        });
        assert!(is_noticed, "{fault} is not noticed by {test}");
    }
}

/// Whether one of the tests that this command runs fails, or the command ends badly. It is stopped at the first that does.
fn fails(command: &mut std::process::Command) -> bool {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
    if lines.any(|line| line.is_ok_and(|line| line.ends_with("FAILED"))) {
        child.kill().unwrap();
        child.wait().unwrap();
        return true;
    }
    !child.wait().unwrap().success()
}

/// Other tests of this program, in a process of its own.
fn others(tests: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.arg(tests);
    if is_gpu() {
        command.args(["--test-threads", "1"]);
    }
    command
}

/// What warps make of small models, blocks make too: they run those that are larger.
#[rstest::rstest]
fn r06_blocks_run_rollouts_as_warps_do(
    #[values(
        "gemma::",
        "capped::",
        "rollouts::r06_",
        "refusals::r26_a_token",
        "rollouts::r27_",
        "rollouts_that_wait",
        "versions::",
        "r26_what_is_kept",
        "wire::r26_",
        "wire::r27_"
    )]
    tests: &str,
) {
    if fault().is_some() || by_blocks() {
        return;
    }
    let run = others(tests).env("DOORBELL_LANGUAGE_TEAM", "block").output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}

/// Teams of blocks make the same, however many there are, and however often rollouts give their lanes up to each other.
#[rstest::rstest]
fn r06_teams_run_rollouts_as_warps_do(
    #[values(ONE_TEAM, TWO_TEAMS)] team: &str,
    #[values(
        "gemma::r06_",
        "refusals::r26_a_token",
        "rollouts::r06_",
        "rollouts::r27_",
        "rollouts_that_wait",
        "what_waits",
        "a_session_ends",
        "r19_",
        "r26_what_is_kept_is",
        "versions::",
        "wire::"
    )]
    tests: &str,
) {
    if fault().is_some() || by_blocks() || is_gpu() {
        return;
    }
    // What draws leave out is found by the blocks of a team: those of one show it as well as those of two.
    let is_short = std::env::var_os("DOORBELL_SEEDS").is_none();
    let tests = if is_short && (team, tests) == (TWO_TEAMS, "wire::") { "wire::r27_" } else { tests };
    let run = others(tests).env("DOORBELL_LANGUAGE_TEAM", team).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}

/// With one page, and with none, teams make the same: what is kept gives way to what comes.
#[rstest::rstest]
fn r26_pages_give_way(#[values("0", ONE_PAGE)] pages: &str) {
    if fault().is_some() || by_blocks() || is_gpu() {
        return;
    }
    let mut run = others("rollouts_that_wait");
    run.env("DOORBELL_LANGUAGE_TEAM", TWO_TEAMS).env("DOORBELL_LANGUAGE_PAGES", pages);
    let run = run.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}

/// The same where lanes are interrupted at random: at meetings, where rollouts join and leave, and where versions are published.
#[test]
fn r06_r26_teams_make_the_same_where_lanes_are_interrupted() {
    if fault().is_some() || by_blocks() || is_gpu() {
        return;
    }
    for (tests, team, seed) in [
        ("refusals::r26_a_token", ONE_TEAM, "1"),
        ("rollouts_that_wait", TWO_TEAMS, "2"),
        ("wire::r27_a_prefill_scores", ONE_TEAM, "3"),
        ("what_waits", TWO_TEAMS, "4"),
    ] {
        let run = others(tests)
            .env("DOORBELL_LANGUAGE_TEAM", team)
            .env("DOORBELL_LANGUAGE_PACE", "stress")
            .env("DOORBELL_SEED", seed)
            .output()
            .unwrap();
        assert!(run.status.success(), "{tests}, seed {seed}: {}", String::from_utf8_lossy(&run.stdout));
    }
}

/// A block takes a prompt by chunks whose tokens one of its warps reads, and cuts short: the others may be interrupted at any point of that.
#[test]
fn r26_r27_chunks_are_the_same_where_lanes_are_interrupted() {
    if fault().is_some() || by_blocks() || is_gpu() {
        return;
    }
    for (tests, seed) in
        [("refusals::r26_a_token", "1"), ("refusals::r26_a_token", "2"), ("wire::r27_a_prefill_scores", "1")]
    {
        let run = others(tests)
            .env("DOORBELL_LANGUAGE_TEAM", "block")
            .env("DOORBELL_LANGUAGE_PACE", "stress")
            .env("DOORBELL_SEED", seed)
            .output()
            .unwrap();
        assert!(run.status.success(), "{tests}, seed {seed}: {}", String::from_utf8_lossy(&run.stdout));
    }
}

fn is_gpu() -> bool {
    std::env::var("DOORBELL_LANGUAGE").is_ok_and(|name| name == "gpu")
}

/// Bytes of an image whose damage it does not notice: it holds the length of a file to its shape, and does not fold it.
const UNSEEN: &[u64] = &[30_000];

/// Whether a step of one descriptor keeps all others waiting.
const ONE_AT_A_TIME: bool = false;

/// Lets time pass, until it has made a token for each twenty ticks, or as long as those of a PREFILL may take.
fn pass(device: &mut Device, ticks: u32) {
    let tick = Duration::from_nanos(if is_gpu() { 500 } else { 100_000 });
    let start = Instant::now();
    let mut tokens = || device.read_register(Counter::Tokens.lo()).expect("a counter is read at any time");
    let goal = tokens() + ticks / 20;
    while tokens() < goal && start.elapsed() < tick * ticks {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Twelve sequences at once, more than there are blocks on the CPU: each waits for its turn, many times.
fn twelve(host: &mut host::Host<Device>, tokens: u32) -> Vec<(host::Sequence, doorbell_contract::HwDesc)> {
    let sequences: Vec<_> = (0..12)
        .map(|k| {
            let prompt = host::Draws(k).prompt(3 + 5 * k as usize);
            host.sequence(&prompt, prompt.len() + tokens as usize, 1.0)
        })
        .collect();
    let prefills: Vec<_> = sequences.iter().map(|sequence| sequence.prefill(None)).collect();
    for end in host.run(&prefills) {
        assert_eq!(host::ended(&end), Status::Done);
    }
    let mut made = Vec::new();
    for mut sequence in sequences {
        host.catch_up(&mut sequence);
        let desc = sequence.decode(tokens).with_flags(DescFlags::LOGP);
        made.push((sequence, desc));
    }
    made
}

/// What a rollout makes does not depend on how often it gave its block up (R6).
#[test]
fn rollouts_that_wait_for_blocks_take_turns() {
    let mut host = host::Host::new();
    let mut made = twelve(&mut host, 40);
    let descs: Vec<_> = made.iter().map(|(_, desc)| *desc).collect();
    let ends = host.run(&descs);
    for (sequence, desc) in &mut made {
        let end = host::of(&ends, sequence.rollout.into());
        assert_eq!(host::ended(&end), Status::Done);
        host.check(sequence, desc, &end);
    }
}

/// Vectors of so many channels leave a block room for fewer columns than 32: steps have 16 or 8 rollouts, chunks as many positions, and a warp has more than two lines of a vector.
/// The first one has room for 32. A GPU, whose blocks have more warps, has room for fewer.
#[rstest::rstest]
fn r06_r27_long_vectors_are_those_of_the_oracle(#[values(1024, 8192, 16384)] hidden: usize) {
    if fault().is_some() || by_blocks() || stressed() {
        return;
    }
    let mut image = doorbell_lm::micro();
    image.model = doorbell_lm::hashed(doorbell_lm::Shape { hidden, layers: 1, ..image.model.shape });
    let published = doorbell_npu::Published::new(image.to_bytes(), &image.about.ends).unwrap();
    let model_bytes = (host::HALF + published.memory.len() as u64).next_multiple_of(4096);
    let config = QueueConfig { model_bytes, ..host::config() };
    let memory = LanguageMemory {
        model_bytes: model_bytes.max(LanguageMemory::SMALL + 64),
        cache_bytes: 32 * host::BLOCK,
    };
    let teams = Teams { blocks: 3, teams: 1, columns: 32 };
    let device = device_of(1, config.shared_bytes().unwrap(), memory, teams);
    let mut host = host::Host::configured(device, config);
    assert_eq!(host.publish(1, &image, PolicyMode::Wait).status, Status::Done as u8);
    // One alone, whose prompt is scored, and twelve.
    let prompt = host::Draws(77).prompt(37);
    let mut alone = host.sequence(&prompt, 48, 1.0);
    host.score(&mut alone, 0);
    host.decode(&mut alone, 6, DescFlags::LOGP);
    let mut made = twelve(&mut host, 5);
    let descs: Vec<_> = made.iter().map(|(_, desc)| *desc).collect();
    let ends = host.run(&descs);
    for (sequence, desc) in &mut made {
        let end = host::of(&ends, sequence.rollout.into());
        assert_eq!(host::ended(&end), Status::Done);
        host.check(sequence, desc, &end);
    }
}

/// R26: what members share is found among what is kept, and copied from there, while others need its place. Each begins at the end of a block.
#[test]
fn rollouts_that_wait_for_blocks_share_a_prefix() {
    let mut host = host::Host::new();
    let prompt = host::Draws(98).prompt(33);
    let prefix = host.sequence(&prompt, 33, 1.0);
    host.prefill(&mut prefix.clone());
    let mut members: Vec<_> =
        (0..30).map(|number| rollouts::member(&mut host, &prefix, &prompt, number)).collect();
    let descs: Vec<_> = members.iter().map(|member| member.decode(3).with_flags(DescFlags::LOGP)).collect();
    let ends = host.run(&descs);
    for (member, desc) in members.iter_mut().zip(&descs) {
        let end = host::of(&ends, member.rollout.into());
        host.catch_up(member);
        host.check(member, desc, &end);
    }
}

/// R26: of what a descriptor has read or made, the next one reads nothing from the host's memory, be it the same sequence or another that shares
/// its blocks.
#[test]
fn r26_what_is_kept_is_not_read_again() {
    if !by_blocks() {
        return;
    }
    let mut host = host::Host::new();
    let prompt = host::Draws(97).prompt(65);
    let prefix = host.sequence(&prompt, 65, 1.0);
    host.prefill(&mut prefix.clone());
    let mut member = rollouts::member(&mut host, &prefix, &prompt, 0);
    host.catch_up(&mut member);
    let mut read = host.driver.counter(Counter::ReadBeats).unwrap();
    for (generation, is_kept) in [(1, true), (1, true), (0, false), (2, false), (2, true)] {
        member.record.generation = generation;
        host.lay(&member);
        host.decode(&mut member, 5, DescFlags::LOGP);
        // What is counted is told a little later.
        std::thread::sleep(Duration::from_millis(100));
        let before = std::mem::replace(&mut read, host.driver.counter(Counter::ReadBeats).unwrap());
        assert_eq!(read - before < host::BLOCK / 64, is_kept, "{generation}: {} beats", read - before);
    }
}

/// R8: a STOP ends what waits for its turn, with what it has made.
#[test]
fn what_waits_for_its_turn_is_stopped() {
    let mut host = host::Host::new();
    // As many as may wait for workers on the CPU: with more the queue would not come to the STOPs.
    let mut made = twelve(&mut host, 160);
    made.truncate(8);
    let descs: Vec<_> = made.iter().map(|(_, desc)| *desc).collect();
    host.driver.submit(&descs).unwrap();
    pass(host.driver.platform_mut(), 12 * 20 * 6);
    let stops: Vec<_> = made.iter().map(|(sequence, _)| sequence.stop()).collect();
    host.driver.submit(&stops).unwrap();
    let ends = host.reap(16);
    for (sequence, desc) in &mut made {
        let end = host::of(&ends, sequence.rollout.into());
        // A GPU has blocks for all, and may have come to the end.
        assert!(is_gpu() || host::ended(&end) == Status::Stopped);
        host.check(sequence, desc, &end);
    }
}

/// R12, R19: a rollout reads the weights of its version to the end of its session, which comes some time after the host asks for it. Only
/// then may another queue pair of the function load the slot, here with a model of another shape.
#[test]
fn r19_no_model_is_loaded_over_one_that_a_session_at_its_end_reads() {
    let bytes = host::config().shared_bytes().unwrap();
    let division = Division { queues: 2, functions: 1, bytes, ..Division::default() };
    let ports = Ports::divide(device(2, 1), &division).unwrap();
    let mut host = host::Host::over(ports.take(0).unwrap());
    host.publish(2, &host::model(2), PolicyMode::Wait);
    let tokens = host.driver.token_regions().remove(0);
    // As patient as the other: until the session at its end is over nothing of this queue pair moves.
    let config = QueueConfig { patience: host::config().patience, ..QueueConfig::default() };
    let mut other = Driver::over(ports.take(1).unwrap(), config, tokens).unwrap();
    let mut sequence = host.sequence(&host::Draws(2).prompt(20), 700, 1.0);
    host.prefill(&mut sequence);
    host.driver.submit(&[sequence.decode(600)]).unwrap();
    pass(&mut ports.device(), 100);
    // Version 3 takes the slot of version 1.
    let (policy, _) = host.place(3, &host::gemma(0), PolicyMode::Wait);
    host.driver.platform_mut().write_register(Register::Control, 0).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut out = [HwCompletion::default()];
    loop {
        other.submit(&[policy]).unwrap();
        while other.poll(&mut out).unwrap() == 0 {
            assert!(Instant::now() < deadline, "R15: the POLICY has no completion");
        }
        if out[0].error != ErrorCode::PolicyBusy as u8 {
            break;
        }
        assert!(Instant::now() < deadline, "the slot is in use for ever");
    }
    assert_eq!(out[0].status, Status::Done as u8, "{out:?}");
}

/// R17, R18: a PREFILL that waits for a worker while another queue pair of its function publishes a version runs afterwards, if its own version is
/// still resident, and what belongs to its group starts behind it. If that was retired, it opens no group (R20).
#[rstest::rstest]
#[case(PolicyMode::Wait, ErrorCode::None)]
#[case(PolicyMode::Keep, ErrorCode::BadVersion)]
fn r17_r18_a_prefill_waits_while_another_queue_pair_publishes(
    #[case] mode: PolicyMode,
    #[case] code: ErrorCode,
) {
    let bytes = host::config().shared_bytes().unwrap();
    let division = Division { queues: 2, functions: 1, bytes, workers: Some(2), ..Division::default() };
    let ports = Ports::divide(device(2, 1), &division).unwrap();
    let mut host = host::Host::over(ports.take(0).unwrap());
    let tokens = host.driver.token_regions().remove(0);
    let config = QueueConfig { patience: host::config().patience, ..QueueConfig::default() };
    let mut other = Driver::over(ports.take(1).unwrap(), config, tokens).unwrap();
    // Two that run for long take both places.
    let running: Vec<_> = (3..5)
        .map(|k| {
            let mut sequence = host.sequence(&host::Draws(k).prompt(20), 700, 1.0);
            host.prefill(&mut sequence);
            sequence
        })
        .collect();
    let prompt = host::Draws(7).prompt(40);
    let mut prefix = host.sequence(&prompt, 40, 1.0);
    let mut member = rollouts::member(&mut host, &prefix, &prompt, 0);
    let desc = member.decode(9).with_member(prefix.rollout, 0);
    let mut descs: Vec<_> = running.iter().map(|sequence| sequence.decode(600)).collect();
    descs.extend([prefix.prefill(Some(1)), desc]);
    host.driver.submit(&descs).unwrap();
    pass(&mut ports.device(), 200);
    // In the place of version 0.
    let (policy, _) = host.place(2, &host::model(2), mode);
    other.submit(&[policy]).unwrap();
    let mut out = [HwCompletion::default()];
    while other.poll(&mut out).unwrap() == 0 {}
    assert_eq!(host::ended(&out[0]), Status::Done, "{out:?}");
    host.note(2, &host::model(2));
    // An ABORT does not wait behind the PREFILL, as a STOP would; the second one has to wait for the first.
    for sequence in &running {
        while host.driver.abort(sequence.rollout).is_err() {}
    }
    let ends = host.reap(4);
    for sequence in &running {
        let end = host::of(&ends, sequence.rollout.into());
        let cut = [Status::Stopped, Status::Superseded].contains(&host::ended(&end));
        assert!(cut, "it came to its end before there was a place to wait for: {end:?}");
    }
    let end = host::of(&ends, prefix.rollout.into());
    assert_eq!(end.error, code as u8, "the PREFILL: {end:?}");
    if code == ErrorCode::None {
        host.catch_up(&mut prefix);
        let end = host::of(&ends, member.rollout.into());
        host.catch_up(&mut member);
        host.check(&mut member, &desc, &end);
    }
}

/// R12: the end of a session takes back what waits for its turn.
#[test]
fn a_session_ends_while_rollouts_wait_for_their_turns() {
    let mut host = host::Host::new();
    let made = twelve(&mut host, 160);
    let descs: Vec<_> = made.iter().map(|(_, desc)| *desc).collect();
    host.driver.submit(&descs).unwrap();
    pass(host.driver.platform_mut(), 12 * 20 * 6);
    let start = Instant::now();
    drop(host);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// SmolLM2's shape with hashed weights, or the one whose width, layers, heads, heads of keys, their width, channels of products and vocabulary `DOORBELL_LANGUAGE_SHAPE` lists, or the
/// model whose file `DOORBELL_LANGUAGE_MODEL` names, on a GPU whose blocks are teams of so many.
struct Large {
    version: doorbell_verify::language::Version,
    driver: Driver<Device>,
    regions: doorbell_host::language::LanguageRegions,
    block: u64,
    blocks: u64,
    sequences: u64,
    vocabulary: u32,
}

/// A sequence's part of the token region, behind the POLICY's; and of the KV region.
const LARGE_TOKENS: u64 = 16 << 10;
const LARGE_SLOT: u64 = 1024;

/// Holds one of a large model's sequences to the oracle, as `Large::check` does: blocks of so many bytes, and as many; tokens of its prompt, and steps.
fn check_one(
    version: &doorbell_verify::language::Version,
    (block, blocks): (usize, usize),
    number: usize,
    (length, steps): (usize, usize),
    found: &(Vec<u8>, Vec<u32>, Vec<u32>),
) -> Result<(), String> {
    let (kept, tokens, logps) = found;
    let all = block * blocks;
    let blocks: Vec<Vec<u8>> =
        kept[number * all..(number + 1) * all].chunks(block).map(<[u8]>::to_vec).collect();
    let of = |all: &[u32]| all[number * LARGE_TOKENS as usize / 4..][..length + steps].to_vec();
    let (tokens, logps) = (of(tokens), of(logps));
    let logps: Vec<i32> = logps[length..].iter().map(|&logp| logp as i32).collect();
    let given = doorbell_verify::language::Given {
        prompt: &tokens[..length],
        tokens: &tokens[length..],
        logps: Some(&logps),
        blocks: Some(&blocks),
    };
    let (seed, rollout) = (number as u32, number as u32 + 7);
    let sampling = doorbell_verify::language::Sampling::new(Sharpness(1_512_775), seed, rollout);
    given.check(&[(usize::MAX, version)], sampling)
}

impl Large {
    fn new(ranks: Option<u32>, sequences: u64, positions: usize) -> Self {
        let mut image = doorbell_lm::micro();
        match std::env::var_os("DOORBELL_LANGUAGE_MODEL") {
            Some(path) => image = doorbell_lm::Image::read(path.as_ref()).unwrap(),
            None => {
                let mut shape = doorbell_lm::Shape::SMOLLM2;
                if std::env::var_os("DOORBELL_LANGUAGE_SHAPE").is_some() {
                    let numbers = numbers("DOORBELL_LANGUAGE_SHAPE", "");
                    let [width, layers, heads, kv_heads, head_width, hidden, vocabulary] =
                        numbers.try_into().expect("seven numbers");
                    shape = doorbell_lm::Shape {
                        width,
                        layers,
                        heads,
                        kv_heads,
                        head_width,
                        hidden,
                        vocabulary,
                        ..shape
                    };
                }
                image.model = doorbell_lm::hashed(shape);
            }
        }
        let shape = image.model.shape;
        let published = doorbell_npu::Published::new(image.to_bytes(), &[]).unwrap();
        let blocks = positions.div_ceil(32) as u64;
        let block = 2 * (shape.layers * shape.kv_heads * (64 + 32 * shape.head_width)) as u64;
        let config = QueueConfig {
            model_bytes: published.memory.len().next_multiple_of(4096) as u64,
            arena_bytes: [sequences * blocks * block, 0, 0, 0],
            kv_bytes: (sequences * LARGE_SLOT).next_multiple_of(4096),
            token_bytes: (sequences + 1) * LARGE_TOKENS,
            logp_bytes: (sequences + 1) * LARGE_TOKENS,
            sq_depth: 1024,
            cq_depth: 1024,
            ..host::config()
        };
        let memory = LanguageMemory { model_bytes: config.model_bytes, cache_bytes: blocks * block };
        let bytes = config.shared_bytes().unwrap();
        let options = GpuOptions { bytes, language: Some(memory), ranks, ..GpuOptions::default() };
        let driver = Driver::new(doorbell_gpu::open(options).unwrap(), config).unwrap();
        let regions = driver.language_regions().remove(0);
        regions.model.write(0, &published.memory).unwrap();
        let policy = doorbell_host::language::language_policy(1, &published.at(0));
        driver.token_regions()[0].write(0, &policy).unwrap();
        let vocabulary = shape.vocabulary as u32;
        let version = doorbell_verify::language::Version { model: image.model, ends: vec![] };
        let mut large = Self { version, driver, regions, block, blocks, sequences, vocabulary };
        let policy = HwDesc { model_id: 1, ..HwDesc::policy(1, PolicyMode::Wait) }.with_delta_offset(0);
        large.run(&[policy]);
        large
    }

    /// Seconds from the first submission to the last completion.
    fn run(&mut self, descs: &[HwDesc]) -> f64 {
        let mut ends = [HwCompletion::default(); 64];
        let start = Instant::now();
        let (mut submitted, mut reaped) = (0, 0);
        while reaped < descs.len() {
            if submitted < descs.len() {
                submitted += self.driver.submit(&descs[submitted..]).unwrap();
            }
            let count = self.driver.poll(&mut ends).unwrap();
            for end in &ends[..count] {
                assert_eq!((end.status, end.error), (Status::Done as u8, 0), "{end:?}");
            }
            reaped += count;
        }
        start.elapsed().as_secs_f64()
    }

    /// Gives so many sequences prompts.
    fn place_all(&self, sequences: usize, length: usize) {
        let mut draws = host::Draws(1);
        for number in 0..sequences as u64 {
            let prompt: Vec<u32> = (0..length).map(|_| draws.below(self.vocabulary)).collect();
            self.place(number, &prompt);
        }
    }

    fn place(&self, number: u64, prompt: &[u32]) {
        assert!(number < self.sequences);
        let tokens = (number + 1) * LARGE_TOKENS;
        self.driver.token_regions()[0].write(tokens, prompt).unwrap();
        let first = (number * self.blocks) as u32;
        let table: Vec<u32> = (first..first + self.blocks as u32).collect();
        let record = HwSequence { sharpness: 1_512_775, prompt: tokens, ..HwSequence::default() };
        self.regions.place_sequence(number * LARGE_SLOT, record, &table).unwrap();
    }

    /// So many tokens behind a prompt.
    fn decode(number: u64, length: usize, steps: usize) -> HwDesc {
        let rollout_id = number as u32 + 7;
        let desc = HwDesc {
            model_id: 1,
            kv_offset: number * LARGE_SLOT,
            ..HwDesc::decode(rollout_id, length as u32, steps as u32)
        };
        let tokens = (number + 1) * LARGE_TOKENS + 4 * length as u64;
        let desc = desc.with_delta_offset(tokens).with_version(1).with_seed(number as u32);
        desc.with_checkpoint(1 << 20).with_flags(DescFlags::LOGP)
    }

    /// Holds what the first `checked` sequences have, of prompts of so many tokens and so many steps behind them, to the oracle: all tokens and log-probabilities, and
    /// their blocks. By all cores, as the oracle makes some hundred tokens a second.
    fn check(
        &self,
        checked: usize,
        length: usize,
        steps: usize,
        found: &(Vec<u8>, Vec<u32>, Vec<u32>),
    ) -> Result<(), String> {
        let (version, block, blocks) = (&self.version, self.block as usize, self.blocks as usize);
        let next = AtomicUsize::new(0);
        let check_some = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= checked {
                    return Ok(());
                }
                check_one(version, (block, blocks), number, (length, steps), found)
                    .map_err(|error| format!("rollout {number}: {error}"))?;
            }
        };
        std::thread::scope(|scope| {
            let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
            let threads: Vec<_> = (0..threads.min(checked)).map(|_| scope.spawn(check_some)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("the oracle does not panic"))
        })
    }

    fn prefill(&self, number: u64, length: usize) -> HwDesc {
        // Of its own rollout: those of one rollout run one behind the other (R5).
        let rollout_id = number as u32 + 7;
        let kv_offset = number * LARGE_SLOT;
        HwDesc { model_id: 1, kv_offset, rollout_id, ..HwDesc::prefill(rollout_id, length as u32) }
            .with_version(1)
    }

    /// Everything that the sequences have: keys and values, tokens, log-probabilities.
    fn found(&self, sequences: u64) -> (Vec<u8>, Vec<u32>, Vec<u32>) {
        let mut kept = vec![0; (sequences * self.blocks * self.block) as usize];
        self.regions.arenas[0].read(0, &mut kept).unwrap();
        let mut tokens = vec![0_u32; (sequences * LARGE_TOKENS / 4) as usize];
        let mut logps = tokens.clone();
        self.driver.token_regions()[0].read(LARGE_TOKENS, &mut tokens).unwrap();
        self.driver.logp_regions()[0].read(LARGE_TOKENS, &mut logps).unwrap();
        (kept, tokens, logps)
    }
}

/// The numbers that an environment variable lists.
fn numbers(name: &str, default: &str) -> Vec<usize> {
    let text = std::env::var(name).unwrap_or(default.to_owned());
    text.split(',').map(|number| number.parse().unwrap_or_else(|error| panic!("{name}: {error}"))).collect()
}
/// The sizes of teams that `DOORBELL_LANGUAGE_RANKS` lists; 0 is the default's.
fn ranks(default: &str) -> impl Iterator<Item = Option<u32>> {
    let of = |ranks: usize| (ranks != 0).then_some(ranks as u32);
    numbers("DOORBELL_LANGUAGE_RANKS", default).into_iter().map(of)
}

/// Rollouts of a large model through driver and queue, keys, values and log-probabilities written to the host: so many at a time as
/// `DOORBELL_LANGUAGE_BATCHES` lists, of `DOORBELL_LANGUAGE_STEPS` tokens behind prompts of `DOORBELL_LANGUAGE_PROMPT`. All teams make the same bytes.
#[test]
#[ignore = "a measurement on a GPU: DOORBELL_LANGUAGE=gpu"]
fn decode_tokens_a_second_through_a_queue() {
    if !is_gpu() {
        return println!("skipped: DOORBELL_LANGUAGE is not gpu");
    }
    /// Sequences whose bytes are looked at.
    const COMPARED: u64 = 4;
    let batches = numbers("DOORBELL_LANGUAGE_BATCHES", "1,8,64,256");
    let length = numbers("DOORBELL_LANGUAGE_PROMPT", "8")[0];
    let steps = numbers("DOORBELL_LANGUAGE_STEPS", "248")[0];
    let most = *batches.iter().max().unwrap() as u64;
    let mut first = None;
    for ranks in ranks("0") {
        let mut large = Large::new(ranks, most, length + steps);
        for &batch in &batches {
            large.place_all(batch, length);
            let prefills: Vec<_> = (0..batch as u64).map(|number| large.prefill(number, length)).collect();
            let prefill = large.run(&prefills);
            let decodes: Vec<_> =
                (0..batch as u64).map(|number| Large::decode(number, length, steps)).collect();
            let seconds = large.run(&decodes);
            println!(
                "ranks {ranks:?}, batch {batch:>3}: {:>9.1} tokens/s, a step of all {:.3} ms; prompts of {length}: {:.1} tokens/s",
                (batch * steps) as f64 / seconds,
                1000.0 * seconds / steps as f64,
                (batch * length) as f64 / prefill,
            );
        }
        let found = large.found(most.min(COMPARED));
        let first = first.get_or_insert_with(|| found.clone());
        assert!(*first == found, "keys, values, tokens or log-probabilities differ");
    }
}

/// `DOORBELL_LANGUAGE_BATCHES` rollouts of a large model, of `DOORBELL_LANGUAGE_STEPS` tokens behind prompts of `DOORBELL_LANGUAGE_PROMPT`: all teams make the same tokens, log-probabilities,
/// keys and values, and those are the oracle's, which looks at the first `DOORBELL_LANGUAGE_CHECKED` rollouts.
#[test]
#[ignore = "takes minutes on a GPU: DOORBELL_LANGUAGE=gpu"]
fn r06_r27_what_a_large_model_makes_is_the_oracles() {
    if !is_gpu() {
        return println!("skipped: DOORBELL_LANGUAGE is not gpu");
    }
    let batch = numbers("DOORBELL_LANGUAGE_BATCHES", "64")[0];
    let length = numbers("DOORBELL_LANGUAGE_PROMPT", "40")[0];
    let steps = numbers("DOORBELL_LANGUAGE_STEPS", "400")[0];
    let checked = numbers("DOORBELL_LANGUAGE_CHECKED", &batch.to_string())[0];
    let mut first = None;
    for ranks in ranks("1,8,0,61,123") {
        let mut large = Large::new(ranks, batch as u64, length + steps);
        large.place_all(batch, length);
        let prefills: Vec<_> = (0..batch as u64).map(|number| large.prefill(number, length)).collect();
        large.run(&prefills);
        let decodes: Vec<_> = (0..batch as u64).map(|number| Large::decode(number, length, steps)).collect();
        let seconds = large.run(&decodes);
        let found = large.found(batch as u64);
        println!(
            "ranks {ranks:?}: {} tokens, {:.1} tokens/s",
            batch * steps,
            (batch * steps) as f64 / seconds
        );
        match &first {
            Some(first) => assert!(*first == found, "ranks {ranks:?} make something else"),
            None => {
                let start = Instant::now();
                assert_eq!(large.check(checked, length, steps, &found), Ok(()), "ranks {ranks:?}");
                println!("{} tokens of them are the oracle's, {:.1?}", checked * steps, start.elapsed());
                first = Some(found);
            }
        }
    }
}

/// Prompts of a large model through driver and queue, of `DOORBELL_LANGUAGE_PROMPT` tokens, alone, scored, and `DOORBELL_LANGUAGE_BATCHES` of them at a time. All teams make the same
/// keys, values and log-probabilities.
#[test]
#[ignore = "a measurement on a GPU: DOORBELL_LANGUAGE=gpu"]
fn prompt_tokens_a_second_through_a_queue() {
    if !is_gpu() {
        return println!("skipped: DOORBELL_LANGUAGE is not gpu");
    }
    let length = numbers("DOORBELL_LANGUAGE_PROMPT", "2000")[0];
    let batch = numbers("DOORBELL_LANGUAGE_BATCHES", "16")[0];
    let mut first = None;
    for ranks in ranks("1,0,61") {
        let mut large = Large::new(ranks, batch as u64, length);
        large.place_all(batch, length);
        for (what, count, flags) in [
            ("one", 1, DescFlags::empty()),
            ("scored", 1, DescFlags::LOGP),
            ("several", batch, DescFlags::empty()),
        ] {
            let descs: Vec<_> =
                (0..count as u64).map(|number| large.prefill(number, length).with_flags(flags)).collect();
            let seconds = large.run(&descs);
            println!(
                "ranks {ranks:?}, prompts of {length}, {what}: {count} at a time, {:.1} tokens/s",
                (count * length) as f64 / seconds
            );
        }
        let found = large.found(1);
        assert!(found.2.iter().any(|&logp| logp != 0), "what is scored is written");
        let first = first.get_or_insert_with(|| found.clone());
        assert!(*first == found, "keys, values or log-probabilities differ");
    }
}
