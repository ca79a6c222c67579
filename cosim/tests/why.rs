//! Planted faults: `Device::why` and the driver's time-out name the root of each on the golden model and on the RTL, and who waits for
//! whom.

use std::time::{Duration, Instant};

use doorbell_contract::{
    Control, DescFlags, FunctionControl, HwCompletion, HwDesc, MessageControl, Register,
};
use doorbell_cosim::{RtlConfig, RtlPlatform, Weather};
use doorbell_host::why::{Cause, Root, Why};
use doorbell_host::{Awaited, Device, DeviceError, Driver, Platform, QueueConfig, SharedMemory};
use doorbell_verify::ModelPlatform;
use rstest::rstest;

/// A device, as it is or with writes that get lost.
struct Planted {
    device: Kind,
    /// Writes of these registers do not come to the device.
    loses: Vec<Register>,
    /// A write of this register comes with another value.
    turns: Option<(Register, u32)>,
}

enum Kind {
    Model(Box<ModelPlatform>),
    Rtl(Box<RtlPlatform>),
}

impl Planted {
    fn inner(&mut self) -> &mut dyn Platform {
        match &mut self.device {
            Kind::Model(model) => &mut **model,
            Kind::Rtl(rtl) => &mut **rtl,
        }
    }

    /// The bus answers no reads, or no writes, from here on.
    fn withhold(&mut self, reads: bool, writes: bool) {
        match &mut self.device {
            Kind::Model(model) => model.withhold(vec![0..=u64::MAX]),
            Kind::Rtl(rtl) => {
                let weather =
                    Weather { withholds_reads: reads, withholds_writes: writes, ..Weather::default() };
                rtl.set_weather(&weather).unwrap();
            }
        }
    }
}

