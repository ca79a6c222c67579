//! `tb/wave/*.txt`: translation filters with which GTKWave shows names instead of numbers.

use super::HEADER;
use super::spec::Spec;

/// Path and text of each filter.
pub fn generate(spec: &Spec) -> Vec<(&'static str, String)> {
    let codes = |name: &str| {
        let codes = spec.enums.iter().find(|e| e.name == name);
        codes.into_iter().flat_map(|e| e.values.iter().map(|v| (v.value, e.width, v.name.clone()))).collect()
    };
    let registers = spec.registers.iter().map(|r| (u64::from(r.offset), 12, r.name.clone()));
    let counters = spec.counters.iter().flat_map(|c| {
        let offset = u64::from(c.offset);
        [(offset, 12, format!("{}_LO", c.name)), (offset + 4, 12, format!("{}_HI", c.name))]
    });
    vec![
        ("tb/wave/opcode.txt", filter(codes("Opcode"))),
        ("tb/wave/status.txt", filter(codes("Status"))),
        ("tb/wave/error.txt", filter(codes("ErrorCode"))),
        ("tb/wave/register.txt", filter(registers.chain(counters).collect())),
    ]
}

/// A line per value, in hexadecimal as GTKWave shows it: as many digits as the bits need.
fn filter(values: Vec<(u64, usize, String)>) -> String {
    let line = |(value, bits, name): (u64, usize, String)| {
        format!("{value:0digits$X} {name}\n", digits = usize::div_ceil(bits, 4))
    };
    format!("# {HEADER}\n") + &values.into_iter().map(line).collect::<String>()
}
