//! A strip of waveform: the device's pins, cycle by cycle.

/// Pins and busy units of one cycle, as they are just before its rising edge; `strip.h` packs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pins(pub u64);

/// What one bit, or a few, of [`Pins`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The port's name without its prefix and suffix.
    pub name: &'static str,
    /// Its lowest bit.
    pub bit: u32,
    /// How many bits it has.
    pub bits: u32,
}

const fn pin(name: &'static str, bit: u32, bits: u32) -> Pin {
    Pin { name, bit, bits }
}

/// All of them: the register port, the five channels of the master port with their IDs, and the units of engine 1.
pub const PINS: [Pin; 23] = [
    pin("axil_awvalid", 0, 1),
    pin("axil_wvalid", 1, 1),
    pin("axil_bvalid", 2, 1),
    pin("axil_arvalid", 3, 1),
    pin("axil_rvalid", 4, 1),
    pin("arvalid", 5, 1),
    pin("arready", 6, 1),
    pin("rvalid", 7, 1),
    pin("rready", 8, 1),
    pin("awvalid", 9, 1),
    pin("awready", 10, 1),
    pin("wvalid", 11, 1),
    pin("wready", 12, 1),
    pin("bvalid", 13, 1),
    pin("bready", 14, 1),
    pin("arid", 15, 6),
    pin("rid", 21, 6),
    pin("awid", 27, 6),
    pin("bid", 33, 6),
    pin("mem", 39, 1),
    pin("gemv", 40, 1),
    pin("sfu", 41, 1),
    pin("attn", 42, 1),
];

impl Pins {
    /// What this pin, or these, carried; `None` if there is none of this name.
    pub fn get(self, name: &str) -> Option<u32> {
        let pin = PINS.iter().find(|pin| pin.name == name)?;
        Some((self.0 >> pin.bit) as u32 & ((1 << pin.bits) - 1))
    }
}
