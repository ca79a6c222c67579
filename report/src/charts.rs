//! Charts as SVG, in the colours of the page.

use std::collections::BTreeMap;

use doorbell_contract::{DescFlags, Opcode};
use doorbell_verify::life::Life;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::stalls::span;

/// Stands for the page's text colour, which a theme decides.
const INK: RGBColor = RGBColor(1, 2, 3);
/// Blue and amber have enough contrast on light and on dark.
const BLUE: RGBColor = RGBColor(59, 130, 246);
const AMBER: RGBColor = RGBColor(217, 119, 6);
const GREEN: RGBColor = RGBColor(22, 163, 74);
const GREY: RGBColor = RGBColor(120, 120, 120);
const RED: RGBColor = RGBColor(190, 40, 60);

/// Points of time in a chart.
const COLUMNS: usize = 240;
/// Rows of a timeline; more workers share rows.
const ROWS: usize = 32;
/// Groups in the chart of groups.
const GROUPS: usize = 24;
/// Steps of opacity, so that neighbours of the same make one rectangle.
const SHADES: u64 = 5;

type Result<T> = std::result::Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// A chart of this height, drawn by `draw`.
fn svg(height: u32, draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<()>) -> String {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, (720, height)).into_drawing_area();
    // What is drawn into a string cannot fail.
    let _ = draw(&area).and_then(|()| area.present());
    drop(area);
    // The page scales it, and gives it the colour of its text.
    text.replace("#010203", "currentColor").replacen("width=\"720\"", "class=\"chart\"", 1).replacen(
        &format!("height=\"{height}\""),
        "role=\"img\"",
        1,
    )
}

/// How many of the intervals of each row cover each column of time, from `first` to `last`; parts of a column count as parts.
fn covered(
    intervals: impl Iterator<Item = (usize, u64, u64)>,
    rows: usize,
    (first, last): (u64, u64),
) -> Vec<[f64; COLUMNS]> {
    let mut counts = vec![[0f64; COLUMNS]; rows];
    let width = ((last - first) as f64 / COLUMNS as f64).max(1e-9);
    for (row, from, to) in intervals {
        let (from, to) = ((from - first) as f64 / width, (to - first) as f64 / width);
        let columns = from as usize..(to as usize + 1).min(COLUMNS);
        for column in columns {
            let inside = to.min(column as f64 + 1.0) - from.max(column as f64);
            counts[row][column] += inside.max(0.0);
        }
    }
    counts
}

/// When each worker ran something.
pub fn workers(lives: &[Life], workers: usize) -> String {
    let (first, last) = span(lives);
    let rows = workers.clamp(1, ROWS);
    let row = |worker: u16| usize::from(worker) * rows / workers.max(1);
    let of = |row: usize| {
        (0..workers).filter(|&worker| worker * rows / workers.max(1) == row).count().max(1) as f64
    };
    let runs = lives.iter().filter_map(|life| {
        let event = life.event?;
        Some((row(event.worker_id).min(rows - 1), life.began()?, life.ended()?))
    });
    let counts = covered(runs, rows, (first, last));
    svg(48 + 14 * rows as u32, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_right(12)
            .x_label_area_size(24)
            .y_label_area_size(36)
            .build_cartesian_2d(0f64..(last - first) as f64, 0f64..rows as f64)?;
        // Workers count from 0. The number stands at the lower edge of the worker's row.
        axes(&mut chart, rows.min(8), |row| {
            let worker = (workers as f64 * (rows as f64 - row) / rows as f64).round() - 1.0;
            if worker < 0.0 { String::new() } else { worker.to_string() }
        })?;
        for (row, counts) in counts.iter().enumerate() {
            let of = of(row);
            let shade = |column: usize| ((counts[column] / of).min(1.0) * SHADES as f64).round() as u64;
            let mut column = 0;
            while column < COLUMNS {
                let same = (column..COLUMNS).take_while(|&next| shade(next) == shade(column)).count();
                if shade(column) > 0 {
                    let x = |column: usize| (last - first) as f64 * column as f64 / COLUMNS as f64;
                    let y = (rows - row) as f64;
                    let style = BLUE.mix(shade(column) as f64 / SHADES as f64).filled();
                    chart.draw_series([Rectangle::new(
                        [(x(column), y - 0.1), (x(column + same), y - 0.9)],
                        style,
                    )])?;
                }
                column += same;
            }
        }
        Ok(())
    })
}

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

fn axes(chart: &mut Chart<'_, '_>, rows: usize, label: impl Fn(f64) -> String) -> Result<()> {
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(INK.mix(0.5))
        .label_style(("sans-serif", 13).into_font().color(&INK))
        .y_labels(rows)
        .x_labels(6)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| label(*y))
        .draw()
}

/// A count in few characters.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.1} M", value / 1e6),
        value if value >= 1e4 => format!("{:.0} k", value / 1e3),
        value if value.fract() != 0.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// How many descriptors were where over time: read and not begun, with workers, ended and not visible.
