//! Doorbell's devices by name: [`Kind::open`] opens one with [`Settings`], which may come from text.
//!
//! ```
//! use doorbell_devices::{Kind, Settings};
//! use doorbell_host::contract::{HwCompletion, HwDesc};
//!
//! let settings: Settings = "sq_depth=64 token_bytes=65536".parse()?;
//! let mut device = Kind::parse("model")?.open(&settings)?;
//! device.submit(&[HwDesc::decode(1, 0, 16)])?;
//! let mut completions = [HwCompletion::default(); 8];
//! while device.poll(&mut completions)? == 0 {}
//! assert_eq!(completions[0].final_seq_len, 16);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::ops::RangeInclusive;

use doorbell_host::ports::QueuePort;
use doorbell_host::{
    Device, DeviceError, Division, Driver, Pages, Placement, Platform, Ports, QueueConfig, Sharded,
};
use doorbell_verify::ModelPlatform;
use doorbell_verify::model::{BadMutation, Mutation};

mod chaos;
#[cfg(feature = "vfio")]
mod functions;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(feature = "gpu")]
pub use doorbell_gpu::{GpuInfo, describe as describe_gpus};
pub mod machine;
#[cfg(feature = "rtl")]
pub mod rtl;
mod settings;

pub use chaos::Shape;
#[cfg(feature = "vfio")]
pub use functions::{Served, pcie_functions};
pub use settings::{cycles, gpus, ranges};

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The golden model.
    Model,
    /// The verilated RTL.
    Rtl,
    /// The persistent CUDA kernel.
    Gpu,
    /// The function of a device that another process serves at a socket.
    VfioUser,
    /// A function of PCI Express in this machine, bound to vfio-pci.
    Pcie,
}

/// What a device is opened with. Reads from text as `key=value` pairs, apart by blanks or commas; see
/// [`Settings::KEYS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Each queue pair.
    pub queue: QueueConfig,
    /// Queue pairs of the device, 1 to 16; of each GPU. Several are one device as [`Sharded`] makes them one.
    pub queues: u8,
    /// Functions that the queue pairs are spread over, at most as many as those. Each has memory of its own, to which a device
    /// confines it.
    pub functions: u8,
    /// Advances without progress after which a device counts as hung, if not the device's usual.
    pub patience: Option<u32>,
    /// The memory of simulated devices.
    pub memory: Memory,
    /// Where the memory that host and device share lies, and in which pages, of a device that this process has.
    pub placement: Placement,
    /// The GPUs.
    pub gpus: Gpus,
    /// Whether a device that lives only in the time that it is given gets a thread of its own, so that others may sleep
    /// ([`Ports::attended`]).
    pub own_thread: bool,
    /// Whether the RTL's LIFE events are [read off its signals](doorbell_host::Platform::tapped) in place of an event ring. Nothing is slowed and none is
    /// dropped; FAULT events do not come.
    pub tap: bool,
    /// The socket of the server of a device in another process.
    pub socket: Option<String>,
    /// The address of a function of PCI Express.
    pub address: Option<String>,
    /// A fault to put into the device: `token`, `completion`, `hang`, or one of the device's own.
    pub fault: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue: QueueConfig::default(),
            queues: 1,
            functions: 1,
            patience: None,
            memory: Memory::default(),
            placement: Placement::default(),
            gpus: Gpus::default(),
            own_thread: false,
            tap: false,
            socket: None,
            address: None,
            fault: None,
        }
    }
}

impl Settings {
    /// Whether one driver has the device to itself, on its own thread.
    fn is_alone(&self, rewards: bool) -> bool {
        self.queues == 1 && !rewards && !self.own_thread
    }
}

/// The memory behind a simulated device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Cycles that it takes to answer.
    pub latency: RangeInclusive<u32>,
    /// Chance, in percent up to 95, that a channel stands still in a cycle.
    pub stalls: u8,
    /// Whether it answers writes out of order.
    pub reorder: bool,
    /// Draw all of that from `seed` instead.
    pub random: bool,
    /// Seed of what is random.
    pub seed: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self { latency: 0..=0, stalls: 0, reorder: false, random: false, seed: 1 }
    }
}

/// The GPUs that are one device together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus {
    /// By number, each once, and at least one.
    pub gpus: Vec<usize>,
    /// Multiprocessors to take of each, one more than queue pairs at least; all if not given. Who else computes in this process has the others.
    pub sms: Option<u32>,
}

