//! What the puzzles about memory orders run on: loom's atomics, which note what each thread does, and a runner that tries every
//! interleaving and shows the one that went wrong.
//!
//! A check ends with [`solved`] or [`still_wrong`]; `cargo xtask puzzle` looks for what they print.

use std::cell::RefCell;
use std::env::var;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64 as Count, Ordering::Relaxed};

use loom::model::Builder;

pub mod sync;

/// Switches away from a thread that could go on.
const PREEMPTIONS: usize = 3;
/// Choices between threads and values that one interleaving may have.
const STEPS: usize = 400;
/// Lines of an interleaving that are shown, and how many of them are its last ones.
const MOST: usize = 48;
const LAST: usize = 8;
/// Steps that may repeat as one.
const PERIOD: usize = 12;

thread_local! {
    // Loom runs all threads of a model on this one.
    static STEPS_TAKEN: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
    static NAMES: RefCell<Vec<(loom::thread::ThreadId, &'static str)>> = const { RefCell::new(Vec::new()) };
    static FAULT: RefCell<Option<Fault>> = const { RefCell::new(None) };
    static PANICS_AT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What one thread did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The thread.
    actor: &'static str,
    what: String,
    /// The plain memory that it used.
    cell: Option<String>,
}

/// What is wrong.
#[derive(Debug)]
struct Fault {
    what: String,
    /// The rule that it breaks, where it is not the rule of the puzzle.
    rule: Option<&'static str>,
}

/// Of a loop without end.
const BOUNDED: &str =
    "R15: every wait is bounded. A function that finds nothing to do returns, and its caller calls it again.";
/// Of an order that `std` does not have for an operation.
const ORDERS: &str = "The atomics are those of `std::sync::atomic`, where this does not compile, or panics.";

/// Notes a step of the thread that runs.
pub fn note(what: &str) {
    push(what.to_owned(), None);
}

fn push(what: String, cell: Option<String>) {
    let id = loom::thread::current().id();
    let named =
        |names: &Vec<(_, &'static str)>| names.iter().find(|(of, _)| *of == id).map(|(_, name)| *name);
    push_of(NAMES.with_borrow(named).unwrap_or("host"), what, cell);
}

fn push_of(actor: &'static str, what: String, cell: Option<String>) {
    STEPS_TAKEN.with_borrow_mut(|steps| steps.push(Step { actor, what, cell }));
}

/// Begins a thread of the model. The one that runs the model is the host.
///
/// # Panics
/// Where loom does.
pub fn spawn<T: 'static>(
    name: &'static str,
    what: impl FnOnce() -> T + 'static,
) -> loom::thread::JoinHandle<T> {
    loom::thread::spawn(move || {
        NAMES.with_borrow_mut(|names| names.push((loom::thread::current().id(), name)));
        what()
    })
}

/// Lets the others run: for whoever waits.
pub fn wait() {
    loom::thread::yield_now();
}

/// Ends this interleaving: `what` is wrong.
///
/// # Panics
/// Always; [`explore`] catches it.
pub fn wrong(what: String) -> ! {
    end(what, None)
}

fn end(what: String, rule: Option<&'static str>) -> ! {
    FAULT.set(Some(Fault { what, rule }));
    panic!("found");
}

/// What loads may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// What was stored last: steps of the threads take turns, and nothing else happens.
    Newest,
    /// Also what is older, where the memory orders allow it.
    AsOrdered,
}

/// An interleaving in which something is wrong.
#[derive(Debug)]
pub struct Failure {
    fault: Fault,
    /// The steps to it, in their order.
    steps: Vec<Step>,
    memory: Memory,
}

/// Tries every interleaving of `model`, with up to three switches away from a thread that could go on: first on memory that shows every store at once,
/// then on memory that shows what the orders allow. How many there were. `model` says whether it came to its end: a thread that looks a few
/// times and sees nothing gives up.
///
/// # Errors
/// The first interleaving in which something is wrong, or that there is none that comes to its end.
pub fn explore(model: impl Fn() -> bool + Clone + Send + Sync + 'static) -> Result<u64, Failure> {
    Ok(explore_newest(model.clone())? + explore_on(Memory::AsOrdered, model)?)
}

/// As [`explore`], on memory that shows every store at once and on no other.
///
/// # Errors
/// As [`explore`].
pub fn explore_newest(model: impl Fn() -> bool + Send + Sync + 'static) -> Result<u64, Failure> {
    explore_on(Memory::Newest, model)
}

fn explore_on(memory: Memory, model: impl Fn() -> bool + Send + Sync + 'static) -> Result<u64, Failure> {
    sync::READS_NEWEST.store(memory == Memory::Newest, Relaxed);
    set_hook(Box::new(|panic| PANICS_AT.set(panic.location().map(ToString::to_string))));
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_branches = STEPS;
    let (count, ended) = (Arc::new(Count::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, came) = (count.clone(), ended.clone());
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        builder.check(move || {
            STEPS_TAKEN.with_borrow_mut(Vec::clear);
            NAMES.with_borrow_mut(Vec::clear);
            counted.fetch_add(1, Relaxed);
            if model() {
                came.store(true, Relaxed);
            }
        });
    }));
    let steps = STEPS_TAKEN.take();
    let Err(panic) = outcome else {
        if ended.load(Relaxed) {
            return Ok(count.load(Relaxed));
        }
        let fault = Fault { what: "In no interleaving does everything arrive.".to_owned(), rule: None };
        return Err(Failure { fault, steps, memory });
    };
    let text = panic.downcast_ref::<String>().cloned();
    let text =
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
    let fault = FAULT.take().unwrap_or_else(|| plain(&text, &steps));
    Err(Failure { fault, steps, memory })
}

