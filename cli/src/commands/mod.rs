//! One module per subcommand.

pub mod bench;
pub mod compare;
pub mod cosim;
pub mod devices;
pub mod run;
pub mod top;
pub mod trace;
pub mod trajectories;
pub mod wave;

/// A number from 0 to 1.
fn fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 1".into()),
    }
}
