//! Who waits for whom, when no completion comes: from the host down to the bus, each link from what is seen of the device.

use doorbell_cosim::Owed;
use doorbell_cosim::strip::Pins;
use doorbell_host::why::Why;

use crate::units::{UNITS, Word};

/// The links, the host first and the root last. `host` says what the host waits for, `why` what registers and slots show of it, `pins` are
/// those of the last cycles, `owed` is what the bus owes, `last` is the word that engine 1 did last, `now` the clock cycle.
pub(crate) fn chain(
    host: &str,
    why: &Why,
    pins: &[Pins],
    owed: Owed,
    last: Option<&Word>,
    now: u64,
) -> Vec<String> {
    let mut links = vec![host.to_owned()];
    links.extend(why.chain().iter().map(ToString::to_string));
    links.push(why.root.to_string());
    let Some(&now_pins) = pins.last() else { return links };
    let is = |name: &str| now_pins.get(name) == Some(1);
    let always = |name: &str, value: u32| pins.iter().all(|pins| pins.get(name) == Some(value));
    let cycles = pins.len();
    let busy: Vec<&str> = ["mem", "gemv", "sfu", "attn"]
        .iter()
        .zip(UNITS)
        .filter(|(pin, _)| is(pin))
        .map(|(_, unit)| unit)
        .collect();
    if let (false, Some(last)) = (busy.is_empty(), last) {
        let layer = last.layer.map_or(String::new(), |layer| format!(" of layer {layer}"));
        links.push(format!(
            "engine 1: {} has a word that is not done; the last one done was word {}{layer}, `{}`, {} cycles ago",
            busy.join(" and "),
            last.pc,
            last.text,
            now.saturating_sub(last.cycle)
        ));
    }
    let Owed { read_beats, write_responses } = owed;
    if read_beats > 0 && always("rvalid", 0) {
        links.push(format!(
            "the bus owes {read_beats} beats of read data, and RVALID has been low for {cycles} cycles: the memory holds back read data"
        ));
    }
    if write_responses > 0 && always("bvalid", 0) {
        links.push(format!(
            "the bus owes {write_responses} write responses, and BVALID has been low for {cycles} cycles: the memory holds back write \
             responses"
        ));
    }
    links
}
