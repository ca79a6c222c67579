//! One function as its host sees it: configuration space, BAR 0, interrupts, memory; and its reset.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_contract::{Access, Block, Control, FunctionControl, Place, Register, State};
use doorbell_host::{DeviceError, FunctionMemory};

use crate::config_space::{BAR0_BYTES, ConfigSpace};
use crate::memory::{Asked, Ranges};
use crate::protocol::{self, Request, dma, irq};
use crate::refusal::{Refusal, Tally};
use crate::vectors::Vectors;
use crate::view::View;

/// How long a reset may take: what PCI Express allows a function.
pub(crate) const RESET_TIME: Duration = Duration::from_millis(100);
/// Advances in which a queue pair that has nothing under way starts and stops.
const PATIENCE: u32 = 1_000;

/// A function and its host.
pub(crate) struct Function {
    view: View,
    config: ConfigSpace,
    vectors: Vectors,
    ranges: Ranges,
    tally: Arc<Tally>,
    /// Messages that each of its queue pairs had sent when it was looked at last.
    seen: Vec<u64>,
    /// Whether each is masked in the device's own table.
    masked: Vec<bool>,
    reset: Option<Reset>,
}

/// A reset under way.
#[derive(Debug)]
struct Reset {
    deadline: Instant,
    /// Whether its host has gone.
    forgets: bool,
}

/// What became of a request.
pub(crate) enum Answer {
    /// The body of the reply.
    Done(Vec<u8>),
    /// The reply comes once the function is reset.
    Later(Vec<u8>),
}

impl Function {
    pub fn new(view: View, tally: Arc<Tally>) -> Self {
        Self {
            view,
            config: ConfigSpace::new(view.queues, view.first_queue),
            vectors: Vectors::new(view.queues),
            ranges: Ranges::default(),
            tally,
            seen: vec![0; view.queues.into()],
            masked: vec![true; view.queues.into()],
            reset: None,
        }
    }

