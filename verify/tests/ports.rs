//! Several drivers over one model: how a device is divided, what a port reaches, turns, threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rstest::rstest;

use doorbell_contract::{
    Control, Counter, FunctionControl, HwCompletion, HwDesc, HwEvent, Place, QueueCounter, Register, State,
    Status,
};
use doorbell_host::{
    Device, DeviceError, Division, Driver, Pages, Platform, Ports, QueueConfig, QueuePort, Sharded,
    SharedMemory,
};
use doorbell_verify::ModelPlatform;
use doorbell_verify::model::{Mutation, STEP_TOKENS};
use doorbell_verify::oracle::Oracle;

fn small() -> QueueConfig {
    QueueConfig { sq_depth: 64, cq_depth: 64, token_bytes: 1 << 16, ..Default::default() }
}

fn divide(queues: u8, functions: u8, config: &QueueConfig) -> Ports<ModelPlatform> {
    let model = ModelPlatform::with_queues(queues, functions).unwrap();
    let bytes = config.shared_bytes().unwrap();
    Ports::divide(model, &Division { queues, functions, bytes, ..Default::default() }).unwrap()
}

fn drivers(ports: &Ports<ModelPlatform>, config: &QueueConfig) -> Vec<Driver<QueuePort<ModelPlatform>>> {
    ports.take_all().unwrap().into_iter().map(|port| Driver::new(port, config.clone()).unwrap()).collect()
}

fn drain(device: &mut dyn Device) -> Vec<HwCompletion> {
    let mut out = [HwCompletion::default(); 16];
    let mut all = Vec::new();
    while device.in_flight() > 0 {
        let taken = device.poll(&mut out).unwrap();
        all.extend_from_slice(&out[..taken]);
    }
    all
}

fn wide(device: &mut ModelPlatform, function: u8, low: Register) -> u64 {
    let place = Place { function, queue: 0 };
    let high = Register::at(low as u32 + 4).unwrap().0;
    let mut read = |register| u64::from(device.read_at(place, register).unwrap());
    read(high) << 32 | read(low)
}

#[test]
fn two_drivers_share_one_device_and_answer_for_themselves() {
    let config = small();
    let ports = divide(2, 2, &config);
    let mut drivers = drivers(&ports, &config);
    // R5, R8: the same rollout in both is two rollouts.
    let descs: Vec<HwDesc> =
        (0..2).map(|k| HwDesc::decode(7, 100 * k, 32).with_seed(k).with_user_data(k.into())).collect();
    for (driver, desc) in drivers.iter_mut().zip(&descs) {
        assert_eq!(driver.submit(&[*desc]).unwrap(), 1);
    }
    for (driver, desc) in drivers.iter_mut().zip(&descs) {
        let answer = Oracle::new(&config).answer(desc);
        let ends = drain(driver);
        assert_eq!(ends.len(), 1, "R3");
        assert_eq!(ends[0].without_timing(), answer.completion);
        let mut tokens = vec![0; answer.tokens.len()];
        driver.tokens(0, &mut tokens).unwrap();
        assert_eq!(tokens, answer.tokens);
    }
}

#[rstest]
#[case(1, 1)]
#[case(4, 1)]
#[case(5, 2)]
#[case(16, 4)]
#[case(16, 16)]
fn r11_a_window_holds_exactly_the_memory_of_its_functions_queue_pairs(
    #[case] queues: u8,
    #[case] functions: u8,
) {
    let config = small();
    let each = config.shared_bytes().unwrap() as u64;
    let ports = divide(queues, functions, &config);
    let drivers = drivers(&ports, &config);
    let mut owned: HashMap<u8, Vec<(u64, u64)>> = HashMap::new();
    for (queue, driver) in drivers.iter().enumerate() {
        let place = driver.platform().place();
        assert_eq!(place, Place { function: queue as u8 % functions, queue: queue as u8 });
        let start = driver.memory().bus_address();
        owned.entry(place.function).or_default().push((start, start + driver.memory().len() as u64));
    }
    let mut all: Vec<(u64, u64)> = owned.values().flatten().copied().collect();
    all.sort_unstable();
    assert!(
        all.windows(2).all(|pair| pair[0].1 == pair[1].0),
        "side by side, and none over another: {all:x?}"
    );
    let mut device = ports.device();
    for (function, parts) in owned {
        let base = wide(&mut device, function, Register::Window0BaseLo);
        let size = wide(&mut device, function, Register::Window0SizeLo);
        assert_eq!(size, each * parts.len() as u64, "function {function}");
        assert_eq!(base, parts.iter().map(|part| part.0).min().unwrap(), "function {function}");
        assert_eq!(base + size, parts.iter().map(|part| part.1).max().unwrap(), "function {function}");
        for low in [Register::Window1SizeLo, Register::Window2SizeLo] {
            assert_eq!(wide(&mut device, function, low), 0, "{low} of function {function}");
        }
    }
}

