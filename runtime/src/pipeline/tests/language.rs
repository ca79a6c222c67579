//! Engine 1 in the pipeline: every trajectory is held to the oracle when it is stored, with its log-probabilities, keys and values.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbell_contract::HwImage;
use doorbell_lm::sample::Sharpness;
use doorbell_lm::{KvCap, micro};
use doorbell_npu::Published;
use doorbell_verify::language::{Given, Reference, Sampling, Version};
use doorbell_verify::replay;

use super::*;
use crate::kv::AnswerCap;

/// Models of `micro`'s shape, which the versions take in turn.
pub struct Models {
    models: Arc<Vec<replay::Language>>,
    /// Requests whose prompt has a token that is none.
    bad: fn(u64) -> bool,
    /// Trajectories that were held to the oracle, and those of them that have seen several versions.
    pub checked: Arc<[AtomicU64; 2]>,
    /// What was first found to be another.
    pub wrong: Arc<Mutex<Option<String>>>,
}

impl Models {
    fn new(cap: Option<KvCap>) -> Models {
        let model = |turn| {
            let mut image = micro();
            image.model = image.model.turned(turn);
            image.model.shape.kv_cap = cap;
            let published = Published::new(image.to_bytes(), &image.about.ends).unwrap();
            let version = Version { model: image.model, ends: image.about.ends };
            replay::Language { published, version, sharpness: Sharpness::ONE }
        };
        Models {
            models: Arc::new((0..4).map(model).collect()),
            bad: |_| false,
            checked: Arc::default(),
            wrong: Arc::default(),
        }
    }

    /// What a token sees of a sequence.
    pub fn cap(&self) -> Option<AnswerCap> {
        let KvCap { window, sinks } = self.models[0].version.model.shape.kv_cap?;
        Some(AnswerCap { window: window as u32, sinks: sinks as u32 })
    }

    fn longest(&self) -> u64 {
        self.models[0].published.memory.len() as u64
    }

    pub fn parts(
        &self,
        setup: &Setup,
        device: &dyn Device,
        store: &mut doubles::Store,
        spans: &Spans,
    ) -> LanguageParts {
        let made = PromptSpans::new(&setup.options);
        let memory = SequenceMemory::new(setup.options.clone(), device, spans.clone(), made.clone());
        let (models, checked, wrong) = (self.models.clone(), self.checked.clone(), self.wrong.clone());
        let requests = setup.requests.clone();
        let begun = Mutex::new(Begun::default());
        store.check = Some(Box::new(move |finished| {
            let sequence = memory.read(finished).unwrap();
            let request = &requests[finished.request as usize % requests.len()];
            let mut prompt = vec![0; request.prompt_tokens as usize];
            models[0].draw_prompt(7, finished.request as u32, &request.prefix, &mut prompt);
            let Sequence { tokens, logps, blocks, spans } = &sequence;
            let of = |version: u16| &models[version as usize % models.len()].version;
            let versions: Vec<_> = spans.iter().map(|&(end, version)| (end, of(version))).collect();
            let given = Given { prompt: &prompt, tokens, logps: logps.as_deref(), blocks: blocks.as_deref() };
            let sampling = models[0].sampling(finished.seed, finished.device_rollout);
            // One version has made the whole prompt, or several have.
            let reference = match versions[0] {
                (end, version) if end >= prompt.len() => {
                    begun.lock().unwrap().of(spans[0].1, version, &prompt)
                }
                (_, version) => Reference::new(version, &prompt),
            };
            if let Err(what) = given.check_after(reference, &versions, sampling) {
                let what =
                    format!("request {} member {}: {what}; {spans:?}", finished.request, finished.member);
                wrong.lock().unwrap().get_or_insert(what);
            }
            checked[0].fetch_add(1, Ordering::Relaxed);
            let several = spans.iter().any(|&(_, version)| version != spans[0].1);
            checked[1].fetch_add(several.into(), Ordering::Relaxed);
        }));
        let (models, bad) = (self.models.clone(), self.bad);
        let prompts = move |number: u64, request: &Request, out: &mut [u32]| {
            models[0].draw_prompt(7, number as u32, &request.prefix, out);
            if bad(number) {
                out[0] = 64;
            }
        };
        LanguageParts { prompts: Box::new(prompts), made }
    }
}

