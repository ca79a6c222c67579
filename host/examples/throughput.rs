//! Round trips through driver, queue pair and model: `cargo run --release -p doorbell-host --example throughput`.

use doorbell_host::contract::HwDesc;
use doorbell_host::throughput::measure;
use doorbell_host::{DeviceError, Driver, ModelPlatform, QueueConfig};

fn main() -> Result<(), DeviceError> {
    let nop = HwDesc::nop();
    let decode = HwDesc::decode(1, 100, 1).with_seed(7);
    println!("descriptor  batch  descriptors/s  DONE");
    for (name, desc) in [("NOP", nop), ("DECODE of 1", decode)] {
        for batch in [1, 16, 256] {
            let mut device = Driver::new(ModelPlatform::new(), QueueConfig::default())?;
            let batch = vec![desc; batch];
            let rounds = 20_000_000 / batch.len() as u64;
            measure(&mut device, &batch, rounds / 10)?;
            let seen = measure(&mut device, &batch, rounds)?;
            let done = 100.0 * seen.done as f64 / seen.descriptors as f64;
            println!("{name:<11} {:>5}  {:>11.1} M  {done} %", batch.len(), seen.rate() / 1e6);
        }
    }
    Ok(())
}
