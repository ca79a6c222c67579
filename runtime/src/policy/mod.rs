//! Which rollout decodes next.
