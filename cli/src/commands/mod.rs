//! One module per subcommand.

pub mod bench;
pub mod compare;
pub mod cosim;
pub mod devices;
pub mod trace;
pub mod trajectories;
pub mod wave;
