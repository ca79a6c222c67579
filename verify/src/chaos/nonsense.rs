//! What no driver does with registers, and what the device must answer: nearly always SLVERR, and nothing changes.

use doorbell_contract::{Access, Block, Control, Place, Register};

use super::device::Disturbed;
use super::draw::Draw;
use super::session::Session;
use super::violation::{Violation, violated};

/// What a queue pair is in, as far as its host knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Inactive.
    Down,
    /// Enabled.
    Up,
    /// Enabled, and told to drain: it may be inactive by now.
    Draining,
    /// Told to stop: it may be inactive by now.
    Stopping,
}

/// One access, and its kind.
pub(super) fn access(
    device: &mut dyn Disturbed,
    draw: &mut Draw,
    place: Place,
    state: State,
    session: Option<&mut Session>,
    shape: (u8, u8),
) -> Result<&'static str, Violation> {
    let far = draw.below(1 << 16);
    match (draw.below(10), session) {
        (0, Some(session)) if state == State::Up => {
            let tail = session.sq.tail();
            let beyond = tail.wrapping_add(session.sq_depth.slots()).wrapping_add(1 + far);
            let value = if draw.once_in(2) { beyond } else { tail.wrapping_sub(1 + far) };
            refuse(device, place, Register::Doorbell, value)?;
            session.refused += 1;
            Ok("doorbells out of range")
        }
        (1, Some(session)) if state == State::Up => {
            let head = session.cq_released;
            let beyond = head.wrapping_add(session.cq_depth.slots()).wrapping_add(1 + far);
            let value = if draw.once_in(2) { beyond } else { head.wrapping_sub(1 + far) };
            refuse(device, place, Register::CqHead, value)?;
            session.refused += 1;
            Ok("CQ_HEAD out of range")
        }
        (0 | 1, _) if state == State::Down => {
            let register = draw.pick(&[Register::Doorbell, Register::CqHead]);
            refuse(device, place, register, draw.bits())?;
            Ok("doorbells while inactive")
        }
        (0, Some(session)) if state == State::Draining => {
            refuse(device, place, Register::Doorbell, session.sq.tail())?;
            Ok("doorbells while draining")
        }
        (2, _) if state == State::Up => {
            let registers = Register::ALL.into_iter().filter(|register| register.access() == Access::Config);
            let registers: Vec<Register> = registers.collect();
            refuse(device, place, draw.pick(&registers), draw.bits())?;
            Ok("configuration while active")
        }
        (3, _) => {
            let registers =
                Register::ALL.into_iter().filter(|register| register.access() == Access::ReadOnly);
            let registers: Vec<Register> = registers.collect();
            refuse(device, place, draw.pick(&registers), draw.bits())?;
            Ok("writes to read-only registers")
        }
        (4, _) => {
            let address = (0..64).map(|_| draw.below(1 << 16) << 2).find(|&at| Register::at(at).is_none());
            let Some(address) = address else { return Ok("unknown registers") };
            silent(device, address, draw.bits())?;
            Ok("unknown registers")
        }
        (5, _) => {
            let Some(more) = 16u8.checked_sub(shape.0).filter(|&more| more > 0) else { return Ok("nothing") };
            let other = Place { queue: shape.0 + draw.below(more.into()) as u8, ..place };
            silent(device, Register::Doorbell.address(other), draw.bits())?;
            silent(device, Register::Control.address(other), draw.bits())?;
            Ok("a queue pair that is not there")
        }
        (6, _) => {
            let register = draw.pick(&Register::ALL);
            let address = register.address(place);
            if device.write_bytes(address, draw.bits(), draw.below(15) as u8)? {
                return Err(violated("registers", format!("a write of a part of {register} was accepted")));
            }
            Ok("partial writes")
        }
        (7, _) if shape.1 > 1 => {
            let other = Place { function: (place.function + 1) % shape.1, ..place };
            let owned = |register: &Register| register.block() == Block::FunctionQueue;
            let registers: Vec<Register> = Register::ALL.into_iter().filter(owned).collect();
            silent(device, draw.pick(&registers).address(other), draw.bits())?;
            Ok("another function's page")
        }
        (8, _) => match state {
            State::Up => {
                accept(device, place, Register::Control, Control::ENABLE.bits())?;
                Ok("ENABLE twice")
            }
            // The drain may be over by now, and then it would begin a new life.
            State::Draining => Ok("nothing"),
            State::Down | State::Stopping => {
                accept(device, place, Register::Control, draw.pick(&[0, Control::DRAIN.bits()]))?;
                Ok("disable twice")
            }
        },
        (9, _) if state == State::Down => {
            let (register, value) = draw.pick(&[
                (Register::Weight, 0),
                (Register::Weight, 256),
                (Register::Abort, 7),
                (Register::QueueFunction, u32::from(shape.1)),
                (Register::QueueFunction, u32::MAX),
            ]);
            refuse(device, place, register, value)?;
            Ok("values out of range")
        }
        _ => {
            accept(device, place, Register::Error, 0)?;
            let register = draw.pick(&Register::ALL);
            device.read_address(register.address(place))?;
            Ok("reads of anything")
        }
    }
}

fn refuse(device: &mut dyn Disturbed, place: Place, register: Register, value: u32) -> Result<(), Violation> {
    if device.write_bytes(register.address(place), value, 0xF)? {
        let what = format!("a write of {value:#x} to {register} was accepted");
        return Err(violated("registers", what));
    }
    Ok(())
}

fn accept(device: &mut dyn Disturbed, place: Place, register: Register, value: u32) -> Result<(), Violation> {
    if !device.write_bytes(register.address(place), value, 0xF)? {
        let what = format!("a write of {value:#x} to {register} was refused");
        return Err(violated("registers", what));
    }
    Ok(())
}

/// Nothing is at the address: a write is refused, a read gives 0.
fn silent(device: &mut dyn Disturbed, address: u32, value: u32) -> Result<(), Violation> {
    if device.write_bytes(address, value, 0xF)? {
        return Err(violated(
            "registers",
            format!("a write to {address:#07x}, where nothing is, was accepted"),
        ));
    }
    match device.read_address(address)? {
        (0, false) => Ok(()),
        (value, okay) => {
            let what = format!("a read of {address:#07x}, where nothing is, gave {value:#x}, OKAY: {okay}");
            Err(violated("registers", what))
        }
    }
}
