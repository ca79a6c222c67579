//! Runs `vector.rs` with a host that sleeps and an owner that masks, through every order of their steps, the shortest first.

#[path = "../vector.rs"]
mod vector;

use std::collections::{HashMap, VecDeque};
use std::env::var;
use std::process::exit;

use vector::Vector;

/// Completions of a run.
const COUNT: u32 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Host {
    /// Reads completions until there is none.
    Reads,
    /// Has found none, and is about to write ARM.
    Arms,
    Sleeps,
}

/// Everything. Indices count from 0 here, and from the first index in what is printed.
#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    vector: Vector,
    host: Host,
    /// The host has taken those below it.
    taken: u32,
    /// Those below it are visible.
    visible: u32,
    /// A message has arrived that the host has not slept on.
    message: bool,
    /// What R14 says: armed at this index, and pending.
    armed: Option<u32>,
    pending: bool,
    masked: bool,
    /// Times that the mask may change, that something else may wake the host, and that it may arm above the completion that it reads next.
    masks: u32,
    others: u32,
    aheads: u32,
}

#[derive(Clone, Copy)]
enum Step {
    Complete,
    Host,
    Wake,
    OtherWake,
    Send,
    Mask,
    Ahead,
}

const STEPS: [Step; 7] =
    [Step::Complete, Step::Host, Step::Send, Step::Wake, Step::OtherWake, Step::Mask, Step::Ahead];

const FIRES: &str = "R14: an armed queue pair fires as soon as a completion at or above ARM is visible. Those that were visible before ARM was written count too.";
const ONCE: &str = "R14: firing disarms the queue pair: one arming brings at most one message, and that comes after everything that it announces is visible.";

const KEPT: &str = "R14: a vector that is pending sends one message, as soon as it is not masked. No message is lost, also where the host writes ARM before.";

/// A completion by its running index, in the form in which the vector is printed.
fn shown(start: u32, completion: u32) -> String {
    format!("{:#x}", start.wrapping_add(completion))
}

/// Whether a message is to be sent once the vector is not masked.
fn would_send(vector: &Vector) -> bool {
    let mut vector = vector.clone();
    vector.mask(false);
    vector.send()
}

