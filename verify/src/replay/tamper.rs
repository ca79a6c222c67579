//! A device whose completions a test rewrites.

use crate::model::{ModelPlatform, Mutation};
use crate::replay::ReplayPlan;
use delegate::delegate;
use doorbell_contract::{HwCompletion, HwDesc};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::{Counters, Device, Features, QueueCounters, TokenRegion, WorkerCounters};
use doorbell_host::driver::Driver;
use doorbell_host::error::DeviceError;
use doorbell_host::why::Why;

/// Rewrites the completion with the given ordinal into any number of them.
pub(crate) type Edit = Box<dyn FnMut(usize, HwCompletion) -> Vec<HwCompletion> + Send>;

/// Watches what is submitted.
pub(crate) type Watch = Box<dyn FnMut(&HwDesc) + Send>;

/// The model with rewritten completions and an ear on submissions.
pub(crate) struct Tampered {
    inner: Driver<ModelPlatform>,
    edit: Edit,
    watch: Watch,
    /// Byte offset of a token word that reads wrong.
    spoilt: Option<u64>,
    seen: usize,
    waiting: Vec<HwCompletion>,
}

impl Tampered {
    pub fn new(
        plan: &ReplayPlan,
        edit: impl FnMut(usize, HwCompletion) -> Vec<HwCompletion> + Send + 'static,
    ) -> Self {
        Tampered {
            inner: model(plan, 64),
            edit: Box::new(edit),
            watch: Box::new(|_| ()),
            spoilt: None,
            seen: 0,
            waiting: Vec::new(),
        }
    }

    pub fn spoilt(self, offset: u64) -> Self {
        Tampered { spoilt: Some(offset), ..self }
    }

    /// Rewrites what the device gave into `out`.
    fn rewrite(&mut self, fresh: &[HwCompletion], out: &mut [HwCompletion]) -> usize {
        for &completion in fresh {
            self.waiting.extend((self.edit)(self.seen, completion));
            self.seen += 1;
        }
        let count = out.len().min(self.waiting.len());
        out.iter_mut().zip(self.waiting.drain(..count)).for_each(|(out, completion)| *out = completion);
        count
    }

    pub fn watched(self, watch: impl FnMut(&HwDesc) + Send + 'static) -> Self {
        Tampered { watch: Box::new(watch), ..self }
    }
}

/// Configuration in which `plan` runs.
pub(crate) fn config(plan: &ReplayPlan, depth: u32) -> QueueConfig {
    QueueConfig { sq_depth: depth, cq_depth: depth, patience: 20, ..plan.queue_config() }
}

/// A model in which `plan` runs.
pub(crate) fn model(plan: &ReplayPlan, depth: u32) -> Driver<ModelPlatform> {
    Driver::new(ModelPlatform::new(), config(plan, depth)).unwrap()
}

/// The same with a fault.
pub(crate) fn mutant(plan: &ReplayPlan, mutation: Mutation) -> Driver<ModelPlatform> {
    Driver::new(ModelPlatform::new().with_mutation(mutation), config(plan, 64)).unwrap()
}

impl Device for Tampered {
    fn name(&self) -> &str {
        "tampered"
    }

    fn submit(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        let taken = self.inner.submit(batch)?;
        batch[..taken].iter().for_each(&mut self.watch);
        Ok(taken)
    }

    fn submit_to(&mut self, queue: usize, desc: &HwDesc) -> Result<bool, DeviceError> {
        let taken = self.inner.submit_to(queue, desc)?;
        if taken {
            (self.watch)(desc);
        }
        Ok(taken)
    }

    fn poll(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        let mut fresh = vec![HwCompletion::default(); out.len()];
        let count = self.inner.poll(&mut fresh)?;
        Ok(self.rewrite(&fresh[..count], out))
    }

    fn collect(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        let mut fresh = vec![HwCompletion::default(); out.len()];
        let count = self.inner.collect(&mut fresh)?;
        Ok(self.rewrite(&fresh[..count], out))
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.waiting.len()
    }

    fn tokens(&self, delta_offset: u64, out: &mut [u32]) -> Result<(), DeviceError> {
        self.inner.tokens(delta_offset, out)?;
        let word =
            self.spoilt.and_then(|offset| offset.checked_sub(delta_offset)).map(|bytes| bytes as usize / 4);
        if let Some(token) = word.and_then(|word| out.get_mut(word)) {
            *token ^= 1;
        }
        Ok(())
    }

    delegate! {
        to self.inner {
            fn unread(&self, completion: &HwCompletion) -> Option<HwDesc>;
            fn features(&self) -> Features;
            fn queue_of(&self, desc: &HwDesc) -> usize;
            fn functions(&self) -> Vec<usize>;
            fn capacity(&self) -> usize;
            fn room(&self) -> usize;
            fn token_regions(&self) -> Vec<TokenRegion>;
            fn token_shard(&self, delta_offset: u64) -> usize;
            fn counters(&mut self) -> Result<Counters, DeviceError>;
            fn queue_counters(&mut self) -> Result<Vec<QueueCounters>, DeviceError>;
            fn worker_counters(&mut self) -> Result<Vec<WorkerCounters>, DeviceError>;
            fn why(&mut self) -> Result<Vec<(usize, Why)>, DeviceError>;
            fn disable(&mut self) -> Result<(), DeviceError>;
            fn enable(&mut self) -> Result<(), DeviceError>;
        }
    }
}
