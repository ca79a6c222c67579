//! What several tests have the RTL's engine 1 do.

use std::sync::Arc;

use doorbell_lm::sample::Sharpness;
use doorbell_lm::{Image, micro};
use doorbell_npu::Published;
use doorbell_trace::{Request, Trace};
use doorbell_verify::language::Version;
use doorbell_verify::replay::{Language, ReplayOptions, ReplayPlan};

/// Groups of rollouts behind shared prefixes with partial blocks, cut at checkpoints.
pub fn plan() -> ReplayPlan {
    plan_of(micro())
}

/// The same with another model.
pub fn plan_of(image: Image) -> ReplayPlan {
    let published = Published::new(image.to_bytes(), &image.about.ends).unwrap();
    let version = Version { model: image.model, ends: image.about.ends };
    let language = Arc::new(Language { published, version, sharpness: Sharpness::ONE });
    let request = |k: u32| Request {
        arrival_ms: 0,
        prompt_tokens: 1 + 17 * k % 41,
        output_tokens: 1 + 11 * k % 13,
        prefix: vec![],
    };
    let trace = Trace { source: "test".into(), requests: (0..4).map(request).collect() };
    let options = ReplayOptions { group: 3, checkpoint: 5, seed: 3, ..Default::default() };
    ReplayPlan::with_language(&trace, options, language).unwrap()
}