impl Default for Gpus {
    fn default() -> Self {
        Self { gpus: vec![0], sms: None }
    }
}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No device has this name.
    #[error("unknown device '{name}'; known devices: {}", names())]
    Unknown {
        /// The name.
        name: String,
    },
    /// An option that there is not, or with a value that it cannot have.
    #[error("option '{option}': {problem}")]
    Option {
        /// As it was written.
        option: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A fault that the device does not know, or a setting of the simulated memory that it cannot have.
    #[error("{0}")]
    Setting(String),
    /// The device is not there, or did not start.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl OpenError {
    /// Why the device is not there, if nothing else is wrong: without it one can go on.
    pub fn missing(&self) -> Option<&str> {
        match self {
            OpenError::Device(DeviceError::Unavailable { reason, .. }) => Some(reason),
            _ => None,
        }
    }
}

fn names() -> String {
    Kind::ALL.map(Kind::name).join(", ") + ", vfio-user:SOCKET, pcie:ADDRESS"
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Kind {
    /// Every kind that is there without being named further, in the order in which they are compared by default.
    pub const ALL: [Kind; 3] = [Kind::Model, Kind::Rtl, Kind::Gpu];

    /// The name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Model => "model",
            Kind::Rtl => "rtl",
            Kind::Gpu => "gpu",
            Kind::VfioUser => "vfio-user",
            Kind::Pcie => "pcie",
        }
    }

    /// What it is.
    pub fn description(self) -> String {
        match self {
            Kind::Model => "golden model in Rust, the executable specification".into(),
            #[cfg(feature = "rtl")]
            Kind::Rtl => rtl::description(),
            #[cfg(not(feature = "rtl"))]
            Kind::Rtl => "the SystemVerilog device, verilated".into(),
            Kind::Gpu => "persistent CUDA workers".into(),
            Kind::VfioUser => "a function of a device that another process serves".into(),
            Kind::Pcie => "a function of PCI Express, over the kernel's vfio-pci".into(),
        }
    }

    /// Why it cannot be used here, if it cannot. Opens the device where there is no other way to know.
    pub fn missing(self) -> Option<String> {
        match self {
            #[cfg(feature = "gpu")]
            Kind::Gpu => gpu::missing(),
            _ => self.left_out(),
        }
    }

    /// Why it is not part of this build, if it is not.
    fn left_out(self) -> Option<String> {
        let built = match self {
            Kind::Model => true,
            Kind::Rtl => cfg!(feature = "rtl"),
            Kind::Gpu => cfg!(feature = "gpu"),
            Kind::VfioUser | Kind::Pcie => cfg!(feature = "vfio"),
        };
        let feature = if self.place_key().is_some() { "vfio" } else { self.name() };
        (!built).then(|| format!("not part of this build; build with the feature '{feature}'"))
    }

    /// The key of the setting that says where it is, for a kind that must be told.
    fn place_key(self) -> Option<&'static str> {
        match self {
            Kind::VfioUser => Some("socket"),
            Kind::Pcie => Some("address"),
            Kind::Model | Kind::Rtl | Kind::Gpu => None,
        }
    }

    /// Whether it runs by itself, without a thread of this process.
    pub fn runs_elsewhere(self) -> bool {
        self.place_key().is_some()
    }

    /// Whether a fault can be put into it.
    pub fn takes_faults(self) -> bool {
        matches!(self, Kind::Model | Kind::Rtl)
    }

    /// The kind with this name.
    ///
    /// # Errors
    /// `Unknown`, naming those that there are.
    pub fn parse(name: &str) -> Result<Kind, OpenError> {
        let unknown = || OpenError::Unknown { name: name.to_owned() };
        let mut kinds = Kind::ALL.into_iter().chain([Kind::VfioUser, Kind::Pcie]);
        kinds.find(|kind| kind.name() == name).ok_or_else(unknown)
    }

    /// The kind that `text` names, and the settings behind its name, as [`Settings::and`] takes them: `model:queues=4:functions=2`. What
    /// follows `vfio-user` first is its socket: `vfio-user:/run/doorbell.sock`. What follows `pcie` is the function's address: `pcie:0000:00:03.0`.
    ///
    /// # Errors
    /// As [`parse`](Self::parse). `Option` for a setting that this kind has no use for, and for a place with blanks or commas, which would part
    /// settings.
    pub fn choose(text: &str) -> Result<(Kind, String), OpenError> {
        let (name, own) = text.split_once(':').unwrap_or((text, ""));
        let kind = Kind::parse(name.trim())?;
        let parts: Vec<&str> = own.split(':').collect();
        // A place may have colons. A setting has a '='.
        let in_place = match kind.place_key() {
            Some(_) if !own.is_empty() => {
                1 + parts[1..].iter().take_while(|part| !part.contains('=')).count()
            }
            _ => 0,
        };
        let (place, settings) = parts.split_at(in_place);
        let (place, settings) = (place.join(":"), settings.join(" "));
        kind.takes_all(&settings)?;
        let Some(key) = kind.place_key().filter(|_| in_place > 0) else { return Ok((kind, settings)) };
        if place.contains(settings::separates) {
            let problem = format!(
                "the {key} cannot have blanks or commas, which part settings; settings are apart by colons here, and for such a path \
                 there are links"
            );
            return Err(OpenError::Option { option: format!("{kind}:{place}"), problem });
        }
        Ok((kind, format!("{key}={place} {settings}").trim_end().to_owned()))
    }

    /// The settings of `text`, all of which are for a device of this kind.
    ///
    /// # Errors
    /// `Option`, naming the pair: it cannot be read, or this kind has no use for it.
    pub fn settings(self, text: &str) -> Result<Settings, OpenError> {
        let settings = text.parse()?;
        self.takes_all(text)?;
        Ok(settings)
    }

    fn takes_all(self, text: &str) -> Result<(), OpenError> {
        settings::options(text)
            .try_for_each(|option| self.takes(option, option.split('=').next().unwrap_or_default()))
    }

    /// Refuses an option whose key is not for this kind.
    fn takes(self, option: &str, key: &str) -> Result<(), OpenError> {
        let Some(kinds) = Settings::kinds_of(key).filter(|kinds| !kinds.contains(&self)) else {
            return Ok(());
        };
        let names = kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
        let problem = format!("{self} has no use for it; {key} is for {names}");
        Err(OpenError::Option { option: option.to_owned(), problem })
    }

    /// Opens a device of this kind.
    ///
    /// # Errors
    /// [`OpenError::missing`] says so where the device is not there.
    pub fn open(self, settings: &Settings) -> Result<Box<dyn Device>, OpenError> {
        Ok(self.open_opened(settings, false)?.device)
    }

    /// Opens a device of this kind, with another queue pair beside each: over the same tokens ([`Driver::over`]), and of the same
    /// function, for a process that scores them (REWARD). So it takes twice the queue pairs that the settings say.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_rewards(self, settings: &Settings) -> Result<Opened, OpenError> {
        if settings.queues > 8 {
            let value = settings.queues.into();
            let expected = "at most 8, with another queue pair beside each for rewards".to_owned();
            return Err(DeviceError::Config { field: "queues", value, expected }.into());
        }
        self.open_opened(settings, true)
    }

    fn open_opened(self, settings: &Settings, rewards: bool) -> Result<Opened, OpenError> {
        if settings.functions > settings.queues {
            let (value, queues) = (settings.functions.into(), settings.queues);
            let expected = format!("at most {queues}, the number of queue pairs");
            return Err(DeviceError::Config { field: "functions", value, expected }.into());
        }
        if let Some(fault) = &settings.fault {
            self.takes(&format!("fault={fault}"), "fault")?;
        }
        if settings.own_thread {
            self.takes("own_thread=1", "own_thread")?;
        }
        match self {
            Kind::Model => open_model(settings, rewards),
            #[cfg(feature = "rtl")]
            Kind::Rtl => rtl::open_queues(settings, rewards),
            #[cfg(feature = "gpu")]
            Kind::Gpu => Ok(gpu::open(settings, rewards)?),
            #[cfg(feature = "vfio")]
            Kind::VfioUser if !rewards => Ok(functions::open_socket(settings)?.into()),
            #[cfg(feature = "vfio")]
            Kind::Pcie if !rewards => Ok(functions::open_address(settings)?.into()),
            #[allow(unreachable_patterns, reason = "a build with every feature has every kind")]
            _ => {
                let alone = || "it has no queue pair for rewards beside the one of its driver".to_owned();
                let (device, reason) = (self.name().to_owned(), self.left_out().unwrap_or_else(alone));
                Err(DeviceError::Unavailable { device, reason }.into())
            }
        }
    }
}

