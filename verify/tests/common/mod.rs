//! What the tests of the driver share.

use doorbell_contract::{Capability, HwDesc, Register, SqKey};
use doorbell_host::queue::DESC_WORDS;
use doorbell_host::{DeviceError, Platform, SharedMemory};
use doorbell_verify::ModelPlatform;

/// The model with a wrong answer or two.
#[derive(Default)]
pub struct Tampered {
    /// What it is but for that.
    pub model: ModelPlatform,
    /// Mapped by the driver.
    pub memory: Option<SharedMemory>,
    /// Changes what a register reads.
    pub read: Option<fn(Register, u32) -> u32>,
    /// Registers whose writes are lost.
    pub deaf_to: Option<Register>,
    /// Done to the shared memory whenever the device is given time.
    pub scribble: Option<fn(&SharedMemory)>,
    /// Whether it polls the slots, as CAPABILITY.SLOT_POLLING says: the check word publishes (R1).
    pub polls_slots: bool,
    /// Next slot to look at.
    pub next: u32,
}

impl Platform for Tampered {
    fn name(&self) -> &str {
        "tampered"
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        let memory = self.model.map(bytes)?;
        self.memory = Some(memory.clone());
        Ok(memory)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        if self.deaf_to == Some(register) { Ok(()) } else { self.model.write_register(register, value) }
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        let mut value = self.model.read_register(register)?;
        if self.polls_slots && register == Register::Capability {
            value |= Capability::SLOT_POLLING.bits();
        }
        Ok(self.read.map_or(value, |read| read(register, value)))
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        if let Some(memory) = self.memory.as_ref().filter(|_| self.polls_slots) {
            let slots = memory.slots::<DESC_WORDS>(0, self.model.read_register(Register::SqSize)?)?;
            let key = SqKey::new(self.model.read_register(Register::SqKey)?);
            let mut desc = HwDesc::default();
            loop {
                slots.load(self.next, bytemuck::cast_mut(&mut desc));
                if !desc.verify(&key, self.next) {
                    break;
                }
                self.next = self.next.wrapping_add(1);
                self.model.write_register(Register::Doorbell, self.next)?;
            }
        }
        self.model.advance(want)?;
        if let (Some(scribble), Some(memory)) = (self.scribble, &self.memory) {
            scribble(memory);
        }
        Ok(())
    }
}
