//! Runs every lab, quickly, and holds its table against what must be true of it on any machine: not against time.

use std::process::Command;
use std::thread;

use rstest::rstest;

/// Cells of a lab's table, header first. The lab has to end well, and to say what to look at.
fn rows(program: &str, args: &[&str]) -> Vec<Vec<String>> {
    let output = Command::new(program).arg("--quick").args(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {errors}\n{text}", output.status);
    assert!(text.contains("What to look at: "), "{text}");
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let mut table: Vec<Vec<String>> = text.lines().filter(|line| line.starts_with('|')).map(cells).collect();
    assert!(table.len() > 2, "no table: {text}");
    table.remove(1);
    table
}

fn number(cell: &str) -> f64 {
    let digits = cell.trim_end_matches(" %");
    digits.parse().unwrap_or_else(|_| panic!("'{cell}' is no number"))
}

/// Every lab: as many rows as it promises, and figures that are numbers and above 0 where a time or a rate stands.
#[rstest]
#[case::false_sharing(env!("CARGO_BIN_EXE_lab-false-sharing"), 6, &["1 thread, ns", "2 threads, ns"])]
#[case::spsc_ring(env!("CARGO_BIN_EXE_lab-spsc-ring"), 7, &["M entries/s", "ns/entry"])]
#[case::huge_pages(env!("CARGO_BIN_EXE_lab-huge-pages"), 2, &["ns/read"])]
#[case::waiting(env!("CARGO_BIN_EXE_lab-waiting"), 5, &["ns/hand-over"])]
#[case::doorbell(env!("CARGO_BIN_EXE_lab-doorbell"), 12, &["ns/descriptor"])]
#[case::memory_ordering(env!("CARGO_BIN_EXE_lab-memory-ordering"), 6, &["rounds"])]
fn a_lab_ends_with_its_table(#[case] program: &str, #[case] at_least: usize, #[case] figures: &[&str]) {
    let table = rows(program, &[]);
    let (header, rows) = table.split_first().unwrap();
    assert!(rows.len() >= at_least, "{rows:?}");
    for figure in figures {
        let column =
            header.iter().position(|name| name == figure).unwrap_or_else(|| panic!("no column '{figure}'"));
        assert!(
            rows.iter().all(|row| row.len() == header.len() && number(&row[column]) > 0.0),
            "{figure}: {rows:?}"
        );
    }
}

#[test]
fn small_pages_fault_once_each_and_huge_ones_less_often() {
    for row in &rows(env!("CARGO_BIN_EXE_lab-huge-pages"), &[])[1..] {
        let pages = number(row[0].trim_end_matches(" MiB")) * 256.0;
        let faults = number(&row[2]);
        if row[1] == "4 KiB" {
            // A kernel that maps several small pages at once faults less often; none faults more than for each.
            assert!(faults >= 1.0 && faults <= pages + 8.0, "{row:?}");
        } else if row[3] == "100 %" {
            assert!(faults <= pages / 16.0, "{row:?}");
        }
    }
}

#[test]
fn r1_doorbells_are_as_many_as_the_scheme_says() {
    let table = rows(env!("CARGO_BIN_EXE_lab-doorbell"), &[]);
    let each = number(&table[1][2]);
    assert!(each >= 1024.0);
    for row in &table[1..] {
        let expected = match &row[0] {
            name if name.contains("a doorbell each (R1)") => each,
            name if name.contains("a doorbell a window (R1)") => each / number(&row[1]),
            name if name.contains("no doorbell (R2)") => 0.0,
            name => panic!("unknown scheme '{name}'"),
        };
        assert_eq!(number(&row[2]), expected, "{row:?}");
    }
}

#[test]
fn only_the_kernel_makes_a_waiter_wait() {
    for row in &rows(env!("CARGO_BIN_EXE_lab-waiting"), &[])[1..] {
        let (time, waited) = (number(&row[2]), number(&row[4]));
        assert!(time > 0.0);
        if row[1] == "none" {
            assert_eq!(waited, 0.0, "{row:?}");
        }
    }
}

/// Where the processor can show a stale read the lab has to see one, and a fence has to prevent it, everywhere.
#[test]
fn a_stale_read_is_seen_and_then_prevented() {
    let can_be_seen =
        cfg!(target_arch = "x86_64") && thread::available_parallelism().is_ok_and(|n| n.get() >= 2);
    let table =
        rows(env!("CARGO_BIN_EXE_lab-memory-ordering"), if can_be_seen { &["--expect-stale"] } else { &[] });
    let mut stale_seen = false;
    for row in &table[1..] {
        let outcomes: f64 = row[3..7].iter().map(|cell| number(cell)).sum();
        assert_eq!(outcomes, number(&row[2]), "rounds without an outcome: {row:?}");
        let stale = number(&row[7]);
        match row[8].as_str() {
            "forbids it" => assert_eq!(stale, 0.0, "{row:?}"),
            "allows it" => stale_seen |= stale > 0.0,
            other => panic!("'{other}'"),
        }
    }
    assert!(stale_seen || !can_be_seen);
}
