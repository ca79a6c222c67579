//! A hostile client of a function.

use doorbell_contract::{HwDesc, Place, Register, SqKey};
use doorbell_host::SharedMemory;
use doorbell_host::memory::{PAGE, SIMULATED_BUS_ADDRESS};
use doorbell_vfio::memory::shared;
use doorbell_vfio::protocol::{self, command, dma};
use std::os::fd::AsFd;

use super::Served;
use super::raw::{Raw, map_body};

/// SplitMix64.
pub struct Draw(pub u64);

impl Draw {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Writes anything to any register of function 1, gives rings anywhere, maps and unmaps under that; `spared` is left alone. Pages that were never
/// mapped, or to be read only, do not change.
pub fn rage(served: &Served, writes: u64, draw: &mut Draw, spared: &[Register]) {
    const PAGES: u64 = 16;
    let page = PAGE as u64;
    let bytes = PAGES as usize * PAGE;
    // The same addresses as the neighbour has: only AxUSER tells them apart.
    let base = SIMULATED_BUS_ADDRESS;
    let mut raw = Raw::connect(served, 1);
    raw.enable();
    let (memory, file) = shared(bytes, base).unwrap();
    let read_only = raw.map(bytes, base + 0x100_0000, dma::READ);
    let fill = |memory: &SharedMemory| {
        for word in 0..bytes / 8 {
            memory
                .word64(8 * word)
                .unwrap()
                .store(0xA5A5_0000 + word as u64, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let words_of = |memory: &SharedMemory, page: u64| -> Vec<u64> {
        let first = page as usize * PAGE / 8;
        let word = |word| memory.word64(8 * word).unwrap().load(std::sync::atomic::Ordering::Relaxed);
        (first..first + PAGE / 8).map(word).collect()
    };
    let is_whole = |memory: &SharedMemory, page: u64| {
        let first = page * PAGE as u64 / 8;
        words_of(memory, page).into_iter().zip(first..).all(|(found, word)| found == 0xA5A5_0000 + word)
    };
    fill(&memory);
    fill(&read_only);
    memory.expect_any_words();
    // Where rings may be, descriptors that are good at their index, of 1 to 64 tokens each.
    let slots = memory.slots::<8>(0, (PAGES / 2 * page / 64) as u32).unwrap();
    for slot in 0..(PAGES / 2 * page / 64) as u32 {
        let desc = HwDesc::decode(slot, 0, 1 + slot % 64).with_delta_offset(u64::from(slot % 8) * 400);
        slots.store(slot, bytemuck::cast(desc.seal(&SqKey::new(0), slot % 64)));
    }
    // Which pages have been mapped at any time: the others stay whole.
    let mut ever = [false; PAGES as usize];
    let mut mapped = [false; PAGES as usize];
    let own = Place { function: 0, queue: 0 };
    let registers: Vec<Register> =
        Register::ALL.into_iter().filter(|register| !spared.contains(register)).collect();
    for round in 0..writes {
        match draw.below(64) {
            0 => {
                // The last quarter is never mapped.
                let k = draw.below(PAGES * 3 / 4);
                let at = base + k * page;
                mapped[k as usize] ^= true;
                if !mapped[k as usize] {
                    let body =
                        [&protocol::words(&[24, 0])[..], &at.to_le_bytes(), &page.to_le_bytes()].concat();
                    assert_eq!(raw.ask(command::DMA_UNMAP, &body).0, 0);
                    // From here on nothing comes.
                    let before = words_of(&memory, k);
                    for _ in 0..4 {
                        raw.read_register(Register::State, own);
                    }
                    assert!(
                        before == words_of(&memory, k),
                        "round {round}: page {k} changed after its unmap was answered"
                    );
                } else {
                    let body = map_body(dma::READ | dma::WRITE, k * page, at, page);
                    assert_eq!(raw.ask_with(command::DMA_MAP, &body, &[file.as_fd()]), Some(0));
                    ever[k as usize] = true;
                }
            }
            // Rings and regions anywhere near, and a start.
            1..=4 => {
                raw.write_register(Register::Control, own, 0);
                for (low, size) in [
                    (Register::SqBaseLo, Register::SqSize),
                    (Register::CqBaseLo, Register::CqSize),
                    (Register::TokenBaseLo, Register::TokenSizeLo),
                ] {
                    let at = match draw.below(4) {
                        0 => draw.next() & !63,
                        1 => base + 0x100_0000 + draw.below(PAGES) * page,
                        _ => base + draw.below(PAGES) * page,
                    };
                    let high = Register::at(low as u32 + 4).unwrap().0;
                    raw.write_register(low, own, at as u32);
                    raw.write_register(high, own, (at >> 32) as u32);
                    let slots = if low == Register::TokenBaseLo { 4096 } else { 2 << draw.below(7) };
                    raw.write_register(size, own, slots);
                }
                raw.write_register(Register::Error, own, u32::MAX);
                raw.write_register(Register::Control, own, 1);
                raw.write_register(Register::Doorbell, own, draw.below(8) as u32);
            }
            // From time to time all that keeps ENABLE from being taken goes.
            5 => {
                if draw.below(2) == 0 {
                    assert_eq!(raw.write(protocol::CONFIG, 0x48, &[0, 0x80]), 0);
                }
                assert_eq!(raw.write(protocol::CONFIG, 4, &[draw.next() as u8, draw.next() as u8]), 0);
                raw.enable();
            }
            6 => {
                let offset = draw.below(0x4_1000);
                let data: Vec<u8> =
                    (0..[1, 2, 3, 4, 8, 16][draw.below(6) as usize]).map(|_| draw.next() as u8).collect();
                raw.write(draw.below(10) as u32, offset, &data);
            }
            _ => {
                let register = registers[draw.below(registers.len() as u64) as usize];
                let place = Place { function: draw.below(16) as u8, queue: draw.below(16) as u8 };
                let value = match draw.below(4) {
                    0 => draw.next() as u32,
                    1 => 1 << draw.below(32),
                    _ => draw.below(64) as u32,
                };
                let place = if draw.below(2) == 0 { own } else { place };
                let address = register.address(place);
                raw.write(protocol::BAR0, address.into(), &value.to_le_bytes());
            }
        }
    }
    for k in (0..PAGES).filter(|&k| !ever[k as usize]) {
        assert!(is_whole(&memory, k), "page {k} was never mapped, and has changed");
    }
    assert!((0..PAGES).all(|k| is_whole(&read_only, k)), "a page that is read-only has changed");
    assert!(ever.iter().any(|&was| was), "no page was ever mapped");
}
