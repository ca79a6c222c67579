//! What is malformed is refused by name, and others go on (R10, "Which error").

use doorbell_contract::{
    DescFlags, ErrorCode, HwDesc, HwImage, HwPolicy, HwSequence, PREFIX_NONE, PolicyMode, Register,
    SHARPNESS_MAX, Status, TOKEN_NONE,
};
use doorbell_host::language::language_policy;
use doorbell_host::{Device, Driver, Platform};
use rstest::rstest;

use crate::host::*;

/// A descriptor that is refused between two that are not: how it ended.
fn between(host: &mut Host, bad: HwDesc) -> (Status, ErrorCode, u32, u32) {
    let mut good = host.sequence(&[1, 2, 3], 40, 1.0);
    host.prefill(&mut good);
    let first = good.decode(4);
    let second = first.continued_by(4);
    let ends = host.run(&[first, bad.with_user_data(5), second]);
    let end = of(&ends, good.rollout.into());
    host.check(&mut good, &first, &end);
    let later = of(&ends, u64::from(good.rollout) + (1 << 33));
    host.check(&mut good, &second, &later);
    let end = of(&ends, 5);
    assert_eq!(end.rollout_id, bad.rollout_id, "an ERROR echoes");
    (
        ended(&end),
        ErrorCode::try_from(end.error).unwrap(),
        end.final_seq_len.wrapping_sub(bad.seq_len),
        end.result,
    )
}

trait Continued {
    fn continued_by(&self, tokens: u32) -> HwDesc;
}

impl Continued for HwDesc {
    /// What follows it, of other `user_data`.
    fn continued_by(&self, tokens: u32) -> HwDesc {
        let at = self.delta_offset + 4 * u64::from(self.max_tokens);
        let next = HwDesc { seq_len: self.seq_len + self.max_tokens, max_tokens: tokens, ..*self };
        next.with_delta_offset(at).with_user_data(self.user_data + (1 << 33))
    }
}

/// Digest of no tokens: of a DECODE that came to run.
const EMPTY: u32 = 0x811C_9DC5;

type Change = fn(&mut HwDesc);

/// What the descriptor itself says.
#[rstest]
#[case::model(ErrorCode::BadModel, |desc: &mut HwDesc| desc.model_id = 2)]
#[case::other_engines_version(ErrorCode::BadModel, |desc: &mut HwDesc| desc.policy_version = 0)]
#[case::version(ErrorCode::BadVersion, |desc: &mut HwDesc| desc.policy_version = 9)]
#[case::no_length(ErrorCode::BadLength, |desc: &mut HwDesc| desc.seq_len = 0)]
#[case::context(ErrorCode::BadLength, |desc: &mut HwDesc| desc.seq_len = 1025 - desc.max_tokens)]
#[case::long(ErrorCode::BadLength, |desc: &mut HwDesc| desc.seq_len = 0x7FFF_FFFF)]
#[case::kv_misaligned(ErrorCode::BadRegion, |desc: &mut HwDesc| desc.kv_offset += 32)]
#[case::kv_end(ErrorCode::BadRegion, |desc: &mut HwDesc| desc.kv_offset = 1 << 14)]
#[case::kv_wraps(ErrorCode::BadRegion, |desc: &mut HwDesc| desc.kv_offset = u64::MAX - 63)]
#[case::arena(ErrorCode::BadRegion, |desc: &mut HwDesc| desc.kv_arena_id = 4)]
#[case::nothing_before(ErrorCode::BadRegion, |desc: &mut HwDesc| desc.delta_offset = 0)]
#[case::engine_0(ErrorCode::BadModel, |desc: &mut HwDesc| desc.model_id = 0)]
fn r10_a_decode_that_is_malformed(#[case] code: ErrorCode, #[case] change: Change) {
    let mut host = Host::new();
    let mut sequence = host.sequence(&Draws(1).prompt(5), 40, 1.0);
    host.prefill(&mut sequence);
    let mut desc = sequence.decode(6);
    change(&mut desc);
    assert_eq!(host.oracle().error(&desc), Some(code));
    assert_eq!(between(&mut host, desc), (Status::Error, code, 0, 0));
    host.decode(&mut sequence, 6, DescFlags::empty());
}

