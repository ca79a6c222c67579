//! Rollouts over HTTP: the doors of vLLM and of SGLang in front of Doorbell's runtime, over any device. See docs/serve.md.

pub mod engine;
pub mod http;