/// A device, and the queue pairs beside it.
pub struct Opened {
    /// The device, as [`Kind::open`] gives it.
    pub device: Box<dyn Device>,
    /// One over each of its token regions, in their order; none if none were asked for.
    pub rewards: Vec<Box<dyn Device>>,
}

impl From<Box<dyn Device>> for Opened {
    fn from(device: Box<dyn Device>) -> Opened {
        Opened { device, rewards: vec![] }
    }
}

fn open_model(settings: &Settings, rewards: bool) -> Result<Opened, OpenError> {
    let mut mutation = None;
    if let Some(fault) = &settings.fault {
        let text = match fault.as_str() {
            "token" => "token:1000",
            "completion" => "completion:100:result",
            "hang" => "hang:100",
            other => other,
        };
        let parsed: Result<Mutation, BadMutation> = text.parse();
        mutation = Some(parsed.map_err(|error| OpenError::Setting(error.to_string()))?);
    }
    let made = |model: ModelPlatform| {
        let model = model.with_placement(settings.placement);
        match mutation {
            Some(mutation) => model.with_mutation(mutation),
            None => model,
        }
    };
    // The model runs one descriptor at a time, whatever the number of workers of the others.
    let patience = settings.patience.unwrap_or(settings.queue.patience);
    let queue = QueueConfig { workers: None, patience, ..settings.queue.clone() };
    if settings.is_alone(rewards) {
        let device: Box<dyn Device> = Box::new(Driver::new(made(ModelPlatform::new()), queue)?);
        return Ok(device.into());
    }
    let queues = settings.queues * row(rewards);
    let model = made(ModelPlatform::with_queues(queues, settings.functions)?);
    Ok(divided(model, settings, &queue, rewards)?)
}

