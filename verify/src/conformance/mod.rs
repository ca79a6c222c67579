//! The rules as cases that any device has to pass, whatever is behind its [`Platform`].
//!
//! A case gets a [`Bench`], which makes fresh devices, and compares them with [`oracle`], a second, plainer statement
//! of the contract than the model's. Cases never look at a clock; they bound every wait by the device's own progress.

mod control;
mod decode;
mod edges;
mod errors;
mod events;
mod groups;
mod interrupts;
mod policies;
mod queues;
mod rewards;
mod rig;
mod seat;
mod tenants;

use std::fmt;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

pub use crate::oracle;
use doorbell_host::config::QueueConfig;
use doorbell_host::driver::Driver;
use doorbell_host::error::DeviceError;
use doorbell_host::platform::Platform;
pub use rig::{Rig, by_position, numbered};
pub use seat::Seat;
pub use tenants::{HOSTILE, TENANT_CASES, Tenancy, TenantCase};

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// Name, which begins with the rule.
    pub name: &'static str,
    /// Runs the case.
    pub run: fn(&mut Bench<'_>) -> Result<(), Failure>,
}

/// Makes devices for cases.
pub struct Bench<'a> {
    make: &'a mut dyn FnMut() -> Result<Box<dyn Platform>, DeviceError>,
    seed: u64,
}

impl<'a> Bench<'a> {
    /// A bench whose devices come from `make`, each after reset, and whose random choices come from `seed`.
    pub fn new(make: &'a mut dyn FnMut() -> Result<Box<dyn Platform>, DeviceError>, seed: u64) -> Self {
        Self { make, seed }
    }

    /// Runs `case`.
    ///
    /// # Errors
    /// What the device did wrong, with the case and the seed.
    pub fn run(&mut self, case: &Case) -> Result<(), Failure> {
        (case.run)(self).map_err(|failure| Failure(format!("{} (seed {}): {failure}", case.name, self.seed)))
    }

    /// A device after reset.
    fn platform(&mut self) -> Result<Box<dyn Platform>, Failure> {
        Ok((self.make)()?)
    }

    /// A device set up by the driver.
    fn open(&mut self, config: QueueConfig) -> Result<Rig, Failure> {
        Ok(Rig::new(Driver::new(self.platform()?, config)?))
    }

    /// Random numbers of this run.
    fn random(&self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.seed)
    }
}

/// What a device did wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self(error.to_string())
    }
}

/// Fails the case unless a condition holds.
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err($crate::conformance::Failure(format!($($message)+)));
        }
    };
}

/// Fails the case unless two values are equal.
macro_rules! ensure_eq {
    ($found:expr, $expected:expr, $($message:tt)+) => {{
        let (found, expected) = ($found, $expected);
        ensure!(found == expected, "{}: found {found:x?}, expected {expected:x?}", format_args!($($message)+));
    }};
}

use {ensure, ensure_eq};

macro_rules! cases {
    ($($module:ident::$name:ident,)*) => {
        /// Every case.
        pub const CASES: &[Case] = &[$(Case { name: stringify!($name), run: $module::$name }),*];
    };
}

