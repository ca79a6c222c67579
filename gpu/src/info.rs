//! What GPUs a machine has, and on which of them a device would be refused: without a context, and without a kernel.

use std::collections::BTreeSet;
use std::fs;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{DriverError, result, sys};

use crate::image::{self, ImageError};

/// Environment variable with which every launch waits for its kernel's end.
const BLOCKING: &str = "CUDA_LAUNCH_BLOCKING";

/// One GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// As the driver counts them, and as [`GpuOptions::gpu`](crate::GpuOptions::gpu) takes it.
    pub ordinal: usize,
    /// The driver's name for it.
    pub name: String,
    /// Multiprocessors; of a MIG slice, those of the slice.
    pub processors: u32,
    /// Whether this is a slice of a GPU (MIG).
    pub mig: bool,
    /// Bytes of shared memory that a block can have.
    pub shared_bytes: u32,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// CUDA version up to which the driver knows images, as in `12.4`.
    pub driver: String,
    /// Where it is on the PCI bus, as in `0000:1b:00.0`.
    pub pci: String,
    /// The PCIe link as it is now, and what it could be, as in `16.0 GT/s PCIe x8 of 32.0 GT/s PCIe x16`; `None` where the
    /// system does not tell.
    pub link: Option<String>,
    /// NUMA node to which it is attached, where the system tells.
    pub numa_node: Option<u32>,
    /// Whether the driver ends kernels that run for seconds, as it does where a display hangs on the GPU.
    pub watchdog: bool,
    /// Why a device cannot be opened on it; empty if it can, as far as can be told without opening it.
    pub refusals: Vec<String>,
    /// What will make it slow, or others.
    pub warnings: Vec<String>,
    /// Why language models do not run on it where a device without them can be opened.
    pub without_language: Option<String>,
}

/// Describes every GPU that the driver shows to this process.
///
/// # Errors
/// `NoDriver` or `NoGpu`, or another failure of the driver.
pub fn describe() -> Result<Vec<GpuInfo>, ImageError> {
    let failed = |source| ImageError::Driver { what: "asking what GPUs there are", source };
    let count = image::count()?;
    (0..count).map(|ordinal| GpuInfo::ask(ordinal).map_err(failed)).collect()
}

impl GpuInfo {
    /// Asks driver and system.
    fn ask(ordinal: usize) -> Result<Self, DriverError> {
        let device = result::device::get(ordinal as i32)?;
        // SAFETY: the device is one that the driver has just given.
        let attribute = |which: Attribute| unsafe { result::device::get_attribute(device, which) };
        let name = result::device::get_name(device)?;
        let pci = format!(
            "{:04x}:{:02x}:{:02x}.0",
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?
        );
        let file = |name: &str| {
            let text = fs::read_to_string(format!("/sys/bus/pci/devices/{pci}/{name}")).ok()?;
            Some(text.trim().to_owned())
        };
        let link = |kind: &str| {
            Some(format!(
                "{} x{}",
                file(&format!("{kind}_link_speed"))?,
                file(&format!("{kind}_link_width"))?
            ))
        };
        let numa_node = file("numa_node").and_then(|node| node.parse().ok());
        let watchdog = attribute(Attribute::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT)? != 0;
        let compute_capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let processors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        let prohibited = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)?
            == sys::CUcomputemode::CU_COMPUTEMODE_PROHIBITED as i32;
        let cooperative = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? != 0;
        let shared_bytes =
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32;
        let refusals = refusals(&Facts {
            compute_capability,
            processors,
            shared_bytes,
            watchdog,
            prohibited,
            cooperative,
            blocking: blocking(),
        });
        let warnings = warnings(numa_node, numa_node.and_then(cpus_of_node), own_cpus());
        Ok(Self {
            ordinal,
            mig: name.contains(" MIG "),
            name,
            processors,
            shared_bytes,
            compute_capability,
            driver: driver_version()?,
            link: link("current").zip(link("max")).map(|(now, most)| format!("{now} of {most}")),
            pci,
            numa_node,
            watchdog,
            refusals,
            warnings,
            without_language: without_language(shared_bytes),
        })
    }

    /// One GPU.
    pub(crate) fn of(ordinal: usize) -> Result<Self, ImageError> {
        let failed = |source| ImageError::Driver { what: "asking what the GPU is", source };
        Self::ask(ordinal).map_err(failed)
    }
}

/// What decides whether a device can be opened.
#[derive(Clone, Copy, Debug)]
struct Facts {
    compute_capability: (i32, i32),
    processors: u32,
    shared_bytes: u32,
    watchdog: bool,
    prohibited: bool,
    cooperative: bool,
    blocking: bool,
}

