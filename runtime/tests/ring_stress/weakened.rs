//! The rings with every release store relaxed: what ThreadSanitizer has to report.

#[path = "../../src/ring/mpsc.rs"]
pub mod mpsc;
#[allow(unused_imports, reason = "what is weakened replaces it")]
#[path = "../../src/ring/sync.rs"]
mod shipped;
#[path = "../../src/ring/slots.rs"]
mod slots;
#[path = "../../src/ring/spsc.rs"]
pub mod spsc;

mod sync {
    use std::ops::Deref;

    pub(super) use super::shipped::*;

    /// Shadows the shipped one.
    pub(super) struct AtomicUsize(std::sync::atomic::AtomicUsize);

    impl AtomicUsize {
        pub(super) fn new(value: usize) -> Self {
            Self(std::sync::atomic::AtomicUsize::new(value))
        }

        pub(super) fn store(&self, value: usize, _: Ordering) {
            self.0.store(value, Ordering::Relaxed);
        }
    }

    impl Deref for AtomicUsize {
        type Target = std::sync::atomic::AtomicUsize;

        fn deref(&self) -> &Self::Target {
            &self.0
        }
    }
}
