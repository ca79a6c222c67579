//! The page.

use std::time::Duration;

use doorbell_contract::Counter;
use doorbell_host::{Counters, WorkerCounters};
use doorbell_verify::life::{Life, Lives};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::charts;
use crate::stalls::{Cause, Source, Stalls};

/// One device of the page.
#[derive(Debug)]
pub struct Part<'a> {
    /// Its name.
    pub name: &'a str,
    /// What a tick of its clock is, as *cycles*.
    pub unit: &'a str,
    /// Time that the run took, until the last completion.
    pub wall: Duration,
    /// What became of each descriptor.
    pub lives: &'a Lives,
    /// Its counters at the end.
    pub counters: &'a Counters,
    /// Those of its workers; none where it has none.
    pub workers: &'a [WorkerCounters],
    /// Whether it agrees with the first device, and why not.
    pub verdict: &'a str,
    /// Why the device did not reach the end of the run; `None` if it did.
    pub stopped: Option<String>,
}

impl Part<'_> {
    /// Workers, as the device counts them or its events name them.
    fn worker_count(&self) -> usize {
        let events = self.lives.all().iter().filter_map(|life| life.event);
        self.workers.len().max(events.map(|event| usize::from(event.worker_id) + 1).max().unwrap_or(1))
    }

    fn stalls(&self) -> Stalls {
        Stalls::of(self.lives.all(), self.worker_count() as u64, self.counters)
    }

    /// Completions whose LIFE event never came.
    fn dropped(&self) -> u64 {
        let dropped = |life: &&Life| life.completion.is_some() && life.event.is_none();
        self.lives.all().iter().filter(dropped).count() as u64
    }

    /// Lives whose LIFE event contradicts itself.
    fn contradictory(&self) -> impl Iterator<Item = &Life> {
        self.lives.all().iter().filter(|life| life.contradicts_itself())
    }

    /// Tokens that its completions account for.
    fn tokens(&self) -> u64 {
        let added = |life: &Life| {
            let (_, completion) = life.completion?;
            let decode = life.desc.opcode == doorbell_contract::Opcode::Decode as u8;
            Some(u64::from(completion.final_seq_len.saturating_sub(life.desc.seq_len))).filter(|_| decode)
        };
        self.lives.all().iter().filter_map(added).sum()
    }

    fn completions(&self) -> u64 {
        self.lives.all().iter().filter(|life| life.completion.is_some()).count() as u64
    }
}

/// Renders the page of a run. `parts` are the devices with figures. `silent` names the devices without figures, each with the reason why it
/// did not finish. `heading` says what ran. `why` explains what went wrong, or is empty.
pub fn page(heading: &str, parts: &[Part<'_>], silent: &[(&str, String)], why: &str) -> String {
    let stalls: Vec<Stalls> = parts.iter().map(Part::stalls).collect();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Doorbell: where the time went" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    h1 { "Where the time went" }
                    @for (part, stalls) in parts.iter().zip(&stalls) {
                        p.first { (bottleneck(part, stalls)) }
                    }
                    @for (name, why) in silent {
                        p.first { b { (name) } " did not finish, and gave no figures: " (why) }
                    }
                    pre.plan { (heading) }
                    @if !why.is_empty() {
                        h2 { "Why" }
                        pre.why { (why) }
                    }
                    h2 { "The devices beside each other" }
                    (devices(parts))
                    h2 { "What the workers did" }
                    (causes(parts, &stalls))
                    h2 { "How long a descriptor took" }
                    @for part in parts { (latencies(part)) }
                    @for part in parts {
                        h2 { (part.name) ": workers over time" }
                        @if part.dropped() > 0 {
                            p { "Completions without a LIFE event (R23): " (thousands(part.dropped())) " of " (thousands(part.completions()))
                                ". The device dropped the event, or it does not name the descriptor. The charts and the table above show the \
                                 others." }
                        }
                        @if let Some(event) = part.contradictory().find_map(|life| life.event) {
                            p { "LIFE events in which a worker began after the end, or the completion was visible before it (R23): "
                                (thousands(part.contradictory().count() as u64)) ". The first is of completion " (event.index)
                                " of queue pair " (event.queue_id) ". The charts and the tables above leave them out." }
                        }
                        p { "Stronger blue is busier. Across: " (part.unit) " since the first slot was read. Down: workers." }
                        figure { (PreEscaped(charts::workers(part.lives.all(), part.worker_count()))) }
                        h2 { (part.name) ": descriptors in the device" }
                        p { "Across: " (part.unit) " since the first slot was read. Up: descriptors." }
                        figure { (PreEscaped(charts::rings(part.lives.all()))) }
                        @if let Some(chart) = charts::groups(part.lives.all()) {
                            h2 { (part.name) ": the groups that took longest" }
                            p { "Blue: until half of what belongs to the group was complete. Amber: its tail. Across: " (part.unit) "." }
                            figure { (PreEscaped(chart)) }
                        }
                    }
                }
            }
        }
    }
    .into_string()
}

fn bottleneck(part: &Part<'_>, stalls: &Stalls) -> Markup {
    let (ran, cause) = (stalls.percent(Cause::Ran), stalls.bottleneck());
    let share = stalls.percent(cause);
    html! {
        @if let Some(why) = &part.stopped { b { (part.name) } " did not finish: " (why) br; }
        b { (part.name) } ": its workers ran descriptors " (format!("{ran:.1} %")) " of the time. "
        @if share < 0.05 { "They were the bottleneck." }
        @else { "Bottleneck: " b { (cause.name()) } ", " b { (format!("{share:.1} %")) } "." }
    }
}