/// Bytes of shared memory of a front end, without which there is no device: `kFrontEndBytes`, gpu/kernels/front_end/state.cuh.
const FRONT_END_BYTES: u32 = 153_824;
/// Bytes of shared memory of a block of the kernels with engine 1, at most: `kBlockShared`, gpu/kernels/language_model.cuh, and `kMostJobs`,
/// gpu/kernels/language_worker.cuh.
const LANGUAGE_BYTES: u32 = (207 << 10) + (20 << 10);

/// Why a kernel whose blocks need so many bytes of shared memory cannot run where a block can have so many, if it cannot.
pub(crate) fn lacks_shared_memory(what: &str, needed: u32, had: u32) -> Option<String> {
    (needed > had).then(|| {
        format!(
            "{what} needs {needed} bytes of shared memory in a block, and a block of this GPU can have {had}"
        )
    })
}

/// What does not run on a GPU that runs engine 0.
fn without_language(shared_bytes: u32) -> Option<String> {
    let lack = lacks_shared_memory("engine 1 (language models)", LANGUAGE_BYTES, shared_bytes)?;
    (shared_bytes >= FRONT_END_BYTES).then(|| format!("{lack}: engine 0 alone runs on it"))
}

/// Whether CUDA_LAUNCH_BLOCKING is set: the first launch of a kernel that does not end would never return.
pub(crate) fn blocking() -> bool {
    is_blocking(std::env::var(BLOCKING).ok().as_deref())
}

fn is_blocking(value: Option<&str>) -> bool {
    value.is_some_and(|value| !matches!(value.trim(), "" | "0"))
}

/// Why CUDA_LAUNCH_BLOCKING is refused.
pub(crate) const BLOCKING_REFUSED: &str = "CUDA_LAUNCH_BLOCKING is set, with which a launch returns only when its \
     kernel has ended, and the device's kernel ends when the device is closed; unset it";

fn refusals(facts: &Facts) -> Vec<String> {
    let (major, minor) = facts.compute_capability;
    let (oldest_major, oldest_minor) = image::OLDEST;
    let refused = [
        (facts.blocking, BLOCKING_REFUSED.to_owned()),
        (
            facts.compute_capability < image::OLDEST,
            format!(
                "its compute capability is {major}.{minor}, and the kernels need {oldest_major}.{oldest_minor}"
            ),
        ),
        (
            facts.watchdog,
            "the driver ends kernels that run for seconds on it, as a display hangs on it; use a GPU without one"
                .to_owned(),
        ),
        (
            facts.prohibited,
            "its compute mode is 'prohibited': set another with nvidia-smi --compute-mode".to_owned(),
        ),
        (
            !facts.cooperative,
            "it cannot launch a kernel whose blocks are all to run at the same time (cooperative launch)".to_owned(),
        ),
        (
            facts.processors < 2,
            format!("it has {} multiprocessors, and a device needs 2: a front end and workers", facts.processors),
        ),
    ];
    let refused = refused.into_iter().filter(|&(refused, _)| refused).map(|(_, reason)| reason);
    let lack = lacks_shared_memory("a front end", FRONT_END_BYTES, facts.shared_bytes);
    refused
        .chain(lack.map(|lack| format!("{lack}: use a GPU of a data centre (A100, H100, H200, B200)")))
        .collect()
}

fn warnings(node: Option<u32>, near: Option<BTreeSet<u32>>, own: Option<BTreeSet<u32>>) -> Vec<String> {
    match (node, near, own) {
        (Some(node), Some(near), Some(own)) if !near.is_empty() && near.is_disjoint(&own) => vec![format!(
            "it is attached to NUMA node {node}, on whose CPUs this process may not run: every doorbell and completion \
             crosses to another node; run under numactl --cpunodebind={node} --membind={node}"
        )],
        _ => Vec::new(),
    }
}