pub fn rings(lives: &[Life]) -> String {
    let (first, last) = span(lives);
    let stage = |from: fn(&Life) -> Option<u64>, to: fn(&Life) -> Option<u64>| {
        let intervals = lives.iter().filter_map(|life| Some((0, from(life)?, to(life)?)));
        covered(intervals, 1, (first, last)).remove(0)
    };
    let lines = [
        ("read, not begun", AMBER, stage(Life::read, Life::began)),
        ("with a worker", BLUE, stage(Life::began, Life::ended)),
        ("ended, completion not visible", GREEN, stage(Life::ended, Life::visible)),
    ];
    let most = lines.iter().flat_map(|(.., counts)| counts).fold(1f64, |most, &count| most.max(count));
    svg(220, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(12)
            .x_label_area_size(24)
            .y_label_area_size(36)
            .build_cartesian_2d(0f64..(last - first) as f64, 0f64..most * 1.5)?;
        axes(&mut chart, 5, short)?;
        for (name, colour, counts) in &lines {
            let x = |column: usize| (last - first) as f64 * (column as f64 + 0.5) / COLUMNS as f64;
            let points = counts.iter().enumerate().map(|(column, &count)| (x(column), count));
            let (colour, name) = (*colour, *name);
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font(("sans-serif", 13).into_font().color(&INK))
            .draw()
    })
}

/// A picture by itself, on white: a title, the names of the lines, the lines over time, and what the axis of time counts.
pub fn lines(title: &str, time: &str, lines: &[(String, Vec<(f64, f64)>)]) -> String {
    const COLOURS: [RGBColor; 5] = [GREY, BLUE, AMBER, GREEN, RED];
    /// Where the plot begins.
    const LEFT: i32 = 44;
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let (last, most) = points().fold((1f64, 1f64), |(last, most), (x, y)| (last.max(x), most.max(y)));
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, (720, 320)).into_drawing_area();
    let draw = |area: &DrawingArea<SVGBackend<'_>, Shift>| -> Result<()> {
        area.fill(&WHITE)?;
        let label = || ("sans-serif", 13).into_font().color(&BLACK);
        let named = || lines.iter().zip(COLOURS.into_iter().cycle());
        // The names have a row of their own, so that they cover no line.
        let (head, plot) = area.split_vertically(48);
        head.draw(&Text::new(title.to_owned(), (LEFT, 8), ("sans-serif", 15).into_font().color(&BLACK)))?;
        let mut x = LEFT;
        for ((name, _), colour) in named() {
            head.draw(&PathElement::new([(x, 37), (x + 14, 37)], colour.stroke_width(3)))?;
            head.draw(&Text::new(name.clone(), (x + 20, 30), label()))?;
            x += 44 + area.estimate_text_size(name, &label())?.0 as i32;
        }
        let mut chart = ChartBuilder::on(&plot)
            .margin(8)
            .margin_right(16)
            .x_label_area_size(36)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(0f64..last, 0f64..most * 1.05)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .label_style(label())
            .x_desc(time)
            .x_labels(6)
            .y_labels(5)
            .x_label_formatter(&|x| short(*x))
            .y_label_formatter(&|y| short(*y))
            .draw()?;
        for (number, ((_, points), colour)) in named().enumerate() {
            // Of two lines that lie on each other the first shows at the edges.
            let width = if number == 0 { 5 } else { 2 };
            chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(width)))?;
        }
        Ok(())
    };
    // What is drawn into a string cannot fail.
    let _ = draw(&area).and_then(|()| area.present());
    drop(area);
    text
}

/// The groups that took longest: up to the end of half of their members, and the tail after it. `None` where there are no groups.
pub fn groups(lives: &[Life]) -> Option<String> {
    let mut groups: BTreeMap<(u8, u32), (u64, Vec<u64>)> = BTreeMap::new();
    for life in lives {
        let (Some(event), Some(read), Some(visible)) = (life.event, life.read(), life.visible()) else {
            continue;
        };
        let desc = &life.desc;
        let member = DescFlags::from_bits_retain(desc.flags).contains(DescFlags::COW_PREFIX);
        if member || desc.opcode == Opcode::Prefill as u8 && desc.max_tokens > 0 {
            let group = groups.entry((event.queue_id, desc.prefix_id)).or_insert((read, vec![]));
            group.0 = group.0.min(read);
            group.1.push(visible);
        }
    }
    let mut bars: Vec<(u32, u64, u64, u64)> = groups
        .into_iter()
        .filter(|(_, (_, ends))| ends.len() > 2)
        .map(|((_, prefix), (from, mut ends))| {
            ends.sort_unstable();
            (prefix, from, ends[ends.len() / 2], ends[ends.len() - 1])
        })
        .collect();
    bars.sort_by_key(|&(_, from, _, to)| std::cmp::Reverse(to - from));
    bars.truncate(GROUPS);
    let longest = bars.first().map(|&(_, from, _, to)| to - from)?;
    Some(svg(48 + 14 * bars.len() as u32, |area| {
        let rows = bars.len();
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_right(12)
            .x_label_area_size(24)
            .y_label_area_size(76)
            .build_cartesian_2d(0f64..longest as f64, 0f64..rows as f64)?;
        let name = |row: f64| {
            bars.get((rows as f64 - row) as usize).map_or(String::new(), |bar| format!("group {}", bar.0))
        };
        axes(&mut chart, rows, name)?;
        for (row, &(_, from, half, to)) in bars.iter().enumerate() {
            let y = (rows - row) as f64;
            let bar = |from: u64, to: u64, colour: RGBColor| {
                Rectangle::new([(from as f64, y - 0.15), (to as f64, y - 0.85)], colour.filled())
            };
            chart.draw_series([bar(0, half - from, BLUE), bar(half - from, to - from, AMBER)])?;
        }
        Ok(())
    }))
}