/// What the oracle has made of the prompts that it has met, by version: many rollouts have the same, or one that begins likewise.
#[derive(Default)]
struct Begun(HashMap<(u16, Vec<u32>), Reference>);

impl Begun {
    /// Tokens that prompts share where they differ behind them.
    const PIECE: usize = 512;

    fn of(&mut self, number: u16, version: &Version, prompt: &[u32]) -> Reference {
        let key = (number, prompt.to_vec());
        if let Some(reference) = self.0.get(&key) {
            return reference.clone();
        }
        let mut reference = match prompt.split_at_checked(Self::PIECE) {
            Some((piece, rest)) if !rest.is_empty() => self.of(number, version, piece),
            _ => Reference::new(version, prompt),
        };
        reference.tokens = prompt.to_vec();
        reference.teach(&[(prompt.len(), version)], Sampling::new(Sharpness::ONE, 0, 0), prompt.len());
        self.0.insert(key, reference.clone());
        reference
    }
}

/// Regions for the models of a setup.
pub fn regions(setup: &Setup) -> QueueConfig {
    let Some(models) = &setup.models else { return QueueConfig::default() };
    QueueConfig {
        kv_bytes: setup.options.kv_bytes(),
        model_bytes: Weights::region_bytes(models.longest(), true),
        arena_bytes: [u64::from(setup.blocks) * models.models[0].published.at(0).block_bytes(), 0, 0, 0],
        patience: 100_000,
        ..QueueConfig::default()
    }
}

/// Where versions are laid.
pub struct Laid {
    weights: Weights,
    models: Arc<Vec<replay::Language>>,
}

pub fn lay(models: &Option<Models>, pipeline: &Pipeline) -> Option<Laid> {
    let models = models.as_ref()?;
    Some(Laid { weights: Weights::new(&*pipeline.device, models.longest()), models: models.models.clone() })
}

impl Laid {
    pub fn lay(&self, version: u16) -> HwImage {
        let published = &self.models[version as usize % self.models.len()].published;
        published.at(self.weights.lay(&published.memory).unwrap())
    }

    pub fn published(&mut self) {
        self.weights.published();
    }
}

/// Requests of all lengths, many of which share a prompt: whole, or its first 512 tokens.
fn requests(count: u64, seed: u64) -> Vec<Request> {
    let draw = |k: u64| mix(seed as u32 ^ mix(k as u32));
    (0..count)
        .map(|k| {
            let (kind, id) = (draw(k) % 5, draw(k + 1000) % 3);
            let (prompt_tokens, prefix) = match kind {
                0 => (1 + draw(k + 2000) % 40, vec![]),
                1 => (33 + 32 * (id % 2), vec![]),
                2 => (70 + id, vec![id]),
                3 => (513 + draw(k + 3000) % 80, vec![id, 100 + k as u32]),
                _ => (600, vec![id, 50]),
            };
            Request { arrival_ms: 0, prompt_tokens, output_tokens: 1 + draw(k + 4000) % 40, prefix }
        })
        .collect()
}

fn setup(requests: Vec<Request>, options: Options, prefill_tokens: u32) -> Setup {
    let models = Models::new(None);
    let language = Language {
        positions: 1024,
        block_bytes: models.models[0].published.at(0).block_bytes(),
        sharpness: Sharpness::ONE.0,
        max_prompt_tokens: requests.iter().map(|request| request.prompt_tokens).max().unwrap(),
        prefill_tokens,
        swap_blocks: 0,
    };
    let options = Options {
        max_output_tokens: requests.iter().map(|request| request.output_tokens).max().unwrap(),
        seed: 7,
        logprobs: true,
        language: Some(language),
        ..options
    };
    Setup { requests, models: Some(models), spans: 8, ..Setup::new(1, options) }.fitted()
}