    pub fn view(&self) -> View {
        self.view
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub fn is_resetting(&self) -> bool {
        self.reset.is_some()
    }

    /// Does what a client asks for, all but the version.
    ///
    /// # Errors
    /// Failures of the device; inside, why it is refused.
    pub fn serve(
        &mut self,
        device: &mut impl FunctionMemory,
        request: Request<'_>,
        files: Vec<OwnedFd>,
        tells_refusals: bool,
    ) -> Result<Result<Answer, Refusal>, DeviceError> {
        if !files.is_empty() && !matches!(request, Request::DmaMap { .. } | Request::SetIrqs { .. }) {
            return Ok(Err(Refusal::UnwantedDescriptors));
        }
        let done = |body| Ok(Ok(Answer::Done(body)));
        match request {
            Request::Version { .. } => Ok(Err(Refusal::OutOfOrder)),
            Request::DmaMap { flags, offset, address, size } => {
                let asked = Asked { flags, offset, address, size };
                Ok(self.map(device, asked, files).map(|()| Answer::Done(vec![])))
            }
            Request::DmaUnmap { flags, address, size } => {
                let unmapped = self.unmap(device, flags, address, size);
                Ok(unmapped.map(|size| {
                    Answer::Done([protocol::words(&[24, flags]), long(address), long(size)].concat())
                }))
            }
            // Can be reset, and is a PCI device.
            Request::GetInfo => done(protocol::words(&[16, 3, protocol::REGIONS, protocol::IRQS])),
            Request::GetRegionInfo { index } => {
                let bytes: u64 = match index {
                    protocol::BAR0 => BAR0_BYTES.into(),
                    protocol::CONFIG => crate::config_space::BYTES as u64,
                    _ if index < protocol::REGIONS => 0,
                    _ => return Ok(Err(Refusal::BadRegion)),
                };
                let flags = if bytes > 0 { 3 } else { 0 };
                done([protocol::words(&[32, flags, index, 0]), long(bytes), long(0)].concat())
            }
            Request::GetIrqInfo { index } => match index {
                // By eventfds, all at once.
                protocol::MSIX => done(protocol::words(&[16, 9, index, self.vectors.count() as u32])),
                _ if index < protocol::IRQS => done(protocol::words(&[16, 0, index, 0])),
                _ => Ok(Err(Refusal::BadInterrupt)),
            },
            Request::SetIrqs { flags, index, start, count } => {
                let set = self.set_irqs(flags, index, start, count, files);
                self.mask(device)?;
                Ok(set.map(|()| Answer::Done(vec![])))
            }
            Request::RegionRead { region, offset, count } => {
                if count == 0 || count as usize > protocol::MAX_DATA {
                    return Ok(Err(Refusal::BadRegion));
                }
                let mut data = vec![0xFF; count as usize];
                match self.read(device, region, offset, &mut data)? {
                    // All ones, as from where nobody is, and no error: that is what a host reads on PCI.
                    Err(refusal) if refusal != Refusal::Register || tells_refusals => {
                        return Ok(Err(refusal));
                    }
                    Err(refusal) => self.tally.note_refusal(refusal),
                    Ok(()) => {}
                }
                done([long(offset), protocol::words(&[region, count]), data].concat())
            }
            Request::RegionWrite { region, offset, data } => {
                let head = [long(offset), protocol::words(&[region, data.len() as u32])].concat();
                Ok(match self.write(device, region, offset, data)? {
                    // Posted: nobody is told.
                    Err(Refusal::Register) if !tells_refusals => {
                        self.tally.note_refusal(Refusal::Register);
                        Ok(Answer::Done(head))
                    }
                    Err(refusal) => Err(refusal),
                    Ok(true) => Ok(Answer::Later(head)),
                    Ok(false) => Ok(Answer::Done(head)),
                })
            }
            Request::Reset => {
                self.begin_reset(device, false)?;
                Ok(Ok(Answer::Later(vec![])))
            }
        }
    }

    fn map(
        &mut self,
        device: &mut impl FunctionMemory,
        asked: Asked,
        mut files: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        if files.len() > 1 {
            return Err(Refusal::DescriptorFlood);
        }
        if let Some((memory, writable)) = self.ranges.map(asked, files.pop())? {
            device.map_range(self.view.function, memory, writable);
        }
        Ok(())
    }

    fn unmap(
        &mut self,
        device: &mut impl FunctionMemory,
        flags: u32,
        address: u64,
        size: u64,
    ) -> Result<u64, Refusal> {
        match flags {
            0 => {
                let taken = self.ranges.unmap(address, size)?;
                device.unmap_range(self.view.function, address, size);
                Ok(taken)
            }
            _ if flags & !dma::UNMAP_ALL == 0 && address == 0 && size == 0 => {
                self.unmap_all(device);
                Ok(0)
            }
            _ => Err(Refusal::Malformed),
        }
    }

    fn unmap_all(&mut self, device: &mut impl FunctionMemory) {
        self.ranges.clear();
        device.unmap_range(self.view.function, 0, u64::MAX);
    }

    fn set_irqs(
        &mut self,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        files: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let (first, many, all) = (start as usize, count as usize, self.vectors.count());
        if index != protocol::MSIX || first > all || many > all - first {
            return Err(Refusal::BadInterrupt);
        }
        if !files.is_empty() && (flags & irq::EVENTFD == 0 || files.len() != many) {
            return Err(Refusal::UnwantedDescriptors);
        }
        const TAKE_ALL: u32 = irq::NONE | irq::TRIGGER;
        const SET: u32 = irq::EVENTFD | irq::TRIGGER;
        const MASK: u32 = irq::NONE | irq::MASK;
        const UNMASK: u32 = irq::NONE | irq::UNMASK;
        match flags {
            TAKE_ALL if count == 0 => self.vectors.take_triggers(0, all),
            TAKE_ALL => (first..first + many).for_each(|vector| self.vectors.fire(vector)),
            SET if files.is_empty() => self.vectors.take_triggers(first, many),
            SET => self.vectors.set_triggers(first, files)?,
            MASK => self.vectors.mask(first, many, true),
            UNMASK => self.vectors.mask(first, many, false),
            _ => return Err(Refusal::BadInterrupt),
        }
        Ok(())
    }

    fn read(
        &mut self,
        device: &mut impl FunctionMemory,
        region: u32,
        offset: u64,
        data: &mut [u8],
    ) -> Result<Result<(), Refusal>, DeviceError> {
        if region == protocol::CONFIG {
            return Ok(if self.config.read(offset, data) { Ok(()) } else { Err(Refusal::BadRegion) });
        }
        let Some(addresses) = registers(region, offset, data.len()) else {
            return Ok(Err(Refusal::BadRegion));
        };
        if !self.config.memory_enabled() {
            return Ok(Err(Refusal::Register));
        }
        let mut outcome = Ok(());
        for (address, word) in addresses.zip(data.chunks_exact_mut(4)) {
            match self.view.read(device, &self.vectors, address)? {
                Some(value) => word.copy_from_slice(&value.to_le_bytes()),
                None => outcome = Err(Refusal::Register),
            }
        }
        Ok(outcome)
    }

    /// Whether a reset has begun.
    fn write(
        &mut self,
        device: &mut impl FunctionMemory,
        region: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<Result<bool, Refusal>, DeviceError> {
        if region == protocol::CONFIG {
            let Some(resets) = self.config.write(offset, data) else { return Ok(Err(Refusal::BadRegion)) };
            if resets {
                self.begin_reset(device, false)?;
            } else {
                device.set_bus_master(self.view.function, self.config.is_bus_master());
                self.mask(device)?;
            }
            return Ok(Ok(resets));
        }
        let Some(addresses) = registers(region, offset, data.len()) else {
            return Ok(Err(Refusal::BadRegion));
        };
        if !self.config.memory_enabled() {
            return Ok(Err(Refusal::Register));
        }
        let mut outcome = Ok(false);
        for (address, word) in addresses.zip(data.chunks_exact(4)) {
            let value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            if !self.view.write(device, &mut self.vectors, address, value)? {
                outcome = Err(Refusal::Register);
            }
        }
        self.mask(device)?;
        Ok(outcome)
    }

    /// Hands on what the device has sent since it was looked at last.
    pub fn look(&mut self, device: &impl FunctionMemory) {
        let mut came = false;
        for (vector, (place, seen)) in self.view.places().zip(&mut self.seen).enumerate() {
            let sent = device.messages(place.queue);
            if sent != *seen {
                *seen = sent;
                self.vectors.fire(vector);
                came = true;
            }
        }
        if came {
            self.send();
        }
        self.tally.set_outside(device.refused_accesses(self.view.function));
    }

    fn send(&mut self) {
        if self.reset.is_none() {
            for _ in 0..self.vectors.send() {
                self.tally.note_interrupt();
            }
        }
    }

    /// Masks in the device's own table the vectors whose messages the host does not want now, and no others; sends what waited.
    fn mask(&mut self, device: &mut impl FunctionMemory) -> Result<(), DeviceError> {
        let may_send = self.config.may_send();
        for (vector, place) in self.view.places().enumerate() {
            let masks = !may_send || !self.vectors.wants(vector);
            if masks != self.masked[vector] {
                device.write_at(place, Register::MessageControl, masks.into())?;
                self.masked[vector] = masks;
            }
        }
        self.send();
        Ok(())
    }

    /// Begins a reset; with `forgets` the host has gone, and what it gave goes too.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn begin_reset(
        &mut self,
        device: &mut impl FunctionMemory,
        forgets: bool,
    ) -> Result<(), DeviceError> {
        if forgets {
            device.set_bus_master(self.view.function, false);
            self.unmap_all(device);
        }
        let place = self.view.places().next().expect("a function has a queue pair");
        device.write_at(place, Register::FnControl, FunctionControl::RESET.bits())?;
        let forgets = forgets || self.reset.as_ref().is_some_and(|reset| reset.forgets);
        self.reset = Some(Reset { deadline: Instant::now() + RESET_TIME, forgets });
        Ok(())
    }

    /// Ends a reset once nothing of the function is active. What became of it, when it is over.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn end_reset(
        &mut self,
        device: &mut impl FunctionMemory,
    ) -> Result<Option<Result<(), Refusal>>, DeviceError> {
        let Some(reset) = &self.reset else { return Ok(None) };
        let (deadline, forgets) = (reset.deadline, reset.forgets);
        for place in self.view.places() {
            if device.read_at(place, Register::State)? & State::ACTIVE.bits() != 0 {
                if Instant::now() < deadline || forgets {
                    return Ok(None);
                }
                self.reset = None;
                return Ok(Some(Err(Refusal::ResetTimeout)));
            }
        }
        restore(device, self.view)?;
        self.look(device);
        self.vectors.reset();
        self.config = ConfigSpace::new(self.view.queues, self.view.first_queue);
        device.set_bus_master(self.view.function, false);
        if forgets {
            self.vectors.forget();
        }
        self.mask(device)?;
        self.tally.note_reset();
        self.reset = None;
        Ok(Some(Ok(())))
    }
}

