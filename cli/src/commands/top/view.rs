//! What `doorbell top` shows, as lines of text.

use std::time::Duration;

use doorbell_runtime::events::{Bound, STAGES, duration};
use doorbell_runtime::metrics::{CounterValues, Status, ThreadTime, WorkerTime};
use ratatui::Frame;
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};

/// Columns from which on there is room for every column of the tables.
const WIDE: usize = 110;
/// Columns of the narrowest screen on which nothing is cut.
const NARROW: usize = 80;
const LEGEND: &str = "≤ at most, ≥ at least: one end is the device's, seen later by the host";

/// A run, and what it was at the look before.
pub struct View {
    address: String,
    now: Status,
    before: Option<Status>,
    lost: Option<String>,
}

impl View {
    pub fn new(address: &str, status: Status) -> Self {
        Self { address: address.to_owned(), now: status, before: None, lost: None }
    }

    /// Takes in a newer status.
    pub fn update(&mut self, status: Status) {
        let before = std::mem::replace(&mut self.now, status);
        // One that is older than it was is another run.
        self.before = (before.uptime_ns < self.now.uptime_ns).then_some(before);
        self.lost = None;
    }

    /// The run did not answer.
    pub fn lost(&mut self, reason: String) {
        self.lost = Some(reason);
    }

    pub fn draw(&self, frame: &mut Frame) {
        let area = frame.area();
        let mut lines = self.lines(area.width as usize);
        // Where the screen is too low, blank lines go first, then the workers, which stand before the last line.
        if lines.len() > area.height as usize {
            lines.retain(|line| line.width() != 0);
        }
        let workers = self.workers(area.width as usize).len();
        let end = lines.len() - 1;
        let cut = lines.len().saturating_sub(area.height as usize).min(workers);
        lines.drain(end - cut..end);
        for (row, line) in area.rows().zip(lines) {
            frame.render_widget(line, row);
        }
    }

    /// The same without colours, as wide as `width` at most.
    pub fn text(&self, width: u16) -> String {
        let mut lines = self.lines(width.into());
        lines.pop();
        lines.push(LEGEND.into());
        lines.iter().map(|line| format!("{}\n", line.to_string().trim_end())).collect()
    }