fn devices(parts: &[Part<'_>]) -> Markup {
    let count = |part: &Part<'_>, counter| thousands(part.counters.get(counter));
    html! {
        div.wide { table {
            tr { th {} @for part in parts { th { (part.name) } } }
            tr { td { "verdict" } @for part in parts { td { (part.verdict) } } }
            tr { td { "descriptors that the device counts" } @for part in parts { td { (count(part, Counter::Descriptors)) } } }
            tr { td { "completions that the device counts" } @for part in parts { td { (count(part, Counter::Completions)) } } }
            tr { td { "completions that the host took" } @for part in parts { td { (thousands(part.completions())) } } }
            tr { td { "tokens that the device counts" } @for part in parts { td { (count(part, Counter::Tokens)) } } }
            tr { td { "tokens by completions" } @for part in parts { td { (thousands(part.tokens())) } } }
            tr { td { "workers" } @for part in parts { td { (part.worker_count()) } } }
            tr { td { "completions without a LIFE event (R23)" } @for part in parts { td { (thousands(part.dropped())) } } }
            tr { td { "seconds that the run took" } @for part in parts { td { (seconds(part.wall.as_secs_f64())) } } }
            tr { td { "CYCLES that the device counts" } @for part in parts { td { (count(part, Counter::Cycles)) } } }
        } }
    }
}

fn causes(parts: &[Part<'_>], stalls: &[Stalls]) -> Markup {
    html! {
        @for (part, stalls) in parts.iter().zip(stalls) {
            div.bar title=(part.name) {
                @for (place, cause) in Cause::ALL.into_iter().enumerate() {
                    @if stalls.get(cause) > 0 {
                        span class=(format!("c{place}")) style=(format!("flex-grow:{}", stalls.get(cause))) title=(cause.name()) {}
                    }
                }
            }
            p.caption { (part.name) }
        }
        @for (part, stalls) in parts.iter().zip(stalls) {
            @if stalls.source == Source::Counters {
                p { (part.name) ": the busy shares are counted exactly. The idle time is divided in proportion to the device's counters of stalls, as LIFE events are missing or contradict themselves." }
            }
        }
        div.wide { table {
            tr { th { "share of the workers' time" } @for part in parts { th { (part.name) } } }
            @for (place, cause) in Cause::ALL.into_iter().enumerate() {
                tr {
                    td { span class=(format!("key c{place}")) {} (cause.name()) }
                    @for stalls in stalls { td { (hundredths(stalls.hundredths()[place])) } }
                }
            }
            tr {
                td { "worker ticks" } @for stalls in stalls { td { (thousands(stalls.total())) } }
            }
            tr.sum {
                td { "all" }
                @for stalls in stalls { td { (hundredths(stalls.hundredths().iter().sum())) } }
            }
        } }
    }
}

/// Formats hundredths of a percent.
fn hundredths(share: u64) -> String {
    format!("{}.{:02} %", share / 100, share % 100)
}

/// Formats seconds with three significant digits.
fn seconds(seconds: f64) -> String {
    let zeros = if seconds > 0.0 { (-seconds.log10()).ceil().clamp(0.0, 9.0) as usize } else { 0 };
    format!("{seconds:.*}", 2 + zeros)
}

/// A part of a descriptor's life: from one tick to another.
type Span = (&'static str, fn(&Life) -> Option<u64>, fn(&Life) -> Option<u64>);

fn latencies(part: &Part<'_>) -> Markup {
    let spans: [Span; 4] = [
        ("slot read to a worker's start", Life::read, Life::began),
        ("start to end", Life::began, Life::ended),
        ("end to visible completion", Life::ended, Life::visible),
        ("slot read to visible completion", Life::read, Life::visible),
    ];
    let sorted = |(_, from, to): &Span| {
        let mut all: Vec<u64> =
            part.lives.all().iter().filter_map(|life| Some(to(life)? - from(life)?)).collect();
        all.sort_unstable();
        all
    };
    html! {
        div.wide { table {
            tr { th { (part.name) ", " (part.unit) } th { "p50" } th { "p90" } th { "p99" } th { "longest" } }
            @for span in &spans {
                @let all = sorted(span);
                tr {
                    td { (span.0) }
                    @for share in [0.5, 0.9, 0.99, 1.0] { td { (at(&all, share)) } }
                }
            }
        } }
    }
}

/// The value below which `share` of `sorted` lie.
fn at(sorted: &[u64], share: f64) -> String {
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(place.saturating_sub(1)).map_or("-".to_owned(), |&value| thousands(value))
}

fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

const STYLE: &str = "
:root { color-scheme: light dark; --back: #fff; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --panel: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --back: #0d1117; --ink: #e6edf3; --soft: #9198a1; --line: #30363d; --panel: #161b22; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 20px 16px 60px; }
h1 { font-size: 22px; margin: 24px 0 8px; }
h2 { font-size: 17px; margin: 34px 0 8px; }
p { margin: 4px 0 10px; }
p.first { font-size: 18px; }
p.caption, td:first-child { color: var(--soft); }
pre { background: var(--panel); padding: 10px 12px; border-radius: 6px; font-size: 12.5px; white-space: pre-wrap; overflow-wrap: anywhere; }
figure { margin: 0; }
svg.chart { width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; margin-bottom: 14px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: right; white-space: nowrap; padding: 4px 8px; border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 110px; }
th { font-weight: 600; }
tr.sum td { border-top: 2px solid var(--line); border-bottom: 0; }
.bar { display: flex; height: 22px; border-radius: 4px; overflow: hidden; background: var(--panel); }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 8px; }
.c0 { background: #3b82f6; } .c1 { background: #0ea5e9; } .c2 { background: #ef4444; } .c3 { background: #b91c1c; }
.c4 { background: #eab308; } .c5 { background: #a855f7; } .c6 { background: #ec4899; } .c7 { background: #16a34a; } .c8 { background: #8b949e; }
";