/// Gives every register of a function that is not active the value of a reset.
///
/// Most are configuration, which is written. The rest is what only an ENABLE clears: indices, counters, groups, slots of versions, the
/// ring of events. So each queue pair is enabled with two slots and no descriptors, which moves no data, and disabled again.
fn restore(device: &mut impl FunctionMemory, view: View) -> Result<(), DeviceError> {
    let own: Vec<Place> = view.places().collect();
    configure(device, &own)?;
    write(device, own[0], Register::EqSize, 2)?;
    for &place in &own {
        write(device, place, Register::Error, u32::MAX)?;
        for register in [Register::SqSize, Register::CqSize] {
            write(device, place, register, 2)?;
        }
        write(device, place, Register::Control, Control::ENABLE.bits())?;
        wait(device, place, true)?;
        write(device, place, Register::Abort, 0)?;
        write(device, place, Register::Arm, 0)?;
        write(device, place, Register::Control, 0)?;
        wait(device, place, false)?;
    }
    configure(device, &own)
}

/// Gives the configuration of a function, which has these queue pairs, the values of a reset.
fn configure(device: &mut impl FunctionMemory, own: &[Place]) -> Result<(), DeviceError> {
    for register in Register::ALL {
        let (Access::Config, Some(value)) = (register.access(), register.reset()) else { continue };
        match register.block() {
            Block::Function => write(device, own[0], register, value)?,
            Block::FunctionQueue => {
                own.iter().try_for_each(|&place| write(device, place, register, value))?
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes a register; one that the device was not built with refuses, and has nothing to restore.
fn write(
    device: &mut impl FunctionMemory,
    place: Place,
    register: Register,
    value: u32,
) -> Result<(), DeviceError> {
    match device.write_at(place, register, value) {
        Err(DeviceError::WriteRefused { .. }) => Ok(()),
        written => written,
    }
}

/// Waits until the queue pair is active, or not.
fn wait(device: &mut impl FunctionMemory, place: Place, active: bool) -> Result<(), DeviceError> {
    for _ in 0..PATIENCE {
        if (device.read_at(place, Register::State)? & State::ACTIVE.bits() != 0) == active {
            return Ok(());
        }
        device.advance(1)?;
    }
    Err(DeviceError::Failed {
        device: device.name().to_owned(),
        what: format!(
            "queue pair {} of function {} did not {} while the function was reset",
            place.queue,
            place.function,
            if active { "start" } else { "stop" }
        ),
    })
}

/// The addresses of the registers that an access of so many bytes at `offset` of `region` takes; one or two of 32 bits each.
fn registers(region: u32, offset: u64, bytes: usize) -> Option<impl Iterator<Item = u32>> {
    let fits = region == protocol::BAR0
        && matches!(bytes, 4 | 8)
        && offset.is_multiple_of(bytes as u64)
        && offset < u64::from(BAR0_BYTES);
    fits.then(|| (0..bytes as u32 / 4).map(move |word| offset as u32 + 4 * word))
}

fn long(value: u64) -> Vec<u8> {
    value.to_le_bytes().into()
}
