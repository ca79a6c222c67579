//! What placed memory brings: faults and the time of a first touch by pages, and the penalty of a far node.

use std::fs;
use std::hint::black_box;
use std::sync::atomic::Ordering;

use doorbell_guard::Usage;
use doorbell_host::memory::{PAGE, SIMULATED_BUS_ADDRESS};
use doorbell_host::placement::{Node, Placement};
use doorbell_host::{DeviceError, SharedMemory};
use serde_json::{Value, json};

use crate::{BenchError, Section, median, table, timed};

/// Memory that a row maps.
const BYTES: usize = 64 << 20;
const QUICK_BYTES: usize = 8 << 20;

/// A way to place memory, as rows call it.
const WAYS: [(&str, &str); 5] = [
    ("4 KiB, first touch in use", ""),
    ("4 KiB, touched before", "touched"),
    ("4 KiB, touched and locked", "locked"),
    ("transparent huge, touched", "transparent"),
    ("reserved huge, touched", "reserved"),
];

/// What a block costs.
struct Touched {
    /// Milliseconds to map it, with what the placement brings.
    map: f64,
    /// Of the first store into each page: faults in all, and ns of CPU time a page.
    faults: u64,
    first: f64,
    /// The same stores again, ns a page.
    again: f64,
    /// Bytes in huge pages, by the kernel's account.
    huge: u64,
}

fn block(bytes: usize, placement: &Placement) -> Result<SharedMemory, DeviceError> {
    SharedMemory::placed(bytes, SIMULATED_BUS_ADDRESS, placement)
}

fn touched(bytes: usize, placement: &Placement) -> Result<Touched, BenchError> {
    let pages = bytes / PAGE;
    let (memory, mapped) = timed(|| block(bytes, placement));
    let memory = memory?;
    let store = || {
        for page in 0..pages {
            memory.word64(page * PAGE).expect("it lies in the block").store(1, Ordering::Relaxed);
        }
    };
    let usage = || Usage::of_this_thread().map_err(BenchError::input);
    let before = usage()?;
    let ((), first) = timed(store);
    let faults = (usage()? - before).minor_faults;
    let ((), again) = timed(store);
    let each = |time: crate::Elapsed| 1e9 * time.cpu.as_secs_f64() / pages as f64;
    let huge = memory.account().map_err(BenchError::input)?.huge;
    Ok(Touched { map: 1e3 * mapped.wall.as_secs_f64(), faults, first: each(first), again: each(again), huge })
}

/// What the first store into a page costs.
pub struct FirstTouch {
    /// ns, where it is the first touch.
    pub fault: f64,
    /// ns, where it was touched before.
    pub touched: f64,
}

/// Faults and times of a first touch, and what of it the bottleneck table shows.
pub fn first_touch(quick: bool) -> Result<(Section, FirstTouch), BenchError> {
    let (bytes, repeats) = if quick { (QUICK_BYTES, 3) } else { (BYTES, 7) };
    let mut table = table(["memory", "huge pages", "map, ms", "faults", "first, ns/page", "again"], 1);
    let (mut rows, mut notes): (Vec<Value>, Vec<String>) = (vec![], vec![]);
    let mut firsts = [0.0; WAYS.len()];
    for ((name, words), kept) in WAYS.into_iter().zip(&mut firsts) {
        let placement: Placement =
            if words.is_empty() { Placement::default() } else { words.parse().map_err(BenchError::input)? };
        let runs: Result<Vec<Touched>, BenchError> =
            (0..repeats).map(|_| touched(bytes, &placement)).collect();
        let runs = match runs {
            // What this machine lacks is no failure of the bench.
            Err(BenchError::Device(DeviceError::Placement { reason, .. })) => {
                notes.push(format!("{name}: left out: {reason}"));
                continue;
            }
            runs => runs?,
        };
        let of = |figure: fn(&Touched) -> f64| median(runs.iter().map(figure));
        let (map, first, again) = (of(|run| run.map), of(|run| run.first), of(|run| run.again));
        let (faults, huge) = (of(|run| run.faults as f64), runs[0].huge / (2 << 20));
        *kept = first;
        table.add_row([
            name.to_owned(),
            huge.to_string(),
            format!("{map:.1}"),
            format!("{faults:.0}"),
            format!("{first:.1}"),
            format!("{again:.1}"),
        ]);
        rows.push(json!({
            "memory": name, "words": words, "huge_pages": huge, "map_ms": map, "faults": faults, "first_ns_per_page": first,
            "again_ns_per_page": again,
        }));
    }
    notes.push(
        "One store into each page of 4 KiB; faults by getrusage, huge pages by /proc/self/smaps.".to_owned(),
    );
    let section = Section {
        heading: format!("First touch of {} MiB, medians of {repeats} runs", bytes >> 20),
        table,
        notes,
        json: rows.into(),
    };
    Ok((section, FirstTouch { fault: firsts[0], touched: firsts[1] }))
}