impl Platform for Planted {
    fn name(&self) -> &str {
        match &self.device {
            Kind::Model(model) => model.name(),
            Kind::Rtl(rtl) => rtl.name(),
        }
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.inner().map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        if self.loses.contains(&register) {
            return Ok(());
        }
        let value = self.turns.filter(|turn| turn.0 == register).map_or(value, |turn| turn.1);
        self.inner().write_register(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.inner().read_register(register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.inner().advance(want)
    }

    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        self.inner().wait(awaited, deadline)
    }
}

type Planter = fn() -> Kind;

fn model() -> Kind {
    Kind::Model(Box::new(ModelPlatform::new()))
}

fn rtl() -> Kind {
    let config = RtlConfig { workers: 4, changes: true, ..RtlConfig::default() };
    Kind::Rtl(Box::new(RtlPlatform::new(&config).unwrap()))
}

fn open(device: Planter, config: QueueConfig) -> Driver<Planted> {
    let planted = Planted { device: device(), loses: vec![], turns: None };
    Driver::new(planted, QueueConfig { patience: 20, ..config }).unwrap()
}

fn decode(rollout: u32) -> HwDesc {
    HwDesc::decode(rollout, 4, 8).with_delta_offset(64 * u64::from(rollout)).with_user_data(rollout.into())
}

/// Polls until the driver gives up, and says why: within ten seconds (R15).
fn gives_up(device: &mut Driver<Planted>) -> Why {
    let begun = Instant::now();
    let mut out = [HwCompletion::default(); 16];
    loop {
        match device.poll(&mut out) {
            Ok(_) => assert!(begun.elapsed() < Duration::from_secs(10), "it never gives up"),
            Err(DeviceError::Timeout(timeout)) => {
                let text = timeout.to_string();
                let why = timeout.why.expect("the wait was for a completion");
                assert!(text.contains(&format!("why: {}", why.root)), "{text}");
                assert_eq!(device.why().unwrap(), [(0, why.clone())], "asked again it says the same");
                return why;
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// Lets the device run without taking completions, and says why it does not go on.
fn asked(device: &mut Driver<Planted>) -> Why {
    for _ in 0..20 {
        device.platform_mut().advance(1).unwrap();
    }
    let mut all = device.why().unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0).1
}

fn names(why: &Why, parts: &[&str]) {
    let root = why.root.to_string();
    for part in parts {
        assert!(root.contains(part), "{part} is not in: {root}");
    }
}

#[rstest]
fn r01_a_doorbell_that_got_lost(#[values(model, rtl)] device: Planter) {
    let mut device = open(device, QueueConfig::default());
    device.submit(&[decode(0)]).unwrap();
    while device.poll(&mut [HwCompletion::default()]).unwrap() == 0 {}
    device.platform_mut().loses.push(Register::Doorbell);
    device.submit(&[decode(1), decode(2)]).unwrap();
    let why = gives_up(&mut device);
    assert_eq!(why.root, Root::LostDoorbell { wrote: 3, has: 1 });
    assert!(why.waiting.iter().all(|waiting| waiting.cause == Cause::Unread), "{why:?}");
}

#[rstest]
fn r04_a_release_that_got_lost(#[values(model, rtl)] device: Planter) {
    let mut device = open(device, QueueConfig { cq_depth: 4, ..QueueConfig::default() });
    device.platform_mut().loses.push(Register::CqHead);
    device.submit(&(0..8).map(decode).collect::<Vec<_>>()).unwrap();
    assert_eq!(gives_up(&mut device).root, Root::LostRelease { wrote: 4, has: 0 });
}

#[rstest]
fn r04_a_host_that_takes_nothing(#[values(model, rtl)] device: Planter) {
    let mut device = open(device, QueueConfig { cq_depth: 4, ..QueueConfig::default() });
    device.submit(&(0..8).map(decode).collect::<Vec<_>>()).unwrap();
    let why = asked(&mut device);
    assert_eq!(why.root, Root::FullQueue { completions: 4 });
    // Four have completions that nobody took: they wait for nothing.
    let indices: Vec<u32> = why.waiting.iter().map(|waiting| waiting.index).collect();
    assert_eq!((indices.len() as u64 + why.unknown, indices.iter().all(|&index| index < 8)), (4, true));
}

#[rstest]
fn r04_a_completion_that_was_not_taken(#[values(model, rtl)] device: Planter) {
    let mut device = open(device, QueueConfig::default());
    device.submit(&[decode(0)]).unwrap();
    let why = asked(&mut device);
    assert_eq!((why.root, why.waiting.len()), (Root::Untaken { from: 0 }, 0));
}

#[rstest]
fn r03_a_completion_that_went_elsewhere(#[values(model, rtl)] device: Planter) {
    let mut device = open(device, QueueConfig { token_bytes: 1 << 16, ..QueueConfig::default() });
    device.disable().unwrap();
    let tokens = device.token_regions()[0].bus_address() as u32;
    device.platform_mut().turns = Some((Register::CqBaseLo, tokens));
    device.enable().unwrap();
    device.submit(&[decode(100)]).unwrap();
    let why = gives_up(&mut device);
    let Root::Setting { register: Register::CqBaseLo, has, .. } = why.root else { panic!("{why}") };
    assert_eq!(has, tokens);
    // It has completed, wherever its completion is.
    assert_eq!((why.waiting.len(), why.unknown), (0, 0));
}

#[rstest]
fn r12_a_queue_pair_that_somebody_disabled(#[values(model, rtl)] device: Planter) {
    let mut device = open(device, QueueConfig::default());
    device.submit(&[decode(0)]).unwrap();
    device.platform_mut().write_register(Register::Control, Control::empty().bits()).unwrap();
    assert_eq!(gives_up(&mut device).root, Root::Inactive);
}

#[rstest]
fn r14_a_vector_that_is_masked(#[values(model, rtl)] device: Planter) {
    let mut device = open(device, QueueConfig::default());
    device.arm().unwrap();
    device.write(Register::MessageControl, MessageControl::MASK.bits()).unwrap();
    device.submit(&[decode(0).with_flags(DescFlags::INTERRUPT)]).unwrap();
    assert!(!device.wait(Instant::now() + Duration::from_millis(50)).unwrap(), "the message came");
    assert_eq!(asked(&mut device).root, Root::Masked);
}

#[rstest]
fn r14_a_message_that_went_elsewhere(#[values(model, rtl)] device: Planter) {
    let mut device = open(device, QueueConfig { token_bytes: 1 << 16, ..QueueConfig::default() });
    device.write(Register::MessageAddressLo, device.token_regions()[0].bus_address() as u32).unwrap();
    device.arm().unwrap();
    device.submit(&[decode(100).with_flags(DescFlags::INTERRUPT)]).unwrap();
    assert!(!device.wait(Instant::now() + Duration::from_millis(50)).unwrap(), "the message came");
    assert_eq!(asked(&mut device).root, Root::LostMessage { faults: "none".into() });
}

#[rstest]
fn r14_completions_that_do_not_ask(#[values(model, rtl)] device: Planter) {
    let mut device = open(device, QueueConfig::default());
    device.arm().unwrap();
    device.submit(&[decode(0)]).unwrap();
    assert!(!device.wait(Instant::now() + Duration::from_millis(50)).unwrap(), "the message came");
    assert_eq!(asked(&mut device).root, Root::Unasked { arm: 0 });
}

/// A host that sleeps takes nothing: what keeps it asleep is the root, not the queue that fills meanwhile.
#[rstest]
#[case::masked(DescFlags::INTERRUPT, "the message of its interrupt is held", "R14")]
#[case::unasked(DescFlags::empty(), "none at or above ARM (0x0) asks", "R14")]
fn r14_a_host_that_nobody_wakes_does_not_fill_the_queue(
    #[values(model, rtl)] device: Planter,
    #[case] flags: DescFlags,
    #[case] text: &str,
    #[case] rule: &str,
) {
    let mut device = open(device, QueueConfig { cq_depth: 4, ..QueueConfig::default() });
    device.arm().unwrap();
    device.write(Register::MessageControl, MessageControl::MASK.bits()).unwrap();
    device.submit(&(0..8).map(|rollout| decode(rollout).with_flags(flags)).collect::<Vec<_>>()).unwrap();
    assert!(!device.wait(Instant::now() + Duration::from_millis(50)).unwrap(), "the message came");
    names(&asked(&mut device), &[text, rule]);
}

#[rstest]
fn r14_an_arming_that_got_lost(#[values(model, rtl)] device: Planter, #[values(false, true)] is_wrong: bool) {
    let mut device = open(device, QueueConfig::default());
    device.submit(&[decode(0)]).unwrap();
    while device.poll(&mut [HwCompletion::default()]).unwrap() == 0 {}
    match is_wrong {
        true => device.platform_mut().turns = Some((Register::Arm, 2)),
        false => device.platform_mut().loses.push(Register::Arm),
    }
    device.arm().unwrap();
    device.submit(&[decode(1).with_flags(DescFlags::INTERRUPT)]).unwrap();
    assert!(!device.wait(Instant::now() + Duration::from_millis(50)).unwrap(), "the message came");
    let has = if is_wrong { "ARM is 0x2" } else { "ARM is 0x0" };
    names(&asked(&mut device), &[has, "the driver wrote 0x1", "R14"]);
}

/// Its first arming is at 0, as ARM after a reset is.
#[rstest]
fn r14_a_first_arming_that_got_lost(#[values(model, rtl)] device: Planter) {
    let mut device = open(device, QueueConfig::default());
    device.platform_mut().loses.push(Register::Arm);
    device.arm().unwrap();
    device.submit(&[decode(0).with_flags(DescFlags::INTERRUPT)]).unwrap();
    assert!(!device.wait(Instant::now() + Duration::from_millis(50)).unwrap(), "the message came");
    names(&asked(&mut device), &["a write of ARM", "R14"]);
}

/// What the driver set, and the device has otherwise, is the root of all that follows.
#[rstest]
#[case::start(Register::CqStart, 16, "CQ_START is 0x10", "the driver wrote 0x0 (R13)")]
#[case::size(Register::CqSize, 8, "CQ_SIZE is 0x8", "the driver wrote 0x10 (R4)")]
fn r13_a_setting_that_the_device_has_otherwise(
    #[values(model, rtl)] device: Planter,
    #[case] register: Register,
    #[case] value: u32,
    #[case] has: &str,
    #[case] wrote: &str,
) {
    let mut device = open(device, QueueConfig { cq_depth: 16, ..QueueConfig::default() });
    device.disable().unwrap();
    device.platform_mut().turns = Some((register, value));
    device.enable().unwrap();
    device.submit(&(0..12).map(decode).collect::<Vec<_>>()).unwrap();
    names(&gives_up(&mut device), &[has, wrote]);
}

/// The write that is refused is a symptom.
#[rstest]
#[case::reset("is disabled", "R12")]
#[case::drains("drains", "R12")]
fn r12_a_write_that_is_refused_names_who_is_gone(
    #[values(model, rtl)] device: Planter,
    #[case] text: &str,
    #[case] rule: &str,
    #[values(false, true)] has_completed: bool,
) {
    let mut device = open(device, QueueConfig { wait_states: 50, ..QueueConfig::default() });
    device.submit(&[decode(0)]).unwrap();
    if has_completed {
        asked(&mut device);
    }
    let platform = device.platform_mut();
    if text == "drains" {
        let drain = Control::ENABLE | Control::DRAIN;
        platform.write_register(Register::Control, drain.bits()).unwrap();
    } else {
        platform.write_register(Register::FnControl, FunctionControl::RESET.bits()).unwrap();
    }
    let error = match (has_completed, text) {
        // A drain ends, with all that was published.
        (true, "drains") => return,
        // The completion comes once, and the refused release with the next call.
        (true, _) => {
            let mut out = [HwCompletion::default()];
            assert_eq!(device.poll(&mut out).unwrap(), 1);
            device.poll(&mut out).unwrap_err()
        }
        (false, _) => device.submit(&[decode(1)]).unwrap_err(),
    };
    let error = error.to_string();
    assert!(error.contains(text) && error.contains(rule) && !error.contains("out of range"), "{error}");
}

/// The device reads a slot that nobody wrote, and its completion cannot be.
#[rstest]
fn r01_a_doorbell_that_went_too_far(#[values(rtl)] device: Planter) {
    let mut device = open(device, QueueConfig::default());
    device.platform_mut().turns = Some((Register::Doorbell, 4));
    device.submit(&(0..3).map(decode).collect::<Vec<_>>()).unwrap();
    let mut out = [HwCompletion::default(); 16];
    let error = loop {
        if let Err(error) = device.poll(&mut out) {
            break error.to_string();
        }
    };
    let names = |text| assert!(error.contains(text), "{error}");
    ["broke R1:", "DOORBELL is 0x4", "the driver wrote 0x3"].into_iter().for_each(names);
}

/// The oldest waits for no other descriptor (R5, R7), whatever stands behind it.
#[rstest]
#[case::two(2, None)]
#[case::fence(4, Some(2))]
#[case::many(12, None)]
fn r15_a_short_write_that_is_not_answered(
    #[values(rtl)] device: Planter,
    #[case] count: u32,
    #[case] fence: Option<u32>,
) {
    let mut device = open(device, QueueConfig { cq_depth: 4, ..QueueConfig::default() });
    device.platform_mut().withhold(false, true);
    let flags = |rollout| if fence == Some(rollout) { DescFlags::FENCE } else { DescFlags::empty() };
    let batch: Vec<HwDesc> = (0..count).map(|rollout| decode(rollout).with_flags(flags(rollout))).collect();
    device.submit(&batch).unwrap();
    let why = gives_up(&mut device);
    names(&why, &["has not answered", "(R15)"]);
    let text = why.root.to_string();
    assert!(!text.contains("R7") && !text.contains("R5"), "{text}");
}

#[rstest]
fn r24_a_queue_pair_that_died(#[values(model, rtl)] device: Planter) {
    // On the model a tick is an advance without work.
    let planted = Planted { device: device(), loses: vec![], turns: None };
    let mut device = Driver::new(planted, QueueConfig { patience: 1000, ..QueueConfig::default() }).unwrap();
    device.disable().unwrap();
    device.write(Register::BusTimeout, 500).unwrap();
    device.enable().unwrap();
    device.platform_mut().withhold(true, false);
    device.submit(&[decode(0)]).unwrap();
    let Root::Dead(faults) = gives_up(&mut device).root else { panic!("it is dead") };
    assert!(faults.contains("BUS_TIMEOUT"), "{faults}");
}

#[rstest]
fn r15_a_read_that_is_not_answered(#[values(model, rtl)] device: Planter) {
    let mut device = open(device, QueueConfig::default());
    device.platform_mut().withhold(true, false);
    device.submit(&[decode(0), decode(1)]).unwrap();
    assert_eq!(gives_up(&mut device).root, Root::Unread { from: 0, to: 2 });
}

#[rstest]
fn r15_a_write_that_is_not_answered(#[values(rtl)] device: Planter) {
    let mut device = open(device, QueueConfig::default());
    device.platform_mut().withhold(false, true);
    // More than the buffers of the workers hold.
    let long =
        |rollout| HwDesc { max_tokens: 4000, ..decode(0) }.with_delta_offset(16_384 * u64::from(rollout));
    let batch: Vec<HwDesc> = (0..4).map(|rollout| HwDesc { rollout_id: rollout, ..long(rollout) }).collect();
    device.submit(&batch).unwrap();
    assert_eq!(gives_up(&mut device).root, Root::WritePort);
}

#[rstest]
fn r15_a_worker_in_wait_states(#[values(rtl)] device: Planter) {
    let config = QueueConfig { wait_states: 65_535, ..QueueConfig::default() };
    let mut device = Driver::new(
        Planted { device: device(), loses: vec![], turns: None },
        QueueConfig { patience: 3, ..config },
    )
    .unwrap();
    device.submit(&[decode(0)]).unwrap();
    assert_eq!(gives_up(&mut device).root, Root::WaitStates);
}

/// R5, R7, R16 and R17: the chain from the youngest to the one that runs, on a device that reads ahead.
#[rstest]
fn who_waits_for_whom_is_told_down_to_the_root(#[values(rtl)] device: Planter) {
    let config = QueueConfig { wait_states: 65_535, workers: Some(2), ..QueueConfig::default() };
    let mut device = Driver::new(
        Planted { device: device(), loses: vec![], turns: None },
        QueueConfig { patience: 3, ..config },
    )
    .unwrap();
    let member = decode(3).with_flags(DescFlags::COW_PREFIX).with_member(9, 0);
    let fence = decode(4).with_flags(DescFlags::FENCE);
    let prefill = HwDesc { rollout_id: 50, ..HwDesc::open_group(9, 4, 1) }.with_user_data(50);
    let batch = [decode(0), decode(1), prefill, decode(0), member, fence, decode(5)];
    let batch: Vec<HwDesc> = batch.iter().zip(100..).map(|(desc, name)| desc.with_user_data(name)).collect();
    device.submit(&batch).unwrap();
    let why = gives_up(&mut device);
    let causes: Vec<Cause> = why.waiting.iter().map(|waiting| waiting.cause).collect();
    let expected = [
        Cause::Ready,
        Cause::Ready,
        Cause::Worker,
        Cause::Order { after: 0 },
        Cause::Prefill { at: 2 },
        Cause::Earlier { last: 4 },
        Cause::Fence { at: 5 },
    ];
    assert_eq!((why.root.clone(), causes, why.unknown), (Root::WaitStates, expected.to_vec(), 0));
    let chain: Vec<u32> = why.chain().iter().map(|waiting| waiting.index).collect();
    assert_eq!(chain, [6, 5, 4, 2], "{why}");
}
