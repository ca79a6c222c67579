//! What Yosys made of a module: how many cells, and the module between registers.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// What a module is made of.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cells {
    /// LUTs with four inputs.
    pub lut4: usize,
    /// Two bits of a carry chain each, in place of two LUTs.
    pub carries: usize,
    pub flip_flops: usize,
    /// 16 words of 4 bits each, made of LUTs.
    pub lut_memories: usize,
    /// 18 Kbit each.
    pub block_memories: usize,
    /// 18 x 18 bits each.
    pub multipliers: usize,
}

impl Cells {
    /// LUTs that are taken, with those of carry chains and memories: a memory takes four, and two for its write port.
    pub fn luts(&self) -> usize {
        self.lut4 + 2 * self.carries + 6 * self.lut_memories
    }

    /// What the LFE5U-85F has not enough of. nextpnr tries for long before it says so.
    pub fn excess(&self) -> Option<String> {
        let uses = [
            (self.luts(), 83_640, "LUTs"),
            (self.flip_flops, 83_640, "flip-flops"),
            (self.block_memories, 208, "block memories"),
            (self.multipliers, 156, "multipliers"),
        ];
        let (used, there, what) = uses.into_iter().find(|(used, there, _)| used > there)?;
        Some(format!("does not fit: {used} of {there} {what}"))
    }
}

/// Counts the cells of the module.
///
/// # Errors
/// When the netlist does not have the module.
pub fn count(design: &Value, module: &str) -> Result<Cells> {
    let mut cells = Cells::default();
    for cell in object(design, &["modules", module, "cells"])?.values() {
        match cell["type"].as_str().unwrap_or_default() {
            "LUT4" => cells.lut4 += 1,
            "CCU2C" => cells.carries += 1,
            "TRELLIS_FF" => cells.flip_flops += 1,
            "TRELLIS_DPR16X4" => cells.lut_memories += 1,
            "DP16KD" => cells.block_memories += 1,
            "MULT18X18D" => cells.multipliers += 1,
            _ => {}
        }
    }
    Ok(cells)
}

/// Puts the module between registers, so that it needs three pins and every path through it is timed: each input comes from a
/// flip-flop of one long shift register, each output goes to a flip-flop, and behind those a second shift register folds them
/// into one bit, so that none is optimised away. Between the flip-flops of both lies one LUT at most. The module's own cells
/// stay as they were made; only the notes of their lines in the sources go.
///
/// # Errors
/// When the netlist does not have the module, or it has no clock.
pub fn wrap(design: &mut Value, module: &str) -> Result<()> {
    let mut body = design["modules"][module].take();
    let ports = object(&body, &["ports"])?.clone();
    let mut next = highest(&body) + 1;
    let mut fresh = || {
        next += 1;
        next
    };
    let clock =
        ports.get("clk_i").map_or_else(&mut fresh, |port| port["bits"][0].as_u64().unwrap_or_default());
    let first = fresh();
    let mut last = first;
    let mut added = Map::new();
    let mut outputs = vec![];
    for (name, port) in &ports {
        let bits = port["bits"].as_array().with_context(|| format!("port {name} has no bits"))?;
        for (place, bit) in bits.iter().enumerate() {
            let Some(bit) = bit.as_u64().filter(|_| name != "clk_i") else { continue };
            if port["direction"] == "input" {
                added.insert(format!("in.{name}[{place}]"), flip_flop(clock, last, bit));
                last = bit;
            } else {
                outputs.push((format!("{name}[{place}]"), bit));
            }
        }
    }
    for (name, bit) in outputs {
        let (held, mixed, folded) = (fresh(), fresh(), fresh());
        added.insert(format!("out.{name}"), flip_flop(clock, bit, held));
        added.insert(format!("mix.{name}"), exclusive_or(held, last, mixed));
        added.insert(format!("fold.{name}"), flip_flop(clock, mixed, folded));
        last = folded;
    }
    let cells = body["cells"].as_object_mut().context("a module without cells")?;
    for cell in cells.values_mut() {
        cell["attributes"] = json!({});
    }
    cells.extend(added);
    if let Some(names) = body["netnames"].as_object_mut() {
        names.values_mut().for_each(|net| net["attributes"] = json!({}));
    }
    body["ports"] = json!({
        "clk_i": { "direction": "input", "bits": [clock] },
        "in_i": { "direction": "input", "bits": [first] },
        "out_o": { "direction": "output", "bits": [last] },
    });
    let mut modules = Map::new();
    modules.insert(module.to_owned(), body);
    design["modules"] = Value::Object(modules);
    Ok(())
}

fn object<'a>(value: &'a Value, path: &[&str]) -> Result<&'a Map<String, Value>> {
    let place = path.iter().try_fold(value, |value, name| value.get(name));
    place.and_then(Value::as_object).with_context(|| format!("the netlist has no {}", path.join(" ")))
}

