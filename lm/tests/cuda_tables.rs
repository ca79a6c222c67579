//! What is generated for the GPU's kernels is what stands there.

#[path = "../examples/cuda_tables.rs"]
mod cuda_tables;

#[test]
fn the_header_is_that_of_the_tables() {
    let there = include_str!("../../gpu/kernels/language_tables.cuh");
    let again = "cargo run -p doorbell-lm --example cuda_tables > gpu/kernels/language_tables.cuh";
    assert!(cuda_tables::text() == there, "gpu/kernels/language_tables.cuh is not up to date: {again}");
}
