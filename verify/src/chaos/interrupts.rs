//! All that chaos does with interrupts: it arms and disarms at any moment, and holds R14 to what can be told from outside.

use doorbell_contract::{Irq, Place, Register};

use super::device::{Disturbed, read};
use super::draw::Draw;
use super::violation::{Violation, violated};

/// Arms or disarms.
pub(super) fn disturb(device: &mut dyn Disturbed, draw: &mut Draw, place: Place) -> Result<(), Violation> {
    let armed = draw.once_in(2);
    device.write_at(place, Register::Irq, if armed { Irq::ARMED.bits() } else { 0 })?;
    let irq = Irq::from_bits_retain(read(device, place, Register::Irq)?);
    if irq.contains(Irq::ARMED) && (irq.contains(Irq::PENDING) || !armed) {
        return Err(violated("R14", format!("IRQ reads {irq:?} behind a write of ARMED = {armed}")));
    }
    Ok(())
}
