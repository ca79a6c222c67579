//! Scores of rollouts.
