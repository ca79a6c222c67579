//! Settings from text.

use std::ops::RangeInclusive;
use std::str::FromStr;

use doorbell_host::QueueConfig;
use doorbell_host::contract::RANGES;

use crate::{Kind, OpenError, Settings};

impl Settings {
    /// The keys and their values. Numbers are decimal, or hexadecimal behind `0x`.
    pub const KEYS: [(&'static str, &'static str); 31] = [
        ("sq_depth", "slots of the submission queue, a power of two from 2 to 65536"),
        ("cq_depth", "slots of the completion queue, a power of two from 2 to 65536"),
        ("sq_start", "running index at which the submission queue starts"),
        ("cq_start", "running index at which the completion queue starts"),
        ("token_bytes", "bytes of the token region"),
        ("kv_bytes", "bytes of the KV region"),
        ("logp_bytes", "bytes of the log-probability region, which DECODEs with LOGP need"),
        ("checkpoint_default", "checkpoint of descriptors that give 0"),
        ("wait_states", "cycles to wait before each token, at most 65535"),
        ("length_limit", "largest seq_len + max_tokens"),
        ("eos_threshold", "probability of end of sequence per token, in 1/32768"),
        ("reward_threshold", "score below which a resident rollout ends, Q16.16"),
        ("ranges", "ranges of reward model 1, up to 16, the last token of each included, as 0..99+500..599"),
        ("workers", "workers of a device that has several"),
        ("patience", "advances without progress after which a device counts as hung"),
        ("latency", "rtl: cycles that memory takes to answer, as 5 or 0..40"),
        ("stalls", "rtl: chance in percent, up to 95, that a channel stands still"),
        ("reorder", "rtl: 1 if writes are answered out of order, else 0"),
        ("random_memory", "rtl: 1 if latency, stalls and order are drawn from the seed, else 0"),
        ("seed", "rtl: seed of what is random"),
        (
            "memory",
            "model, rtl, gpu: where the memory shared with the device lies, as transparent+near+locked: huge pages (transparent or \
             reserved), a node (near or node=N), locked, touched",
        ),
        ("gpus", "gpu: numbers of the GPUs, as 0 or 0+1"),
        (
            "sms",
            "gpu: multiprocessors to take of each GPU, at least one more than queue pairs, two with model_bytes; the others are left to the process's other kernels",
        ),
        ("queues", "queue pairs of the device, on the gpu of each, 1 to 16"),
        ("functions", "functions that the queue pairs are spread over, 1 to 16 and at most as many as those"),
        (
            "coalesce_count",
            "completions that make an armed interrupt fire, asked for or not; 0: no number of them",
        ),
        ("coalesce_time", "ticks after which the first completion makes an armed interrupt fire; 0: no time"),
        (
            "own_thread",
            "model, rtl: 1 if the device gets a thread of its own, so that others may sleep, else 0",
        ),
        ("socket", "vfio-user: the socket of its server"),
        ("address", "pcie: the address of the function, as 0000:00:03.0"),
        ("fault", "model, rtl: a fault to see it found: token, completion, hang, or one of the device's own"),
    ];

