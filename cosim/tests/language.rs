//! Engine 1 in RTL: what the golden model is held to, on the verilated device (R25 to R27).

#[path = "../../verify/tests/language/host.rs"]
#[allow(dead_code, reason = "each takes what it needs")]
mod host;

use doorbell_contract::{DescFlags, Status};
use doorbell_cosim::{RtlConfig, RtlPlatform, built};
use host::{Draws, Host, ended};

fn device() -> Option<RtlPlatform> {
    let built = built().into_iter().find(|built| built.engines > 1)?;
    let config = RtlConfig { workers: built.workers, engines: 2, ..RtlConfig::default() };
    Some(RtlPlatform::new(&config).unwrap())
}

#[test]
fn r06_a_rollout_is_the_oracles() {
    let Some(device) = device() else { return };
    let mut host = Host::over(device);
    let prompt = Draws(1).prompt(5);
    let mut sequence = host.sequence(&prompt, 64, 1.0);
    host.prefill(&mut sequence);
    let end = host.decode(&mut sequence, 12, DescFlags::LOGP);
    assert_eq!((ended(&end), end.final_seq_len), (Status::Done, 17));
}
