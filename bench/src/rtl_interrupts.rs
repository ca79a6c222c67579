//! What wakes a host that sleeps on the RTL, and how many cycles behind the completion that it waits for.

use std::sync::atomic::Ordering;

use doorbell_contract::{HwCompletion, HwDesc};
use doorbell_cosim::{RtlConfig, RtlPlatform};
use doorbell_host::queue::{COMPLETION_WORDS, Depth, is_fresh};
use doorbell_host::{Device, Driver, QueueConfig};
use serde_json::json;

use crate::{BenchError, Section, median, table, verdict};

/// Members of a group, and descriptors with its PREFILL.
const MEMBERS: u32 = 8;
const DESCRIPTORS: u32 = MEMBERS + 1;
/// Groups of a row.
const GROUPS: u32 = 50;
/// Tokens of the shortest member; each other one has a few more.
const TOKENS: u32 = 100;
/// Slots of the completion queue.
const SLOTS: u32 = 64;
/// Cycles that a group may take (R15).
const LONGEST: u64 = 1_000_000;

/// One row.
struct Row {
    name: &'static str,
    count: u32,
    time: u32,
}

impl Row {
    /// Whether the end of the group is what wakes.
    fn is_grouped(&self) -> bool {
        self.count == 0 && self.time == 0
    }
}

const ROWS: [Row; 6] = [
    Row { name: "the end of the group (GROUP_DONE)", count: 0, time: 0 },
    Row { name: "9 completions", count: DESCRIPTORS, time: 0 },
    Row { name: "each completion", count: 1, time: 0 },
    Row { name: "4 completions, or 500 ticks after the first", count: 4, time: 500 },
    Row { name: "100 ticks after the first", count: 0, time: 100 },
    Row { name: "2000 ticks after the first", count: 0, time: 2000 },
];

/// What a row came to.
struct Figures {
    wakes: f64,
    /// From the group's last completion in memory to the message that tells of it, in cycles.
    behind: Vec<f64>,
}

fn measure(row: &Row) -> Result<Figures, BenchError> {
    let config = RtlConfig { workers: 4, ..RtlConfig::default() };
    let platform = RtlPlatform::new(&config).map_err(BenchError::failed)?;
    let queue = QueueConfig {
        sq_depth: SLOTS,
        cq_depth: SLOTS,
        coalesce_count: row.count,
        coalesce_time: row.time,
        token_bytes: 1 << 16,
        ..QueueConfig::default()
    };
    let mut driver = Driver::new(platform, queue)?;
    let depth = Depth::new("cq_depth", SLOTS)?;
    let memory = driver.memory().clone();
    let slots = memory.slots::<COMPLETION_WORDS>(driver.layout().cq, SLOTS)?;
    let message = memory.word32(driver.layout().message)?;
    // GROUP_DONE always asks: where it is not what wakes, the members are in no group.
    let grouped = row.is_grouped();
    let (mut wakes, mut behind) = (0, Vec::new());
    let mut out = [HwCompletion::default(); SLOTS as usize];
    for group in 0..GROUPS {
        let members = (0..MEMBERS).map(|member| {
            let desc = HwDesc::decode(group * MEMBERS + member, 0, TOKENS + 7 * member)
                .with_delta_offset(u64::from(4096 * member));
            if grouped { desc.with_member(group, member as u16) } else { desc }
        });
        let first = if grouped { HwDesc::open_group(group, 0, MEMBERS) } else { HwDesc::nop() };
        let batch: Vec<HwDesc> = [first].into_iter().chain(members).collect();
        let last = (group + 1) * DESCRIPTORS - 1;
        if driver.submit(&batch)? != batch.len() || !driver.arm()? {
            return Err(BenchError::failed("a group was not taken whole, or the interrupt not armed"));
        }
        let (mut seen, mut visible) = (0, None);
        let start = driver.platform().cycles();
        while seen < DESCRIPTORS {
            driver.platform_mut().run(1).map_err(BenchError::failed)?;
            let now = driver.platform().cycles();
            if visible.is_none() && is_fresh(&slots, depth, last) {
                visible = Some(now);
            }
            if message.load(Ordering::Acquire) != 0 {
                wakes += 1;
                seen += driver.collect(&mut out)? as u32;
                if seen < DESCRIPTORS {
                    driver.arm()?;
                } else {
                    // Taken by hand: it is armed anew with the next group.
                    message.store(0, Ordering::Relaxed);
                    behind.push((now - visible.unwrap_or(now)) as f64);
                }
            }
            if now - start > LONGEST {
                return Err(BenchError::failed(format!(
                    "R14: a host that sleeps until {} is never woken",
                    row.name
                )));
            }
        }
    }
    Ok(Figures { wakes: f64::from(wakes) / f64::from(GROUPS), behind })
}

/// Wakes per group and per descriptor, and cycles until the host is told, by what interrupts.
pub fn interrupts() -> Result<Section, BenchError> {
    let mut table = table(
        [
            "woken by",
            "wakes per group",
            "per descriptor",
            "told after the last completion, cycles",
            "at most",
        ],
        1,
    );
    let (mut rows, mut notes) = (vec![], vec![]);
    for row in &ROWS {
        let Figures { wakes, behind } = measure(row)?;
        let most = behind.iter().copied().fold(0.0, f64::max);
        let middle = median(behind);
        table.add_row([
            row.name.to_owned(),
            format!("{wakes:.2}"),
            format!("{:.3}", wakes / f64::from(DESCRIPTORS)),
            format!("{middle:.0}"),
            format!("{most:.0}"),
        ]);
        rows.push(json!({
            "woken_by": row.name, "count": row.count, "time": row.time, "wakes_per_group": wakes,
            "behind_median": middle, "behind_most": most,
        }));
        if row.is_grouped() {
            notes.push(format!("one wake for each group: {}", verdict(wakes == 1.0)));
        }
    }
    notes.push(
        "the device fires in the cycle of the completion's write response; what is counted here is the message's own way through the write port into \
         memory, and the host's way to the last completion where it is woken more than once"
            .into(),
    );
    Ok(Section {
        heading: format!(
            "groups of {MEMBERS} and their PREFILL on the RTL with 4 workers, {GROUPS} of each: what wakes a host that sleeps"
        ),
        table,
        notes,
        json: json!({ "rows": rows }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What docs/measurements.md says.
    #[test]
    fn a_group_wakes_once_in_the_fourth_cycle_behind_its_end() {
        let figures = measure(&ROWS[0]).unwrap();
        assert_eq!((figures.wakes, figures.behind), (1.0, vec![4.0; GROUPS as usize]));
        let each = measure(&ROWS[2]).unwrap();
        assert!(each.wakes > 1.0, "{}", each.wakes);
        assert_eq!(each.behind, vec![4.0; GROUPS as usize]);
    }

    #[test]
    fn a_time_wakes_when_it_is_over() {
        let figures = measure(&ROWS[5]).unwrap();
        // From the PREFILL's place, a NOP, on; the members end behind it.
        assert_eq!(figures.wakes, 1.0);
        assert!(
            figures.behind.iter().all(|&behind| behind < 2000.0 && behind > 1000.0),
            "{:?}",
            figures.behind
        );
    }
}
