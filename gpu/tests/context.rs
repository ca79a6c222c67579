//! Whoever computes with CUDA on a thread of his own finds it as he left it: a device changes no thread's current context. Where there is no GPU, the
//! tests are skipped by name. With two GPUs they show more.

use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, result};
use doorbell_contract::{HwCompletion, HwDesc};
use doorbell_gpu::{Cuda, GpuOptions};
use doorbell_host::{Device as _, Driver, QueueConfig};
use libtest_mimic::{Arguments, Failed, Trial};

/// The address of this thread's context.
fn current() -> Result<Option<usize>, Failed> {
    Ok(result::ctx::get_current()?.map(|context| context.addr()))
}

/// Opens, uses and closes the first GPU, and holds the thread's context to what it was.
fn uses_a_device() -> Result<(), Failed> {
    let before = current()?;
    let same = |when: &str| match current()? == before {
        true => Ok(()),
        false => Err(Failed::from(format!("another context is current {when}"))),
    };
    let config = QueueConfig { token_bytes: 1 << 16, ..QueueConfig::default() };
    let options = GpuOptions { bytes: config.shared_bytes()?, ..GpuOptions::default() };
    let mut driver = Driver::new(doorbell_gpu::open(options)?, config)?;
    same("behind the opening")?;
    // This process has a kernel.
    if Cuda::open(&[GpuOptions { gpu: 1, ..options }]).is_ok() {
        return Err("another GPU is opened while a kernel runs".into());
    }
    same("behind an opening that was refused")?;
    let mut out = [HwCompletion::default()];
    driver.submit(&[HwDesc::decode(1, 0, 4000)])?;
    while driver.poll(&mut out)? == 0 {}
    driver.submit(&[HwDesc::decode(1, 0, 4000)])?;
    while !driver.wait(Instant::now() + Duration::from_millis(1))? {}
    same("behind polls and waits")?;
    let tokens = driver.token_regions();
    drop(driver);
    same("behind the end")?;
    drop(tokens);
    same("behind the memory's end")
}

fn with_none() -> Result<(), Failed> {
    let used = thread::spawn(uses_a_device).join();
    used.expect("it does not panic")
}

fn with_the_last_gpus() -> Result<(), Failed> {
    let context = CudaContext::new(doorbell_gpu::describe()?.len() - 1)?;
    context.bind_to_thread()?;
    uses_a_device()
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let missing = doorbell_gpu::missing();
    if let Some(reason) = &missing {
        println!("skipping what becomes of a caller's context: {reason}");
    }
    let trials = vec![
        Trial::test("a_thread_without_a_context_gets_none", with_none).with_ignored_flag(missing.is_some()),
        Trial::test("a_thread_keeps_its_context", with_the_last_gpus).with_ignored_flag(missing.is_some()),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}
