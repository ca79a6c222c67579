//! Posts completions as a device does, lap after lap, and looks at what `completion_queue.rs` takes.

#[path = "../completion_queue.rs"]
mod completion_queue;
mod memory;

use std::env::var;
use std::process::exit;

use completion_queue::CompletionQueue;
use memory::{Half, Memory};

/// Loads of a look, and some more.
const LOADS: u32 = 10;

/// A device and its host on a queue.
struct Run<'a> {
    memory: &'a Memory,
    depth: u32,
    start: u32,
}

/// An index, as the report shows it.
fn shown(index: u32) -> String {
    if index < 1 << 16 { index.to_string() } else { format!("{index:#x}") }
}

impl Run<'_> {
    fn slot(&self, index: u32) -> usize {
        (index % self.depth) as usize
    }

    /// The contract's formula.
    fn phase(&self, index: u32) -> u64 {
        1 ^ (u64::from(index >> self.depth.trailing_zeros()) & 1)
    }

    /// The completion of an index.
    fn words(&self, index: u32) -> [u64; 4] {
        let number = u64::from(index);
        [0xC0 + number, 0x0064_0000_0000 | number, 7 + number, 0x0001_0000_0000_0000 | number]
    }

    fn half(&self, index: u32, half: usize) -> Half {
        let (words, slot, phase) = (self.words(index), self.slot(index), self.phase(index));
        Half {
            slot,
            half,
            words: [words[2 * half], words[2 * half + 1] | (phase << 63)],
            step: format!(
                "the device writes half {half} (words {} and {}) of completion {} into slot {slot}, phase {phase}",
                2 * half,
                2 * half + 1,
                shown(index)
            ),
        }
    }

    fn post_half(&self, index: u32, half: usize) {
        self.memory.post(self.half(index, half));
    }

    /// Ends the check, with the slots as they lie.
    fn still_wrong(&self, what: &str, why: &str) -> ! {
        println!("STILL WRONG: {what}");
        println!("{why}\n");
        println!("A queue of {} slots, the first index {}. The last steps:\n", self.depth, shown(self.start));
        let steps = self.memory.steps.borrow();
        for step in &steps[steps.len().saturating_sub(if self.memory.shows_loads.get() { 12 } else { 6 })..] {
            println!("  {step}");
        }
        println!("\nThe slots, byte 0 first; [ ] marks the bytes with the phases:\n");
        for slot in 0..self.depth as usize {
            let words = self.memory.words(slot);
            let mut line = format!("  slot {slot}  ");
            for (at, byte) in words.iter().flat_map(|word| word.to_le_bytes()).enumerate() {
                line += &match at {
                    15 | 31 => format!("[{byte:02x}] "),
                    _ => format!("{byte:02x} "),
                };
            }
            println!("{line}  phases {} and {}", words[1] >> 63, words[3] >> 63);
        }
        exit(1);
    }

    /// The host takes one, and writes nothing.
    fn pop(&self, queue: &mut CompletionQueue) -> Option<completion_queue::Completion> {
        let found = queue.pop();
        if let Some(slot) = self.memory.written.take() {
            self.still_wrong(
                &format!("the host writes slot {slot} of a queue that is active."),
                "R4: while the queue pair is active, the host never writes the queue: the device may be writing the same slot.",
            );
        }
        found
    }

    /// The host looks: nothing is to be there.
    fn expect_none(&self, queue: &mut CompletionQueue, next: u32, half: bool) {
        let Some(found) = self.pop(queue) else { return };
        let what = self.named(found);
        let number = shown(next);
        self.memory.note(format!("the host takes {what} as completion {number}"));
        let what = if half {
            format!("the host takes completion {number}, of which only one half is written.")
        } else {
            format!("the host takes {what} as completion {number}, which the device has not written yet.")
        };
        self.still_wrong(&what, "R4: the host takes a completion once both halves are fresh. A slot of the previous pass never looks fresh.");
    }

    fn expect_one(&self, queue: &mut CompletionQueue, index: u32) {
        let number = shown(index);
        match self.pop(queue) {
            Some(found) if found == self.words(index) => {
                self.memory.note(format!("the host takes completion {number} and releases its slot"));
            }
            Some(found) => {
                let what = self.named(found);
                self.still_wrong(
                    &format!("the host takes {what} in the place of completion {number}."),
                    "R13: every rule holds across the wrap of the ring, of the phase and of 2^32.",
                );
            }
            None => self.still_wrong(
                &format!("completion {number} lies in slot {} with the phase {}, and the host does not take it.", self.slot(index), self.phase(index)),
                "R13: the phase of index i is 1 ^ ((i >> log2(depth)) & 1): 1 on the first pass from index 0, 0 on the second, and so on.",
            ),
        }
    }

    fn named(&self, words: [u64; 4]) -> String {
        let index = words[0].wrapping_sub(0xC0) as u32;
        if index.wrapping_sub(self.start) < 1000 && words == self.words(index) {
            format!("completion {}", shown(index))
        } else {
            format!("words {words:x?}, which no device has written whole,")
        }
    }
}

