//! What is open, and its handles.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_contract::{HwCompletion, HwDesc, HwPolicy};
use doorbell_host::{Device, DeviceError, Features};

use crate::code::{Code, Refusal};

/// Completions that a wait takes at a time.
const TAKEN: usize = 64;

/// An open device, and what a wait took from it.
pub struct Open {
    device: Box<dyn Device>,
    waiting: VecDeque<HwCompletion>,
}

impl Open {
    pub fn new(device: Box<dyn Device>) -> Self {
        Self { device, waiting: VecDeque::new() }
    }

    pub fn submit(&mut self, descs: &[HwDesc]) -> Result<usize, DeviceError> {
        self.device.submit(descs)
    }

    pub fn poll(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        let count = self.waiting.len().min(out.len());
        for (place, completion) in out.iter_mut().zip(self.waiting.drain(..count)) {
            *place = completion;
        }
        if count > 0 { Ok(count) } else { self.device.poll(out) }
    }

    /// Whether a completion can be polled, within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<bool, DeviceError> {
        if self.waiting.is_empty() && self.device.in_flight() > 0 {
            let mut out = [HwCompletion::default(); TAKEN];
            // As far away as the clock can tell, if the limit is beyond that.
            let start = Instant::now();
            let deadline = start.checked_add(limit).unwrap_or(start + Duration::from_secs(u32::MAX.into()));
            while self.waiting.is_empty() && self.device.wait(deadline)? {
                let count = self.device.poll(&mut out)?;
                self.waiting.extend(&out[..count]);
            }
        }
        Ok(!self.waiting.is_empty())
    }

    pub fn tokens(&self, delta_offset: u64, out: &mut [u32]) -> Result<(), DeviceError> {
        self.device.tokens(delta_offset, out)
    }

    /// Log-probabilities of the tokens of one DECODE.
    pub fn logps(&self, delta_offset: u64, out: &mut [i32]) -> Result<(), DeviceError> {
        let place = self.device.token_shard(delta_offset);
        let regions = self.device.logp_regions();
        let Some(region) = regions.get(place) else {
            let (bytes, size) = (4 * out.len() as u64, 0);
            return Err(DeviceError::OutOfBounds {
                what: "log-probability region (option logp_bytes)",
                offset: delta_offset,
                bytes,
                size,
            });
        };
        let mut words = vec![0; out.len()];
        region.read(delta_offset, &mut words)?;
        out.iter_mut().zip(words).for_each(|(out, word)| *out = word as i32);
        Ok(())
    }

    /// What each queue pair can do, and how many functions there are.
    pub fn features(&self) -> (Features, usize) {
        (self.device.features(), self.device.functions().len())
    }

    /// Publishes a version by a POLICY to each function; how many these are, or none where there is no room for all.
    pub fn publish(
        &mut self,
        delta_offset: u64,
        header: &HwPolicy,
        desc: &HwDesc,
    ) -> Result<usize, DeviceError> {
        let (functions, regions) = (self.device.functions(), self.device.token_regions());
        if self.device.room() == 0 {
            return Ok(0);
        }
        for region in functions.iter().filter_map(|&queue| regions.get(queue)) {
            region.place_policy(delta_offset, header)?;
        }
        let mut sent = 0;
        for &queue in &functions {
            sent += usize::from(self.device.submit_to(queue, desc)?);
        }
        Ok(sent)
    }

    pub fn in_flight(&self) -> usize {
        self.device.in_flight() + self.waiting.len()
    }
}

/// Open things of one kind.
pub struct Table<T> {
    open: LazyLock<Mutex<HashMap<usize, Arc<T>>>>,
    /// What [`Table::get`] says where there is none.
    none: &'static str,
}

/// The last key that was given out, for whatever kind; 0 is none, as NULL is no handle.
static LAST: AtomicUsize = AtomicUsize::new(0);

static DEVICES: Table<Mutex<Open>> =
    Table::new("no open device has this handle: it was closed, or never came from doorbell_open");

impl<T> Table<T> {
    /// Nothing is open.
    pub const fn new(none: &'static str) -> Self {
        Self { open: LazyLock::new(Mutex::default), none }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Arc<T>>> {
        // Nothing that holds the lock can leave the table half changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps something; returns its key.
    pub fn insert(&self, value: T) -> usize {
        let key = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.lock().insert(key, Arc::new(value));
        key
    }

    /// Drops what has this key, as soon as no other thread uses it.
    pub fn remove(&self, key: usize) -> Result<(), Refusal> {
        let removed = self.lock().remove(&key);
        // Dropped here, not under the table's lock: it may take a while.
        removed.map(drop).ok_or_else(|| self.refusal())
    }

    /// What has this key.
    pub fn get(&self, key: usize) -> Result<Arc<T>, Refusal> {
        self.lock().get(&key).map(Arc::clone).ok_or_else(|| self.refusal())
    }

    fn refusal(&self) -> Refusal {
        Refusal::new(Code::BadHandle, self.none)
    }
}

/// Keeps a device; returns its key.
pub fn insert(device: Open) -> usize {
    DEVICES.insert(Mutex::new(device))
}

/// Drops the device with this key, as soon as no other thread uses it.
pub fn remove(key: usize) -> Result<(), Refusal> {
    DEVICES.remove(key)
}

/// Does `work` with the device of this key.
pub fn with<T>(key: usize, work: impl FnOnce(&mut Open) -> Result<T, Refusal>) -> Result<T, Refusal> {
    let device = DEVICES.get(key)?;
    let mut device = device.lock().map_err(|_| {
        Refusal::new(Code::Internal, "an earlier call on this device failed inside the library: close it")
    })?;
    work(&mut device)
}

#[cfg(test)]
mod tests {
    use doorbell_devices::{Kind, Settings};

    use super::*;

    fn model(options: &str) -> Open {
        Open::new(Kind::Model.open(&options.parse::<Settings>().unwrap()).unwrap())
    }

    #[test]
    fn what_a_wait_took_is_polled_first_and_still_in_flight() {
        for options in ["", "queues=4 functions=2"] {
            what_a_wait_took_is_polled_first(model(options));
        }
    }

    fn what_a_wait_took_is_polled_first(mut device: Open) {
        assert!(!device.wait(Duration::ZERO).unwrap());
        let descs: Vec<HwDesc> = (0..5).map(|k| HwDesc::nop().with_user_data(k)).collect();
        assert_eq!(device.submit(&descs).unwrap(), 5);
        assert!(device.wait(Duration::from_secs(60)).unwrap());
        assert_eq!(device.in_flight(), 5);
        let mut seen = vec![];
        while seen.len() < 5 {
            let mut out = [HwCompletion::default(); 2];
            let count = device.poll(&mut out).unwrap();
            seen.extend(out[..count].iter().map(|completion| completion.user_data));
        }
        assert_eq!((seen, device.in_flight()), (vec![0, 1, 2, 3, 4], 0));
    }

    #[test]
    fn a_panic_in_a_call_costs_its_device_and_no_other() {
        let (broken, whole) = (insert(model("")), insert(model("")));
        let panicked =
            std::panic::catch_unwind(|| with(broken, |_| -> Result<(), Refusal> { panic!("planted") }));
        assert!(panicked.is_err());
        assert_eq!(with(broken, |_| Ok(())).unwrap_err().code, Code::Internal);
        assert!(with(whole, |_| Ok(())).is_ok());
        assert!(remove(broken).is_ok() && remove(whole).is_ok());
        assert_eq!(remove(whole).unwrap_err().code, Code::BadHandle);
    }
}