/// Requests with prompts of so many tokens, none of which shares anything.
pub fn setup_of_prompts(prompts: &[u32], options: Options, prefill_tokens: u32) -> Setup {
    let request =
        |&prompt_tokens| Request { arrival_ms: 0, prompt_tokens, output_tokens: 20, prefix: vec![] };
    setup(prompts.iter().map(request).collect(), options, prefill_tokens)
}

/// Many requests, and few blocks for them: rollouts give theirs back at checkpoints.
pub fn swapping_setup(options: Options) -> Setup {
    let mut setup = setup(requests(50, 23), options, 0).swapping(300);
    setup.blocks = setup.least_blocks() + 4;
    setup
}

impl Setup {
    /// With room for the answers of its own requests.
    fn fitted(mut self) -> Setup {
        let longest = self.requests.iter().map(|request| request.output_tokens).max().unwrap();
        self.options.max_output_tokens = longest;
        self.options.patience = Duration::from_secs(30);
        self
    }

    /// With a cap on keys and values.
    fn capped(mut self, cap: Option<KvCap>) -> Setup {
        self.models = Some(Models::new(cap));
        self
    }

    /// Blocks that the largest of its groups may need.
    fn least_blocks(&self) -> u32 {
        let cap = self.models.as_ref().and_then(Models::cap);
        let need = |request: &Request| {
            let prompt = request.prompt_tokens - 1;
            let answer = (prompt % 32 + request.output_tokens).div_ceil(32);
            let answer = answer.min(cap.map_or(u32::MAX, |cap| cap.blocks(32, prompt / 32)));
            prompt.div_ceil(32) + self.options.group * answer
        };
        self.requests.iter().map(need).max().unwrap()
    }

    /// With host memory for rollouts that give their blocks back.
    fn swapping(mut self, swap_blocks: u32) -> Setup {
        self.options.language.as_mut().unwrap().swap_blocks = swap_blocks;
        self
    }

    /// Runs all; every trajectory is the oracle's.
    fn run_checked(&self) -> (Pipeline, Vec<Note>) {
        let (pipeline, stored, _) = self.run_noted(&mut Feed::new(&self.requests));
        let models = self.models.as_ref().unwrap();
        let wrong = models.wrong.lock().unwrap();
        assert_eq!(*wrong, None, "seed {}: {:?}", self.seed, self.options);
        assert_eq!(models.checked[0].load(Ordering::Relaxed), stored.len() as u64);
        (pipeline, stored)
    }
}

/// R26, R27: groups whose members share a partial block or not, prompts in parts of any size, whole arenas and ones with barely room for one
/// group, checkpoints: each trajectory has the oracle's bytes.
#[rstest]
fn r27_trajectories_are_the_oracles(
    #[values((1, 0, true), (4, 7, false))] (group, checkpoint, roomy): (u32, u32, bool),
    #[values((0, Sharing::Requests), (1, Sharing::Requests), (45, Sharing::Requests), (64, Sharing::Requests), (0, Sharing::Tokens), (45, Sharing::Tokens))]
    (prefill_tokens, sharing): (u32, Sharing),
) {
    let count = if prefill_tokens == 1 { 12 } else { 24 };
    let options = Options { slots: 16, group, checkpoint, ..Options::default() };
    let mut setup = setup(requests(count, 3), options, prefill_tokens);
    setup.blocks = if roomy { 2048 } else { setup.least_blocks() };
    setup.sharing = sharing;
    let (mut pipeline, stored) = setup.run_checked();
    assert_eq!(stored.len() as u64, count * u64::from(group));
    let counts = pipeline.kv_counts();
    assert!(if roomy { counts.found > 0 } else { counts.evicted > 0 }, "{counts:?}");
    let segments: u64 = stored.iter().map(|(finished, _)| u64::from(finished.segments)).sum();
    assert!(checkpoint == 0 || segments > stored.len() as u64);
}

