//! Events of the hot path, and what is learnt from them.
