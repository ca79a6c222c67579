//! Random descriptors, rings and polling through driver and model (R3, R6, R13).

use doorbell_contract::{ErrorCode, HwCompletion, HwDesc, Opcode, Status};
use doorbell_host::{Device, Driver, QueueConfig};
use doorbell_verify::ModelPlatform;
use doorbell_verify::oracle::Oracle;
use proptest::prelude::*;

const TOKEN_BYTES: u64 = 1 << 14;

fn garbage() -> impl Strategy<Value = HwDesc> {
    any::<[[u8; 32]; 2]>().prop_map(bytemuck::cast)
}

/// Descriptors of which most pass most checks.
fn plausible() -> impl Strategy<Value = HwDesc> {
    let kind = (prop_oneof![Just(0u8), Just(1), Just(1), Just(1), Just(3), Just(255), any::<u8>()], 0u8..33);
    let place = (0u32..4, prop_oneof![0u32..2000, 65_530u32..65_540, any::<u32>()], 0u32..50);
    let offsets = (0..=TOKEN_BYTES / 4 + 8, prop_oneof![Just(u32::MAX), 0u32..3], any::<u32>());
    (kind, place, offsets, prop_oneof![Just(0u32), 1u32..40, Just(u32::MAX)]).prop_map(
        |((opcode, flags), (rollout_id, seq_len, max_tokens), (word, prefix_id, seed), checkpoint)| HwDesc {
            opcode,
            flags,
            prefix_id,
            seed,
            delta_offset: 4 * word,
            checkpoint,
            ..HwDesc::decode(rollout_id, seq_len, max_tokens)
        },
    )
}

fn depth() -> impl Strategy<Value = u32> {
    (1u32..7).prop_map(|log2| 1 << log2)
}

fn start() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), any::<u32>(), (0u32..100).prop_map(|k| u32::MAX - k)]
}

fn config() -> impl Strategy<Value = QueueConfig> {
    (depth(), depth(), start(), start(), 0u32..2000, 0i32..0x1_0000, 0u32..40).prop_map(
        |(sq_depth, cq_depth, sq_start, cq_start, eos_threshold, reward_threshold, checkpoint_default)| {
            QueueConfig {
                sq_depth,
                cq_depth,
                sq_start,
                cq_start,
                eos_threshold,
                reward_threshold,
                checkpoint_default,
                token_bytes: TOKEN_BYTES,
                ..Default::default()
            }
        },
    )
}

proptest! {
    #[test]
    fn r03_any_bytes_have_exactly_one_completion(
        config in config(),
        descs in prop::collection::vec(prop_oneof![garbage(), plausible()], 1..200),
        batches in prop::collection::vec(1usize..40, 1..8),
        polls in prop::collection::vec(1usize..40, 1..8),
    ) {
        let descs: Vec<HwDesc> = descs.iter().zip(0..).map(|(desc, k)| desc.with_user_data(k)).collect();
        let oracle = Oracle::new(&config);
        let mut driver = Driver::new(ModelPlatform::new(), config).unwrap();
        let mut completions = Vec::new();
        let mut out = [HwCompletion::default(); 40];
        let (mut left, mut turn) = (&descs[..], 0);
        while completions.len() < descs.len() {
            let batch = left.len().min(batches[turn % batches.len()]);
            left = &left[driver.submit(&left[..batch]).unwrap()..];
            let taken = driver.poll(&mut out[..polls[turn % polls.len()]]).unwrap();
            completions.extend_from_slice(&out[..taken]);
            turn += 1;
        }
        prop_assert_eq!(driver.in_flight(), 0);
        // One worker completes in SQ order, so this is 'once each' as well.
        for (completion, desc) in completions.iter().zip(&descs) {
            let mut expected = oracle.answer(desc).completion;
            if expected.status == Status::Scored as u8 {
                // Of tokens that whatever ran before has left there.
                expected.result = completion.result;
            }
            let refused = [ErrorCode::PrefixBusy as u8, ErrorCode::GroupFull as u8].contains(&completion.error);
            if refused && desc.opcode == Opcode::Prefill as u8 && desc.max_tokens > 0 {
                // R17: a host that opens what is open, or more than there is room for.
                prop_assert_eq!(completion.user_data, desc.user_data);
                continue;
            }
            let unpublished = [ErrorCode::BadPolicy as u8, ErrorCode::PolicyBusy as u8].contains(&completion.error);
            if unpublished && desc.opcode == Opcode::Policy as u8 {
                // R18: of the header that lies in memory, and of the versions that still run.
                prop_assert_eq!(completion.user_data, desc.user_data);
                continue;
            }
            if completion.status == Status::Stopped as u8 && expected.status != Status::Stopped as u8 {
                // R8: of a length of the device's choosing.
                prop_assert_eq!(completion.user_data, desc.user_data);
                prop_assert!((desc.seq_len..=expected.final_seq_len).contains(&completion.final_seq_len));
            } else {
                prop_assert_eq!(completion.without_timing(), expected);
            }
        }
    }
}