/// A queue pair over the tokens of another one: in a row they are of one function, and it scores what lies there.
#[test]
fn r11_a_queue_pair_reads_the_tokens_of_another_one_of_its_function() {
    let config = small();
    let model = ModelPlatform::with_queues(4, 2).unwrap();
    let bytes = config.shared_bytes().unwrap();
    let division = Division { queues: 4, functions: 2, row: 2, bytes, ..Default::default() };
    let ports = Ports::divide(model, &division).unwrap();
    let functions: Vec<u8> = (0..4).map(|queue| division.place(queue).function).collect();
    assert_eq!(functions, [0, 0, 1, 1]);
    let mut writer = Driver::new(ports.take(0).unwrap(), config.clone()).unwrap();
    let tokens = writer.token_regions().remove(0);
    let unused = QueueConfig { token_bytes: 64, ..config.clone() };
    let mut reader = Driver::over(ports.take(1).unwrap(), unused.clone(), tokens.clone()).unwrap();
    assert_eq!(reader.config().token_bytes, config.token_bytes);
    assert!(reader.layout().bytes < writer.layout().bytes, "it has no token region of its own");
    let decode = HwDesc::decode(7, 3, 20).with_delta_offset(128);
    writer.submit(&[decode]).unwrap();
    let answer = Oracle::new(&config).answer(&decode);
    assert_eq!(drain(&mut writer)[0].without_timing(), answer.completion);
    let desc = HwDesc::reward(7, 0, 20).with_delta_offset(128).with_user_data(5);
    reader.submit(&[desc]).unwrap();
    let scored = Oracle::new(&config).scored(&desc, &answer.tokens).completion;
    assert_eq!(drain(&mut reader)[0].without_timing(), scored);
    let mut read = [0; 20];
    reader.tokens(128, &mut read).unwrap();
    assert_eq!(read[..], answer.tokens, "it sees the same words");
    // Neither starting it anew nor its end touches them.
    reader.disable().unwrap();
    reader.enable().unwrap();
    drop(reader);
    writer.tokens(128, &mut read).unwrap();
    assert_eq!(read[..], answer.tokens);
    // Those of another function it does not reach.
    let error = Driver::over(ports.take(2).unwrap(), unused, tokens).err().unwrap();
    assert!(matches!(error, DeviceError::NotStarted { .. }), "R11: {error}");
    assert!(error.to_string().contains("BAD_CONFIG"), "{error}");
}

#[test]
fn functions_that_are_not_used_have_no_window() {
    let model = ModelPlatform::with_queues(4, 4).unwrap();
    let ports = Ports::divide(model, &Division { queues: 3, functions: 2, ..Default::default() }).unwrap();
    let mut device = ports.device();
    for function in 2..4 {
        assert_eq!(wide(&mut device, function, Register::Window0SizeLo), 0, "function {function}");
    }
}

/// What a double does otherwise than the model.
trait Otherwise: Send {
    const NAME: &str;

    /// Whether it takes a write from the model.
    fn takes(&mut self, _place: Place, _register: Register, _value: u32) -> bool {
        false
    }

    /// What a register reads.
    fn reads(&self, _place: Place, _register: Register) -> Option<u32> {
        None
    }

    fn before_advance(&self) {}
}

/// The model, but for some of what it does.
struct Double<O> {
    model: ModelPlatform,
    otherwise: O,
}

impl<O: Otherwise> Platform for Double<O> {
    fn name(&self) -> &str {
        O::NAME
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.model.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.write_at(Place::FIRST, register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.read_at(Place::FIRST, register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.otherwise.before_advance();
        self.model.advance(want)
    }
}

impl<O: Otherwise> Pages for Double<O> {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        if self.otherwise.takes(place, register, value) {
            return Ok(());
        }
        self.model.write_at(place, register, value)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        match self.otherwise.reads(place, register) {
            Some(value) => Ok(value),
            None => self.model.read_at(place, register),
        }
    }

    fn advance_for(&mut self, place: Place, want: usize) -> Result<(), DeviceError> {
        self.model.advance_for(place, want)
    }
}

/// Said to have been built with more workers.
struct Manned {
    built: u32,
    masks: HashMap<u8, u32>,
}

impl Otherwise for Manned {
    const NAME: &str = "manned";

