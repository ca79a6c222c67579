//! The conformance suite on the model: one test per case, and proof that the suite notices a faulty device.
//! `DOORBELL_SEED` sets the seed.

use doorbell_host::{DeviceError, Platform};
use doorbell_verify::ModelPlatform;
use doorbell_verify::conformance::{Bench, CASES, Case};
use doorbell_verify::model::Mutation;
use libtest_mimic::{Arguments, Failed, Trial};

/// A fault, and a case that has to notice it.
const FAULTS: &[(&str, &str)] = &[
    ("token:0", "r06_settings_change_no_answer"),
    ("token:1000", "r09_checkpoints_lose_nothing"),
    ("completion:3:user_data", "r03_every_descriptor_has_one_completion"),
    ("completion:3:rollout_id", "r06_settings_change_no_answer"),
    ("completion:3:final_seq_len", "r06_lengths_beyond_16_bits"),
    ("completion:3:result", "r13_every_rule_holds_across_the_wrap"),
    ("completion:3:sq_head", "r13_every_rule_holds_across_the_wrap"),
    ("completion:3:reward_model_id", "r03_every_descriptor_has_one_completion"),
    ("completion:3:error", "r10_every_error_code_and_its_precedence"),
    ("completion:3:flags", "r06_end_of_sequence"),
    ("completion:3:status", "r09_a_budget_that_ends_at_a_checkpoint_is_done"),
    ("completion:3:phase", "r04_full_completion_queue_stalls_and_drops_nothing"),
    ("hang:1", "r15_a_slow_device_is_waited_for"),
    ("hang:5", "r08_stop_leaves_other_rollouts_alone"),
];

fn run(case: &Case, seed: u64, model: impl Fn() -> ModelPlatform) -> Result<(), Failed> {
    let mut make = || -> Result<Box<dyn Platform>, DeviceError> { Ok(Box::new(model())) };
    Bench::new(&mut make, seed).run(case).map_err(Failed::from)
}

fn main() {
    let seed =
        std::env::var("DOORBELL_SEED").map_or(1, |text| text.parse().expect("DOORBELL_SEED is a number"));
    let rules = CASES.iter().map(|case| Trial::test(case.name, move || run(case, seed, ModelPlatform::new)));
    let faults = FAULTS.iter().map(|&(fault, name)| {
        Trial::test(format!("{fault} is noticed by {name}"), move || {
            let case = CASES.iter().find(|case| case.name == name).ok_or("no such case")?;
            let mutation: Mutation = fault.parse()?;
            match run(case, seed, || ModelPlatform::new().with_mutation(mutation)) {
                Err(_) => Ok(()),
                Ok(()) => Err(Failed::from("the case passed")),
            }
        })
    });
    libtest_mimic::run(&Arguments::from_args(), rules.chain(faults).collect()).exit();
}