#[rstest]
#[case::no_length(ErrorCode::BadLength, |desc: &mut HwDesc| desc.seq_len = 0)]
#[case::context(ErrorCode::BadLength, |desc: &mut HwDesc| desc.seq_len = 1025)]
#[case::kv_misaligned(ErrorCode::BadRegion, |desc: &mut HwDesc| desc.kv_offset += 8)]
#[case::arena(ErrorCode::BadRegion, |desc: &mut HwDesc| desc.kv_arena_id = 0xFFFF)]
#[case::version(ErrorCode::BadVersion, |desc: &mut HwDesc| desc.policy_version = 9)]
#[case::other_engines_version(ErrorCode::BadModel, |desc: &mut HwDesc| desc.policy_version = 0)]
#[case::prefix(ErrorCode::BadPrefix, |desc: &mut HwDesc| desc.prefix_id = PREFIX_NONE)]
#[case::members(ErrorCode::BadLength, |desc: &mut HwDesc| desc.max_tokens = 65)]
fn r10_a_prefill_that_is_malformed(#[case] code: ErrorCode, #[case] change: Change) {
    let mut host = Host::new();
    let mut sequence = host.sequence(&Draws(1).prompt(5), 40, 1.0);
    let mut desc = sequence.prefill(None);
    change(&mut desc);
    assert_eq!(host.oracle().error(&desc), Some(code));
    assert_eq!(between(&mut host, desc), (Status::Error, code, 0, 0));
    host.prefill(&mut sequence);
}

type Spoil = fn(&mut HwSequence);

/// What lies in memory: of both opcodes, and of a PREFILL alone.
#[rstest]
#[case::check(true, |record: &mut HwSequence| record.check ^= 1)]
#[case::reserved_0(true, |record: &mut HwSequence| record.reserved_0 = 1)]
#[case::reserved_1(true, |record: &mut HwSequence| record.reserved_1 = 1 << 31)]
#[case::top_p(true, |record: &mut HwSequence| record.top_p = 0x1_0000)]
#[case::top_p_beyond(true, |record: &mut HwSequence| record.top_p = u32::MAX)]
#[case::sharpness(true, |record: &mut HwSequence| record.sharpness = SHARPNESS_MAX + 1)]
#[case::table_leaves_the_region(true, |record: &mut HwSequence| record.entries = 1 << 12)]
#[case::table_wraps(true, |record: &mut HwSequence| record.entries = u32::MAX)]
#[case::no_entry(true, |record: &mut HwSequence| record.entries = 0)]
#[case::one_entry_too_few(true, |record: &mut HwSequence| record.entries = 1)]
#[case::prompt_misaligned(false, |record: &mut HwSequence| record.prompt += 2)]
#[case::prompt_ends(false, |record: &mut HwSequence| record.prompt = (1 << 18) - 4)]
#[case::prompt_wraps(false, |record: &mut HwSequence| record.prompt = u64::MAX - 3)]
#[case::start(false, |record: &mut HwSequence| record.start = 40)]
#[case::source(true, |record: &mut HwSequence| (record.shared, record.source) = (39, 96))]
#[case::far_source(true, |record: &mut HwSequence| (record.shared, record.source) = (39, u32::MAX))]
fn r26_a_sequence_that_is_malformed(#[case] both: bool, #[case] spoil: Spoil) {
    let mut host = Host::new();
    let mut sequence = host.sequence(&Draws(1).prompt(40), 80, 1.0);
    host.prefill(&mut sequence);
    let good = HwSequence { entries: sequence.table.len() as u32, ..sequence.record }.seal();
    let mut bad = good;
    spoil(&mut bad);
    if bad.check == good.check {
        bad = bad.seal();
    }
    let at = sequence.kv_offset;
    host.regions.sequences.write(at, bytemuck::bytes_of(&bad)).unwrap();
    let decode = sequence.decode(6);
    let (status, code, added, result) = between(&mut host, decode);
    if both {
        assert_eq!((status, code, added, result), (Status::Error, ErrorCode::BadSequence, 0, EMPTY));
    } else {
        assert_eq!((status, code), (Status::Done, ErrorCode::None), "a DECODE does not look at it");
        host.regions.sequences.write(at, bytemuck::bytes_of(&good)).unwrap();
        let again = host.run(&[decode])[0];
        host.check(&mut sequence, &decode, &again);
        host.regions.sequences.write(at, bytemuck::bytes_of(&bad)).unwrap();
    }
    let record = HwSequence { shared: if bad.shared > 0 { bad.start + 3 } else { 0 }, ..bad };
    let mut prefill = HwDesc { seq_len: 40, ..sequence.prefill(None) };
    if bad.shared > 0 {
        // It copies where it begins.
        let record = HwSequence { start: 3, shared: 3, ..record }.seal();
        host.regions.sequences.write(at, bytemuck::bytes_of(&record)).unwrap();
    }
    prefill.prefix_id = 9;
    assert_eq!(between(&mut host, prefill), (Status::Error, ErrorCode::BadSequence, 0, 0));
    host.regions.sequences.write(at, bytemuck::bytes_of(&good)).unwrap();
    host.decode(&mut sequence, 6, DescFlags::LOGP);
}