    fn takes(&mut self, place: Place, register: Register, value: u32) -> bool {
        let is = register == Register::FnWorkers;
        if is {
            self.masks.insert(place.function, value);
        }
        is
    }

    fn reads(&self, place: Place, register: Register) -> Option<u32> {
        match register {
            Register::CapWorkers => Some(self.built),
            Register::FnWorkers => Some(self.masks.get(&place.function).copied().unwrap_or(0)),
            _ => None,
        }
    }
}

fn manned(built: u32) -> Double<Manned> {
    let model = ModelPlatform::with_queues(8, 8).unwrap();
    Double { model, otherwise: Manned { built, masks: HashMap::new() } }
}

#[rstest]
#[case::one_function(4, 1, None, &[0xF])]
#[case::some_of_them(4, 1, Some(3), &[0x7])]
#[case::evenly(4, 2, None, &[0x3, 0xC])]
#[case::unevenly(16, 3, None, &[0x3F, 0x7C0, 0xF800])]
#[case::one_each(8, 8, None, &[1, 2, 4, 8, 16, 32, 64, 128])]
#[case::too_few(2, 3, None, &[0x3, 0x3, 0x3])]
#[case::too_few_are_to_be_used(16, 3, Some(2), &[0x3, 0x3, 0x3])]
#[case::all_32(32, 2, None, &[0xFFFF, 0xFFFF_0000])]
#[case::by_the_thousand(1023, 2, None, &[u32::MAX, u32::MAX])]
fn workers_are_divided_where_they_suffice(
    #[case] built: u32,
    #[case] functions: u8,
    #[case] workers: Option<u32>,
    #[case] masks: &[u32],
) {
    let division = Division { queues: 8, functions, workers, ..Default::default() };
    let ports = Ports::divide(manned(built), &division).unwrap();
    let found: Vec<u32> = (0..functions).map(|function| ports.device().otherwise.masks[&function]).collect();
    assert_eq!(found, masks, "{found:x?}");
}

#[rstest]
#[case(Division { queues: 5, ..Default::default() },
       "model is not available: it was built with 4 queue pairs, and 5 were asked for")]
#[case(Division { queues: 4, functions: 3, ..Default::default() },
       "model is not available: it was built with 2 functions, and 3 were asked for")]
#[case(Division { workers: Some(2), ..Default::default() },
       "model is not available: it was built with 1 worker, and 2 were asked for")]
#[case(Division { queues: 0, ..Default::default() }, "queues is 0: it must be 1 to 16")]
#[case(Division { queues: 17, ..Default::default() }, "queues is 17: it must be 1 to 16")]
#[case(Division { functions: 0, ..Default::default() }, "functions is 0: it must be 1 to 16")]
#[case(Division { functions: 2, ..Default::default() },
       "functions is 2: it must be at most 1, the number of queue pairs")]
#[case(Division { queues: 4, row: 2, functions: 3, ..Default::default() },
       "functions is 3: it must be at most 2, the number of rows of queue pairs")]
#[case(Division { queues: 3, row: 2, ..Default::default() },
       "row is 2: it must be a divisor of 3, the number of queue pairs")]
#[case(Division { row: 0, ..Default::default() }, "row is 0: it must be a divisor of 1, the number of queue pairs")]
#[case(Division { workers: Some(0), ..Default::default() }, "workers is 0: it must be at least 1")]
#[case(Division { wait_states: 1 << 16, ..Default::default() }, "wait_states is 65536: it must be at most 65535")]
#[case(Division { queues: 4, bytes: usize::MAX / 3, ..Default::default() },
       "6148914691236517205 bytes of shared memory could not be mapped: the size overflows; ask for smaller regions")]
fn what_cannot_be_divided_is_told(#[case] division: Division, #[case] message: &str) {
    let error = Ports::divide(ModelPlatform::with_queues(4, 2).unwrap(), &division).err().unwrap();
    assert_eq!(error.to_string(), message);
}

#[rstest]
#[case(0, 1)]
#[case(17, 1)]
#[case(1, 0)]
#[case(1, 17)]
fn a_model_of_no_possible_size_is_told(#[case] queues: u8, #[case] functions: u8) {
    let error = ModelPlatform::with_queues(queues, functions).unwrap_err();
    assert!(matches!(error, DeviceError::Config { .. }), "{error}");
}