/// The highest number of a net.
fn highest(body: &Value) -> u64 {
    let nets = body["netnames"].as_object().into_iter().flat_map(Map::values);
    let bits = nets.flat_map(|net| net["bits"].as_array().into_iter().flatten());
    bits.filter_map(Value::as_u64).max().unwrap_or(1)
}

/// Always enabled, never reset. A text that looks like a number ends in a space, as Yosys writes it.
fn flip_flop(clock: u64, from: u64, to: u64) -> Value {
    json!({
        "hide_name": 0,
        "type": "TRELLIS_FF",
        "parameters": {
            "CEMUX": "1 ", "CLKMUX": "CLK", "GSR": "DISABLED", "LSRMUX": "LSR", "REGSET": "RESET", "SRMODE": "LSR_OVER_CE",
        },
        "attributes": {},
        "port_directions": { "CLK": "input", "DI": "input", "Q": "output" },
        "connections": { "CLK": [clock], "DI": [from], "Q": [to] },
    })
}

fn exclusive_or(one: u64, other: u64, to: u64) -> Value {
    json!({
        "hide_name": 0,
        "type": "LUT4",
        "parameters": { "INIT": "0110011001100110" },
        "attributes": {},
        "port_directions": { "A": "input", "B": "input", "C": "input", "D": "input", "Z": "output" },
        "connections": { "A": [one], "B": [other], "C": ["0"], "D": ["0"], "Z": [to] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An inverter behind a register, with a clock, an input of two bits of which one is used, and a constant output.
    fn design() -> Value {
        json!({ "creator": "test", "modules": {
            "LUT4": { "ports": {}, "cells": {}, "netnames": {} },
            "m": {
                "attributes": { "top": "1" },
                "ports": {
                    "clk_i": { "direction": "input", "bits": [2] },
                    "a_i": { "direction": "input", "bits": [3, 4] },
                    "b_o": { "direction": "output", "bits": [6, "0"] },
                },
                "cells": {
                    "q": { "type": "TRELLIS_FF", "attributes": { "src": "m.sv:1" }, "connections": { "DI": [3], "Q": [5] } },
                    "inverts": { "type": "LUT4", "attributes": {}, "connections": { "A": [5], "Z": [6] } },
                    "adds": { "type": "CCU2C", "attributes": {}, "connections": {} },
                    "stores": { "type": "TRELLIS_DPR16X4", "attributes": {}, "connections": {} },
                    "joins": { "type": "PFUMX", "attributes": {}, "connections": {} },
                },
                "netnames": { "q": { "bits": [5, 6], "attributes": { "src": "m.sv:1" } }, "a_i": { "bits": [3, 4] } },
            },
        } })
    }

    #[test]
    fn cells_are_counted_by_kind() {
        let cells = count(&design(), "m").unwrap();
        let expected =
            Cells { lut4: 1, carries: 1, flip_flops: 1, lut_memories: 1, block_memories: 0, multipliers: 0 };
        assert_eq!(cells, expected);
        assert_eq!(cells.luts(), 9);
        assert_eq!(cells.excess(), None);
        let large = Cells { multipliers: 157, ..cells };
        assert_eq!(large.excess().unwrap(), "does not fit: 157 of 156 multipliers");
        assert!(count(&design(), "n").unwrap_err().to_string().contains("no modules n cells"));
    }

    #[test]
    fn every_input_comes_from_a_register_and_every_output_goes_to_one() {
        let mut design = design();
        wrap(&mut design, "m").unwrap();
        let m = &design["modules"]["m"];
        let drives = |net: &Value| {
            let cells = m["cells"].as_object().unwrap();
            let (_, cell) = cells.iter().find(|(_, cell)| cell["connections"]["Q"] == json!([net])).unwrap();
            cell["connections"]["DI"][0].clone()
        };
        // The inputs are one shift register, from the pin on.
        assert_eq!(drives(&json!(4)), json!(3));
        assert_eq!(drives(&json!(3)), m["ports"]["in_i"]["bits"][0]);
        let out = &m["cells"]["out.b_o[0]"];
        assert_eq!(out["connections"]["DI"], json!([6]));
        assert_eq!(out["connections"]["CLK"], json!([2]));
        // A constant output needs none, and the last register is the pin.
        assert!(m["cells"].get("out.b_o[1]").is_none());
        assert_eq!(m["cells"]["fold.b_o[0]"]["connections"]["Q"], m["ports"]["out_o"]["bits"]);
        assert_eq!(m["ports"].as_object().unwrap().len(), 3);
        assert_eq!(m["cells"]["q"]["attributes"], json!({}));
        assert_eq!(design["modules"].as_object().unwrap().len(), 1);
        // No new net has the number of an old one.
        assert!(out["connections"]["Q"][0].as_u64().unwrap() > 6);
    }
}
