//! Where the time of a step goes, as the leaders of teams measure it.

use comfy_table::CellAlignment;
use doorbell_gpu::Phases;
use serde_json::json;

use crate::decoding::DecodeShape;
use crate::{Section, table};

/// What was measured during a row.
pub(super) struct Parts {
    pub shape: DecodeShape,
    pub context: u32,
    pub batch: u32,
    pub phases: Phases,
}

/// The table: a line for each part, a column for each row of `decode`.
pub(super) fn section(gpu: &str, rows: &[Parts]) -> Section {
    // A shape whose rollouts run alone has no leader that takes the time.
    let all = rows.len();
    let rows: Vec<&Parts> = rows.iter().filter(|row| row.phases.steps > 0).collect();
    let mut table = table([""; 0], 1);
    let name = |row: &Parts| {
        let shape = match row.shape {
            DecodeShape::Smollm2 => "",
            DecodeShape::Half => "0.6 B, ",
            DecodeShape::One => "1 B, ",
        };
        format!("{shape}{} x {}", row.batch, row.context)
    };
    table.set_header(std::iter::once("us a step".to_owned()).chain(rows.iter().map(|&row| name(row))));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut line = |what: &str, of: &dyn Fn(&Parts) -> f64| {
        let cells = rows.iter().map(|&row| format!("{:.1}", of(row)));
        table.add_row(std::iter::once(what.to_owned()).chain(cells));
    };
    let last = Phases::NAMES.len() - 1;
    for (k, what) in Phases::NAMES.iter().enumerate() {
        if k < last {
            line(what, &|row| row.phases.us_per_step()[k]);
        }
    }
    line("a step", &|row| row.phases.nanoseconds as f64 / 1e3 / row.phases.steps.max(1) as f64);
    line(Phases::NAMES[last], &|row| row.phases.us_per_step()[last]);
    line("its columns", &|row| row.phases.columns as f64 / row.phases.steps.max(1) as f64);
    let figures: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "shape": row.shape.name(), "context": row.context, "rollouts": row.batch, "steps": row.phases.steps,
                "columns": row.phases.columns, "us": row.phases.nanoseconds as f64 / 1e3, "parts": Phases::NAMES,
                "us_per_step": row.phases.us_per_step(),
            })
        })
        .collect();
    let note = if all == 0 {
        "--phases takes the time, by kernels that are compiled for it"
    } else if rows.len() < all {
        "Rows whose rollouts run alone, without a team, are left out. One thread of each leader takes the time, which makes steps longer."
    } else {
        "One thread of each leader takes the time, which makes steps longer: compare a step here with us/step above, of the same kernels."
    };
    Section {
        heading: format!("{gpu}: where the time of a team's step goes, rollouts x context"),
        table,
        notes: vec![note.to_owned()],
        json: figures.into(),
    }
}