/// R26: a block is held against the arena at its use, at the step of a position that it holds.
#[rstest]
fn r26_a_block_outside_of_its_arena_ends_the_step_that_uses_it(
    #[values(96, 0x8000_0000, u32::MAX)] number: u32,
) {
    let mut host = Host::new();
    let mut sequence = host.sequence(&Draws(1).prompt(50), 140, 1.0);
    host.prefill(&mut sequence);
    let table = sequence.table.clone();
    sequence.table[2] = number;
    host.lay(&sequence);
    // The step that adds the token of position 65 makes the keys and values of 64.
    let desc = sequence.decode(40);
    let (status, code, added, result) = between(&mut host, desc);
    assert_eq!((status, code, added), (Status::Error, ErrorCode::BadSequence, 15));
    sequence.table = table;
    host.lay(&sequence);
    let desc = sequence.decode(15);
    let end = host.run(&[desc])[0];
    assert_eq!(end.result, result, "its tokens up to there are good");
    host.check(&mut sequence, &desc, &end);
    // One that would be used behind the end is nobody's business.
    sequence.table[3] = u32::MAX;
    host.lay(&sequence);
    host.decode(&mut sequence, 96 - 65 + 1, DescFlags::empty());
    // One that lies below what is written is used, too.
    sequence.table[0] = number;
    host.lay(&sequence);
    sequence.table[3] = 0;
    let desc = sequence.decode(1);
    assert_eq!(between(&mut host, desc), (Status::Error, ErrorCode::BadSequence, 0, EMPTY));
}

#[rstest]
fn r26_an_arena_that_is_empty_or_too_short_has_no_block(#[values(2, 3)] arena: u16) {
    let mut host = Host::new();
    let mut sequence = host.sequence(&[1], 40, 1.0);
    sequence.arena = arena;
    sequence.table[0] = 7;
    host.lay(&sequence);
    let desc = sequence.decode(4);
    assert_eq!(between(&mut host, desc), (Status::Error, ErrorCode::BadSequence, 0, EMPTY));
}

/// A device may take a prompt by several positions at a time: the bad token is the first of them, the second, one in the middle, and the last.
#[test]
fn r26_a_token_beyond_the_vocabulary() {
    let mut host = Host::new();
    let mut sequence = host.sequence(&Draws(1).prompt(70), 130, 1.0);
    let tokens = host.driver.token_regions().remove(0);
    for (place, bad) in [
        (12, 64),
        (12, u32::MAX),
        (0, 64),
        (1, 64),
        (2, 64),
        (31, 64),
        (32, 64),
        (33, 64),
        (34, 64),
        (63, 64),
    ] {
        let at = sequence.record.prompt + 4 * place;
        tokens.write(at, &[bad]).unwrap();
        for flags in [DescFlags::empty(), DescFlags::LOGP] {
            let desc = sequence.prefill(None).with_flags(flags);
            assert_eq!(
                between(&mut host, desc),
                (Status::Error, ErrorCode::BadSequence, 0, 0),
                "token {place}"
            );
        }
        tokens.write(at, &[sequence.reference.tokens[place as usize]]).unwrap();
    }
    host.prefill(&mut sequence);
    let last = sequence.record.prompt + 4 * 69;
    tokens.write(last, &[64]).unwrap();
    let desc = sequence.decode(3);
    assert_eq!(between(&mut host, desc), (Status::Error, ErrorCode::BadSequence, 0, EMPTY));
    tokens.write(last, &[sequence.reference.tokens[69]]).unwrap();
    host.decode(&mut sequence, 3, DescFlags::empty());
}

type SpoilImage = fn(&mut HwImage);

