//! One module per subcommand.

pub mod bench;
pub mod compare;
pub mod devices;
pub mod trace;
pub mod wave;
