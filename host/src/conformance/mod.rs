//! The rules as cases that run on any device.
