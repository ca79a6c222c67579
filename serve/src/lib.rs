//! Rollouts over HTTP: the endpoints of vLLM and of SGLang in front of Doorbell's runtime, over any device. See docs/serve.md.

pub mod engine;
pub mod fault;
pub mod http;
