//! One module per subcommand.

#[cfg(feature = "bench")]
pub mod bench;
mod chaos;
pub mod compare;
#[cfg(feature = "cosim")]
pub mod cosim;
#[cfg(feature = "lm")]
pub mod demo;
pub mod devices;
pub mod doctor;
#[cfg(feature = "lm")]
pub mod generate;
#[cfg(feature = "lm")]
pub mod model;
#[cfg(feature = "runtime")]
pub mod nic;
#[cfg(feature = "report")]
pub mod report;
#[cfg(feature = "runtime")]
pub mod run;
#[cfg(feature = "serve")]
pub mod serve;
#[cfg(feature = "shell")]
pub mod shell;
#[cfg(feature = "runtime")]
pub mod top;
pub mod trace;
#[cfg(feature = "runtime")]
pub mod trajectories;
#[cfg(feature = "vfio")]
pub mod vfio_user;
#[cfg(feature = "cosim")]
pub mod wave;
pub mod why;

/// A number from 0 to 1.
fn fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 1".into()),
    }
}

/// GPUs by number.
#[derive(Clone, Debug)]
struct GpuList(Vec<usize>);

fn gpus(text: &str) -> Result<GpuList, String> {
    doorbell_devices::gpus(text, ',').map(GpuList)
}
