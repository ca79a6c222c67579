//! Facts that prove what a hot path does not do.
