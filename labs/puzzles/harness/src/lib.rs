//! What the puzzles about memory orders run on: loom's atomics, which note what each thread does, and a runner that tries every
//! interleaving and shows the one that went wrong.
//!
//! A check ends with [`solved`] or [`still_wrong`]; `cargo xtask puzzle` looks for what they print.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64 as Count, Ordering::Relaxed};

use loom::model::Builder;

pub mod sync;

/// Switches away from a thread that could go on.
const PREEMPTIONS: usize = 3;
/// Steps that one interleaving may take.
const STEPS: usize = 400;

thread_local! {
    // Loom runs all threads of a model on this one.
    static STEPS_TAKEN: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
    static NAMES: RefCell<Vec<(loom::thread::ThreadId, &'static str)>> = const { RefCell::new(Vec::new()) };
    static FAULT: RefCell<Option<String>> = const { RefCell::new(None) };
    static PANICS_AT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What one thread did.
#[derive(Clone, Debug)]
pub struct Step {
    /// The thread.
    actor: &'static str,
    what: String,
    /// The plain memory that it used.
    cell: Option<String>,
}

/// Notes a step of the thread that runs.
pub fn note(what: &str) {
    push(what.to_owned(), None);
}

fn push(what: String, cell: Option<String>) {
    let id = loom::thread::current().id();
    let named =
        |names: &Vec<(_, &'static str)>| names.iter().find(|(of, _)| *of == id).map(|(_, name)| *name);
    let actor = NAMES.with_borrow(named).unwrap_or("host");
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
    FAULT.set(Some(what));
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
    /// What is wrong.
    pub what: String,
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
    Ok(explore_on(Memory::Newest, model.clone())? + explore_on(Memory::AsOrdered, model)?)
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
        return Err(Failure { what: "In no interleaving does everything arrive.".to_owned(), steps, memory });
    };
    let text = panic.downcast_ref::<String>().cloned();
    let text =
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
    let what = FAULT.take().unwrap_or_else(|| plain(&text, &steps));
    Err(Failure { what, steps, memory })
}

/// What a panic says, in the words of the puzzles.
fn plain(text: &str, steps: &[Step]) -> String {
    if text.contains("maximum number of branches") {
        format!("A loop of the file had not ended after {STEPS} steps.")
    } else if text.starts_with("Causality violation") {
        race(steps).unwrap_or_else(|| text.to_owned())
    } else {
        format!("The file panics at {}: {text}", PANICS_AT.take().unwrap_or_default())
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

/// Prints that nothing is wrong, and ends the check.
pub fn solved(what: &str) -> ! {
    println!("SOLVED: {what}");
    exit(0)
}

/// Prints what is wrong and the interleaving that shows it, and ends the check. `why` says which rule that breaks.
pub fn still_wrong(case: &str, failure: &Failure, why: &str) -> ! {
    println!("STILL WRONG: {}\n{why}\n", failure.what);
    let memory = match failure.memory {
        Memory::Newest => "Each load returns what was stored last",
        Memory::AsOrdered => "The memory orders of the file allow it, on some processor",
    };
    println!("Seen with {case}. {memory}:\n");
    for (number, Step { actor, what, .. }) in failure.steps.iter().enumerate() {
        println!("  {:>3}  {actor:<7} {what}", number + 1);
    }
    exit(1)
}
