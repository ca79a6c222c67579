//! Rollouts with a judge and a policy of one's own, over the golden model as a device.

use doorbell_host::{Driver, QueueConfig};
use doorbell_runtime::pipeline::{Feed, Inline, Options, Parts, Pipeline};
use doorbell_runtime::policy::{Candidate, Policy};
use doorbell_runtime::reward::{Answer, Judge, JudgeError, ONE, Verdict};
use doorbell_trace::Request;
use doorbell_verify::ModelPlatform;

/// Scores an answer by its share of even tokens, in Q16.16 from 0 to `ONE`.
struct Even;

impl Judge for Even {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        let even = answer.tokens.iter().filter(|token| **token % 2 == 0).count();
        Ok(Verdict {
            score: (even as i64 * i64::from(ONE) / answer.tokens.len().max(1) as i64) as i32,
            proceed: true,
        })
    }
}

/// Decodes the rollout that came last first.
struct Lifo(Vec<Candidate>);

impl Policy for Lifo {
    fn push(&mut self, candidate: Candidate) {
        self.0.push(candidate);
    }

    fn pop(&mut self) -> Option<Candidate> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options { slots: 64, group: 4, max_output_tokens: 128, ..Options::default() };
    let config = QueueConfig { token_bytes: options.token_bytes(), ..QueueConfig::default() };
    let device = Box::new(Driver::new(ModelPlatform::new(), config)?);
    // 100 prompts of 64 tokens, each answered 4 times with 128 tokens.
    let request = Request { arrival_ms: 0, prompt_tokens: 64, output_tokens: 128, prefix: vec![] };
    let requests = vec![request; 100];
    let mut parts = Parts::sized(&options, device, &requests, 4096, |memory| {
        Box::new(Inline::new(memory, 64, 128, |_| Even))
    })?;
    parts.policy = Box::new(Lifo(Vec::with_capacity(64)));
    let mut pipeline = Pipeline::new(options, parts)?;
    pipeline.run(&mut Feed::new(&requests), |_| false)?;
    let counters = pipeline.metrics().counters.values();
    println!("{} rollouts completed, {} failed", counters.rollouts_completed, counters.rollouts_failed);
    assert_eq!(counters.rollouts_completed, 400);
    Ok(())
}