    /// The kinds of device that a key is for; `None`: all.
    pub(crate) fn kinds_of(key: &str) -> Option<&'static [Kind]> {
        match key {
            "latency" | "stalls" | "reorder" | "random_memory" | "seed" => Some(&[Kind::Rtl]),
            "memory" => Some(&[Kind::Model, Kind::Rtl, Kind::Gpu]),
            "gpus" | "sms" => Some(&[Kind::Gpu]),
            "own_thread" | "fault" => Some(&[Kind::Model, Kind::Rtl]),
            "socket" => Some(&[Kind::VfioUser]),
            "address" => Some(&[Kind::Pcie]),
            _ => None,
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let queue = &mut self.queue;
        match key {
            "sq_depth" => queue.sq_depth = number(value)?,
            "cq_depth" => queue.cq_depth = number(value)?,
            "sq_start" => queue.sq_start = number(value)?,
            "cq_start" => queue.cq_start = number(value)?,
            "token_bytes" => queue.token_bytes = number(value)?,
            "kv_bytes" => queue.kv_bytes = number(value)?,
            "logp_bytes" => queue.logp_bytes = number(value)?,
            "ranges" => queue.ranges = ranges(value)?,
            "checkpoint_default" => queue.checkpoint_default = number(value)?,
            "wait_states" => queue.wait_states = number(value)?,
            "length_limit" => queue.length_limit = number(value)?,
            "eos_threshold" => queue.eos_threshold = number(value)?,
            "reward_threshold" => queue.reward_threshold = number(value)?,
            "workers" => queue.workers = Some(number(value)?),
            "patience" => self.patience = Some(number(value)?),
            "latency" => self.memory.latency = cycles(value)?,
            "stalls" => {
                self.memory.stalls =
                    Some(number(value)?).filter(|&percent| percent <= 95).ok_or("expected at most 95")?;
            }
            "reorder" => self.memory.reorder = switch(value)?,
            "random_memory" => self.memory.random = switch(value)?,
            "seed" => self.memory.seed = number(value)?,
            "memory" => self.placement = value.parse()?,
            "gpus" => self.gpus.gpus = gpus(value, '+')?,
            "sms" => self.gpus.sms = Some(number(value)?),
            "queues" => self.queues = sixteen(value)?,
            "functions" => self.functions = sixteen(value)?,
            "coalesce_count" => queue.coalesce_count = number(value)?,
            "coalesce_time" => queue.coalesce_time = number(value)?,
            "own_thread" => self.own_thread = switch(value)?,
            "socket" => self.socket = Some(value.to_owned()),
            "address" => self.address = Some(value.to_owned()),
            "fault" => self.fault = Some(value.to_owned()),
            _ => {
                return Err(format!(
                    "there is no such key; keys: {}",
                    Self::KEYS.map(|(key, _)| key).join(", ")
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for Settings {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        Self::default().and(text)
    }
}

impl Settings {
    /// These settings, and those of `text` instead of them where it has any.
    ///
    /// # Errors
    /// `Option`, naming the pair.
    pub fn and(self, text: &str) -> Result<Self, OpenError> {
        let mut settings = self;
        for option in options(text) {
            let pair = option.split_once('=').ok_or_else(|| "expected key=value".to_owned());
            pair.and_then(|(key, value)| settings.set(key, value))
                .map_err(|problem| OpenError::Option { option: option.to_owned(), problem })?;
        }
        Ok(settings)
    }
}

/// The pairs of a text.
pub(crate) fn options(text: &str) -> impl Iterator<Item = &str> {
    text.split(separates).filter(|option| !option.is_empty())
}

/// Whether a character stands between two of them.
pub(crate) fn separates(c: char) -> bool {
    c == ',' || c.is_whitespace()
}

/// Numbers of GPUs, each once, apart by `separator`.
///
/// # Errors
/// What was expected.
pub fn gpus(text: &str, separator: char) -> Result<Vec<usize>, String> {
    let gpus: Option<Vec<usize>> = text.split(separator).map(|gpu| gpu.trim().parse().ok()).collect();
    gpus.filter(|gpus| gpus.iter().enumerate().all(|(place, gpu)| !gpus[..place].contains(gpu)))
        .ok_or_else(|| format!("expected numbers of GPUs, each once, as 0 or 0{separator}1"))
}

/// Cycles as `5`, or as `0..40` with the lower first.
///
/// # Errors
/// What was expected.
pub fn cycles(text: &str) -> Result<RangeInclusive<u32>, String> {
    let (low, high) = text.split_once("..").unwrap_or((text, text));
    match (low.parse(), high.trim_start_matches('=').parse()) {
        (Ok(low), Ok(high)) if low <= high => Ok(low..=high),
        _ => Err("expected cycles as 5, or as 0..40 with the lower first".into()),
    }
}

/// Ranges of reward model 1 as `0..99+500..500`: the last token of each included, and at most as many as a device has.
///
/// # Errors
/// What was expected.
pub fn ranges(text: &str) -> Result<[(u32, u32); RANGES as usize], String> {
    let mut ranges = QueueConfig::default().ranges;
    let parts: Vec<&str> = text.split('+').collect();
    if parts.len() > ranges.len() {
        return Err(format!("{} ranges, and a device has {}", parts.len(), ranges.len()));
    }
    for (range, part) in ranges.iter_mut().zip(parts) {
        let bad = || format!("'{part}' is no range of tokens; give the first and the last, as 0..99");
        let (first, last) = part.split_once("..").ok_or_else(bad)?;
        let token = |text: &str| text.trim().parse::<u32>().map_err(|_| bad());
        *range = (token(first)?, token(last)?);
    }
    Ok(ranges)
}

fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let value = value.map_err(|error| format!("expected a number: {error}"))?;
    T::try_from(value).map_err(|_| format!("expected a number of {} bits at most", 8 * size_of::<T>()))
}

/// A number from 1 to 16.
fn sixteen(text: &str) -> Result<u8, String> {
    Ok(Some(number(text)?).filter(|number| (1..=16).contains(number)).ok_or("expected 1 to 16")?)
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("expected 0 or 1".into()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn every_key_is_taken_and_changes_something() {
        for (key, _) in Settings::KEYS {
            let value = match key {
                "latency" => "3..9",
                "ranges" => "0..9",
                "gpus" => "1+2",
                "queues" => "0x10",
                "memory" => "transparent+node=1",
                "reorder" | "random_memory" | "own_thread" => "1",
                _ => "7",
            };
            let settings: Settings = format!("{key}={value}").parse().unwrap();
            assert_ne!(settings, Settings::default(), "{key}");
        }
    }

    /// What is said of a key begins with the kinds that it is for.
    #[test]
    fn keys_name_the_kinds_that_they_are_for() {
        for (key, what) in Settings::KEYS {
            if let Some(kinds) = Settings::kinds_of(key) {
                let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
                assert!(what.starts_with(&format!("{}: ", names.join(", "))), "{key}: {what}");
            }
        }
    }

    #[test]
    fn ranges_are_read() {
        let read = ranges("0..99+500..500+ 7 .. 6").unwrap();
        assert_eq!(read[..4], [(0, 99), (500, 500), (7, 6), (u32::MAX, 0)]);
        assert!(ranges(&vec!["1..2"; 16].join("+")).is_ok());
    }

    #[rstest]
    #[case("", "'' is no range")]
    #[case("5", "'5' is no range of tokens; give the first and the last, as 0..99")]
    #[case("5..", "'5..' is no range")]
    #[case("1..2+", "'' is no range")]
    #[case("0..4294967296", "is no range")]
    #[case("-1..2", "is no range")]
    #[case(&vec!["1..2"; 17].join("+"), "17 ranges, and a device has 16")]
    fn what_is_no_range_is_told(#[case] text: &str, #[case] expected: &str) {
        let error = ranges(text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn pairs_are_apart_by_blanks_or_commas_and_the_last_counts() {
        let settings: Settings = " sq_depth=8,cq_depth=16\tworkers=2\nsq_depth=0x20 ".parse().unwrap();
        assert_eq!((settings.queue.sq_depth, settings.queue.cq_depth), (32, 16));
        assert_eq!(settings.queue.workers, Some(2));
        assert_eq!("".parse::<Settings>().unwrap(), Settings::default());
    }

    #[rstest]
    #[case("sq_depth", "option 'sq_depth': expected key=value")]
    #[case("depth=8", "option 'depth=8': there is no such key; keys: sq_depth, cq_depth")]
    #[case("workers=-1", "option 'workers=-1': expected a number")]
    #[case("sq_depth=0x100000000", "option 'sq_depth=0x100000000': expected a number of 32 bits")]
    #[case("latency=9..3", "option 'latency=9..3': expected cycles")]
    #[case("stalls=96", "option 'stalls=96': expected at most 95")]
    #[case("reorder=yes", "option 'reorder=yes': expected 0 or 1")]
    #[case("ranges=5", "option 'ranges=5': '5' is no range of tokens")]
    #[case("gpus=0+0", "option 'gpus=0+0': expected numbers of GPUs, each once")]
    #[case(
        "memory=huge",
        "option 'memory=huge': 'huge' says nothing of memory; there are transparent, reserved"
    )]
    #[case("queues=17", "option 'queues=17': expected 1 to 16")]
    #[case("queues=0", "option 'queues=0': expected 1 to 16")]
    #[case("functions=0", "option 'functions=0': expected 1 to 16")]
    #[case("functions=0x11", "option 'functions=0x11': expected 1 to 16")]
    fn bad_options_are_named(#[case] text: &str, #[case] message: &str) {
        let error = text.parse::<Settings>().unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}
