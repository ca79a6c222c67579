//! One module per subcommand.

pub mod compare;
pub mod devices;
pub mod trace;
pub mod wave;