/// Queue pairs in a row that work on the same tokens.
fn row(rewards: bool) -> u8 {
    if rewards { 2 } else { 1 }
}

/// The queue pairs of `device`, divided as `settings` says, as one device; those beside them by themselves.
fn divided<D: Pages + 'static>(
    device: D,
    settings: &Settings,
    queue: &QueueConfig,
    rewards: bool,
) -> Result<Opened, DeviceError> {
    let name = several(device.name(), settings);
    let (ports, queue) = divide(device, settings, queue, rewards)?;
    paired(name, ports, &queue, rewards)
}

/// The queue pairs of `device`, divided as `settings` says, and what each is to be configured with.
fn divide<D: Pages + 'static>(
    device: D,
    settings: &Settings,
    queue: &QueueConfig,
    rewards: bool,
) -> Result<(Vec<QueuePort<D>>, QueueConfig), DeviceError> {
    let row = row(rewards);
    let (queues, functions) = (settings.queues, settings.functions);
    if queue.model_bytes > 0 && !rewards && functions < queues {
        let expected = format!(
            "as many as queues, {queues}, for a language model: MODEL region and arenas belong to a function, and each queue pair \
             here has its own"
        );
        return Err(DeviceError::Config { field: "functions", value: functions.into(), expected });
    }
    let ports = Ports::divide(
        device,
        &Division {
            queues: settings.queues * row,
            functions: settings.functions,
            row,
            bytes: queue.shared_bytes()?,
            workers: queue.workers,
            wait_states: queue.wait_states,
        },
    )?;
    let ports = if settings.own_thread { ports.attended()? } else { ports };
    // How many each function has of them is settled.
    Ok((ports.take_all()?, QueueConfig { workers: None, ..queue.clone() }))
}

/// Drivers over `platforms`, those of the rollouts as one device; with `rewards`, every other one is over the tokens of the one
/// before.
fn paired<P: Platform + 'static>(
    name: String,
    platforms: impl IntoIterator<Item = P>,
    queue: &QueueConfig,
    rewards: bool,
) -> Result<Opened, DeviceError> {
    let mut rollouts: Vec<Box<dyn Device>> = vec![];
    let mut beside: Vec<Box<dyn Device>> = vec![];
    for platform in platforms {
        let waiting = rollouts.get(beside.len()).filter(|_| rewards);
        match waiting.and_then(|rollouts| rollouts.token_regions().pop()) {
            Some(tokens) => beside.push(Box::new(Driver::over(platform, queue.clone(), tokens)?)),
            None => rollouts.push(Box::new(Driver::new(platform, queue.clone())?)),
        }
    }
    let device: Box<dyn Device> = match <[_; 1]>::try_from(rollouts) {
        Ok([device]) => device,
        Err(rollouts) => Box::new(Sharded::new(name, rollouts)?),
    };
    Ok(Opened { device, rewards: beside })
}

/// What reports call a device with several queue pairs.
fn several(name: &str, settings: &Settings) -> String {
    match (settings.queues, settings.functions) {
        (queues, 1) => format!("{name} ({queues} queues)"),
        (queues, functions) => format!("{name} ({queues} queues, {functions} functions)"),
    }
}

