//! A queue pair in two halves, on two threads. Under ThreadSanitizer as well:
//! `RUSTFLAGS=-Zsanitizer=thread cargo +nightly test -Zbuild-std --target x86_64-unknown-linux-gnu -p doorbell-verify --test split`.

use std::thread;
use std::time::{Duration, Instant};

use doorbell_contract::{Capability, HwCompletion, HwDesc, Place, Register};
use doorbell_host::memory::SIMULATED_BUS_ADDRESS;
use doorbell_host::queue::{COMPLETION_WORDS, DESC_WORDS};
use doorbell_host::registers::{Built, Registers};
use doorbell_host::{Device, DeviceError, Driver, Platform, QueueConfig, SharedMemory};
use doorbell_verify::ModelPlatform;
use doorbell_verify::model::Mutation;
use doorbell_verify::oracle::Oracle;

fn config() -> QueueConfig {
    // Indices wrap early; the queues are small, so that each half waits for the other.
    QueueConfig {
        sq_depth: 8,
        cq_depth: 4,
        sq_start: u32::MAX - 5,
        cq_start: u32::MAX - 2,
        ..QueueConfig::default()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Sends `count` descriptors through both halves of `driver`, and gives it back.
fn run<P: Platform + 'static>(driver: Driver<P>, count: u32) -> Driver<P> {
    let oracle = Oracle::new(driver.config());
    let desc = |k: u32| {
        HwDesc::decode(k % 8, k % 100, 1 + k % 3)
            .with_user_data(k.into())
            .with_delta_offset(256 * u64::from(k % 16))
    };
    let (mut submitter, mut completer) = driver.split().unwrap();
    let submitting = thread::spawn(move || {
        let mut submitted = 0;
        while submitted < count {
            let batch: Vec<HwDesc> =
                (submitted..count.min(submitted + 1 + submitted % 5)).map(desc).collect();
            submitted += submitter.submit(&batch).unwrap() as u32;
        }
        submitter
    });
    let (mut completed, mut out) = (0, [HwCompletion::default(); 3]);
    while completed < count {
        assert!(completer.wait(soon()).unwrap(), "{completed} of {count} completions after a minute");
        let taken = completer.collect(&mut out).unwrap();
        for completion in &out[..taken] {
            let expected = oracle.answer(&desc(completed));
            assert_eq!(completion.without_timing(), expected.completion);
            completed += 1;
        }
    }
    let submitter = submitting.join().unwrap();
    assert_eq!(completer.in_flight(), 0);
    assert!(!completer.wait(Instant::now()).unwrap());
    submitter.join(completer).map_err(drop).expect("the halves are of one driver")
}

#[test]
fn r03_r04_one_thread_submits_and_another_takes_completions() {
    let mut driver = run(Driver::new(ModelPlatform::new(), config()).unwrap(), 3000);
    // Whole again, it goes on where it was.
    driver.submit(&[HwDesc::nop()]).unwrap();
    let mut out = [HwCompletion::default()];
    assert_eq!(driver.poll(&mut out).unwrap(), 1);
    run(driver, 100);
}

#[test]
fn a_waiting_thread_sees_what_is_submitted_later() {
    let (mut submitter, mut completer) =
        Driver::new(ModelPlatform::new(), config()).unwrap().split().unwrap();
    let waiting = thread::spawn(move || {
        let mut out = [HwCompletion::default()];
        // Nothing is in flight when it begins to wait.
        assert!(completer.wait(soon()).unwrap());
        completer.collect(&mut out).unwrap()
    });
    thread::sleep(Duration::from_millis(20));
    assert_eq!(submitter.submit(&[HwDesc::nop()]).unwrap(), 1);
    assert_eq!(waiting.join().unwrap(), 1);
}

#[test]
fn r15_a_device_that_never_answers_is_a_timeout() {
    let model = ModelPlatform::new().with_mutation(Mutation::Hang { after: 0 });
    let driver = Driver::new(model, QueueConfig { patience: 20, ..config() }).unwrap();
    let (mut submitter, mut completer) = driver.split().unwrap();
    submitter.submit(&[HwDesc::nop()]).unwrap();
    let error = completer.wait(soon()).unwrap_err().to_string();
    assert!(
        error.starts_with("model: a completion did not happen within 20 advances: 1 in flight"),
        "{error}"
    );
}

#[test]
fn r03_both_halves_of_a_lost_queue_pair_say_so() {
    let config = QueueConfig { sq_start: 0, cq_start: 0, ..config() };
    let driver = Driver::new(ModelPlatform::new(), config).unwrap();
    let (memory, layout) = (driver.memory().clone(), driver.layout());
    let (mut submitter, mut completer) = driver.split().unwrap();
    let forged = HwCompletion::default().with_phase(true);
    memory.slots::<COMPLETION_WORDS>(layout.cq, 4).unwrap().store(0, bytemuck::cast(forged));
    let mut out = [HwCompletion::default()];
    let error = completer.collect(&mut out).unwrap_err().to_string();
    assert!(error.contains("1 completions for 0 descriptors"), "{error}");
    for other in [
        submitter.submit(&[HwDesc::nop()]).unwrap_err(),
        completer.collect(&mut out).unwrap_err(),
        completer.wait(soon()).unwrap_err(),
    ] {
        assert_eq!(other.to_string(), error);
    }
    let mut driver = submitter.join(completer).map_err(drop).expect("the halves are of one driver");
    assert_eq!(driver.poll(&mut out).unwrap_err().to_string(), error);
    driver.disable().unwrap();
    driver.enable().unwrap();
    run(driver, 50);
}

#[test]
fn halves_of_two_drivers_are_not_one() {
    let halves = || Driver::new(ModelPlatform::new(), config()).unwrap().split().unwrap();
    let ((first, its_own), (second, others)) = (halves(), halves());
    let (first, others) = *first.join(others).err().expect("they are of two drivers");
    assert!(first.join(its_own).is_ok() && second.join(others).is_ok());
}

/// A device that runs by itself, on a thread of its own, and polls the slots: as a GPU does.
struct Alone {
    registers: Registers,
    memory: Option<SharedMemory>,
}

impl Alone {
    fn new() -> Self {
        let built = Built {
            features: Capability::SLOT_POLLING,
            workers: 1,
            queues: 1,
            functions: 1,
            windows: false,
            engines: 1,
            reward_models: 1,
            groups: 0,
            tick_hz: 0,
        };
        Self { registers: Registers::new(built), memory: None }
    }
}

impl Platform for Alone {
    fn name(&self) -> &str {
        "alone"
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        let memory = SharedMemory::allocate(bytes, SIMULATED_BUS_ADDRESS)?;
        self.memory = Some(memory.clone());
        Ok(memory)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        let was_active = self.registers.queue(0).session.is_some();
        if let Some(session) = &mut self.registers.queue_mut(0).session {
            // The thread tells nobody how far it is.
            session.sq.head = session.sq.tail;
            session.cq.tail = if register == Register::CqHead { value } else { session.cq.tail };
        }
        self.registers.write(register, Place::FIRST, value).map_err(|_| DeviceError::WriteRefused {
            device: "alone".into(),
            register,
            value,
        })?;
        if let (false, Some(session), Some(memory)) =
            (was_active, &self.registers.queue(0).session, &self.memory)
        {
            let (memory, session) = (memory.clone(), session.clone());
            let offset = |base: u64| (base - memory.bus_address()) as usize;
            let (sq, cq) = (offset(session.sq.base), offset(session.cq.base));
            thread::spawn(move || {
                let slots = memory.slots::<DESC_WORDS>(sq, session.sq.depth.slots()).unwrap();
                let completions = memory.slots::<COMPLETION_WORDS>(cq, session.cq.depth.slots()).unwrap();
                let (mut index, mut posted, mut desc) = (session.sq.tail, session.cq.head, HwDesc::default());
                let mut quiet = 0;
                // It ends when its driver is long gone.
                while quiet < 200_000 {
                    slots.load(index, bytemuck::cast_mut(&mut desc));
                    if !desc.verify(&session.sq_key, index) {
                        (quiet, _) = (quiet + 1, thread::yield_now());
                        continue;
                    }
                    (index, quiet) = (index.wrapping_add(1), 0);
                    let completion =
                        HwCompletion { user_data: desc.user_data, sq_head: index, ..HwCompletion::default() };
                    let phase = session.cq.depth.phase(posted);
                    completions.store(posted, bytemuck::cast(completion.with_phase(phase)));
                    posted = posted.wrapping_add(1);
                }
            });
        }
        Ok(())
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        Ok(self.registers.read(register, Place::FIRST).unwrap())
    }

    fn advance(&mut self, _: usize) -> Result<(), DeviceError> {
        thread::yield_now();
        Ok(())
    }

    fn runs_alone(&self) -> bool {
        true
    }
}

/// On such a device a completion may come before the submitter has rung: what is submitted is told before it is written.
#[test]
fn r01_r03_a_device_that_polls_slots_is_never_ahead_of_what_it_was_told() {
    // As many completions as slots: the thread does not look at CQ_HEAD.
    let depth = 1 << 14;
    let config = QueueConfig { sq_depth: depth, cq_depth: depth, ..QueueConfig::default() };
    let (mut submitter, mut completer) = Driver::new(Alone::new(), config).unwrap().split().unwrap();
    let submitting = thread::spawn(move || {
        for k in 0..depth {
            while submitter.submit(&[HwDesc::nop().with_user_data(k.into())]).unwrap() == 0 {}
        }
    });
    let (mut completed, mut out) = (0, [HwCompletion::default(); 16]);
    while completed < u64::from(depth) {
        assert!(completer.wait(soon()).unwrap(), "{completed} after a minute");
        let taken = completer.collect(&mut out).unwrap();
        for completion in &out[..taken] {
            assert_eq!(completion.user_data, completed);
            completed += 1;
        }
    }
    submitting.join().unwrap();
}