#[test]
fn a_port_is_given_out_once_and_again_when_it_is_dropped() {
    let config = small();
    let ports = divide(2, 1, &config);
    let message = |result: Result<QueuePort<ModelPlatform>, DeviceError>| result.err().unwrap().to_string();
    let first = ports.take(1).unwrap();
    assert_eq!(
        message(ports.take(1)),
        "model (queue pair 1 of function 0) is not available: somebody drives it"
    );
    assert_eq!(
        message(ports.take(2)),
        "model (queue pair 2 of function 0) is not available: the device was divided among fewer queue pairs"
    );
    drop(first);
    ports.take(1).unwrap();
}

/// R12: what a driver left behind is reset by the next, and holds up nobody.
#[rstest]
#[case::dropped(false)]
#[case::its_thread_died(true)]
fn r12_a_queue_pair_that_was_left_is_reset_by_the_next(#[case] dies: bool) {
    let config = small();
    let ports = divide(2, 2, &config);
    let mut other = Driver::new(ports.take(0).unwrap(), config.clone()).unwrap();
    let mut driver = Driver::new(ports.take(1).unwrap(), config.clone()).unwrap();
    let long = HwDesc::decode(1, 0, 16_000);
    let left = thread::spawn(move || {
        driver.submit(&[long, long, long]).unwrap();
        driver.platform_mut().advance(1).unwrap();
        assert!(!dies, "as it is meant to");
    });
    assert_eq!(left.join().is_err(), dies);
    other.submit(&[HwDesc::nop()]).unwrap();
    assert_eq!(drain(&mut other)[0].status, Status::Done as u8);

    let port = ports.take(1).unwrap();
    let mut next = Driver::new(port, config.clone()).unwrap();
    let mut old = vec![1; 64];
    next.tokens(0, &mut old).unwrap();
    assert_eq!(old, [0; 64], "memory of the driver before");
    assert_eq!(next.in_flight(), 0);
    let desc = HwDesc::decode(1, 0, 5).with_user_data(9);
    next.submit(&[desc]).unwrap();
    let ends: Vec<HwCompletion> = drain(&mut next).into_iter().map(HwCompletion::without_timing).collect();
    assert_eq!(ends, [Oracle::new(&config).answer(&desc).completion]);
}

#[test]
fn a_driver_sets_nothing_that_is_the_owners() {
    let config = small();
    let model = ModelPlatform::with_queues(2, 1).unwrap();
    let bytes = config.shared_bytes().unwrap();
    let division = Division { queues: 2, bytes, wait_states: 3, ..Default::default() };
    let ports = Ports::divide(model, &division).unwrap();
    let error = |config: QueueConfig| Driver::new(ports.take(0).unwrap(), config).err().unwrap().to_string();
    assert_eq!(
        error(config.clone()),
        "wait_states is 0: it must be 3, as the owner of model (queue pair 0 of function 0) has set it"
    );
    let config = QueueConfig { wait_states: 3, ..config };
    assert_eq!(
        error(QueueConfig { workers: Some(2), ..config.clone() }),
        "workers is 2: it must be 1, as the owner of model (queue pair 0 of function 0) has set it"
    );
    let mut driver = Driver::new(ports.take(0).unwrap(), config).unwrap();
    for register in
        [Register::FnWorkers, Register::QueueFunction, Register::Window0BaseLo, Register::WaitStates]
    {
        let error = driver.write(register, 1).unwrap_err();
        assert!(matches!(error, DeviceError::WriteRefused { .. }), "{register}: {error}");
    }
}

#[test]
fn more_memory_than_was_divided_is_refused() {
    let ports = divide(2, 1, &small());
    let config = QueueConfig { token_bytes: 1 << 17, ..small() };
    let error = Driver::new(ports.take(0).unwrap(), config).err().unwrap().to_string();
    assert!(error.contains("model (queue pair 0 of function 0) was given 77824 bytes"), "{error}");
}

#[test]
fn errors_name_queue_pair_and_function() {
    let config = QueueConfig { patience: 20, ..small() };
    let mutation: Mutation = "hang:0".parse().unwrap();
    let model = ModelPlatform::with_queues(4, 2).unwrap().with_mutation(mutation);
    let bytes = config.shared_bytes().unwrap();
    let ports =
        Ports::divide(model, &Division { queues: 4, functions: 2, bytes, ..Default::default() }).unwrap();
    let mut driver = Driver::new(ports.take(3).unwrap(), config).unwrap();
    let error = driver.write(Register::Doorbell, 1000).unwrap_err().to_string();
    assert!(
        error.starts_with("model (queue pair 3 of function 1): write of 0x000003e8 to DOORBELL"),
        "{error}"
    );
    driver.submit(&[HwDesc::nop()]).unwrap();
    let error = (0..1000).find_map(|_| driver.poll(&mut [HwCompletion::default()]).err()).expect("R15");
    let error = error.to_string();
    assert!(error.starts_with("model (queue pair 3 of function 1): a completion did not happen"), "{error}");
}