#[cfg(test)]
mod tests {
    use doorbell_host::contract::{Counter, HwCompletion, HwDesc};
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("model", Kind::Model, "")]
    #[case("model:queues=4:functions=2", Kind::Model, "queues=4 functions=2")]
    #[case("vfio-user:/run/s", Kind::VfioUser, "socket=/run/s")]
    #[case("vfio-user:/run/a=b:sq_depth=8", Kind::VfioUser, "socket=/run/a=b sq_depth=8")]
    #[case("pcie", Kind::Pcie, "")]
    #[case("pcie:0000:00:03.0", Kind::Pcie, "address=0000:00:03.0")]
    #[case(
        "pcie:0000:00:03.0:sq_depth=8:cq_depth=4",
        Kind::Pcie,
        "address=0000:00:03.0 sq_depth=8 cq_depth=4"
    )]
    fn behind_a_name_are_a_place_and_settings(#[case] text: &str, #[case] kind: Kind, #[case] own: &str) {
        assert_eq!(Kind::choose(text).unwrap(), (kind, own.to_owned()));
    }

    #[rstest]
    #[case("gpu:fault=hang", "option 'fault=hang': gpu has no use for it; fault is for model, rtl")]
    #[case(
        "vfio-user:/s:fault=token",
        "option 'fault=token': vfio-user has no use for it; fault is for model, rtl"
    )]
    #[case(
        "gpu:queues=2,own_thread=1",
        "option 'own_thread=1': gpu has no use for it; own_thread is for model, rtl"
    )]
    #[case("model:gpus=1", "option 'gpus=1': model has no use for it; gpus is for gpu")]
    #[case("rtl:queues=2:sms=8", "option 'sms=8': rtl has no use for it; sms is for gpu")]
    #[case("model:latency=5", "option 'latency=5': model has no use for it; latency is for rtl")]
    #[case(
        "vfio-user:/my run/s:sq_depth=8",
        "option 'vfio-user:/my run/s': the socket cannot have blanks or commas"
    )]
    #[case("vfio-user:/a,b", "option 'vfio-user:/a,b': the socket cannot have blanks or commas")]
    fn what_a_kind_has_no_use_for_is_refused(#[case] text: &str, #[case] message: &str) {
        let error = Kind::choose(text).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }

    #[test]
    fn settings_of_other_kinds_are_refused() {
        for (key, _) in Settings::KEYS {
            let value = match key {
                "latency" => "3..9",
                "ranges" => "0..9",
                "memory" => "near",
                "reorder" | "random_memory" | "own_thread" => "1",
                _ => "7",
            };
            let option = format!("{key}={value}");
            for kind in [Kind::Model, Kind::Rtl, Kind::Gpu, Kind::VfioUser, Kind::Pcie] {
                let told = kind.settings(&format!("sq_depth=8, {option}")).map_err(|error| error.to_string());
                match Settings::kinds_of(key).filter(|kinds| !kinds.contains(&kind)) {
                    None => assert!(told.is_ok(), "{kind} {option}: {told:?}"),
                    Some(_) => {
                        let told = told.unwrap_err();
                        assert!(
                            told.starts_with(&format!("option '{option}': {kind} has no use for it")),
                            "{told}"
                        );
                    }
                }
            }
        }
        assert!(Kind::Model.settings("latency").is_err());
    }

    /// Where settings come by another way, too: what would be done to another device is not left undone in silence.
    #[rstest]
    #[case("fault=hang")]
    #[case("own_thread=1")]
    fn a_device_that_cannot_do_it_is_not_opened(#[case] text: &str) {
        for kind in [Kind::Gpu, Kind::VfioUser, Kind::Pcie] {
            let error = kind.open(&text.parse().unwrap()).err().unwrap().to_string();
            assert!(error.starts_with(&format!("option '{text}': {kind} has no use for it")), "{error}");
        }
    }

    #[cfg(feature = "vfio")]
    #[test]
    fn an_address_may_be_followed_by_settings() {
        let (_, own) = Kind::choose("pcie:0000:00:03.0:sq_depth=8").unwrap();
        let settings: Settings = own.parse().unwrap();
        assert_eq!((settings.address.as_deref(), settings.queue.sq_depth), (Some("0000:00:03.0"), 8));
    }

    #[rstest]
    #[case("", "model")]
    #[case("queues=4", "model (4 queues)")]
    #[case("queues=4 functions=2", "model (4 queues, 2 functions)")]
    #[case("queues=16 functions=16 wait_states=3 workers=1", "model (16 queues, 16 functions)")]
    fn a_device_of_several_queue_pairs_is_one(#[case] text: &str, #[case] name: &str) {
        let settings: Settings = format!("{text} token_bytes=65536").parse().unwrap();
        let mut device = Kind::Model.open(&settings).unwrap();
        assert_eq!(device.name(), name);
        let descs: Vec<HwDesc> = (0..64)
            .map(|k| HwDesc::decode(k, 0, 8).with_delta_offset(32 * u64::from(k)).with_user_data(k.into()))
            .collect();
        assert_eq!(device.submit(&descs).unwrap(), 64);
        let mut out = [HwCompletion::default(); 16];
        let mut seen = Vec::new();
        while device.in_flight() > 0 {
            let taken = device.poll(&mut out).unwrap();
            seen.extend(out[..taken].iter().map(|end| end.user_data));
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..64), "R3");
        let counters = device.counters().unwrap();
        assert_eq!(counters.get(Counter::Completions), 64, "counted once, not by each queue pair");
        assert_eq!(counters.get(Counter::Tokens), 512);
    }

    /// With a queue pair beside each: both see the same tokens, and what one has made the other scores.
    #[rstest]
    #[case("", 1)]
    #[case("queues=3", 3)]
    #[case("queues=8 functions=3", 8)]
    fn queue_pairs_for_rewards_lie_over_the_same_tokens(#[case] text: &str, #[case] queues: usize) {
        let settings: Settings = format!("{text} token_bytes=65536").parse().unwrap();
        let Opened { mut device, mut rewards } = Kind::Model.open_with_rewards(&settings).unwrap();
        assert_eq!((device.token_regions().len(), rewards.len()), (queues, queues));
        let mut out = [HwCompletion::default(); 1];
        for rollout in 0..32 {
            let desc = HwDesc::decode(rollout, 0, 9).with_delta_offset(64 * u64::from(rollout));
            assert_eq!(device.submit(&[desc]).unwrap(), 1);
            while device.poll(&mut out).unwrap() == 0 {}
            let beside = &mut rewards[device.token_shard(desc.delta_offset)];
            let reward = HwDesc::reward(rollout, 0, 9).with_delta_offset(desc.delta_offset);
            assert_eq!(beside.submit(&[reward]).unwrap(), 1);
            let digest = out[0].result;
            while beside.poll(&mut out).unwrap() == 0 {}
            assert_eq!(out[0].result, digest >> 16 ^ digest & 0xFFFF, "the score of that digest");
        }
    }

    #[test]
    fn more_queue_pairs_for_rewards_than_there_are_is_told() {
        let settings: Settings = "queues=9".parse().unwrap();
        let error = Kind::Model.open_with_rewards(&settings).err().unwrap().to_string();
        assert_eq!(
            error,
            "queues is 9: it must be at most 8, with another queue pair beside each for rewards"
        );
    }

    /// MODEL region and arenas belong to a function, so of a language model each queue pair has one of its own.
    #[rstest]
    #[case("queues=3 functions=3", None)]
    #[case(
        "queues=4 functions=3",
        Some("functions is 3: it must be as many as queues, 4, for a language model")
    )]
    #[case("queues=2", Some("functions is 1: it must be as many as queues, 2, for a language model"))]
    fn a_language_model_takes_a_function_for_each_queue_pair(
        #[case] text: &str,
        #[case] message: Option<&str>,
    ) {
        let mut settings: Settings = text.parse().unwrap();
        settings.queue.model_bytes = 1 << 16;
        settings.queue.arena_bytes = [1 << 16, 0, 0, 0];
        let error = Kind::Model.open(&settings).err().map(|error| error.to_string());
        assert_eq!(error.is_some(), message.is_some(), "{error:?}");
        assert!(error.unwrap_or_default().starts_with(message.unwrap_or("")));
    }

    #[rstest]
    #[case("functions=2", "functions is 2: it must be at most 1, the number of queue pairs")]
    #[case("queues=4 functions=5", "functions is 5: it must be at most 4, the number of queue pairs")]
    #[case("queues=2 sq_depth=3", "sq_depth is 3: a ring has")]
    #[case("queues=2 wait_states=65536", "wait_states is 65536: it must be at most 65535")]
    fn what_cannot_be_divided_is_told(#[case] text: &str, #[case] message: &str) {
        let error = Kind::Model.open(&text.parse().unwrap()).err().unwrap().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}