cases! {
    decode::basic_decode,
    queues::r01_without_a_doorbell_nothing_happens,
    queues::r01_only_what_is_published_is_executed,
    queues::r01_impossible_doorbells_are_refused,
    queues::r02_a_wrong_check_word_is_never_executed,
    queues::r02_a_stale_slot_is_never_executed,
    queues::r03_every_descriptor_has_one_completion,
    queues::r04_full_completion_queue_stalls_and_drops_nothing,
    queues::r04_a_device_that_stalls_is_not_idle,
    queues::r04_impossible_releases_are_refused,
    queues::r05_completions_of_a_rollout_keep_its_order,
    queues::r05_a_rollout_runs_one_descriptor_at_a_time,
    queues::r07_fences_separate,
    queues::r13_every_rule_holds_across_the_wrap,
    decode::r06_settings_change_no_answer,
    decode::r06_lengths_beyond_16_bits,
    decode::r06_opcodes_without_tokens,
    decode::r06_prefix_zero_is_a_prefix,
    decode::r06_end_of_sequence,
    decode::r08_stop_ends_a_running_rollout,
    decode::r08_stop_right_behind_its_rollout,
    decode::r08_stop_of_an_ended_rollout,
    decode::r08_stop_leaves_other_rollouts_alone,
    decode::r08_an_abort_reaches_what_was_published,
    decode::r09_checkpoints_lose_nothing,
    decode::r09_a_budget_that_ends_at_a_checkpoint_is_done,
    decode::r09_resident_rollouts_go_on_or_end_by_their_score,
    decode::r11_log_probabilities_lie_beside_their_tokens,
    errors::r10_every_error_code_and_its_precedence,
    errors::r10_a_rejected_descriptor_writes_nothing,
    errors::r11_regions_contain_every_write,
    groups::r17_a_group_closes_with_its_last_member,
    groups::r17_what_leaves_a_member_open,
    groups::r17_stops_end_members,
    groups::r08_a_stop_ends_a_group_that_runs,
    groups::r17_entries_run_out_and_come_back,
    groups::r17_the_end_of_a_group_asks_for_an_interrupt,
    groups::r17_random_groups_close_once,
    policies::r18_tokens_come_from_the_version_they_name,
    policies::r19_what_a_publish_refuses,
    policies::r19_a_slot_in_use_is_not_loaded,
    policies::r20_a_retired_version_ends,
    policies::r20_publishes_under_load_lose_nothing,
    policies::r21_prefixes_belong_to_their_version,
    rewards::reward_scores_what_lies_in_memory,
    control::r12_disable_with_a_full_completion_queue,
    control::r12_disable_in_the_middle_of_a_rollout,
    control::r12_a_bad_configuration_does_not_start,
    control::r11_regions_lie_in_windows,
    control::r12_drain_completes_what_is_published,
    control::r12_a_function_reset_disables,
    control::r12_an_enable_is_refused_until_the_disable_is_over,
    interrupts::r14_one_message_per_arming,
    interrupts::r14_an_error_asks_for_an_interrupt,
    interrupts::r14_what_is_masked_is_pending_and_sent_once,
    interrupts::r14_a_number_of_completions_fires,
    interrupts::r14_time_fires,
    interrupts::r14_a_drain_tells_of_its_last_completion,
    interrupts::r14_a_message_that_was_sent_is_shown_until_its_answer,
    interrupts::r12_r14_a_disable_takes_the_interrupt_back,
    interrupts::r14_a_message_that_nobody_takes_is_told,
    interrupts::r14_no_wake_up_is_lost,
    events::r23_without_events_there_are_no_registers,
    events::r23_every_completion_has_its_life,
    events::r23_without_life_only_faults_are_told,
    events::r23_a_fault_is_told_once,
    events::r23_a_full_ring_drops_and_holds_nobody_back,
    events::r23_the_last_quarter_is_left_for_faults,
    events::r13_r23_phases_alternate,
    events::r12_r23_a_ring_ends_with_its_function,
    events::r23_a_bad_ring_does_not_start,
    events::r23_an_event_that_is_lost_is_counted,
    events::r23_events_and_drops_are_all_completions,
    control::r15_a_slow_device_is_waited_for,
    control::registers_after_reset,
    control::registers_refuse_what_their_access_forbids,
    control::counters_count,
    edges::r06_a_draw_at_eos_threshold_is_no_end,
    edges::r06_a_decode_of_more_than_65536_tokens,
    edges::r09_a_score_at_reward_threshold_goes_on,
    edges::r09_checkpoints_beyond_16_bits,
    edges::r11_no_half_of_an_offset_is_ignored,
    edges::r12_nothing_is_taken_while_inactive,
    edges::refused_doorbells_are_counted_up_to_255,
    edges::status_fills_saturate_at_255,
}