/// What a panic says, in the words of the puzzles.
fn plain(text: &str, steps: &[Step]) -> Fault {
    if text.contains("maximum number of branches") {
        Fault {
            what: format!("A loop of the file had not ended after {} steps.", steps.len()),
            rule: Some(BOUNDED),
        }
    } else if text.starts_with("Causality violation") {
        Fault { what: race(steps).unwrap_or_else(|| text.to_owned()), rule: None }
    } else {
        let place = PANICS_AT.take().unwrap_or_default();
        Fault {
            what: format!("The file panics at {place}: {text}"),
            rule: Some("Neither side may panic, whatever the other one does."),
        }
    }
}

/// The last step uses plain memory at the same time as an earlier one of another thread.
fn race(steps: &[Step]) -> Option<String> {
    let (last, before) = steps.split_last()?;
    let is_other = |step: &Step| step.cell == last.cell && step.actor != last.actor;
    let other = before.iter().rposition(is_other)?;
    Some(format!(
        "Nothing orders step {} (the {} {}) after step {} (the {} {}), so they may happen at the same time.",
        steps.len(),
        last.actor,
        last.what,
        other + 1,
        before[other].actor,
        before[other].what
    ))
}

/// Prints that the puzzle is solved, followed by the word of this run if it has one, and ends the check.
pub fn solved(what: &str) -> ! {
    println!("SOLVED: {what}\n{}", var("DOORBELL_PUZZLE_WORD").unwrap_or_default());
    exit(0)
}

/// Prints what is wrong and the interleaving that shows it, and ends the check. `rule` is the one that the puzzle is about.
pub fn still_wrong(case: &str, failure: &Failure, rule: &str) -> ! {
    let Failure { fault, steps, memory } = failure;
    println!("STILL WRONG: {}\n{}\n", fault.what, fault.rule.unwrap_or(rule));
    if steps.is_empty() {
        println!("Seen with {case}, before the first access to what is shared.");
        exit(1)
    }
    let memory = match memory {
        Memory::Newest => "Each load returns what was stored last",
        Memory::AsOrdered => "The memory orders of the file allow it, on some processor",
    };
    println!("Seen with {case}. {memory}:\n");
    for line in folded(steps) {
        println!("  {line}");
    }
    exit(1)
}

/// The steps as lines, with their numbers. Of steps that repeat, the first ones; of many others, the first and the last ones.
fn folded(steps: &[Step]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut at = 0;
    while at < steps.len() {
        let (length, times) = repeats(&steps[at..]);
        for (number, Step { actor, what, .. }) in (at + 1..).zip(&steps[at..at + length]) {
            lines.push(format!("{number:>3}  {actor:<7} {what}"));
        }
        at += length * times;
        if times > 1 {
            let last = if length == 1 { "step".to_owned() } else { format!("{length} steps") };
            lines.push(format!(
                "     ... and so on: the last {last} {} times more, up to step {at}",
                times - 1
            ));
        }
    }
    if lines.len() > MOST {
        let behind = lines.split_off(lines.len() - LAST);
        let left_out = lines.len() - (MOST - LAST);
        lines.truncate(MOST - LAST);
        lines.push(format!("     ... {left_out} lines are left out"));
        lines.extend(behind);
    }
    lines
}

/// How many of the first steps come how many times one after the other: one step once, where too few repeat to be folded.
fn repeats(steps: &[Step]) -> (usize, usize) {
    for length in 1..=steps.len().min(PERIOD) {
        let times =
            1 + steps[length..].chunks_exact(length).take_while(|chunk| *chunk == &steps[..length]).count();
        if times > 3 {
            return (length, times);
        }
    }
    (1, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(whats: impl IntoIterator<Item = usize>) -> Vec<Step> {
        let step = |what: usize| Step { actor: "host", what: format!("does {what}"), cell: None };
        whats.into_iter().map(step).collect()
    }

    #[test]
    fn steps_that_repeat_are_shown_once() {
        let lines = folded(&steps([7, 8].into_iter().chain([1, 2, 3].repeat(50)).chain([9])));
        let expected = [
            "  1  host    does 7",
            "  2  host    does 8",
            "  3  host    does 1",
            "  4  host    does 2",
            "  5  host    does 3",
            "     ... and so on: the last 3 steps 49 times more, up to step 152",
            "153  host    does 9",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn few_repeats_are_not_folded() {
        assert_eq!(folded(&steps([1, 1, 1, 2, 3, 2, 3])).len(), 7);
    }

    #[test]
    fn of_many_steps_the_first_and_the_last_are_shown() {
        let lines = folded(&steps(0..400));
        assert_eq!(lines.len(), MOST + 1);
        assert_eq!(lines[MOST - LAST], format!("     ... {} lines are left out", 400 - MOST));
        assert_eq!(lines.last().unwrap(), "400  host    does 399");
    }
}
