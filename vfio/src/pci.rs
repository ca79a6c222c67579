//! The platform of a driver over the kernel's vfio-pci: a function of PCI Express in this machine, or in this virtual machine.
//!
//! Registers are accessed by calls of the system, not through a mapping: the kernel's accesses have the barriers that the processor
//! needs, and this end needs no `unsafe` for them. A write is posted, as on every PCI bus, so that nobody learns that it was refused.

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use doorbell_contract::{Place, Register};
use doorbell_host::memory::SIMULATED_BUS_ADDRESS;
use doorbell_host::{Awaited, DeviceError, Platform, SharedDevice, SharedMemory};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError};
use vmm_sys_util::eventfd::EventFd;

use crate::config_space::{BAR0_BYTES, COMMAND, DEVICE, ENABLE, VENDOR};
use crate::interrupt::Interrupt;
use crate::protocol::{BAR0, CONFIG, MSIX};

/// Where the kernel shows its PCI devices.
const DEVICES: &str = "/sys/bus/pci/devices";
/// What a register reads that nobody answers for.
const NOBODY: u32 = u32::MAX;

/// The first queue pair of a function that is bound to vfio-pci.
///
/// The kernel resets the function when it is opened, and again when it is closed.
pub struct VfioPci {
    name: String,
    // Dropped in this order: closing the device ends its accesses, closing the container takes back what it was given, and only then
    // may the memory go.
    device: VfioDevice,
    container: Arc<VfioContainer>,
    memory: Option<SharedMemory>,
    interrupt: Interrupt,
    key: SharedDevice,
}

impl VfioPci {
    /// Opens the function at `address`, as in `0000:00:03.0`.
    ///
    /// # Errors
    /// `Unavailable` with what is missing, and what to do about it.
    pub fn open(address: &str) -> Result<Self, DeviceError> {
        let name = format!("pcie:{address}");
        let unavailable = |reason: String| DeviceError::Unavailable { device: name.clone(), reason };
        let (path, group) = find(Path::new(DEVICES), address).map_err(unavailable)?;
        let failed = |error| unavailable(explain(&error, group));
        let container = Arc::new(VfioContainer::new(None).map_err(failed)?);
        let device = VfioDevice::new(&path, container.clone(), false).map_err(failed)?;
        let bytes = device.get_region_size(BAR0);
        if bytes < BAR0_BYTES.into() {
            return Err(unavailable(format!(
                "its BAR 0 has {bytes} bytes, and a function has {BAR0_BYTES}: it is another device"
            )));
        }
        let interrupt = Interrupt::new().map_err(|error| unavailable(format!("no eventfd: {error}")))?;
        let trigger = interrupt.eventfd().try_clone_to_owned();
        let trigger = trigger.map_err(|error| unavailable(format!("no eventfd: {error}")))?;
        // SAFETY: the descriptor was owned here, and is given away.
        let trigger = unsafe { EventFd::from_raw_fd(trigger.into_raw_fd()) };
        let vectors = device.get_irq_info(MSIX).map_or(0, |about| about.count);
        let enabled = device.enable_msix(vec![&trigger]);
        enabled.map_err(|error| unavailable(format!("{error}: it has {vectors} vectors of MSI-X")))?;
        let key = SharedDevice::next();
        let mut platform = Self { name, device, container, memory: None, interrupt, key };
        platform.enable()?;
        Ok(platform)
    }

    /// Has the function answer accesses of BAR 0, and move data.
    fn enable(&mut self) -> Result<(), DeviceError> {
        let at = COMMAND as u64;
        let mut command = [0; 2];
        self.device.region_read(CONFIG, &mut command, at);
        let wanted = u16::from_le_bytes(command) | ENABLE;
        self.device.region_write(CONFIG, &wanted.to_le_bytes(), at);
        self.device.region_read(CONFIG, &mut command, at);
        let found = u16::from_le_bytes(command);
        if found & ENABLE != ENABLE {
            let what = format!("its command register was written {wanted:#06x}, and reads {found:#06x}");
            return Err(DeviceError::Failed { device: self.name.clone(), what });
        }
        Ok(())
    }

    fn read(&self, register: Register) -> u32 {
        // What fails leaves what a bus answers for nobody.
        let mut word = NOBODY.to_le_bytes();
        self.device.region_read(BAR0, &mut word, register.address(Place::FIRST).into());
        u32::from_le_bytes(word)
    }

