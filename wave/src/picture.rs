//! Pixels.

use std::collections::HashMap;

use font8x8::UnicodeFonts;
use wellen::SignalRef;
use wellen::simple::Waveform;

use crate::save::{Row, Save, Trace};

/// Pixels of a nanosecond, where it is said where to begin: a cycle of 10 ns has room for seven digits.
const SCALE: usize = 6;
const ROW: usize = 20;
const HEADER: usize = 24;
const GLYPH: usize = 8;
/// Pixels between two lines of the grid, at least.
const GRID: u64 = 200;

type Color = [u8; 3];
const BACKGROUND: Color = [255, 255, 255];
const BAND: Color = [238, 242, 248];
const LINE: Color = [22, 101, 52];
const ACCENT: Color = [194, 65, 12];
const TEXT: Color = [17, 24, 39];
const FAINT: Color = [209, 213, 219];
const MARKER: Color = [220, 38, 38];

/// A picture, three bytes a pixel, row by row.
pub struct Picture {
    /// In pixels.
    pub width: usize,
    /// In pixels.
    pub height: usize,
    /// Red, green, blue.
    pub pixels: Vec<u8>,
}

impl Picture {
    fn new(width: usize, height: usize) -> Self {
        Self { width, height, pixels: BACKGROUND.repeat(width * height) }
    }

    fn fill(&mut self, [left, right]: [usize; 2], [top, bottom]: [usize; 2], color: Color) {
        for y in top..bottom.min(self.height) {
            for x in left..right.min(self.width) {
                self.pixels[3 * (y * self.width + x)..][..3].copy_from_slice(&color);
            }
        }
    }

    /// Writes `text` in letters of 8 by 16 pixels, as much of it as ends before `right`.
    fn write(&mut self, text: &str, left: usize, right: usize, top: usize, color: Color) {
        for (place, letter) in text.chars().enumerate().take(right.saturating_sub(left) / GLYPH) {
            let glyph = font8x8::BASIC_FONTS.get(letter).unwrap_or([0xFF; 8]);
            for (line, bits) in glyph.into_iter().enumerate() {
                for column in (0..GLYPH).filter(|column| bits >> column & 1 == 1) {
                    let x = left + GLYPH * place + column;
                    self.fill([x, x + 1], [top + 2 * line, top + 2 * line + 2], color);
                }
            }
        }
    }
}