/// R25: what is wrong with an HwImage is BAD_POLICY, and nothing has changed.
#[rstest]
#[case::check(|image: &mut HwImage| image.check ^= 1 << 31)]
#[case::offset(|image: &mut HwImage| image.offset += 32)]
#[case::length(|image: &mut HwImage| image.length += 8)]
#[case::program(|image: &mut HwImage| image.program_at += 8)]
#[case::leaves_the_region(|image: &mut HwImage| image.offset = 2 * HALF - 64)]
#[case::wraps(|image: &mut HwImage| image.offset = u64::MAX - 63)]
#[case::length_wraps(|image: &mut HwImage| image.length = u64::MAX - 63)]
#[case::no_words(|image: &mut HwImage| image.words = 0)]
#[case::words_beyond(|image: &mut HwImage| image.words = 1 << 20)]
#[case::too_many_words(|image: &mut HwImage| (image.length, image.words) = (2 * HALF, 1 << 16))]
#[case::program_beyond(|image: &mut HwImage| image.program_at = image.length)]
#[case::program_wraps(|image: &mut HwImage| image.program_at = u64::MAX - 63)]
#[case::program_in_the_image(|image: &mut HwImage| image.program_at = 64)]
#[case::other_image(|image: &mut HwImage| image.image_check ^= 1)]
#[case::vocabulary(|image: &mut HwImage| image.vocabulary += 1)]
#[case::positions(|image: &mut HwImage| image.positions += 1)]
#[case::blocks(|image: &mut HwImage| image.block_lines += 1)]
#[case::end(|image: &mut HwImage| image.end_3 = 64)]
#[case::elsewhere(|image: &mut HwImage| image.offset += 64)]
fn r25_an_image_that_is_malformed(#[case] spoil: SpoilImage) {
    let mut host = Host::new();
    let (desc, good) = host.place(2, &model(1), PolicyMode::Abort);
    let mut bad = good;
    spoil(&mut bad);
    if bad.check == good.check {
        bad = bad.seal();
    }
    host.place_policy(2, &bad);
    let before = [Register::PolicySlot0, Register::PolicySlot1].map(|slot| host.driver.read(slot).unwrap());
    assert_eq!(between(&mut host, desc), (Status::Error, ErrorCode::BadPolicy, 0, 0));
    let after = [Register::PolicySlot0, Register::PolicySlot1].map(|slot| host.driver.read(slot).unwrap());
    assert_eq!(before, after);
    host.place_policy(2, &HwImage { end_3: TOKEN_NONE, ..good }.seal());
    assert_eq!(host.run(&[desc])[0].status, Status::Done as u8);
}

/// R25: as many words as there may be. What follows the program belongs to it, and no step comes to it.
#[test]
fn r25_a_program_may_have_65535_words() {
    let mut host = Host::new();
    let (desc, good) = host.place(2, &model(1), PolicyMode::Abort);
    host.place_policy(2, &HwImage { length: 2 * HALF, words: 0xFFFF, ..good }.seal());
    assert_eq!(host.run(&[desc])[0].status, Status::Done as u8);
}

/// What lies in the MODEL region: the image's header, and, of a device that looks at all of it, every byte of the image.
#[rstest]
#[case::magic(0)]
#[case::version(8)]
#[case::check(12)]
#[case::length(16)]
#[case::width(24)]
#[case::layers(28)]
#[case::vocabulary(48)]
#[case::context(52)]
#[case::weights(30_000)]
fn r25_an_image_that_is_damaged(#[case] byte: u64) {
    let mut host = Host::new();
    let (desc, _) = host.place(2, &model(1), PolicyMode::Wait);
    let mut word = [0; 8];
    host.regions.model.read(byte & !7, &mut word).unwrap();
    word[(byte & 7) as usize] ^= 0x11;
    host.regions.model.write(byte & !7, &word).unwrap();
    let shows = !crate::UNSEEN.contains(&byte);
    let expected = if shows {
        (Status::Error, ErrorCode::BadPolicy, 0, 0)
    } else {
        (Status::Done, ErrorCode::None, 0, 0)
    };
    assert_eq!(between(&mut host, desc), expected);
}

#[test]
fn r25_the_header_of_a_policy_says_how_long_it_is() {
    let mut host = Host::new();
    let (desc, image) = host.place(2, &model(1), PolicyMode::Wait);
    for header in [
        HwPolicy::new(2, 1, 0, 0),
        HwPolicy::new(2, 1, 0, 128),
        HwPolicy::new(2, 0, 0, 0),
        HwPolicy::new(3, 1, 0, 64),
    ] {
        let mut words = language_policy(2, &image);
        words[..4].copy_from_slice(&bytemuck::cast::<_, [u32; 4]>(header));
        host.driver.token_regions()[0].write(POLICY, &words).unwrap();
        assert_eq!(between(&mut host, desc), (Status::Error, ErrorCode::BadPolicy, 0, 0), "{header:x?}");
    }
    // Of engine 0 it has nothing behind it.
    host.driver.token_regions()[0].place_policy(POLICY, &HwPolicy::new(2, 0, 7, 64)).unwrap();
    let hash = HwDesc { model_id: 0, ..desc };
    assert_eq!(between(&mut host, hash), (Status::Error, ErrorCode::BadPolicy, 0, 0));
    // Both lines lie in the token region.
    let bad = HwDesc { delta_offset: (1 << 18) - 64, ..desc };
    assert_eq!(between(&mut host, bad), (Status::Error, ErrorCode::BadRegion, 0, 0));
    host.driver.token_regions()[0].place_policy((1 << 18) - 64, &HwPolicy::new(2, 0, 7, 0)).unwrap();
    assert_eq!(between(&mut host, HwDesc { model_id: 0, ..bad }).0, Status::Done);
}