    fn lines(&self, width: usize) -> Vec<Line<'static>> {
        let width = width.max(NARROW);
        let mut lines = vec![self.title(width), self.rates(width), self.rollouts(width), Line::default()];
        lines.extend(self.stages(width));
        lines.push(Line::default());
        lines.extend(self.latencies(width));
        lines.push(Line::default());
        lines.extend([self.blocks(width), self.device(width), self.threads(), self.events()]);
        lines.extend(self.workers(width));
        lines.push(self.footer());
        lines
    }

    fn title(&self, width: usize) -> Line<'static> {
        let up = Duration::from_nanos(self.now.uptime_ns).as_secs();
        let up = format!("{:02}:{:02}:{:02}", up / 3600, up / 60 % 60, up % 60);
        let (state, style) = match (&self.lost, self.now.ended) {
            (Some(_), false) => ("LOST", Style::new().red().bold()),
            (_, true) => ("ended", Style::new().yellow()),
            (None, false) => ("running", Style::new().green()),
        };
        let head = format!("doorbell top  {}  ", self.address);
        let tail = format!("  up {up}  ");
        let room = width.saturating_sub(head.chars().count() + tail.len() + state.len());
        let about = cut(&self.now.about, room);
        Line::from(vec![
            head.bold(),
            format!("{about:<room$}").into(),
            tail.into(),
            Span::styled(state, style),
        ])
    }

    /// How fast a counter grows: since the look before, or on average since the run began.
    fn rate(&self, of: impl Fn(&CounterValues) -> u64) -> String {
        let (from, since) =
            self.before.as_ref().map_or((0, 0), |before| (of(&before.counters), before.uptime_ns));
        let seconds = self.now.uptime_ns.saturating_sub(since) as f64 / 1e9;
        let grown = of(&self.now.counters).saturating_sub(from) as f64;
        number(if seconds > 0.0 { grown / seconds } else { 0.0 })
    }

    fn rates(&self, width: usize) -> Line<'static> {
        let rates = [
            ("segments/s", self.rate(|counters| counters.segments)),
            ("tokens/s", self.rate(|counters| counters.tokens_generated)),
            ("rollouts/s", self.rate(|counters| counters.rollouts_completed)),
        ];
        let average = self.before.is_none().then(|| ("(average)", String::new()));
        let fits = average.is_none() || width >= WIDE;
        let mut line = labelled(rates.into_iter().chain(average));
        if fits {
            let (who, _) = self.scorer();
            line.push_span(Span::from(format!("{who} score ")).dim());
            line.push_span(self.mean_score());
        }
        line
    }

    fn rollouts(&self, width: usize) -> Line<'static> {
        let counters = &self.now.counters;
        let mut figures = vec![
            ("admitted", number(counters.rollouts_admitted as f64)),
            ("completed", number(counters.rollouts_completed as f64)),
            ("aborted", number(counters.rollouts_aborted as f64)),
            ("failed", number(counters.rollouts_failed as f64)),
        ];
        if width >= WIDE {
            figures.push(("stale", number(counters.rollouts_stale as f64)));
            let (who, count) = self.scorer();
            let label = match who {
                "host" => "host scores",
                "resident" => "resident scores",
                _ => "device scores",
            };
            figures.push((label, number(count as f64)));
        }
        labelled(figures)
    }

    /// Who has given most of the scores, and how many.
    fn scorer(&self) -> (&'static str, u64) {
        let CounterValues { scored_host, scored_resident, scored_device, .. } = self.now.counters;
        let all = [("host", scored_host), ("resident", scored_resident), ("device", scored_device)];
        all.into_iter().rev().max_by_key(|&(_, count)| count).unwrap_or_default()
    }

    /// The mean of the scores, in at most six characters.
    fn mean_score(&self) -> String {
        match self.now.mean_score() {
            None => String::from("-"),
            Some(mean) if mean.abs() < 9.9 => format!("{mean:.3}"),
            Some(mean) if mean.abs() < 999.0 => format!("{mean:.1}"),
            Some(mean) => format!("{:.0}", mean.clamp(-32768.0, 32768.0)),
        }
    }

    /// What the device has of groups and versions.
    fn device(&self, width: usize) -> Line<'static> {
        let CounterValues {
            groups_open,
            groups_done,
            policy_version,
            publishes,
            superseded,
            rollouts_stale,
            ..
        } = self.now.counters;
        let count = |figure: u64| number(figure as f64);
        // A version has 16 bits.
        let mut text = format!(
            "groups {} open, {} done; version {}",
            count(groups_open),
            count(groups_done),
            policy_version as u16
        );
        if width >= WIDE {
            text += &format!(", {} published, {} superseded", count(publishes), count(superseded));
        } else {
            text += &format!(", {} stale", count(rollouts_stale));
        }
        Line::from(vec![format!("{:<17}", "device").bold(), text.into()])
    }

    fn stages(&self, width: usize) -> Vec<Line<'static>> {
        let bar_width = width - 67;
        let title = format!(
            "{:<17}{:<bar_width$} {:>9} {:>8} {:>9}  {:>9} {:>9}",
            "stage", "", "rollouts", "credits", "stalls", "p50 in it", "p99 in it"
        );
        let mut lines = vec![heading(title)];
        for (k, name) in STAGES.iter().enumerate() {
            let (rollouts, credits) =
                (self.now.counters.stage_occupancy[k], self.now.counters.stage_credits[k]);
            let stalls = self.now.counters.credit_stalls[k];
            let (p50, p99) = match self.now.events.stages.get(k) {
                Some(stage) if stage.count != 0 => (duration(stage.p50_ns), duration(stage.p99_ns)),
                _ => (String::from("-"), String::from("-")),
            };
            let full = credits != 0 && rollouts >= credits;
            let credits_text = if credits == 0 { String::from("-") } else { number(credits as f64) };
            // FREE has no limit: what is to be seen is how many slots of all are free.
            let all = if credits == 0 { self.now.counters.stage_occupancy.iter().sum() } else { credits };
            lines.push(Line::from(vec![
                format!("{name:<17}").into(),
                bar(rollouts, all, bar_width).fg(if full { Color::Yellow } else { Color::Green }),
                format!(" {:>9} {credits_text:>8} ", number(rollouts as f64)).into(),
                warn(format!("{:>9}", number(stalls as f64)), stalls != 0),
                format!("  {p50:>9} {p99:>9}").into(),
            ]));
        }
        lines
    }

    fn latencies(&self, width: usize) -> Vec<Line<'static>> {
        let wide = width >= WIDE;
        let columns: &[&str] =
            if wide { &["p50", "p90", "p99", "p99.9", "max"] } else { &["p50", "p99", "max"] };
        let mut title = format!("{:<31}  ", "latency");
        columns.iter().for_each(|column| title += &format!(" {column:>8}"));
        title += &format!(" {:>9} {:>9}", "count", "unpaired");
        let mut lines = vec![heading(title)];
        for pair in &self.now.events.pairs {
            let mut text = format!("{:<31} {}", pair.name, if pair.bound == Bound::Exact { " " } else { "" });
            if pair.bound != Bound::Exact {
                text += &pair.bound.to_string();
            }
            for column in columns {
                let nanos = match *column {
                    "p50" => pair.p50_ns,
                    "p90" => pair.p90_ns,
                    "p99" => pair.p99_ns,
                    "p99.9" => pair.p99_9_ns,
                    _ => pair.max_ns,
                };
                let figure = if pair.count == 0 { String::from("-") } else { duration(nanos) };
                text += &format!(" {figure:>8}");
            }
            text += &format!(" {:>9} {:>9}", number(pair.count as f64), number(pair.unpaired as f64));
            lines.push(text.into());
        }
        if self.now.events.pairs.is_empty() {
            lines.push("no events yet".dim().into());
        }
        lines
    }

    fn blocks(&self, width: usize) -> Line<'static> {
        let CounterValues { kv_blocks_in_use, kv_blocks_saved, kv_blocks_capacity, .. } = self.now.counters;
        let text = format!(
            " {} of {} in use, {} saved",
            number(kv_blocks_in_use as f64),
            number(kv_blocks_capacity as f64),
            number(kv_blocks_saved as f64)
        );
        let bar = bar(kv_blocks_in_use, kv_blocks_capacity, width - 67);
        Line::from(vec![format!("{:<17}", "KV blocks").bold(), bar.fg(Color::Cyan), text.into()])
    }

    fn threads(&self) -> Line<'static> {
        // What it did since the look before.
        let lately = |now: &ThreadTime| {
            let before = self
                .before
                .as_ref()
                .and_then(|before| before.threads.iter().find(|before| before.name == now.name).cloned());
            let before = before.unwrap_or_default();
            ThreadTime {
                name: now.name.clone(),
                busy_ns: now.busy_ns.saturating_sub(before.busy_ns),
                idle_ns: now.idle_ns.saturating_sub(before.idle_ns),
            }
            .idle_share()
        };
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let (hot, judges) =
            self.now.threads.split_first().map_or((None, &[][..]), |(hot, judges)| (lately(hot), judges));
        let mut text = format!("hot thread {}", hot.map_or_else(|| String::from("-"), percent));
        let shares: Vec<f64> = judges.iter().filter_map(lately).collect();
        if let (Some(least), Some(most)) =
            (shares.iter().copied().reduce(f64::min), shares.iter().copied().reduce(f64::max))
        {
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            let plural = if judges.len() == 1 { "" } else { "s" };
            text += &format!(", {} judge{plural} {}", judges.len(), percent(mean));
            if judges.len() > 1 {
                text += &format!(" ({} to {})", percent(least), percent(most));
            }
        }
        Line::from(vec![format!("{:<17}", "idle").bold(), text.into()])
    }

    /// A cell for each worker of the device: its tokens, and of its busy time the share in which the write port held a result of it
    /// back. As many in a line as fit.
    fn workers(&self, width: usize) -> Vec<Line<'static>> {
        let most = self.now.workers.iter().map(|worker| worker.busy).max().unwrap_or(0);
        // The worker that was busy longest is the measure: the device's time is not told.
        let share = |part: u64, all: u64| {
            if all == 0 { String::from("-") } else { format!("{:.0}", 100.0 * part as f64 / all as f64) }
        };
        let cell = |(number, worker): (usize, &WorkerTime)| {
            let WorkerTime { tokens, busy, held } = *worker;
            format!(
                "{number:>3} {:>7} {:>3} {:>3}   ",
                self::number(tokens as f64),
                share(busy, most),
                share(held.min(busy), busy)
            )
        };
        let cells: Vec<String> = self.now.workers.iter().enumerate().map(cell).collect();
        let Some(first) = cells.first() else { return Vec::new() };
        let columns = (width.max(NARROW) / first.chars().count()).max(1);
        let title = "worker, tokens, % busy (of the busiest), % of that held back by the write port";
        let rows = cells.chunks(columns).map(|cells| Line::from(cells.concat()));
        std::iter::once(heading(title.to_owned())).chain(rows).collect()
    }

    fn events(&self) -> Line<'static> {
        let events = &self.now.events;
        let dropped = events.dropped;
        Line::from(vec![
            format!("{:<17}", "events").bold(),
            format!("{} recorded, ", number(events.recorded as f64)).into(),
            warn(format!("{} dropped", number(dropped as f64)), dropped != 0),
        ])
    }

    fn footer(&self) -> Line<'static> {
        match &self.lost {
            Some(_) if self.now.ended => "the run has ended; q quits".dim().into(),
            Some(reason) => {
                format!("the run does not answer: {}; trying on, q quits", cut(reason, NARROW - 48))
                    .red()
                    .into()
            }
            None => {
                "≤ at most, ≥ at least: one end is the device's, seen later by the host; q quits".dim().into()
            }
        }
    }
}