/// Draws what `save` asks for; with `span` from the first of these times to the second.
///
/// # Errors
/// A signal that the waveform does not have.
pub fn draw(waveform: &mut Waveform, save: &Save, span: Option<(u64, u64)>) -> Result<Picture, String> {
    let mut picture = Picture::new(save.width, HEADER + ROW * save.rows.len());
    let (left, right) = (save.names, save.width);
    let room = right.saturating_sub(left).max(1) as u64;
    let fixed = save.start.filter(|_| span.is_none());
    let (start, end) = match (span, fixed) {
        (Some(span), _) => span,
        (None, Some(start)) => (start, start + room / SCALE as u64),
        (None, None) => {
            let times = waveform.time_table();
            let first = times.first().copied().unwrap_or(0);
            (first, times.last().copied().unwrap_or(0).max(first + 1))
        }
    };
    let whole = end - start;
    // Of a picture of few cycles each has the same pixels.
    let scaled = |time: u64| if fixed.is_some() { time * SCALE as u64 } else { time * room / whole };
    let x = |time: u64| left + scaled(time.clamp(start, end) - start) as usize;
    // A round time that has room for its label.
    let least = (GRID * whole / room).max(1);
    let grid = (0..)
        .map(|power| 10u64.pow(power))
        .find_map(|ten| [1, 2, 5].map(|digit| digit * ten).into_iter().find(|&grid| grid >= least));
    let grid = grid.unwrap_or(least);
    let bottom = picture.height;

    for (place, row) in save.rows.iter().enumerate() {
        let top = HEADER + ROW * place;
        if let Row::Heading(heading) = row {
            picture.fill([0, right], [top, top + ROW], BAND);
            picture.write(heading, 4, right, top + 2, TEXT);
        }
    }
    for time in (start.next_multiple_of(grid)..end).step_by(grid as usize) {
        picture.fill([x(time), x(time) + 1], [HEADER - 4, bottom], FAINT);
        picture.write(&format!("{time} ns"), x(time) + 3, right, 4, TEXT);
    }
    picture.fill([left - 1, left], [0, bottom], FAINT);

    let signals = signals(waveform);
    for (place, row) in save.rows.iter().enumerate() {
        let Row::Trace(trace) = row else { continue };
        let top = HEADER + ROW * place;
        let color = if trace.accent { ACCENT } else { LINE };
        let width = GLYPH * trace.name.chars().count();
        picture.write(&trace.name, left.saturating_sub(width + 8).max(20), left, top + 2, TEXT);
        let changes = changes(waveform, &signals, trace)?;
        let (high, low) = (top + 3, top + ROW - 3);
        // What holds at the left edge began before it.
        let first = changes.iter().rposition(|(time, _)| *time <= start).unwrap_or(0);
        for (nth, (time, bits)) in
            changes.iter().enumerate().skip(first).take_while(|(_, (time, _))| *time < end)
        {
            let (from, to) = (x(*time), x(changes.get(nth + 1).map_or(end, |(time, _)| *time)));
            if bits.len() == 1 {
                let y = if bits == "1" { high } else { low };
                picture.fill([from, to + 1], [y, y + 2], color);
                if nth > first {
                    picture.fill([from, from + 2], [high, low + 2], color);
                }
            } else {
                picture.fill([from, to], [high - 1, high], color);
                picture.fill([from, to], [low + 1, low + 2], color);
                picture.fill([from, from + 1], [high - 1, low + 2], color);
                let text = shortened(trace.write(bits), (to - from).saturating_sub(3) / GLYPH);
                picture.write(&text, from + 3, to, top + 2, TEXT);
            }
        }
    }
    if (start..end).contains(&save.marker) {
        picture.fill([x(save.marker), x(save.marker) + 1], [HEADER - 4, bottom], MARKER);
    }
    Ok(picture)
}

/// `text` in `room` letters; a plus stands for what is cut off, so that no number looks like another.
fn shortened(text: String, room: usize) -> String {
    if text.chars().count() <= room {
        return text;
    }
    text.chars().take(room.saturating_sub(1)).chain((room > 0).then_some('+')).collect()
}

/// Every signal by the name that GTKWave gives it.
fn signals(waveform: &Waveform) -> HashMap<String, SignalRef> {
    let hierarchy = waveform.hierarchy();
    let named = hierarchy.iter_vars().map(|var| {
        let index = var.index().map(|index| format!("[{}:{}]", index.msb(), index.lsb()));
        (var.full_name(hierarchy) + &index.unwrap_or_default(), var.signal_ref())
    });
    named.collect()
}

