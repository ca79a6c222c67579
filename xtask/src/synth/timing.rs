//! What nextpnr says about the speed of a module.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How fast a module runs, and what limits that.
#[derive(Debug, Serialize, Deserialize)]
pub struct Timing {
    pub mhz: f64,
    /// The slowest path from register to register.
    pub hops: Vec<Hop>,
}

/// A cell that the path goes through, or the way to one.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Hop {
    /// clk-to-q, routing, logic or setup.
    pub kind: String,
    pub nanoseconds: f64,
    /// What it starts at, and what it ends at, as the sources call it.
    pub from: String,
    pub to: String,
}

impl Timing {
    /// From where to where the slowest path goes, and what of it is logic.
    pub fn limit(&self) -> String {
        let (Some(first), Some(last)) = (self.hops.first(), self.hops.last()) else {
            return "no path between registers".to_owned();
        };
        let total = |routing: bool| -> f64 {
            let hops = self.hops.iter().filter(|hop| (hop.kind == "routing") == routing);
            hops.map(|hop| hop.nanoseconds).sum()
        };
        format!("{} → {}, {:.1} ns logic and {:.1} ns routes", first.from, last.to, total(false), total(true))
    }

    /// All of it, each name once.
    pub fn path(&self) -> String {
        let mut at = 0.0;
        let mut shown: Vec<(String, f64)> = vec![];
        for hop in &self.hops {
            at += hop.nanoseconds;
            match shown.last_mut() {
                Some((name, time)) if *name == hop.to => *time = at,
                _ => shown.push((hop.to.clone(), at)),
            }
        }
        let from = self.hops.first().map_or("", |hop| hop.from.as_str());
        let words: Vec<String> = shown.iter().map(|(name, time)| format!("{name} {time:.2}")).collect();
        format!("{from} → {}", words.join(" → "))
    }
}

/// Reads the report.
///
/// # Errors
/// When it is none.
pub fn parse(text: &str) -> Result<Timing> {
    let report: Value = serde_json::from_str(text).context("this is no JSON")?;
    let clocks = report["fmax"].as_object().context("it has no fmax")?;
    let mhz = clocks.values().filter_map(|clock| clock["achieved"].as_f64()).fold(f64::INFINITY, f64::min);
    anyhow::ensure!(mhz.is_finite(), "it has no frequency of a clock");
    let paths = report["critical_paths"].as_array().context("it has no critical_paths")?;
    // Paths between pins and registers are named in it too.
    let inside = |path: &&Value| {
        let (from, to) = (path["from"].as_str().unwrap_or_default(), path["to"].as_str().unwrap_or_default());
        from.starts_with("posedge") && from == to
    };
    let hops = paths.iter().find(inside).and_then(|path| path["path"].as_array()).into_iter().flatten();
    let hop = |hop: &Value| Hop {
        kind: hop["type"].as_str().unwrap_or_default().to_owned(),
        nanoseconds: hop["delay"].as_f64().unwrap_or_default(),
        from: source_name(hop["from"]["cell"].as_str().unwrap_or_default()),
        to: source_name(hop["to"]["cell"].as_str().unwrap_or_default()),
    };
    Ok(Timing { mhz, hops: hops.map(hop).collect() })
}

/// The name in the sources that Yosys made a cell's name of: it appends the cell's kind and port.
fn source_name(cell: &str) -> String {
    const KINDS: [&str; 9] =
        ["_TRELLIS_", "_LUT4_", "_CCU2C_", "_PFUMX_", "_L6MUX21_", "_DP16KD_", "_MULT18X18D_", "$", "_FF_"];
    let end = KINDS.iter().filter_map(|kind| cell.find(kind)).filter(|&end| end > 0).min();
    let name = &cell[..end.unwrap_or(cell.len())];
    // Bits of one memory or of one port: the name is enough.
    let name = name.split('[').next().unwrap_or(name);
    match name.strip_prefix("in.").or_else(|| name.strip_prefix("out.")) {
        Some(port) => format!("port {port}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_sources() {
        assert_eq!(source_name("index1_q_TRELLIS_FF_Q_11"), "index1_q");
        assert_eq!(source_name("u_a.mark2_q_LUT4_Z_D_CCU2C_S1$CCU2_COMB0"), "u_a.mark2_q");
        assert_eq!(source_name("in.start_config_i[5]"), "port start_config_i");
        assert_eq!(source_name("plain"), "plain");
    }

    #[test]
    fn the_slowest_path_between_registers_is_told() {
        let report = r#"{
            "fmax": { "clk": { "achieved": 100.0, "constraint": 150.0 } },
            "critical_paths": [
                { "from": "<async>", "to": "posedge clk", "path": [] },
                { "from": "posedge clk", "to": "posedge clk", "path": [
                    { "type": "clk-to-q", "delay": 0.5, "from": { "cell": "a_q_TRELLIS_FF_Q" }, "to": { "cell": "a_q_TRELLIS_FF_Q" } },
                    { "type": "routing", "delay": 4.0, "from": { "cell": "a_q_TRELLIS_FF_Q" }, "to": { "cell": "sum_LUT4_Z_1" } },
                    { "type": "logic", "delay": 0.25, "from": { "cell": "sum_LUT4_Z_1" }, "to": { "cell": "sum_LUT4_Z_1" } },
                    { "type": "routing", "delay": 5.0, "from": { "cell": "sum_LUT4_Z_1" }, "to": { "cell": "out.b_o[3]" } },
                    { "type": "setup", "delay": 0.25, "from": { "cell": "out.b_o[3]" }, "to": { "cell": "out.b_o[3]" } }
                ] }
            ] }"#;
        let timing = parse(report).unwrap();
        assert_eq!(timing.mhz, 100.0);
        assert_eq!(timing.limit(), "a_q → port b_o, 1.0 ns logic and 9.0 ns routes");
        assert_eq!(timing.path(), "a_q → a_q 0.50 → sum 4.75 → port b_o 10.00");
    }

    #[test]
    fn a_report_without_a_clock_is_an_error() {
        assert!(parse("{}").is_err());
        assert!(parse(r#"{ "fmax": {}, "critical_paths": [] }"#).is_err());
        assert!(parse("text").is_err());
    }
}