/// R26: where blocks are few, rollouts that wait at a checkpoint give theirs back for others, and go on in other ones with the same bytes; some end
/// there, by their score.
#[rstest]
#[case(1, 9000)]
#[case(3, 0)]
fn r26_a_rollout_that_gave_its_blocks_back_goes_on_in_others(#[case] group: u32, #[case] threshold: i32) {
    let options = Options { slots: 24, group, checkpoint: 5, ..Options::default() };
    let setup = Setup { reward_threshold: threshold, ..swapping_setup(options) };
    let (pipeline, stored) = setup.run_checked();
    assert!(pipeline.preempted() > 10, "{} gave their blocks back", pipeline.preempted());
    let rejected = stored.iter().any(|(finished, _)| finished.outcome == Outcome::Rejected);
    assert_eq!(rejected, threshold > 0);
}

/// R26: with a cap an answer of any length takes few blocks, which it writes in turn. Rollouts of a group, over prompts around the ends of sinks and
/// window, and those that give their blocks back for others between two checkpoints, have the oracle's bytes.
#[rstest]
#[case(KvCap { window: 50, sinks: 32 }, 2)]
#[case(KvCap { window: 64, sinks: 0 }, 1)]
#[case(KvCap { window: 1, sinks: 96 }, 3)]
#[case(KvCap { window: 33, sinks: 64 }, 2)]
fn r26_an_answer_with_a_cap_goes_on_in_other_blocks(#[case] cap: KvCap, #[case] group: u32) {
    let draw = |k: u32| mix(cap.window as u32 ^ mix(k));
    let requests = (0..24).map(|k| Request {
        arrival_ms: 0,
        prompt_tokens: 1 + draw(k) % 150,
        output_tokens: 100 + draw(k + 1000) % 100,
        prefix: vec![],
    });
    let options = Options { slots: 16, group, checkpoint: 23, ..Options::default() };
    let mut setup = setup(requests.collect(), options, 40).capped(Some(cap)).swapping(300);
    setup.blocks = setup.least_blocks() + 4;
    let (pipeline, stored) = setup.run_checked();
    assert_eq!(stored.len() as u32, 24 * group);
    assert!(pipeline.preempted() > 10, "{} gave their blocks back", pipeline.preempted());
}

/// Nobody gives blocks back for a request that does not fit all the same: in each turn in which some do, a request is admitted.
#[rstest]
fn blocks_are_given_back_only_where_that_is_enough(#[values(1, 3)] group: u32) {
    let options = Options { slots: 24, group, checkpoint: 5, ..Options::default() };
    let mut setup = swapping_setup(options);
    setup.requests.iter_mut().for_each(|request| request.prefix.clear());
    let (mut pipeline, notes) = setup.pipeline();
    let laid = lay(&setup.models, &pipeline).unwrap();
    pipeline.publisher().publish_weights(1, laid.lay(1), PolicyMode::Wait).unwrap();
    let (mut preempted, mut admitted, mut in_vain) = (0, 0, 0);
    pipeline
        .run(&mut Feed::new(&setup.requests), |pipeline| {
            in_vain += u32::from(pipeline.preempted() > preempted && pipeline.admitted() == admitted);
            (preempted, admitted) = (pipeline.preempted(), pipeline.admitted());
            false
        })
        .unwrap();
    assert_eq!(notes.take().len() as u32, 50 * group);
    assert!(preempted > 5 && in_vain == 0, "{preempted} gave their blocks back, {in_vain} times in vain");
}

