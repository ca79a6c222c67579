//! All that chaos does with interrupts: it arms at any moment, near what is visible. The vectors stay masked, so that nothing is sent.

use doorbell_contract::{Place, Register};

use super::device::{Disturbed, read};
use super::draw::Draw;
use super::nonsense::State;
use super::violation::{Violation, violated};

/// Arms.
pub(super) fn disturb(
    device: &mut dyn Disturbed,
    draw: &mut Draw,
    place: Place,
    state: State,
    has_interrupts: bool,
) -> Result<(), Violation> {
    let tail = read(device, place, Register::CqTail)?;
    let index = tail.wrapping_add(draw.below(8)).wrapping_sub(4);
    let taken = device.write_bytes(Register::Arm.address(place), index, 0xF)?;
    if !has_interrupts {
        return match taken {
            true => Err(violated("R14", "ARM was accepted by a device without interrupts".into())),
            false => Ok(()),
        };
    }
    match state {
        State::Up if !taken => return Err(violated("R14", "ARM of an active queue pair was refused".into())),
        State::Down if taken => {
            return Err(violated("R14", "ARM of an inactive queue pair was accepted".into()));
        }
        _ => {}
    }
    let reads = read(device, place, Register::Arm)?;
    if taken && reads != index {
        return Err(violated("R14", format!("ARM reads {reads} after a write of {index}")));
    }
    Ok(())
}