    /// An error if the function has gone from the bus.
    fn require_there(&self) -> Result<(), DeviceError> {
        if self.read(Register::Id) != NOBODY {
            return Ok(());
        }
        let what = "its registers read all ones: the function has gone from the bus, or its accesses are switched off".to_owned();
        Err(DeviceError::Failed { device: self.name.clone(), what })
    }
}

impl Platform for VfioPci {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        let refused = |what: &str, error: VfioError| DeviceError::Memory {
            bytes,
            reason: format!(
                "{what}: {error}; its pages count as locked, so that `ulimit -l` must allow them"
            ),
        };
        if let Some(before) = &self.memory {
            let unmapped = self.container.vfio_dma_unmap(before.bus_address(), before.len());
            unmapped.map_err(|error| refused("the IOMMU does not give back the memory before", error))?;
            self.memory = None;
        }
        let memory = SharedMemory::allocate(bytes, SIMULATED_BUS_ADDRESS)?;
        // SAFETY: the bytes are those of the block, which lives at least as long as this mapping: it is dropped after it was unmapped, as
        // above, or after the container. All accesses through it are atomic, and no reference but to an atomic is made of it.
        let mapped = unsafe {
            self.container.vfio_dma_map(memory.bus_address(), memory.len(), memory.host_pointer().as_ptr())
        };
        mapped.map_err(|error| refused("the IOMMU does not take it", error))?;
        self.memory = Some(memory.clone());
        Ok(memory)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.device.region_write(BAR0, &value.to_le_bytes(), register.address(Place::FIRST).into());
        Ok(())
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        let value = self.read(register);
        if value == NOBODY {
            self.require_there()?;
        }
        Ok(value)
    }

    fn advance(&mut self, _: usize) -> Result<(), DeviceError> {
        self.interrupt.pause()
    }

    /// The kernel has the table of MSI-X. Its messages come as an eventfd, and the word is written here.
    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError> {
        self.interrupt.route(memory, offset);
        Ok(())
    }

    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        match awaited {
            Awaited::Interrupt { .. } => {
                let woken = self.interrupt.sleep(deadline, None);
                let woken = woken.map_err(|error| DeviceError::Failed {
                    device: self.name.clone(),
                    what: format!("waiting for its interrupt: {error}"),
                })?;
                if !woken.rang {
                    // Nobody rings for a function that has gone.
                    self.require_there()?;
                }
                self.interrupt.look()
            }
            Awaited::Completion => self.advance(1),
        }
    }

    fn shows_workers(&self) -> bool {
        false
    }

    fn runs_alone(&self) -> bool {
        true
    }

    /// A function does not own page 0.
    fn shared_device(&self) -> Option<SharedDevice> {
        Some(self.key)
    }
}

/// Addresses of the functions in this machine that have Doorbell's vendor and device number.
pub fn functions() -> Vec<String> {
    let number = |path: PathBuf| {
        let text = fs::read_to_string(path).ok()?;
        u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let [vendor, device] = ["vendor", "device"].map(|name| number(entry.path().join(name)));
        (vendor, device) == (Some(VENDOR), Some(DEVICE))
    });
    let mut addresses: Vec<String> =
        ours.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    addresses.sort();
    addresses
}