/// R19 to R21, R27: versions come while prompts are made and answers decoded. With KEEP both go on over the keys and values that they have; whose
/// they are is known of each position.
#[rstest]
fn r20_versions_come_while_rollouts_run(
    #[values(PolicyMode::Wait, PolicyMode::Keep, PolicyMode::Abort)] mode: PolicyMode,
    #[values((1, 0, Sharing::Requests), (3, 45, Sharing::Requests), (3, 45, Sharing::Tokens))]
    (group, prefill_tokens, sharing): (u32, u32, Sharing),
) {
    let options = Options { slots: 12, group, checkpoint: 9, ..Options::default() };
    let mut setup = setup(requests(60, 11), options, prefill_tokens);
    (setup.blocks, setup.publish, setup.spans) = (256, Some((100, mode)), 40);
    setup.sharing = sharing;
    let (pipeline, stored) = setup.run_checked();
    let values = pipeline.metrics.counters.values();
    assert!(values.publishes > 2, "{}", values.publishes);
    let several = setup.models.unwrap().checked[1].load(Ordering::Relaxed);
    assert_eq!(several > 0, mode == PolicyMode::Keep, "{several} trajectories of several versions");
    assert_eq!(values.rollouts_aborted > 0, mode == PolicyMode::Abort);
    assert!(!stored.is_empty());
}

/// Orders of admission, sizes of all that bounds it, aborts, ends of sequences and publishes as a seed draws them, on one to three queue pairs of
/// as many functions.
#[rstest]
fn no_order_of_events_changes_a_byte(#[values(0, 1, 2, 3)] quarter: u64) {
    let each: u64 =
        std::env::var("DOORBELL_LANGUAGE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    for seed in quarter * each..(quarter + 1) * each {
        let draw = |k: u32, end: u32| mix(seed as u32 ^ mix(k)) % end;
        let group = [1, 2, 3, 5][draw(1, 4) as usize];
        let options = Options {
            slots: group + draw(2, 20),
            group,
            checkpoint: [0, 1, 6, 16][draw(3, 4) as usize],
            eos_stops: draw(4, 2) == 0,
            abort_every: [0, 0, 3, 7][draw(5, 4) as usize],
            in_flight: draw(6, 6) as usize,
            window: 1 + draw(7, 8) as usize,
            ..Options::default()
        };
        let credits = Credits::new(group + draw(8, 12));
        let mut setup =
            setup(requests(14, seed), Options { credits, ..options }, [0, 20, 32, 100][draw(9, 4) as usize])
                .capped(
                    [
                        None,
                        None,
                        Some(KvCap { window: 1, sinks: 0 }),
                        Some(KvCap { window: 33, sinks: 32 }),
                        Some(KvCap { window: 64, sinks: 64 }),
                    ][draw(19, 5) as usize],
                )
                .swapping([0, 3, 100][draw(17, 3) as usize]);
        setup.seed = seed;
        setup.sharing = [Sharing::Requests, Sharing::Tokens][draw(18, 2) as usize];
        setup.blocks = setup.least_blocks() + draw(10, 60);
        setup.queues = 1 + draw(11, 3) as u8;
        setup.functions = setup.queues;
        setup.policy = PolicyKind::ALL[draw(12, PolicyKind::ALL.len() as u32) as usize];
        setup.spans = 60;
        setup.less.groups = [0, 1, 64][draw(13, 3) as usize];
        let mode = PolicyMode::ALL[draw(14, 3) as usize];
        setup.publish = [None, Some((60 + draw(15, 200) as usize, mode))][draw(16, 2) as usize];
        setup.run_checked();
    }
}

