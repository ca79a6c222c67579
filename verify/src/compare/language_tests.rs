//! Rollouts of engine 1, compared.

use std::ops::ControlFlow;
use std::sync::Arc;

use doorbell_host::ports::{Division, Ports};
use doorbell_host::sharded::Sharded;
use doorbell_host::{Device, Driver, QueueConfig};
use doorbell_lm::micro;
use doorbell_lm::sample::Sharpness;
use doorbell_npu::Published;
use doorbell_trace::{Request, Trace};
use rstest::rstest;

use super::*;
use crate::ModelPlatform;
use crate::language::Version;
use crate::model::Mutation;
use crate::replay::{Language, PlanError, ReplayOptions, ReplayPlan};

fn language() -> Arc<Language> {
    let image = micro();
    let published = Published::new(image.to_bytes(), &image.about.ends).unwrap();
    let version = Version { model: image.model, ends: image.about.ends };
    Arc::new(Language { published, version, sharpness: Sharpness::ONE })
}

fn trace(requests: u32) -> Trace {
    let request = |k| Request {
        arrival_ms: 0,
        prompt_tokens: 1 + 17 * k % 101,
        output_tokens: 1 + 23 * k % 61,
        prefix: vec![],
    };
    Trace { source: "test".into(), requests: (0..requests).map(request).collect() }
}

fn plan(options: ReplayOptions) -> ReplayPlan {
    ReplayPlan::with_language(&trace(20), ReplayOptions { seed: 3, ..options }, language()).unwrap()
}

fn device(plan: &ReplayPlan, depth: u32, mutation: Option<&str>) -> Box<dyn Device> {
    let platform = match mutation {
        Some(text) => ModelPlatform::new().with_mutation(text.parse::<Mutation>().unwrap()),
        None => ModelPlatform::new(),
    };
    let config = QueueConfig { sq_depth: depth, cq_depth: depth, ..plan.queue_config() };
    Box::new(Driver::new(platform, config).unwrap())
}

fn outcomes(plan: &ReplayPlan, mut devices: Vec<Box<dyn Device>>) -> Vec<Outcome> {
    compare(plan, &mut devices, &|_, _| ControlFlow::Continue(()))
}

#[rstest]
#[case::plain(ReplayOptions::default())]
#[case::groups(ReplayOptions { group: 4, ..Default::default() })]
#[case::checkpoints(ReplayOptions { group: 3, checkpoint: 16, ..Default::default() })]
#[case::ends(ReplayOptions { eos_threshold: 1, checkpoint: 7, group: 2, ..Default::default() })]
#[case::resident(ReplayOptions { checkpoint: 8, resident: true, reward_threshold: 0x2000, ..Default::default() })]
#[case::stops(ReplayOptions { stop_every: 2, checkpoint: 16, group: 3, stop_group_every: 4, ..Default::default() })]
fn r06_depths_do_not_matter(#[case] options: ReplayOptions) {
    let plan = plan(options);
    let told = outcomes(&plan, vec![device(&plan, 256, None), device(&plan, 4, None)]);
    for outcome in &told {
        assert!(outcome.agrees(), "{outcome:?}");
        assert_eq!(outcome.descriptors, outcome.completions);
        assert_eq!(outcome.digest, told[0].digest);
        assert!(outcome.tokens > 100);
    }
}

#[test]
fn r25_functions_have_a_model_each() {
    let plan = plan(ReplayOptions { group: 3, checkpoint: 20, ..Default::default() });
    let config = plan.queue_config();
    let division =
        Division { queues: 2, functions: 2, bytes: config.shared_bytes().unwrap(), ..Default::default() };
    let ports = Ports::divide(ModelPlatform::with_queues(2, 2).unwrap(), &division).unwrap();
    let drivers = ports.take_all().unwrap().into_iter();
    let shards = drivers.map(|port| Box::new(Driver::new(port, config.clone()).unwrap()) as Box<dyn Device>);
    let two = Sharded::new("two", shards.collect()).unwrap();
    let told = outcomes(&plan, vec![device(&plan, 64, None), Box::new(two)]);
    assert!(told.iter().all(Outcome::agrees), "{told:?}");
    assert_eq!(told[0].digest, told[1].digest);
}

/// A device that is alone is held to the oracle, too.
#[rstest]
#[case("token:500", "token ")]
#[case("completion:30:result", "result ")]
#[case("completion:31:final_seq_len", "final_seq_len ")]
#[case("language:swapped-blocks", "R27: the key of position 0, layer 0, head 0 is another")]
#[case("language:short-copy", "found")]
fn a_divergence_is_told(#[case] mutation: &str, #[case] what: &str) {
    let plan = plan(ReplayOptions { group: 3, ..Default::default() });
    let told = outcomes(&plan, vec![device(&plan, 64, Some(mutation))]);
    let divergence = told[0].divergence.as_ref().unwrap_or_else(|| panic!("{mutation} was not found"));
    assert!(divergence.to_string().contains(what), "{mutation}: {divergence}");
}

#[test]
fn what_no_language_model_can_do_is_refused() {
    let bad = |trace: &Trace, options: ReplayOptions| {
        ReplayPlan::with_language(trace, options, language()).unwrap_err()
    };
    let publishes = ReplayOptions { publish_every: 3, ..Default::default() };
    assert_eq!(bad(&trace(3), publishes), PlanError::PublishedLanguage);
    let request = Request { arrival_ms: 0, prompt_tokens: 0, output_tokens: 4, prefix: vec![] };
    let none = Trace { source: "test".into(), requests: vec![request.clone()] };
    assert_eq!(bad(&none, ReplayOptions::default()), PlanError::NoPrompt { index: 0 });
    let long = Trace { source: "test".into(), requests: vec![Request { prompt_tokens: 1021, ..request }] };
    assert!(matches!(bad(&long, ReplayOptions::default()), PlanError::TooLong { limit: 1024, .. }));
    // A queue pair that has no memory for a model says so; two of a function cannot both have it.
    let plan = plan(ReplayOptions::default());
    let config = QueueConfig { token_bytes: plan.token_bytes(), ..QueueConfig::default() };
    let told = outcomes(&plan, vec![Box::new(Driver::new(ModelPlatform::new(), config).unwrap())]);
    let failure = told[0].failure.as_ref().unwrap().to_string();
    assert!(failure.contains("queues is 1: it must be one queue pair for each function"), "{failure}");
}
