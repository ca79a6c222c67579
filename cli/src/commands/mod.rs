//! One module per subcommand.

pub mod bench;
pub mod compare;
pub mod cosim;
pub mod devices;
pub mod top;
pub mod trace;
pub mod wave;
