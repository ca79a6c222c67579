//! `doorbell report`: the page, its sums, and what it says of a run that went wrong.

use std::fs;

mod common;
use common::doorbell;

/// The cells of the row of a table whose first cell begins with `label`.
fn row(page: &str, label: &str) -> Vec<String> {
    let rows = page.split("<tr").skip(1);
    let text = |cell: &str| {
        let inside = cell.split_once('>').map_or("", |(_, inside)| inside).replace("</span>", "");
        inside.split("</td>").next().unwrap_or("").rsplit('>').next().unwrap_or("").to_owned()
    };
    let cells = |row: &str| -> Vec<String> { row.split("<td").skip(1).map(text).collect() };
    let found = rows.map(cells).find(|cells| cells.first().is_some_and(|first| first.starts_with(label)));
    found.unwrap_or_else(|| panic!("no row {label}"))[1..].to_vec()
}

fn sum(page: &str) -> Vec<f64> {
    let labels = [
        "ran a descriptor",
        "in wait states",
        "held back",
        "idle: the completion",
        "idle: the rollout",
        "idle: a fence",
        "idle: the group",
        "idle: a descriptor",
        "idle: no descriptor",
    ];
    let mut sums = vec![0.0; 2];
    for label in labels {
        for (sum, cell) in sums.iter_mut().zip(row(page, label)) {
            *sum += cell.trim_end_matches(" %").parse::<f64>().unwrap();
        }
    }
    sums
}

#[test]
fn totals_are_the_devices_and_stalls_add_up() {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), "report --devices model,rtl --group 4 --checkpoint 16 --limit 40");
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{}", run.stdout);
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.len() < 5 << 20 && !page.contains("<script") && !page.contains("http-equiv"));
    // Nothing is loaded: the only addresses are names of SVG.
    assert!(page.match_indices("http").all(|(at, _)| page[at..].starts_with("http://www.w3.org/2000/svg")));
    for (counted, taken) in [
        ("completions that the device counts", "completions that the host took"),
        ("tokens that the device counts", "tokens by completions"),
    ] {
        assert_eq!(row(&page, counted), row(&page, taken));
    }
    assert_eq!(row(&page, "descriptors that the device"), row(&page, "completions that the host"));
    for sum in sum(&page) {
        assert!((sum - 100.0).abs() < 0.05, "{sum}");
    }
    assert_eq!(row(&page, "all"), ["100.00 %", "100.00 %"]);
    assert_eq!(row(&page, "verdict"), ["keeps the rules", "as model"]);
}

#[test]
fn a_language_model_has_all_its_events_and_a_hang_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), "report --devices rtl --model micro --limit 4 --out micro.html");
    assert_eq!(run.code, 0, "{}", run.stderr);
    let page = fs::read_to_string(directory.path().join("micro.html")).unwrap();
    assert_eq!(row(&page, "completions without a LIFE event"), ["0"]);
    assert_eq!(row(&page, "completions that the device"), row(&page, "completions that the host"));
    let run = doorbell(directory.path(), "report --devices model,rtl --inject hang --out hang.html");
    assert_eq!(run.code, 1);
    let page = fs::read_to_string(directory.path().join("hang.html")).unwrap();
    assert!(page.contains("why: rtl: the device has not read slots") && page.contains("did not finish"));
    let run = doorbell(directory.path(), "report --devices model --out no/such/folder.html");
    assert_eq!(run.code, 2);
}

/// The host sees a completion before its write is answered, and the event comes behind that.
#[test]
fn the_last_events_come_behind_a_slow_memory() {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), "report --devices rtl --group 4 --limit 40 --latency 200..200");
    assert_eq!(run.code, 0, "{}", run.stderr);
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert_eq!(row(&page, "completions without a LIFE event"), ["0"]);
}

#[test]
fn a_full_completion_queue_is_the_bottleneck() {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), "report --devices rtl --cq-depth 2 --limit 40");
    assert_eq!(run.code, 0, "{}", run.stderr);
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("Bottleneck: <b>idle: the completion queue was full (R4)</b>"), "{page}");
}

/// A device that breaks its own assertion gives no figures, and is named first.
#[test]
fn a_device_without_figures_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), "report --devices model,rtl --inject response:900");
    assert_eq!(run.code, 1, "{}", run.stderr);
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("<b>rtl</b> did not finish, and gave no figures: "), "{page}");
}

/// Nobody compares events, so a device may tell anything in them.
#[test]
fn events_that_contradict_themselves_are_told_and_left_out() {
    let directory = tempfile::tempdir().unwrap();
    for field in ["start", "ended", "visible", "stamp"] {
        let run = doorbell(
            directory.path(),
            &format!("report --devices model --limit 20 --inject event:5:{field} --out {field}.html"),
        );
        assert_eq!(run.code, 1, "{field}: {}", run.stderr);
        let page = fs::read_to_string(directory.path().join(format!("{field}.html"))).unwrap();
        let told = page.contains("visible before it (R23): 1. The first is of completion ");
        assert_eq!(told, ["start", "ended"].contains(&field), "{field}");
        for label in ["slot read to a", "start to end", "end to visible", "slot read to visible"] {
            for cell in row(&page, label) {
                // A difference that wraps has 20 digits and 6 commas.
                assert!(cell.matches(',').count() < 4, "{field}: {label}: {cell}");
            }
        }
        assert_eq!(row(&page, "all"), ["100.00 %"], "{field}");
    }
}
