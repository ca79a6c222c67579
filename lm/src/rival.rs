//! Other readings of docs/engine.md: a test puts one in the place of the published one, to see that an image tells them apart.

/// What may be read otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests plant one"))]
pub(crate) enum Rival {
    /// A product of two numbers stays within 32 bits.
    ProductStaysWithin32Bits,
    /// The row of an embedding by layer is not bounded before it is added.
    RowIsNotBounded,
    /// The power of a logit stays within 32 bits.
    PowerStaysWithin32Bits,
    /// The last norm of Gemma 3N's shape has ε, not 16 ε.
    LastNormHasOneEpsilon,
    /// What an embedding by layer adds to the streams may leave their bounds.
    StreamsAreNotBounded,
    /// The mean of squares is at least 1, not its sum with ε.
    MeanIsAtLeast1,
}

#[cfg(test)]
impl Rival {
    /// All of them.
    pub(crate) const ALL: [Self; 6] = [
        Self::ProductStaysWithin32Bits,
        Self::RowIsNotBounded,
        Self::PowerStaysWithin32Bits,
        Self::LastNormHasOneEpsilon,
        Self::StreamsAreNotBounded,
        Self::MeanIsAtLeast1,
    ];
}

/// Whether it is in force: never but in tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn is(_: Rival) -> bool {
    false
}

#[cfg(test)]
std::thread_local! {
    static IN_FORCE: std::cell::Cell<Option<Rival>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
pub(crate) fn is(rival: Rival) -> bool {
    IN_FORCE.get() == Some(rival)
}

/// Runs something under another reading.
#[cfg(test)]
pub(crate) fn with<T>(rival: Rival, run: impl FnOnce() -> T) -> T {
    IN_FORCE.set(Some(rival));
    let result = run();
    IN_FORCE.set(None);
    result
}