/// R15: a queue pair that the weights make wait is waited for, by a device that counts for each, and by one that does not.
#[test]
fn r15_the_others_work_is_no_hang() {
    the_others_work_is_no_hang(ModelPlatform::with_queues(4, 1).unwrap());
    the_others_work_is_no_hang(manned(1));
}

fn the_others_work_is_no_hang<D: Pages>(device: D) {
    let config =
        |weight| QueueConfig { sq_depth: 1 << 14, cq_depth: 1 << 14, weight, patience: 1, ..small() };
    let bytes = config(1).shared_bytes().unwrap();
    let ports = Ports::divide(device, &Division { queues: 4, bytes, ..Default::default() }).unwrap();
    let mut others: Vec<_> =
        (1..4).map(|queue| Driver::new(ports.take(queue).unwrap(), config(255)).unwrap()).collect();
    let mut own = Driver::new(ports.take(0).unwrap(), config(1)).unwrap();
    for other in &mut others {
        assert_eq!(other.submit(&vec![HwDesc::nop(); 1 << 14]).unwrap(), 1 << 14);
    }
    assert_eq!(own.submit(&[HwDesc::nop(); 10]).unwrap(), 10);
    assert_eq!(drain(&mut own).len(), 10, "R3");
}

/// One of its queue pairs is never told of its descriptors, as if the bus withheld a response.
struct Withheld {
    queue: u8,
    /// Whether that queue pair stays active, once it is.
    stays: bool,
}

impl Otherwise for Withheld {
    const NAME: &str = "withheld";

    fn takes(&mut self, place: Place, register: Register, value: u32) -> bool {
        let is = register == Register::Doorbell || self.stays && register == Register::Control && value == 0;
        is && place.queue == self.queue
    }