/// R27: a member of a group whose PREFILL was refused belongs to the group all the same: it was opened.
#[test]
fn r17_a_prefill_that_is_refused_behind_its_admission_has_opened_its_group() {
    let mut host = Host::new();
    let mut sequence = host.sequence(&Draws(1).prompt(5), 40, 1.0);
    sequence.record.sharpness = u32::MAX;
    host.lay(&sequence);
    let open = sequence.prefill(Some(2));
    let stop = HwDesc::stop_group(sequence.rollout).with_user_data(9);
    let ends = host.run(&[open, HwDesc { user_data: 8, ..open }, stop]);
    assert_eq!(of(&ends, sequence.rollout.into()).error, ErrorCode::BadSequence as u8);
    assert_eq!(of(&ends, 8).error, ErrorCode::PrefixBusy as u8);
    assert_eq!(ended(&of(&ends, 9)), Status::Stopped);
}

/// R11: MODEL region and arenas lie in a window of the function, aligned.
#[rstest]
#[case(Register::ModelBaseLo)]
#[case(Register::Arena0BaseLo)]
#[case(Register::Arena3BaseLo)]
fn r11_regions_of_a_function_are_checked(#[case] register: Register) {
    use doorbell_contract::{Control, DeviceFault, State};
    let mut host = Host::new();
    host.driver.disable().unwrap();
    let bus = host.driver.memory().bus_address();
    let end = bus + host.driver.memory().len() as u64;
    let window =
        [Register::Window0BaseLo, Register::Window0BaseHi, Register::Window0SizeLo, Register::Window0SizeHi];
    let words = [bus as u32, (bus >> 32) as u32, (end - bus) as u32, 0];
    for (register, value) in window.into_iter().zip(words) {
        host.driver.write(register, value).unwrap();
    }
    let good = host.driver.read(register).unwrap();
    let mut starts = |value: u32| {
        host.driver.write(register, value).unwrap();
        host.driver.write(Register::Control, Control::ENABLE.bits()).unwrap();
        let active = host.driver.read(Register::State).unwrap() & State::ACTIVE.bits() != 0;
        let fault = host.driver.read(Register::Error).unwrap();
        assert_eq!(fault == DeviceFault::BAD_CONFIG.bits(), !active);
        host.driver.write(Register::Control, 0).unwrap();
        while host.driver.read(Register::State).unwrap() & State::ACTIVE.bits() != 0 {
            host.driver.platform_mut().advance(1).unwrap();
        }
        host.driver.write(Register::Error, u32::MAX).unwrap();
        active
    };
    assert!(starts(good));
    for bad in [good + 32, end as u32, (end - 64) as u32, bus as u32 - 64] {
        assert!(!starts(bad), "{register} = {bad:#x}");
    }
    assert!(starts(good));
}

/// A host may say that it has engine 1's memory only on a device that has engine 1, and only first.
#[test]
fn the_first_queue_pair_of_a_function_lays_its_memory_out() {
    use doorbell_host::{DeviceError, Division, Ports, QueueConfig};
    let bytes = config().shared_bytes().unwrap();
    let division = Division { queues: 2, functions: 1, bytes, ..Division::default() };
    let ports = Ports::divide(crate::device(2, 1), &division).unwrap();
    let first = Driver::new(ports.take(0).unwrap(), config()).unwrap();
    let plain = Driver::new(ports.take(1).unwrap(), QueueConfig::default()).unwrap();
    assert!(plain.language_regions().is_empty() && first.language_regions().len() == 1);
    drop(plain);
    let second = Driver::new(ports.take(1).unwrap(), config()).err().unwrap();
    assert!(matches!(second, DeviceError::Config { field: "model_bytes", .. }), "{second}");
}
