//! The control plane's tax: each cost that the design avoids beside what replaces it, and the tables that the figures come from.

use comfy_table::CellAlignment;
use serde_json::{Value, json};

use crate::{BenchError, Section, cow, handoff, memory, pipeline, table};

/// Two costs of a row, in ns; or why there is none.
type Costs = Result<[f64; 2], String>;

/// A bottleneck, what replaces it, and what both cost.
struct Row {
    name: &'static str,
    instead: &'static str,
    costs: Costs,
}

fn nanos(time: f64) -> String {
    match time {
        time if time >= 1e6 => format!("{:.2} ms", time / 1e6),
        time if time >= 1e3 => format!("{:.2} us", time / 1e3),
        time => format!("{time:.1} ns"),
    }
}

/// The figure of the row of a section in which `key` is `name`.
fn figure(section: &Section, key: &str, name: &str, figure: &str) -> Result<f64, BenchError> {
    let rows = section.json.as_array().into_iter().flatten();
    let row = rows.filter(|row| row[key] == name).find_map(|row| row[figure].as_f64());
    row.ok_or_else(|| BenchError::failed(format!("{}: no {figure} of {name}", section.heading)))
}

/// What a token costs on a GPU, by who steps it; `Err` where there is none.
fn on_a_gpu(quick: bool) -> Result<[Row; 3], BenchError> {
    let rows = |costs: [Costs; 3]| {
        let names = ["kernel launch", "graph launch", "host polls"];
        let mut rows = names.into_iter().zip(costs);
        std::array::from_fn(|_| {
            let (name, costs) = rows.next().expect("there are three");
            Row { name, instead: "persistent worker", costs }
        })
    };
    #[cfg(feature = "gpu")]
    if doorbell_devices::Kind::Gpu.missing().is_none() {
        let [launch, graph, polled, worker] = crate::gpu::per_token(quick)?;
        return Ok(rows([launch, graph, polled].map(|cost| Ok([cost, worker]))));
    }
    let _ = quick;
    Ok(rows([(); 3].map(|()| Err("no GPU here".to_owned()))))
}

/// The bottleneck table, and those that its figures come from.
pub fn sections(quick: bool) -> Result<Vec<Section>, BenchError> {
    let (touch, first) = memory::first_touch(quick)?;
    let telling = handoff::telling(quick)?;
    let arena = cow::arena(quick)?;
    let tax = pipeline::tax(quick)?;
    let told = |way| figure(&telling, "way", way, "p50_ns");
    let pair = |allocator| figure(&arena, "allocator", allocator, "pair_cpu_ns");
    let spinning = told("rings, both spin")?;
    let row = |name, instead, costs| Row { name, instead, costs };
    let [launch, graph, polled] = on_a_gpu(quick)?;
    let rows = [
        row("page fault, 4 KiB", "page touched", Ok([first.fault, first.touched])),
        row("allocation, 16 KiB", "an arena's block", Ok([pair(cow::MALLOC)?, pair(cow::ARENA)?])),
        launch,
        graph,
        polled,
        row("wake-up by eventfd", "rings, both spin", Ok([told("eventfd, both sleep")?, spinning])),
        row(
            "wake-up by a condvar",
            "rings, both spin",
            Ok([told("Mutex and Condvar, both sleep")?, spinning]),
        ),
        row("polling, yielding", "rings, both spin", Ok([told("rings, both poll and yield")?, spinning])),
        row(
            "copy of rewards",
            "RESIDENT, no copy",
            Ok([pipeline::Setup::Judge, pipeline::Setup::Resident]
                .map(|setup| pipeline::per_segment(&tax, setup))),
        ),
        row("load of a far node", "of the near one", memory::far_node(quick)?.map(|(near, far)| [far, near])),
    ];
    Ok(vec![bottlenecks(rows.into()), tax, touch, handoff::submission(quick)?, telling])
}

fn bottlenecks(rows: Vec<Row>) -> Section {
    let mut table = table(["bottleneck", "costs", "in its place", "costs", "saves"], 1);
    if let Some(column) = table.column_mut(2) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    let mut figures: Vec<Value> = vec![];
    for Row { name, instead, costs } in rows {
        let shown = match &costs {
            Ok([cost, other]) => [nanos(*cost), nanos(*other), times(cost / other)],
            Err(reason) => [reason.clone(), String::new(), String::new()],
        };
        let [cost, other, saves] = shown;
        table.add_row([name.to_owned(), cost, instead.to_owned(), other, saves]);
        figures.push(match costs {
            Ok([cost, other]) => {
                json!({ "bottleneck": name, "ns": cost, "instead": instead, "instead_ns": other })
            }
            Err(reason) => json!({ "bottleneck": name, "instead": instead, "missing": reason }),
        });
    }
    Section {
        heading: "Bottlenecks: what the design avoids, and what it does instead".to_owned(),
        table,
        notes: vec![
            "Launch, host polls: a token, p50. Wake-up and polling: there and back, p50.".to_owned(),
            "Page fault: CPU time of the first store into a page.".to_owned(),
            "Copy of rewards: hot thread's CPU time of 32 tokens, with their decoding.".to_owned(),
            "The tables below, and those of `bench cow` and `bench gpu`, have the figures.".to_owned(),
        ],
        json: figures.into(),
    }
}

/// A ratio in at most 7 columns.
fn times(ratio: f64) -> String {
    if ratio < 1000.0 { format!("{ratio:.1}x") } else { format!("{ratio:.0}x") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_keeps_its_column() {
        assert_eq!([4.25, 999.94, 6549.1, 1e6 - 1.0].map(times), ["4.2x", "999.9x", "6549x", "999999x"]);
    }

    #[test]
    fn every_bottleneck_has_a_row_of_at_most_80_columns() {
        let sections = sections(true).unwrap();
        let [bottlenecks, ..] = &sections[..] else { panic!("no sections") };
        let text = bottlenecks.to_string();
        for name in [
            "page fault",
            "allocation",
            "kernel launch",
            "graph launch",
            "host polls",
            "wake-up by eventfd",
            "wake-up by a condvar",
            "polling, yielding",
            "copy of rewards",
            "load of a far node",
        ] {
            let line = text.lines().find(|line| line.starts_with(&format!("| {name}")));
            assert!(line.is_some(), "no {name} in\n{text}");
        }
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        // A row has both costs, or says why not; a cost is never zero.
        for row in bottlenecks.json.as_array().unwrap() {
            let costs = [row["ns"].as_f64(), row["instead_ns"].as_f64()];
            let told = costs.iter().all(|cost| cost.is_some_and(|cost| cost > 0.0));
            assert!(told != row["missing"].is_string(), "{row}");
        }
        let missing = Kind::Gpu.missing().is_some();
        assert_eq!(text.contains("no GPU here"), missing, "{text}");
    }

    use doorbell_devices::Kind;

    #[test]
    fn a_figure_that_is_not_there_is_an_error() {
        let section = bottlenecks(vec![Row { name: "a", instead: "b", costs: Ok([4.0, 2.0]) }]);
        assert_eq!(figure(&section, "bottleneck", "a", "ns").unwrap(), 4.0);
        assert!(figure(&section, "bottleneck", "b", "ns").is_err());
        assert!(section.to_string().contains("| 4.0 ns | b            | 2.0 ns |  2.0x |"), "{section}");
    }
}