    fn before_advance(&self) {
        if self.stays {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

fn withheld(queue: u8) -> Ports<Double<Withheld>> {
    let model = ModelPlatform::with_queues(2, 2).unwrap();
    let bytes = QueueConfig { token_bytes: 1 << 22, ..small() }.shared_bytes().unwrap();
    let division = Division { queues: 2, functions: 2, bytes, ..Default::default() };
    Ports::divide(Double { model, otherwise: Withheld { queue, stays: false } }, &division).unwrap()
}

/// R15: a wait for a queue pair whose response is withheld ends, however much another function decodes.
#[test]
fn r15_the_others_tokens_extend_no_wait_for_ever() {
    let ports = withheld(1);
    let config = QueueConfig { token_bytes: 1 << 22, patience: 1, ..small() };
    let mut drivers =
        ports.take_all().unwrap().into_iter().map(|port| Driver::new(port, config.clone()).unwrap());
    let (mut other, mut own) = (drivers.next().unwrap(), drivers.next().unwrap());
    assert_eq!(own.submit(&[HwDesc::decode(1, 0, 8)]).unwrap(), 1);
    let mut out = [HwCompletion::default(); 16];
    let mut polls = 0;
    let error = loop {
        polls += 1;
        assert!(polls < 10_000, "the wait has no end");
        other.submit(&[HwDesc::decode(1, 0, 1 << 20)]).unwrap();
        other.collect(&mut out).unwrap();
        if let Err(error) = own.poll(&mut out) {
            break error;
        }
    };
    assert!(matches!(error, DeviceError::Timeout(_)), "{error}");
    assert!(polls > 500, "others may have the workers for a while, and had them for {polls} advances");
}

/// A queue pair that never stops keeps the drivers of the others from nothing while it is waited for.
#[test]
fn others_have_the_device_while_a_queue_pair_does_not_stop() {
    let ports = withheld(1);
    let mut driver = Driver::new(ports.take(0).unwrap(), small()).unwrap();
    // Active, and left by a driver that was dropped.
    let left = Driver::new(ports.take(1).unwrap(), small()).unwrap();
    ports.device().otherwise.stays = true;
    drop(left);
    let is_over = AtomicBool::new(false);
    let (error, done) = thread::scope(|scope| {
        let takes = scope.spawn(|| {
            let error = ports.take(1).err().expect("it never stops");
            is_over.store(true, Ordering::Release);
            error.to_string()
        });
        let mut done = 0;
        while !is_over.load(Ordering::Acquire) {
            driver.submit(&[HwDesc::nop()]).unwrap();
            done += drain(&mut driver).len();
        }
        (takes.join().unwrap(), done)
    });
    assert!(
        error.starts_with("withheld (queue pair 1 of function 1)") && error.contains("still active"),
        "{error}"
    );
    assert!(done > 50, "{done} descriptors beside it");
}

/// Turns by weight: within any stretch each queue pair has its share, to the descriptor.
#[rstest]
#[case(&[1, 1])]
#[case(&[3, 1])]
#[case(&[1, 2, 7, 255])]
#[case(&[5; 16])]
fn turns_are_exactly_the_weights(#[case] weights: &[u32], #[values(1, 100, STEP_TOKENS)] tokens: u32) {
    let shares: u32 = weights.iter().sum();
    let rounds = (10_000 / tokens.min(100)).div_ceil(shares).max(2);
    let depth = (rounds * 255).next_power_of_two().min(1 << 16);
    let config = |weight| QueueConfig { sq_depth: depth, cq_depth: depth, weight, ..small() };
    let count = weights.len() as u8;
    let ports = divide(count, 1, &config(1));
    let mut drivers: Vec<_> = ports
        .take_all()
        .unwrap()
        .into_iter()
        .zip(weights)
        .map(|(port, &weight)| Driver::new(port, config(weight)).unwrap())
        .collect();
    for (driver, &weight) in drivers.iter_mut().zip(weights) {
        let descs = vec![HwDesc::decode(1, 0, tokens); (rounds * weight) as usize];
        assert_eq!(driver.submit(&descs).unwrap(), descs.len());
    }
    // Who has each completion, in order.
    let order = weights.iter().enumerate().flat_map(|(queue, &weight)| vec![queue; weight as usize]);
    let order: Vec<usize> = order.collect();
    let mut tails = vec![0; weights.len()];
    for step in 0..rounds * shares {
        ports.device().advance(1).unwrap();
        let now: Vec<u32> = drivers.iter_mut().map(|driver| driver.read(Register::CqTail).unwrap()).collect();
        let turn = order[(step % shares) as usize];
        tails[turn] += 1;
        assert_eq!(now, tails, "completion {step}, of weights {weights:?}");
    }
}

/// However long the rollouts of the others, a queue pair waits for no more than their weights in steps.
#[test]
fn a_long_rollout_stops_nobody() {
    let long = 1 << 20;
    let config = QueueConfig { token_bytes: 4 * u64::from(long), ..small() };
    let ports = divide(4, 2, &config);
    let mut drivers = drivers(&ports, &config);
    let descs: Vec<HwDesc> = (0..3).map(|k| HwDesc::decode(7, 0, long - k)).collect();
    for (driver, desc) in drivers.iter_mut().zip(&descs) {
        driver.submit(&[*desc]).unwrap();
    }
    for round in 0..50 {
        let before = drivers[3].counter(Counter::Tokens).unwrap();
        drivers[3].submit(&[HwDesc::nop()]).unwrap();
        ports.device().advance_for(drivers[3].platform().place(), 1).unwrap();
        assert_eq!(drain(&mut drivers[3]).len(), 1, "round {round}");
        let between = drivers[3].counter(Counter::Tokens).unwrap() - before;
        assert!(between <= 3 * u64::from(STEP_TOKENS), "round {round}: {between} tokens of the others first");
    }
    // They end as they would alone.
    for (driver, desc) in drivers.iter_mut().zip(&descs) {
        let answer = Oracle::new(&QueueConfig { length_limit: long, ..config.clone() }).answer(desc);
        assert_eq!(drain(driver)[0].without_timing(), answer.completion);
        let mut tokens = vec![0; answer.tokens.len()];
        driver.tokens(0, &mut tokens).unwrap();
        assert!(tokens == answer.tokens);
    }
}

#[test]
fn a_reset_of_a_function_ends_its_queue_pairs_alone() {
    let config = small();
    let ports = divide(4, 2, &config);
    let mut drivers = drivers(&ports, &config);
    for driver in &mut drivers {
        driver.submit(&[HwDesc::decode(1, 0, 16_000)]).unwrap();
        driver.platform_mut().advance(1).unwrap();
    }
    drivers[1].write(Register::FnControl, FunctionControl::RESET.bits()).unwrap();
    for (queue, driver) in drivers.iter_mut().enumerate() {
        let state = State::from_bits_retain(driver.read(Register::State).unwrap());
        assert_eq!(state.contains(State::ACTIVE), queue % 2 == 0, "R12: queue pair {queue}");
    }
    for driver in [0, 2] {
        assert_eq!(drain(&mut drivers[driver])[0].final_seq_len, 16_000);
    }
}

#[test]
fn a_drain_is_noticed_by_whoever_looks() {
    let config = small();
    let ports = divide(2, 1, &config);
    let mut drivers = drivers(&ports, &config);
    drivers[0].submit(&[HwDesc::nop()]).unwrap();
    drivers[0].write(Register::Control, (Control::ENABLE | Control::DRAIN).bits()).unwrap();
    ports.device().advance(1).unwrap();
    // The other queue pair of the function sees none active but itself.
    drivers[1].disable().unwrap();
    drivers[1].write(Register::LengthLimit, 5).unwrap();
    assert_eq!(drivers[0].read(Register::State).unwrap(), State::IDLE.bits());
}

#[test]
fn shards_of_one_device_are_counted_once() {
    let config = small();
    let pair = || -> Vec<Box<dyn Device>> {
        let ports = divide(2, 1, &config);
        drivers(&ports, &config).into_iter().map(|driver| Box::new(driver) as Box<dyn Device>).collect()
    };
    let alone = Box::new(Driver::new(ModelPlatform::new(), config.clone()).unwrap());
    let shards: Vec<Box<dyn Device>> =
        pair().into_iter().chain(pair()).chain([alone as Box<dyn Device>]).collect();
    let mut device = Sharded::new("five", shards).unwrap();
    for shard in 0..5 {
        let shard = device.shard_mut(shard);
        shard.submit(&[HwDesc::decode(1, 0, 10)]).unwrap();
        assert_eq!(drain(shard).len(), 1);
    }
    let counters = device.counters().unwrap();
    assert_eq!(counters.get(Counter::Completions), 5);
    assert_eq!(counters.get(Counter::Tokens), 50);
    let queues = device.queue_counters().unwrap();
    let each =
        queues.iter().map(|queue| (queue.get(QueueCounter::Completions), queue.get(QueueCounter::Tokens)));
    assert_eq!(each.collect::<Vec<_>>(), [(1, 10); 5]);
}

#[test]
fn drivers_run_on_threads_of_their_own() {
    let config = QueueConfig { sq_depth: 16, cq_depth: 8, ..small() };
    let ports = divide(8, 4, &config);
    let oracle = Oracle::new(&config);
    thread::scope(|scope| {
        for mut driver in drivers(&ports, &config) {
            let oracle = &oracle;
            scope.spawn(move || {
                let mut out = [HwCompletion::default(); 8];
                for round in 0..200u32 {
                    let descs: Vec<HwDesc> = (0..8u32)
                        .map(|k| {
                            let desc = HwDesc::decode(k, round, 1 + (round * k) % 50).with_seed(round);
                            desc.with_user_data(k.into()).with_delta_offset(256 * u64::from(k))
                        })
                        .collect();
                    assert_eq!(driver.submit(&descs).unwrap(), 8);
                    let mut left = 8;
                    while left > 0 {
                        let taken = driver.poll(&mut out).unwrap();
                        for end in &out[..taken] {
                            let answer = oracle.answer(&descs[end.user_data as usize]);
                            assert_eq!(end.without_timing(), answer.completion, "R6");
                            let mut tokens = vec![0; answer.tokens.len()];
                            driver.tokens(256 * end.user_data, &mut tokens).unwrap();
                            assert_eq!(tokens, answer.tokens, "R6");
                        }
                        left -= taken;
                    }
                }
            });
        }
    });
}

/// Each queue pair in halves, each half on a thread of its own.
#[test]
fn a_port_splits_like_any_platform() {
    // Whoever submits may be held up between telling and ringing for as long as the system likes.
    let config = QueueConfig { patience: u32::MAX, ..small() };
    let deadline = Instant::now() + Duration::from_secs(60);
    let ports = divide(2, 2, &config);
    thread::scope(|scope| {
        for driver in drivers(&ports, &config) {
            let (mut submitter, mut completer) = driver.split().unwrap();
            scope.spawn(move || {
                for k in 0..1000 {
                    let desc = HwDesc::decode(k, 0, 1 + k % 9).with_user_data(k.into());
                    while submitter.submit(&[desc]).unwrap() == 0 {
                        assert!(Instant::now() < deadline, "descriptor {k}");
                        thread::yield_now();
                    }
                }
            });
            scope.spawn(move || {
                let mut out = [HwCompletion::default(); 8];
                let mut next = 0;
                while next < 1000 {
                    assert!(completer.wait(deadline).unwrap(), "completion {next}");
                    let taken = completer.collect(&mut out).unwrap();
                    for end in &out[..taken] {
                        assert_eq!((end.user_data, end.status), (next, Status::Done as u8));
                        next += 1;
                    }
                }
            });
        }
    });
}

/// What one queue pair reads of the function's event ring while it is disabled is released once it is enabled again: until then another
/// queue pair may have filled the ring.
#[test]
fn r23_events_that_were_read_while_disabled_are_released() {
    let config = QueueConfig { event_slots: 8, life_events: true, ..small() };
    let ports = divide(2, 1, &config);
    let mut drivers = drivers(&ports, &config);
    let [owner, other] = &mut drivers[..] else { panic!() };
    let run = |other: &mut Driver<_>, count: u64| {
        for user_data in 0..count {
            other.submit(&[HwDesc::decode(1, 0, 2).with_user_data(user_data)]).unwrap();
            drain(other);
        }
    };
    let mut events = [HwEvent::default(); 32];
    owner.disable().unwrap();
    run(other, 20);
    assert!(owner.events(&mut events).unwrap() > 0, "the ring runs on");
    owner.enable().unwrap();
    owner.events(&mut events).unwrap();
    run(other, 4);
    assert_eq!(owner.events(&mut events).unwrap(), 4);
}

/// R3: completions that were there when their release was refused come once, and the refusal with the next call.
#[rstest]
fn r03_a_refused_release_loses_no_completion(#[values(false, true)] splits: bool) {
    let config = small();
    let ports = divide(2, 1, &config);
    let mut drivers = drivers(&ports, &config).into_iter();
    let mut driver = drivers.next().unwrap();
    let descs = [1, 2, 3].map(|id| HwDesc::stop(id).with_user_data(id.into()));
    assert_eq!(driver.submit(&descs).unwrap(), 3);
    for _ in 0..10 {
        driver.platform_mut().advance(1).unwrap();
    }
    let reset = |function| {
        let place = Place { function, queue: 0 };
        ports.device().write_at(place, Register::FnControl, FunctionControl::RESET.bits()).unwrap();
    };
    let mut out = [HwCompletion::default(); 8];
    let (taken, error) = if splits {
        let (_submitter, mut completer) = driver.split().unwrap();
        reset(0);
        (completer.collect(&mut out).unwrap(), completer.collect(&mut out).unwrap_err())
    } else {
        reset(0);
        let taken = driver.collect(&mut out).unwrap();
        assert_eq!(driver.in_flight(), 0);
        (taken, driver.collect(&mut out).unwrap_err())
    };
    assert_eq!((taken, out.map(|end| end.user_data)), (3, [1, 2, 3, 0, 0, 0, 0, 0]));
    let refused = matches!(error, DeviceError::Refused { .. } | DeviceError::WriteRefused { .. });
    assert!(refused, "{error}");
}

/// FN_WORKERS of a device with more than 32 workers is a number of bits, of which all are no limit: 32 of them cannot be asked for.
#[rstest]
#[case(Some(31), Ok(u32::MAX >> 1))]
#[case(None, Ok(u32::MAX))]
#[case(Some(2047), Ok(u32::MAX))]
#[case(
    Some(32),
    Err("workers is 32: it must be 1 to 31 where a device has 2047; leave it out to use all of them")
)]
#[case(
    Some(100),
    Err("workers is 100: it must be 1 to 31 where a device has 2047; leave it out to use all of them")
)]
fn a_number_of_workers_that_would_be_all_is_refused(
    #[case] workers: Option<u32>,
    #[case] expected: Result<u32, &str>,
) {
    let division = Division { workers, bytes: small().shared_bytes().unwrap(), ..Default::default() };
    let divided = Ports::divide(manned(2047), &division);
    let found = divided.map(|ports| ports.device().read_at(Place::FIRST, Register::FnWorkers).unwrap());
    assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
    if workers.is_some_and(|workers| workers > 32) {
        return;
    }
    // A driver that has the device for itself.
    let driver = Driver::new(manned(2047), QueueConfig { workers, ..small() });
    let found = driver.map(|mut driver| driver.read(Register::FnWorkers).unwrap());
    assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
}