/// A prompt with a token that is none fails its own group, whether the device has opened that or not (R17), and no other.
#[rstest]
fn r26_a_bad_prompt_fails_its_group_alone(
    #[values(0, 1, 64)] groups: u32,
    #[values(0, 16)] prefill_tokens: u32,
) {
    let options = Options { slots: 12, group: 2, ..Options::default() };
    let mut setup = setup(requests(20, 5), options, prefill_tokens);
    // None is found to be filled by another.
    setup.requests.iter_mut().for_each(|request| request.prefix.clear());
    setup.less.groups = groups;
    setup.models.as_mut().unwrap().bad = |number| number % 5 == 2;
    let (mut pipeline, notes) = setup.pipeline();
    let mut publisher = pipeline.publisher();
    let laid = lay(&setup.models, &pipeline).unwrap();
    publisher.publish_weights(1, laid.lay(1), PolicyMode::Wait).unwrap();
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let stored = notes.take();
    let lost = notes.lost();
    assert_eq!((stored.len(), lost.len()), (32, 8));
    assert!(lost.iter().all(|lost| lost.request % 5 == 2), "{lost:?}");
    assert!(pipeline.first_error().is_some() && pipeline.is_idle());
    let counts = pipeline.kv_counts();
    assert_eq!((counts.committed, counts.branches, counts.prefixes), (0, 0, 0), "blocks are kept");
    assert_eq!(*setup.models.unwrap().wrong.lock().unwrap(), None);
}

/// What cannot run is refused, with what is wrong.
#[test]
fn what_a_language_model_cannot_run_is_told() {
    let request = |prompt_tokens, output_tokens| Request {
        arrival_ms: 0,
        prompt_tokens,
        output_tokens,
        prefix: vec![],
    };
    let setup_of = |requests| setup(requests, Options { slots: 2, ..Options::default() }, 0);
    for (bad, what) in [(request(0, 5), "has no prompt"), (request(1000, 25), "no window that slides")] {
        let (mut pipeline, _) = setup_of(vec![request(1000, 25)]).pipeline();
        let error = pipeline.run(&mut Feed::new(&[bad]), |_| false).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    let refused = |edit: fn(&mut Setup)| {
        let mut setup = setup_of(vec![request(10, 5)]);
        edit(&mut setup);
        let device = Tricky { inner: setup.device(setup.config()), trick: Less(setup.less) };
        let mut store = doubles::Store::new(vec![], Spans::new(2, 1), Notes::default(), 1);
        let parts =
            setup.models.as_ref().map(|models| models.parts(&setup, &device, &mut store, &Spans::new(2, 1)));
        Sequences::new(&setup.options, parts, &device, &setup.kv())
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    assert_eq!(refused(|_| ()), "");
    assert!(refused(|setup| setup.less.engines = 1).contains("CAP_ENGINES"));
    assert!(refused(|setup| setup.models = None).contains("language is 1"));
}

/// R25: what a device may still read, of two versions, is not overwritten by the third.
#[test]
fn r25_weights_are_laid_where_none_lie_that_may_be_read() {
    let setup = setup(requests(2, 1), Options { slots: 2, ..Options::default() }, 0);
    let (pipeline, _) = setup.pipeline();
    let mut laid = lay(&setup.models, &pipeline).unwrap();
    let mut offsets = vec![];
    for version in 1..6 {
        // One that is refused takes no place.
        let refused = laid.lay(version).offset;
        offsets.push(laid.lay(version).offset);
        assert_eq!(refused, offsets[offsets.len() - 1]);
        laid.published();
    }
    assert!(
        offsets.windows(3).all(|three| three[0] != three[1] && three[1] != three[2] && three[0] != three[2])
    );
}

/// Without a version of engine 1 nothing is admitted, and the run ends with who waits for what (R15).
#[test]
fn r15_without_weights_the_run_says_what_it_waits_for() {
    let mut setup = setup(requests(2, 1), Options { slots: 2, ..Options::default() }, 0);
    setup.options.patience = Duration::from_millis(50);
    let (mut pipeline, _) = setup.pipeline();
    let mut publisher = pipeline.publisher();
    publisher.publish(1, 5, PolicyMode::Wait).unwrap();
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err().to_string();
    assert!(error.contains("why: the next request waits for a version of the language model"), "{error}");
    let refused = PublishAnswer::Refused(PublishRefusal::Engine { language: true });
    assert_eq!(publisher.answer(), Some((1, refused)));
}