fn cpus_of_node(node: u32) -> Option<BTreeSet<u32>> {
    cpus(&fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")).ok()?)
}

/// The CPUs on which this process may run.
fn own_cpus() -> Option<BTreeSet<u32>> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    cpus(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

/// A list of CPUs as the kernel writes it, as in `0-3,8`; `None` if it is none.
fn cpus(list: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

/// The CUDA version up to which the driver knows images, as in `12.4`.
pub(crate) fn driver_version() -> Result<String, DriverError> {
    let mut version = 0;
    // SAFETY: writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GOOD: Facts = Facts {
        compute_capability: (9, 0),
        processors: 132,
        shared_bytes: 227 << 10,
        watchdog: false,
        prohibited: false,
        cooperative: true,
        blocking: false,
    };

    #[rstest]
    #[case::good(GOOD, None)]
    #[case::the_oldest(Facts { compute_capability: (8, 0), ..GOOD }, None)]
    #[case::too_old(Facts { compute_capability: (7, 5), ..GOOD }, Some("compute capability is 7.5"))]
    #[case::a_display(Facts { watchdog: true, ..GOOD }, Some("a display hangs on it"))]
    #[case::prohibited(Facts { prohibited: true, ..GOOD }, Some("compute mode"))]
    #[case::no_cooperation(Facts { cooperative: false, ..GOOD }, Some("cooperative launch"))]
    #[case::one_processor(Facts { processors: 1, ..GOOD }, Some("it has 1 multiprocessors"))]
    #[case::two_processors(Facts { processors: 2, ..GOOD }, None)]
    #[case::an_a100(Facts { compute_capability: (8, 0), shared_bytes: 163 << 10, ..GOOD }, None)]
    #[case::an_l4(Facts { compute_capability: (8, 9), shared_bytes: 99 << 10, ..GOOD }, Some("a front end needs 153824 bytes of shared memory in a block, and a block of this GPU can have 101376"))]
    #[case::just_too_little(Facts { shared_bytes: FRONT_END_BYTES - 1, ..GOOD }, Some("can have 153823"))]
    #[case::blocking(Facts { blocking: true, ..GOOD }, Some("CUDA_LAUNCH_BLOCKING is set"))]
    fn what_is_refused_and_why(#[case] facts: Facts, #[case] reason: Option<&str>) {
        let refusals = refusals(&facts);
        assert_eq!(refusals.len(), usize::from(reason.is_some()), "{refusals:?}");
        assert!(refusals.iter().all(|refusal| refusal.contains(reason.unwrap_or(""))), "{refusals:?}");
    }

    /// A GPU with too little for engine 1 runs engine 0, and doctor says so; one with too little for either is refused, once.
    #[rstest]
    #[case::an_h100(227, None)]
    #[case::an_a100(
        163,
        Some(
            "engine 1 (language models) needs 232448 bytes of shared memory in a block, and a block of this GPU can have 166912"
        )
    )]
    #[case::an_l4(99, None)]
    fn what_engine_1_lacks_is_told(#[case] kilobytes: u32, #[case] expected: Option<&str>) {
        let told = without_language(kilobytes << 10);
        assert_eq!(told.is_some(), expected.is_some(), "{told:?}");
        assert!(told.unwrap_or_default().starts_with(expected.unwrap_or("")));
    }

    /// What is asked of a GPU before there is a kernel on it is what the kernels' text holds itself to.
    #[test]
    fn shared_memory_is_that_of_the_kernels() {
        let front_end = include_str!("../kernels/front_end/state.cuh");
        assert!(front_end.contains(&format!("constexpr uint32_t kFrontEndBytes = {FRONT_END_BYTES};")));
        let (model, worker) =
            (include_str!("../kernels/language_model.cuh"), include_str!("../kernels/language_worker.cuh"));
        assert!(model.contains("kBlockShared = 207 << 10;"));
        assert!(worker.contains("constexpr uint32_t kMostJobs = 20 << 10;"));
        assert_eq!(LANGUAGE_BYTES, (207 << 10) + (20 << 10));
    }

    #[rstest]
    #[case(None, false)]
    #[case(Some(""), false)]
    #[case(Some("0"), false)]
    #[case(Some("1"), true)]
    #[case(Some("yes"), true)]
    fn a_launch_that_blocks_is_recognised(#[case] value: Option<&str>, #[case] blocks: bool) {
        assert_eq!(is_blocking(value), blocks);
    }

    #[rstest]
    #[case("0-3,8\n", Some(vec![0, 1, 2, 3, 8]))]
    #[case("\t5", Some(vec![5]))]
    #[case("", Some(vec![]))]
    #[case("some", None)]
    fn lists_of_cpus(#[case] list: &str, #[case] expected: Option<Vec<u32>>) {
        assert_eq!(cpus(list), expected.map(BTreeSet::from_iter));
    }

    #[rstest]
    #[case::near(Some("0-3"), Some("2,9"), 0)]
    #[case::far(Some("0-3"), Some("4-7"), 1)]
    #[case::a_node_without_cpus(Some(""), Some("4-7"), 0)]
    #[case::unknown(None, Some("4-7"), 0)]
    fn a_far_node_is_a_warning(
        #[case] near: Option<&str>,
        #[case] own: Option<&str>,
        #[case] expected: usize,
    ) {
        assert_eq!(warnings(Some(1), near.and_then(cpus), own.and_then(cpus)).len(), expected);
    }

    #[test]
    fn without_a_driver_there_is_an_error_and_no_panic() {
        match describe() {
            Ok(gpus) => assert!(!gpus.is_empty()),
            Err(error) => assert!(matches!(error, ImageError::NoDriver | ImageError::NoGpu), "{error}"),
        }
    }
}
