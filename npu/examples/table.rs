//! The table of docs/isa.md, made of the one that everything else is made of.
fn main() {
    print!("{}", doorbell_npu::isa::table());
}
