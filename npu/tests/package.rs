//! What is generated for the RTL is what stands there.

#[path = "../examples/package.rs"]
mod package;

#[test]
fn the_package_is_that_of_the_tables() {
    let there = include_str!("../../rtl/npu/npu_pkg.sv");
    let again = "cargo run -p doorbell-npu --example package > rtl/npu/npu_pkg.sv";
    assert!(package::text() == there, "rtl/npu/npu_pkg.sv is not up to date: {again}");
}

/// The device has what programs are held to.
#[test]
fn the_engine_has_as_many_lines() {
    let engine = include_str!("../../rtl/npu/engine_npu.sv");
    let lines = format!("parameter int Lines    = {} ", doorbell_npu::layout::CHIP_LINES);
    assert!(engine.contains(&lines), "rtl/npu/engine_npu.sv has no `{lines}`");
}