/// Where the kernel shows the device at `address`, and its IOMMU group.
///
/// # Errors
/// What is missing, and what to do about it.
fn find(devices: &Path, address: &str) -> Result<(PathBuf, u32), String> {
    let path = devices.join(address);
    // The name of an entry, and no path.
    let is_name = address.chars().all(|c| c.is_ascii_hexdigit() || ":.".contains(c)) && address.contains(':');
    if !is_name || !path.exists() {
        return Err("no PCI device has this address; `lspci -D` lists them, as in 0000:00:03.0".to_owned());
    }
    let link = |name| {
        let target = fs::read_link(path.join(name)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    };
    let Some(group) = link("iommu_group").and_then(|group| group.parse().ok()) else {
        return Err("it is in no IOMMU group; switch the IOMMU on, on the command line of the kernel \
                    (intel_iommu=on, or for AMD's amd_iommu=on) and in the firmware"
            .to_owned());
    };
    let driver = link("driver");
    if driver.as_deref() != Some("vfio-pci") {
        let (bound, unbind) = match driver {
            None => ("it is bound to no driver".to_owned(), String::new()),
            Some(driver) => (
                format!("it is bound to the driver {driver}"),
                format!("echo {address} > {DEVICES}/{address}/driver/unbind; "),
            ),
        };
        return Err(format!(
            "{bound}; bind it to vfio-pci, as root: `modprobe vfio-pci; {unbind}echo vfio-pci > \
             {DEVICES}/{address}/driver_override; echo {address} > /sys/bus/pci/drivers_probe`"
        ));
    }
    Ok((path, group))
}

/// What an error of vfio means to a user.
fn explain(error: &VfioError, group: u32) -> String {
    let modules = "load the kernel's modules: `modprobe vfio-pci vfio_iommu_type1`";
    match error {
        VfioError::OpenContainer(cause) if cause.kind() == io::ErrorKind::NotFound => {
            format!("there is no /dev/vfio/vfio; {modules}")
        }
        VfioError::VfioExtension | VfioError::ContainerSetIOMMU(_) => format!("{error}; {modules}"),
        VfioError::OpenGroup(cause, _) if cause.kind() == io::ErrorKind::PermissionDenied => format!(
            "this user may not open /dev/vfio/{group}; give it that file, as root: `chown USER /dev/vfio/{group}`"
        ),
        VfioError::OpenGroup(cause, _) if cause.kind() == io::ErrorKind::ResourceBusy => {
            format!("another process has /dev/vfio/{group} open")
        }
        VfioError::GroupViable => format!(
            "another device of IOMMU group {group} has a driver other than vfio-pci; \
             /sys/kernel/iommu_groups/{group}/devices lists them"
        ),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rstest::rstest;

    use super::*;

    const ADDRESS: &str = "0000:00:03.0";

    #[rstest]
    #[case("0000:00:04.0", None, None, "no PCI device has this address")]
    #[case("../pci:", None, None, "no PCI device has this address")]
    #[case(ADDRESS, None, Some("vfio-pci"), "it is in no IOMMU group")]
    #[case(
        ADDRESS,
        Some("7"),
        None,
        "it is bound to no driver; bind it to vfio-pci, as root: `modprobe vfio-pci; echo vfio-pci > \
         /sys/bus/pci/devices/0000:00:03.0/driver_override"
    )]
    #[case(ADDRESS, Some("7"), Some("nvme"), "it is bound to the driver nvme; bind it to vfio-pci")]
    fn what_is_missing_is_told(
        #[case] address: &str,
        #[case] group: Option<&str>,
        #[case] driver: Option<&str>,
        #[case] message: &str,
    ) {
        let told = found(address, group, driver).unwrap_err();
        assert!(told.starts_with(message), "{told}");
    }

    #[test]
    fn a_function_that_is_bound_is_found() {
        assert_eq!(found(ADDRESS, Some("7"), Some("vfio-pci")), Ok(7));
    }

    fn found(address: &str, group: Option<&str>, driver: Option<&str>) -> Result<u32, String> {
        let devices = tempfile::tempdir().unwrap();
        let path = devices.path().join(ADDRESS);
        fs::create_dir(&path).unwrap();
        for (name, target) in [("iommu_group", group), ("driver", driver)] {
            if let Some(target) = target {
                symlink(Path::new("../../else").join(target), path.join(name)).unwrap();
            }
        }
        find(devices.path(), address).map(|(_, group)| group)
    }

    #[rstest]
    #[case(VfioError::OpenContainer(io::ErrorKind::NotFound.into()), "there is no /dev/vfio/vfio; load the kernel's modules")]
    #[case(VfioError::OpenGroup(io::Error::from_raw_os_error(13), "7".into()), "this user may not open /dev/vfio/7; give it")]
    #[case(VfioError::OpenGroup(io::Error::from_raw_os_error(16), "7".into()), "another process has /dev/vfio/7 open")]
    #[case(VfioError::GroupViable, "another device of IOMMU group 7 has a driver")]
    fn errors_of_vfio_say_what_to_do(#[case] error: VfioError, #[case] message: &str) {
        let told = explain(&error, 7);
        assert!(told.starts_with(message), "{told}");
    }
}