/// The nodes of memory, as the kernel lists them: `0-1,3`.
fn nodes(online: &str) -> Vec<u32> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let ranges = online.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(number(first)?..=number(last)?)
    });
    ranges.flatten().collect()
}

/// ns of a load that waits for the one before, at random in a block on that node.
fn load(bytes: usize, node: Node, loads: u64) -> Result<f64, BenchError> {
    let placement = Placement { node: Some(node), ..Placement::default() };
    let memory = block(bytes, &placement)?;
    let mask = bytes - 1;
    let mut place = 1_usize;
    let ((), time) = timed(|| {
        for _ in 0..loads {
            let word = memory.word64((place >> 20) & mask & !7).expect("it lies in the block");
            // Knuth's MMIX generator; the word is part of the next address, so loads cannot overlap.
            place = place
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407 ^ word.load(Ordering::Relaxed) as usize);
        }
        black_box(place);
    });
    Ok(1e9 * time.cpu.as_secs_f64() / loads as f64)
}

/// A load from the near node and from the farthest, in ns; or why there is none.
pub fn far_node(quick: bool) -> Result<Result<(f64, f64), String>, BenchError> {
    let online = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let all = nodes(&online);
    if let [] | [_] = all[..] {
        let what = if all.is_empty() { "no node is shown" } else { "one node here" };
        return Ok(Err(what.to_owned()));
    }
    let (bytes, loads, repeats) = if quick { (QUICK_BYTES, 1 << 16, 3) } else { (BYTES, 1 << 20, 7) };
    let time = |node: Node| -> Result<f64, BenchError> {
        let runs: Result<Vec<f64>, _> = (0..repeats).map(|_| load(bytes, node, loads)).collect();
        runs.map(median)
    };
    let near = time(Node::Near)?;
    // A node may have no memory.
    let others: Vec<f64> = all.into_iter().filter_map(|node| time(Node::Number(node)).ok()).collect();
    Ok(Ok((near, others.into_iter().fold(near, f64::max))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_listed_as_the_kernel_lists_them() {
        assert_eq!(nodes("0\n"), [0]);
        assert_eq!(nodes("0-1,3\n"), [0, 1, 3]);
        assert_eq!(nodes(""), [0; 0]);
    }

    #[test]
    fn a_first_touch_faults_and_touched_memory_does_not() {
        let bytes = 64 * PAGE;
        let plain = touched(bytes, &Placement::default()).unwrap();
        assert!(plain.faults >= 60, "{} faults", plain.faults);
        let before = touched(bytes, &"touched".parse().unwrap()).unwrap();
        assert_eq!(before.faults, 0);
        let (section, first) = first_touch(true).unwrap();
        let rows = section.json.as_array().unwrap();
        assert_eq!(
            rows.len() + section.notes.len() - 1,
            WAYS.len(),
            "a way is a row, or a note says why not"
        );
        assert!(first.fault > first.touched, "{} and {}", first.fault, first.touched);
        // Huge pages that were had are all huge, and fault no more than touched ones.
        for row in rows.iter().filter(|row| row["huge_pages"] != 0) {
            assert_eq!(
                (&row["huge_pages"], &row["faults"]),
                (&(QUICK_BYTES / (2 << 20)).into(), &0.0.into()),
                "{row}"
            );
        }
    }
}