fn labelled(figures: impl IntoIterator<Item = (&'static str, String)>) -> Line<'static> {
    let spans = figures.into_iter().flat_map(|(label, figure)| {
        [Span::from(format!("{label} ")).dim(), Span::from(format!("{figure:<8} "))]
    });
    Line::from(spans.collect::<Vec<_>>())
}

fn heading(text: String) -> Line<'static> {
    Line::from(text.bold().underlined())
}

fn warn(text: String, amiss: bool) -> Span<'static> {
    if amiss { text.yellow().bold() } else { text.into() }
}

/// `part` of `all`; a part that is more than nothing shows, and one that is less than all does not look like it.
fn bar(part: u64, all: u64, width: usize) -> Span<'static> {
    let share = if all == 0 { 0.0 } else { (part as f64 / all as f64).min(1.0) };
    let least = usize::from(part != 0);
    let most = if part < all { width.saturating_sub(1) } else { width };
    let filled = ((share * width as f64).round() as usize).clamp(least.min(most), most);
    Span::from("█".repeat(filled) + &"░".repeat(width - filled))
}

/// A count or a rate in at most seven characters.
fn number(value: f64) -> String {
    let (value, unit) = match value {
        ..1e4 => {
            return if value < 10.0 && value.fract() != 0.0 {
                format!("{value:.1}")
            } else {
                format!("{value:.0}")
            };
        }
        ..1e6 => (value / 1e3, "k"),
        ..1e9 => (value / 1e6, "M"),
        ..1e12 => (value / 1e9, "G"),
        ..1e15 => (value / 1e12, "T"),
        ..1e18 => (value / 1e15, "P"),
        _ => (value / 1e18, "E"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// The beginning of a text, in at most `room` characters.
fn cut(text: &str, room: usize) -> String {
    let mut characters = text.chars().filter(|character| !character.is_control());
    let begin: String = characters.by_ref().take(room).collect();
    match characters.next() {
        Some(_) if room != 0 => begin.chars().take(room - 1).chain(['…']).collect(),
        _ => begin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_runtime::events::{Clock, Collector, EventKind, Ticks};
    use doorbell_runtime::metrics::Metrics;
    use doorbell_runtime::rollout::RolloutId;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use rstest::rstest;

    /// Two looks at a run, a second apart.
    fn looks() -> [Status; 2] {
        let metrics =
            Metrics::new("model, 64 slots, shortest remaining first, seed 7", Clock::simulated(), None);
        let (mut collector, mut hot) = Collector::new(Clock::simulated(), 64, 1 << 10);
        [0, 1].map(|look| {
            let counters = &metrics.counters.hot;
            counters.rollouts_admitted.add(12_400);
            counters.rollouts_completed.add(12_345);
            counters.rollouts_aborted.add(3);
            counters.segments.add(48_211);
            counters.tokens_generated.add(6_170_000);
            for (k, (rollouts, credits)) in
                [(12, 0), (0, 16), (31, 32), (16, 16), (5, 32), (0, 64)].into_iter().enumerate()
            {
                counters.stage_occupancy[k].set(rollouts);
                counters.stage_credits[k].set(credits);
            }
            counters.credit_stalls[3].add(871);
            counters.groups_open.set(23);
            counters.groups_done.add(3_080);
            counters.publishes.add(17 * (1 - look));
            counters.policy_version.set(17);
            counters.superseded.add(1_204);
            counters.rollouts_stale.add(9 * look);
            counters.scored_host.add(12);
            counters.scored_device.add(5_020);
            (0..5_032).for_each(|k| metrics.scores.add(13 * k));
            counters.kv_blocks_capacity.set(4096);
            counters.kv_blocks_in_use.set(2871);
            counters.kv_blocks_saved.set(640);
            metrics.hot_time.busy.add(900);
            metrics.hot_time.idle.add(100 + 400 * look);
            for k in 0..140u32 {
                // Eight each: the ring holds 1024, the rest is dropped.
                let spread = u64::from(k) * 37 % 101;
                for (kind, value, at) in [
                    (EventKind::RolloutAlloc, 0, 0),
                    (EventKind::StageEntered, 2, 41_000),
                    (EventKind::DescPosted, 0, 41_000),
                    (EventKind::DescCommitted, 0, 41_140),
                    (EventKind::DescConsumed, 0, 44_000 + 70 * spread),
                    (EventKind::CompletionPolled, 128, 44_000 + 90 * spread),
                    (EventKind::RewardPosted, 0, 5_000_000),
                    (EventKind::StageEntered, 3, 5_000_000),
                ] {
                    let time = Ticks::new(10_000_000 * u64::from(k) + at);
                    let id = RolloutId::new(k % 64, 4 * look as u32 + k / 64);
                    hot.record(kind, id, k, value, time);
                }
            }
            collector.poll(|_| {});
            metrics.publish(collector.report());
            let mut status = metrics.status();
            status.uptime_ns = 3_725_000_000_000 + 1_000_000_000 * look;
            status.workers = (1..=6)
                .map(|k| WorkerTime { tokens: 1_028_000 + 31 * k, busy: 1_000_000 * k, held: 7_000 * k * k })
                .collect();
            status.threads.extend((0..3).map(|k| ThreadTime {
                name: format!("judge {k}"),
                busy_ns: 500 * (look + 1),
                idle_ns: 500 * k * (look + 1),
            }));
            status
        })
    }

    fn view() -> View {
        let [before, now] = looks();
        let mut view = View::new("127.0.0.1:9464", before);
        view.update(now);
        view
    }

    fn screen(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[rstest]
    #[case(80, 24)]
    #[case(120, 40)]
    fn the_screen(#[case] width: u16, #[case] height: u16) {
        insta::assert_snapshot!(format!("screen_{width}x{height}"), screen(&view(), width, height));
    }

    #[test]
    fn the_text_of_once_has_averages() {
        let [status, _] = looks();
        insta::assert_snapshot!(View::new("127.0.0.1:9464", status).text(120));
    }

    /// Whatever the figures are, nothing is wider than the screen, and at 80 by 24 everything is there.
    #[rstest]
    fn nothing_is_cut(#[values(80, 100, 110, 200)] width: u16, #[values(0, 9, u64::MAX / 8)] figure: u64) {
        let mut view = view();
        let mut json = serde_json::to_value(&view.now).unwrap();
        fill(&mut json, figure);
        view.update(serde_json::from_value(json).unwrap());
        view.now.about = "x".repeat(300);
        for lost in [None, Some("y".repeat(300))] {
            view.lost = lost;
            for line in view.lines(width.into()) {
                assert!(line.width() <= width.into(), "{} columns: {line}", line.width());
            }
            let screen = screen(&view, width, 24);
            assert!(screen.contains("doorbell top") && screen.contains("q quits"), "{screen}");
        }
    }

    /// Makes every number of a status that one.
    fn fill(json: &mut serde_json::Value, figure: u64) {
        match json {
            serde_json::Value::Number(number) => *number = figure.into(),
            serde_json::Value::Array(values) => values.iter_mut().for_each(|value| fill(value, figure)),
            serde_json::Value::Object(values) => values.values_mut().for_each(|value| fill(value, figure)),
            _ => {}
        }
    }

    #[rstest]
    #[case(1, 1)]
    #[case(20, 5)]
    #[case(79, 23)]
    #[case(300, 100)]
    fn no_size_of_a_screen_is_too_odd(#[case] width: u16, #[case] height: u16) {
        screen(&view(), width, height);
        screen(&View::new("", Status::default()), width, height);
    }

    #[test]
    fn a_run_that_is_gone_is_told_and_one_that_comes_back_is_shown() {
        let mut view = view();
        view.lost("connection refused".to_owned());
        let shown = screen(&view, 80, 24);
        assert!(shown.contains("LOST") && shown.contains("connection refused"), "{shown}");
        // Another one, at the same address: its counters are lower, and are no rates of the one before.
        let [mut other, _] = looks();
        other.uptime_ns = 1_000_000_000;
        other.counters.segments = 17;
        view.update(other);
        let shown = screen(&view, 80, 24);
        assert!(shown.contains("running") && shown.contains("segments/s 17 "), "{shown}");
        view.now.ended = true;
        view.lost("connection refused".to_owned());
        let shown = screen(&view, 80, 24);
        assert!(shown.contains("ended") && !shown.contains("LOST"), "{shown}");
    }

    #[rstest]
    #[case(0, 0, "░░░░")]
    #[case(0, 9, "░░░░")]
    #[case(1, 1000, "█░░░")]
    #[case(2, 4, "██░░")]
    #[case(999, 1000, "███░")]
    #[case(1000, 1000, "████")]
    #[case(2000, 1000, "████")]
    #[case(5, 0, "█░░░")]
    fn bars(#[case] part: u64, #[case] all: u64, #[case] expected: &str) {
        assert_eq!(bar(part, all, 4).content, expected);
    }

    #[rstest]
    #[case(0.0, "0")]
    #[case(0.25, "0.2")]
    #[case(9999.0, "9999")]
    #[case(10_000.0, "10.0 k")]
    #[case(6_170_000.0, "6.17 M")]
    #[case(u64::MAX as f64, "18.4 E")]
    fn numbers(#[case] value: f64, #[case] expected: &str) {
        assert_eq!(number(value), expected);
    }
}