impl State {
    /// What the step is, in words, and what it leads to; `None` if it cannot happen. An error is what is wrong, and the rule.
    fn step(&self, start: u32, step: Step) -> Option<(String, State, Result<(), (String, &'static str)>)> {
        let mut state = self.clone();
        let mut wrong = Ok(());
        let index = |of| shown(start, of);
        let text = match step {
            Step::Complete if self.visible < COUNT => {
                state.vector.completion_visible();
                state.visible += 1;
                state.fire();
                format!("device  completion {} becomes visible", index(self.visible))
            }
            Step::Host => match self.host {
                Host::Reads if self.taken < self.visible => {
                    state.taken = self.visible;
                    format!("host    takes the completions up to {}", index(self.visible - 1))
                }
                Host::Reads if self.taken < COUNT => {
                    state.host = Host::Arms;
                    format!("host    looks for completion {}, and finds none", index(self.taken))
                }
                Host::Arms => {
                    state.arm(start, self.taken);
                    format!("host    writes ARM = {}, and sleeps", index(self.taken))
                }
                _ => return None,
            },
            Step::Ahead if self.host == Host::Arms && self.aheads > 0 && self.taken + 1 < COUNT => {
                state.aheads -= 1;
                state.arm(start, self.taken + 1);
                format!("host    writes ARM = {}, to wait for two completions, and sleeps", index(self.taken + 1))
            }
            Step::Wake if self.host == Host::Sleeps && self.message => {
                state.message = false;
                state.host = Host::Reads;
                "host    is woken by the message".to_owned()
            }
            Step::OtherWake if self.host == Host::Sleeps && self.others > 0 => {
                state.others -= 1;
                state.host = Host::Reads;
                "host    is woken by something else".to_owned()
            }
            Step::Send => {
                if !state.vector.send() {
                    return None;
                }
                wrong = self.judge_message(index);
                state.pending = false;
                state.message = true;
                "device  sends a message".to_owned()
            }
            Step::Mask if self.masks > 0 => {
                state.masks -= 1;
                state.masked = !self.masked;
                state.vector.mask(state.masked);
                format!("owner   {} the vector", if state.masked { "masks" } else { "unmasks" })
            }
            _ => return None,
        };
        if wrong.is_ok() && !matches!(step, Step::Send) && would_send(&self.vector) && !would_send(&state.vector) {
            wrong = Err(("a message was to be sent, and this step takes it back: it is lost.".into(), KEPT));
        }
        Some((text, state, wrong))
    }

    fn arm(&mut self, start: u32, at: u32) {
        self.vector.arm(start.wrapping_add(at));
        self.armed = Some(at);
        self.fire();
        self.host = Host::Sleeps;
    }

    /// R14 itself.
    fn fire(&mut self) {
        if self.armed.is_some_and(|armed| armed < self.visible) {
            self.armed = None;
            self.pending = true;
        }
    }

    fn judge_message(&self, index: impl Fn(u32) -> String) -> Result<(), (String, &'static str)> {
        if self.masked {
            return Err(("a message is sent while the vector is masked.".into(), "R14: a vector that is pending and not masked sends one message."));
        }
        if self.pending {
            return Ok(());
        }
        Err(match self.armed {
            Some(armed) => (
                format!(
                    "a message is sent too early: ARM is {}, and the first completion that is not visible is {}.",
                    index(armed),
                    index(self.visible)
                ),
                FIRES,
            ),
            None => ("a message is sent that no arming asked for.".into(), ONCE),
        })
    }

    /// Nobody does anything any more, and the host waits for what is there.
    fn sleeps_for_ever(&self) -> bool {
        self.host == Host::Sleeps && !self.message && self.visible == COUNT && self.taken < COUNT && !self.masked && !self.vector.clone().send()
    }
}

/// The steps that led to a state.
fn history(steps: &HashMap<State, Option<(State, String)>>, state: &State) -> Vec<String> {
    let mut out = Vec::new();
    let mut at = state;
    while let Some(Some((before, text))) = steps.get(at) {
        out.push(text.clone());
        at = before;
    }
    out.reverse();
    out
}

fn still_wrong(what: &str, why: &str, start: u32, mut steps: Vec<String>, last: Option<String>, vector: &Vector) -> ! {
    steps.extend(last);
    println!("STILL WRONG: {what}\n{why}\n");
    println!("The first completion has the running index {start:#x}. The shortest order of steps that shows it:\n");
    for (number, step) in steps.iter().enumerate() {
        println!("  {:>3}  {step}", number + 1);
    }
    println!("\nThe vector then: {}", in_one_line(vector));
    exit(1)
}

/// The fields with `0x` before each index, as the steps have them.
fn in_one_line(vector: &Vector) -> String {
    let text = format!("{vector:#x?}");
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace("( ", "(").replace(", )", ")").replace(", }", " }")
}

/// A host that has not armed for a long time: many completions have become visible, and then it writes an old index to ARM.
fn run_far(start: u32) {
    const MANY: u32 = 1 << 20;
    let mut long = Vector::new(start);
    (0..MANY).for_each(|_| long.completion_visible());
    let next = start.wrapping_add(MANY);
    // The newest completion is up to 2^31 - 2 ahead of ARM.
    for behind in [1, 4, 5, 129, 200, 300, 1 << 15, 40_000, 1 << 16, 70_000, MANY, (1 << 31) - 1] {
        let mut vector = long.clone();
        vector.arm(next.wrapping_sub(behind));
        if !would_send(&vector) {
            let steps = vec![
                format!("device  {MANY} completions have become visible, the newest is {:#x}", next.wrapping_sub(1)),
                format!("host    writes ARM = {:#x}; the newest completion is {:#x} ahead of it", next.wrapping_sub(behind), behind - 1),
            ];
            still_wrong("the host writes ARM far behind, and no message is sent.", FIRES, start, steps, None, &vector);
        }
    }
    let mut vector = long;
    vector.arm(next);
    if would_send(&vector) {
        let steps = vec![format!("host    writes ARM = {next:#x}; the newest completion is {:#x}", next.wrapping_sub(1))];
        still_wrong("a message is sent too early.", FIRES, start, steps, None, &vector);
    }
}

/// How many states there are from this first index on.
fn run(start: u32) -> usize {
    let first = State {
        vector: Vector::new(start),
        host: Host::Reads,
        taken: 0,
        visible: 0,
        message: false,
        armed: None,
        pending: false,
        masked: false,
        masks: 2,
        others: 1,
        aheads: 1,
    };
    let mut steps = HashMap::from([(first.clone(), None)]);
    // A host that sleeps for ever is the clearer report, so an unsent message is reported only if no host does.
    let mut unsent: Option<State> = None;
    let mut open = VecDeque::from([first]);
    while let Some(state) = open.pop_front() {
        if state.sleeps_for_ever() {
            let what = format!("the host sleeps for ever, and completion {} is there.", shown(start, state.taken));
            still_wrong(&what, &format!("{FIRES}\nWhat comes later could still wake the host. So this shows only once all {COUNT} completions are visible."), start, history(&steps, &state), None, &state.vector);
        }
        if unsent.is_none() && state.pending && !would_send(&state.vector) {
            unsent = Some(state.clone());
        }
        for step in STEPS {
            let Some((text, next, wrong)) = state.step(start, step) else { continue };
            if let Err((what, why)) = wrong {
                still_wrong(&what, why, start, history(&steps, &state), Some(text), &next.vector);
            }
            if !steps.contains_key(&next) {
                steps.insert(next.clone(), Some((state.clone(), text)));
                open.push_back(next);
            }
        }
        if steps.len() > 200_000 {
            println!("STILL WRONG: the vector has states without end.\nIts fields must not count what has happened.");
            exit(1);
        }
    }
    if let Some(state) = unsent {
        let what = "a message is due, and none will be sent.";
        still_wrong(what, FIRES, start, history(&steps, &state), None, &state.vector);
    }
    steps.len()
}

fn main() {
    let states: usize = [0, 41, u32::MAX - 1, u32::MAX, (1 << 31) - 1].map(run).iter().sum();
    [0, u32::MAX - (1 << 19)].map(run_far);
    println!("SOLVED: in {states} states the host is woken for every completion that it waits for, once for each arming, and never early.");
    println!("{}", var("DOORBELL_PUZZLE_WORD").unwrap_or_default());
}
