//! Rings between threads.