fn run(depth: u32, start: u32) {
    let memory = Memory::new(depth);
    let run = Run { memory: &memory, depth, start };
    memory.note("the host makes the queue".into());
    let mut queue = CompletionQueue::new(&memory, depth, start);
    memory.written.set(None);
    let mut index = start;
    for round in 0..6 * depth {
        // Two laps one by one; then as many as fit, or fewer. Either half first.
        let burst = if round < 2 * depth { 1 } else { 1 + round % depth };
        run.expect_none(&mut queue, index, false);
        for k in 0..burst {
            let first = ((round + k) % 2) as usize;
            run.post_half(index.wrapping_add(k), first);
            if k == 0 {
                run.expect_none(&mut queue, index, true);
            }
            run.post_half(index.wrapping_add(k), 1 - first);
        }
        for _ in 0..burst {
            run.expect_one(&mut queue, index);
            index = index.wrapping_add(1);
        }
    }
}

/// Each completion becomes visible while the host looks: one half after some of its loads, and the other one after some more.
fn run_beside(depth: u32, start: u32) {
    let memory = Memory::new(depth);
    let run = Run { memory: &memory, depth, start };
    let mut queue = CompletionQueue::new(&memory, depth, start);
    memory.written.set(None);
    memory.shows_loads.set(true);
    let mut index = start;
    for half in [0, 1] {
        for (first, second) in (0..LOADS).flat_map(|first| (0..LOADS - first).map(move |second| (first, second))) {
            memory.steps.borrow_mut().clear();
            memory.post_after(first, run.half(index, half));
            memory.post_after(second, run.half(index, 1 - half));
            let found = run.pop(&mut queue);
            match found {
                Some(found) if found != run.words(index) => run.still_wrong(
                    &format!("the host takes {} as completion {}, which has become visible in between.", run.named(found), shown(index)),
                    "R4: the host reads each half's last word, and takes the completion if both are fresh. It reads the rest after that.",
                ),
                Some(_) => memory.post_due(),
                None => {
                    memory.post_due();
                    run.expect_one(&mut queue, index);
                }
            }
            index = index.wrapping_add(1);
        }
    }
}

fn main() {
    // Wherever the first index lies in its lap, in laps of either phase, and before 2^32.
    for depth in [4, 2, 8, 32] {
        for start in [0, 1, depth, depth + 1, 3 * depth - 1, u32::MAX - 2, depth.wrapping_neg()] {
            run(depth, start);
        }
    }
    for depth in [4, 2] {
        run_beside(depth, 0);
    }
    println!("SOLVED: five laps and more on 2, 4, 8 and 32 slots, from seven first indices each: every completion is taken once, when it is whole. So it is where it becomes visible while the host looks.");
    println!("{}", var("DOORBELL_PUZZLE_WORD").unwrap_or_default());
}
