//! The stages of a rollout.