/// The values of a trace, each with the time from which it holds.
fn changes(
    waveform: &mut Waveform,
    signals: &HashMap<String, SignalRef>,
    trace: &Trace,
) -> Result<Vec<(u64, String)>, String> {
    let mut parts = vec![];
    for (name, bit) in &trace.parts {
        let signal = *signals.get(name).ok_or_else(|| format!("the waveform has no signal {name}"))?;
        waveform.load_signals(&[signal]);
        let times = waveform.time_table();
        let loaded = waveform.get_signal(signal).ok_or_else(|| format!("signal {name} cannot be read"))?;
        let values: Vec<(u64, String)> = loaded
            .iter_changes()
            .map(|(index, value)| {
                let bits = value.to_bit_string().unwrap_or_else(|| "x".into());
                let bits = match bit {
                    Some(bit) => bits.get(*bit..bit + 1).unwrap_or("x").to_owned(),
                    None => bits,
                };
                (times[index as usize], bits)
            })
            .collect();
        parts.push(values);
    }
    let mut times: Vec<u64> = parts.iter().flatten().map(|(time, _)| *time).collect();
    times.sort_unstable();
    times.dedup();
    let at = |values: &[(u64, String)], time: u64| {
        let next = values.partition_point(|(start, _)| *start <= time);
        next.checked_sub(1).map_or("x", |place| values[place].1.as_str()).to_owned()
    };
    let mut joined: Vec<(u64, String)> = times
        .into_iter()
        .map(|time| (time, parts.iter().map(|values| at(values, time)).collect::<String>()))
        .collect();
    // Bits of a wide signal may stand still while it changes.
    joined.dedup_by(|later, earlier| later.1 == earlier.1);
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::path::Path;

    use super::*;
    use crate::files;

    const VCD: &str = "$timescale 1ns $end\n$scope module top $end\n$var wire 1 ! a $end\n$var wire 8 # b [7:0] $end\n\
                       $upscope $end\n$enddefinitions $end\n#0\n0!\nb0 #\n#10\n1!\n#20\n0!\nb1010 #\n#30\nb1011 #\n";

    fn waveform() -> Waveform {
        wellen::simple::read_from_reader(Cursor::new(VCD.as_bytes().to_vec())).unwrap()
    }

    fn drawn(traces: &str) -> Result<Picture, String> {
        let save = format!("[timestart] 0\n[size] 400 0\n[signals_width] 100\n*0 500\n{traces}");
        draw(&mut waveform(), &Save::parse(&save, &files(Path::new("."))).unwrap(), None)
    }

    fn color(picture: &Picture, x: usize, y: usize) -> &[u8] {
        &picture.pixels[3 * (y * picture.width + x)..][..3]
    }

    #[test]
    fn a_bit_is_high_exactly_while_it_is_1() {
        let picture = drawn("@28\ntop.a\n").unwrap();
        assert_eq!((picture.width, picture.height), (400, HEADER + ROW));
        for (time, high) in [(4, false), (9, false), (11, true), (19, true), (21, false), (29, false)] {
            let x = 100 + SCALE * time;
            assert_eq!(color(&picture, x, HEADER + 3) == LINE, high, "high at {time}");
            assert_eq!(color(&picture, x, HEADER + ROW - 3) == LINE, !high, "low at {time}");
        }
    }

    #[test]
    fn a_bus_has_an_edge_where_it_changes_and_a_bit_of_it_where_that_does() {
        let picture = drawn("@22\n[color] 2\ntop.b[7:0]\n@28\n(5)top.b[7:0]\n").unwrap();
        let edge = |time: usize| color(&picture, 100 + SCALE * time, HEADER + ROW / 2) == ACCENT;
        assert_eq!([10, 20, 30].map(edge), [false, true, true]);
        let bit = |time: usize| color(&picture, 100 + SCALE * time + 2, HEADER + ROW + 3) == LINE;
        assert_eq!([15, 25, 35].map(bit), [false, false, false]);
        let values = changes(
            &mut waveform(),
            &signals(&waveform()),
            &Trace {
                parts: vec![("top.b[7:0]".into(), Some(4)), ("top.b[7:0]".into(), Some(7))],
                ..match Save::parse("@28\ntop.a\n", &files(Path::new("."))).unwrap().rows.pop().unwrap() {
                    Row::Trace(trace) => trace,
                    Row::Heading(_) => unreachable!("it is a trace"),
                }
            },
        );
        assert_eq!(values.unwrap(), [(0, "00".to_owned()), (20, "10".into()), (30, "11".into())]);
    }

    #[test]
    fn all_of_a_waveform_or_a_span_of_it_fills_the_picture() {
        let save =
            Save::parse("[size] 400 0\n[signals_width] 100\n@28\ntop.a\n", &files(Path::new("."))).unwrap();
        // 30 ns, and 10 ns, in 300 pixels.
        for (span, edges) in [(None, [200, 300]), (Some((5, 25)), [175, 325])] {
            let picture = draw(&mut waveform(), &save, span).unwrap();
            for (edge, high) in edges.into_iter().zip([true, false]) {
                let is_high = |x: usize| color(&picture, x, HEADER + 3) == LINE;
                assert_eq!([is_high(edge - 5), is_high(edge + 5)], [!high, high], "{span:?}, {edge}");
            }
        }
    }

    #[test]
    fn what_is_cut_off_shows() {
        let cut = |room| shortened("113543".to_owned(), room);
        assert_eq!([0, 1, 3, 5, 6, 7].map(cut), ["", "+", "11+", "1135+", "113543", "113543"]);
    }

    #[test]
    fn a_signal_that_is_not_there_is_named() {
        assert_eq!(drawn("@28\ntop.c\n").err().unwrap(), "the waveform has no signal top.c");
    }
}
