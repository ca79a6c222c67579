//! What a word's engine reads, and what it writes.

use doorbell_lm::ops::BLOCK;

use super::context::{Context, Sample, Sampler};
use super::work::{Function, KvAt, MatrixAt, Work};
use crate::arithmetic::{self, Factor, Joined, Multipliers, Prepared, Query, Speed};
use crate::isa::Fault;
use crate::layout::{self, LINE, read_integers, u16_at, whole, write_integers};

/// Where something is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// On-chip memory of the context.
    Chip,
    /// Keys and values, from the arena's first byte.
    Kv,
    /// The context's output region.
    Output,
    /// The sampler: four bytes of logit for each token. Nothing keeps them.
    Logits,
}

/// Bytes that a word writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where.
    pub space: Space,
    /// First byte, a multiple of 2.
    pub at: u64,
    /// What.
    pub bytes: Vec<u8>,
}

/// All that a word does to a context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    pub writes: Vec<Write>,
    /// The sampler behind it, if it has one.
    pub sampler: Option<Option<Sampler>>,
    pub sample: Option<Sample>,
    /// Of `attn`, head by head: which blocks were below both bins.
    pub skipped: Vec<bool>,
}

impl Effect {
    fn chip(line: u32, bytes: Vec<u8>) -> Self {
        let at = u64::from(line) * LINE as u64;
        Self { writes: vec![Write { space: Space::Chip, at, bytes }], ..Self::default() }
    }
}

/// Memories that all contexts share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memories<'m> {
    pub model: &'m [u8],
    pub kv: &'m [u8],
    pub speed: Speed,
}

impl Memories<'_> {
    /// Executes a word for some contexts, which share each row of weights; an effect for each.
    pub fn execute(&self, work: &Work, contexts: &[&Context]) -> Vec<Result<Effect, Fault>> {
        match *work {
            Work::Multiply { .. } | Work::Head { .. } => self.multiply(work, contexts),
            _ => contexts.iter().map(|context| self.execute_one(work, context)).collect(),
        }
    }

    fn execute_one(&self, work: &Work, context: &Context) -> Result<Effect, Fault> {
        match *work {
            Work::Copy { dst, from, lines } => Ok(Effect::chip(dst, self.lines(from, lines).to_vec())),
            Work::Gain { dst, from, exponent, lines } => {
                let head = whole(exponent.to_le_bytes().to_vec());
                Ok(Effect::chip(dst, [&head, self.lines(from, lines - 1)].concat()))
            }
            Work::Row { dst, from, stride, rows, lines } => {
                let position = context.position;
                if position >= rows {
                    return Err(Fault::BadPosition { position, rows });
                }
                Ok(Effect::chip(dst, self.lines(from + u64::from(position) * stride, lines).to_vec()))
            }
            Work::Embed { dst, matrix } => {
                let MatrixAt { rows, exponent, .. } = matrix;
                let token = context.token;
                if token >= rows {
                    return Err(Fault::BadToken { token, rows });
                }
                let row = token as usize;
                let values = arithmetic::embed(
                    matrix.row(self.model, row),
                    matrix.scale(self.model, row),
                    exponent.into(),
                );
                Ok(Effect::chip(dst, write_integers(values)))
            }
            Work::Append { src, kv } => append(src, kv, context),
            Work::Out { src, to, lines } => {
                let bytes = context.lines(src, lines.into()).to_vec();
                let end = to + bytes.len() as u64;
                if end > context.output.len() as u64 {
                    return Err(Fault::OutputOutOfRange { start: to, end });
                }
                Ok(Effect {
                    writes: vec![Write { space: Space::Output, at: to, bytes }],
                    ..Effect::default()
                })
            }
            Work::Vector { function, dst, a, b, heads, width } => {
                let bytes = match function {
                    Function::Predict | Function::Correct => {
                        streams(function, [dst, a, b], heads, width, context)
                    }
                    _ => vector(function, a, b, heads, width, context),
                };
                Ok(Effect::chip(dst, bytes))
            }
            Work::Attend { dst, .. } => {
                let (means, skipped) = self.attend(work, context)?;
                Ok(Effect { skipped, ..Effect::chip(dst, means) })
            }
            Work::Multiply { .. } | Work::Head { .. } => unreachable!("they go by rows"),
        }
    }

    fn lines(&self, from: u64, lines: u32) -> &[u8] {
        &self.model[from as usize..][..lines as usize * LINE]
    }

    /// A row at a time, for all contexts.
    fn multiply(&self, work: &Work, contexts: &[&Context]) -> Vec<Result<Effect, Fault>> {
        let (Work::Multiply { src, matrix, .. } | Work::Head { src, matrix, .. }) = *work else {
            unreachable!("nothing else has rows")
        };
        let columns = matrix.columns;
        let prepared: Vec<Prepared> = contexts
            .iter()
            .map(|context| {
                let lines = context.lines(src, layout::activation(columns.into()));
                Prepared::of(lines, columns as usize)
            })
            .collect();
        let factors: Vec<Factor> =
            prepared.iter().map(|activation| Factor::new(matrix.exponent, activation)).collect();
        let multipliers = Multipliers::new(prepared, self.speed);
        let scaled = !matches!(work, Work::Multiply { scaled: false, .. });
        let mut rows = vec![Vec::with_capacity(matrix.rows as usize); contexts.len()];
        let mut sums = vec![];
        for row in 0..matrix.rows as usize {
            let scale = matrix.scale(self.model, row);
            multipliers.row(matrix.row(self.model, row), &mut sums);
            for (context, &sum) in sums.iter().enumerate() {
                let activation = &multipliers.activations[context];
                let value = if scaled { factors[context].requantise(sum, scale, activation) } else { sum };
                rows[context].push(value);
            }
        }
        rows.into_iter().zip(contexts).map(|(rows, context)| finish(work, rows, context)).collect()
    }

    fn attend(&self, work: &Work, context: &Context) -> Result<(Vec<u8>, Vec<bool>), Fault> {
        let Work::Attend { src, heads, kv, factor, seen, .. } = *work else {
            unreachable!("nothing else attends")
        };
        let (stored, width) = (context.lines(src, layout::stored(heads.into(), kv.width.into())), kv.width);
        let first = layout::stored_scales(heads.into()) as usize * LINE;
        let tokens = u64::from(context.position) + 1;
        // Blocks of which nothing is seen are not even looked up.
        let (sinks, first_seen) = seen.at(context.position);
        let (sinks, first_seen) = (u64::from(sinks), u64::from(first_seen));
        let entries = (0..sinks).chain(first_seen / 32..tokens.div_ceil(32));
        let blocks = entries.map(|entry| Ok((entry, block(context, kv, entry as u32)?)));
        let blocks: Vec<(u64, u64)> = blocks.collect::<Result<_, _>>()?;
        let mut means = Vec::with_capacity((heads * width) as usize);
        let mut left_out = vec![];
        for head in 0..heads as usize {
            let query = Query {
                mantissas: &stored[first + head * width as usize..][..width as usize],
                scale: u16_at(stored, 2 * head),
                factor,
            };
            let shared = head / (heads / kv.heads) as usize;
            let bytes = kv.head().bytes();
            let mut joined = Joined::new(width as usize);
            for &(entry, start) in &blocks {
                let at = context.arena.base + start + kv.layer + shared as u64 * bytes;
                let skipped = if entry < sinks { 0 } else { first_seen.saturating_sub(32 * entry) };
                let here = skipped..(tokens - 32 * entry).min(32);
                let counts = joined.add(&query, &self.kv[at as usize..][..bytes as usize], here, self.speed);
                left_out.push(!counts);
            }
            means.extend(joined.mean());
        }
        Ok((write_integers(means), left_out))
    }
}

/// What becomes of the rows of a product.
fn finish(work: &Work, mut rows: Vec<i32>, context: &Context) -> Result<Effect, Fault> {
    if matches!(work, Work::Multiply { .. }) {
        rows.resize(rows.len().next_multiple_of(BLOCK), 0);
    }
    match *work {
        Work::Multiply { dst, accumulate: true, .. } => {
            let before = context.lines(dst, layout::integers(rows.len() as u64));
            let sums = read_integers(before).zip(rows).map(|(a, b)| arithmetic::add(a, b));
            Ok(Effect::chip(dst, write_integers(sums)))
        }
        Work::Multiply { dst, .. } => Ok(Effect::chip(dst, write_integers(rows))),
        Work::Head { first, last, cap, .. } => {
            if cap {
                rows.iter_mut().for_each(|logit| *logit = arithmetic::softcap(*logit));
            }
            let begun = if first { Some(Sampler::default()) } else { context.sampler.clone() };
            let mut sampler = begun.ok_or(Fault::NoFirst)?;
            let at = sampler.logits.len() as u64 * 4;
            sampler.logits.extend(&rows);
            let bytes = rows.into_iter().flat_map(i32::to_le_bytes).collect();
            Ok(Effect {
                writes: vec![Write { space: Space::Logits, at, bytes }],
                sample: if last { context.choose(&sampler) } else { None },
                sampler: Some((!last).then_some(sampler)),
                ..Effect::default()
            })
        }
        _ => unreachable!("nothing else has rows"),
    }
}

/// First byte in the arena of the block of an entry of the block table.
fn block(context: &Context, kv: KvAt, entry: u32) -> Result<u64, Fault> {
    let &block = context.blocks.get(entry as usize).ok_or(Fault::BlockMissing { entry })?;
    let start = u64::from(block) * kv.block;
    if start + kv.block > context.arena.bytes {
        return Err(Fault::BlockOutOfRange { entry, block });
    }
    Ok(start)
}

fn append(src: u32, kv: KvAt, context: &Context) -> Result<Effect, Fault> {
    let heads = 2 * kv.heads;
    let stored = context.lines(src, layout::stored(heads.into(), kv.width.into()));
    let first = layout::stored_scales(heads.into()) as usize * LINE;
    let start = block(context, kv, context.position / 32)? + kv.layer;
    let (place, token, width) = (kv.head(), u64::from(context.position % 32), kv.width as usize);
    let writes = (0..heads).flat_map(|head| {
        let (part, shared) = (u64::from(head / kv.heads), u64::from(head % kv.heads));
        let start = start + shared * place.bytes();
        let head = head as usize;
        let write = |at, bytes: &[u8]| Write { space: Space::Kv, at: start + at, bytes: bytes.to_vec() };
        [
            write(place.scale(part, token), &stored[2 * head..][..2]),
            write(place.mantissas(part, token), &stored[first + head * width..][..width]),
        ]
    });
    Ok(Effect { writes: writes.collect(), ..Effect::default() })
}

fn vector(function: Function, a: u32, b: u32, heads: u32, width: u32, context: &Context) -> Vec<u8> {
    let count = u64::from(heads) * u64::from(width);
    let integers =
        |line| -> Vec<i32> { read_integers(context.lines(line, layout::integers(count))).collect() };
    let each = |operator: fn(i32, i32) -> i32| {
        write_integers(integers(a).into_iter().zip(integers(b)).map(|(a, b)| operator(a, b)))
    };
    let width = width as usize;
    match function {
        Function::Add => each(arithmetic::add),
        Function::Multiply => each(arithmetic::multiply),
        Function::Activate => arithmetic::plain(&integers(a)),
        Function::Swiglu => arithmetic::swiglu(&integers(a), &integers(b)),
        Function::Tanh => arithmetic::tanh(&integers(a)),
        Function::Geglu => arithmetic::geglu(&integers(a), &integers(b)),
        Function::Blend => each(arithmetic::blend),
        Function::Cut(deviations) => write_integers(arithmetic::cut(&integers(a), deviations)),
        Function::Rescale(epsilon) => {
            write_integers(arithmetic::rescale(&integers(a), &integers(b), epsilon))
        }
        Function::Level(epsilon) => {
            let gain = context.lines(b, layout::gain(width as u64));
            let heads = integers(a);
            write_integers(heads.chunks(width).flat_map(|head| arithmetic::level(head, gain, epsilon)))
        }
        Function::Normalise(epsilon) => {
            arithmetic::normalise(&integers(a), context.lines(b, layout::gain(count)), epsilon)
        }
        Function::Rotate => {
            let turns = context.lines(b, layout::turns(width as u64));
            write_integers(integers(a).chunks(width).flat_map(|head| arithmetic::rotate(head, turns)))
        }
        Function::Store => {
            let heads = integers(a);
            let (scales, mantissas): (Vec<u16>, Vec<Vec<u8>>) =
                heads.chunks(width).map(arithmetic::store).unzip();
            let scales = whole(scales.into_iter().flat_map(u16::to_le_bytes).collect());
            [scales, whole(mantissas.concat())].concat()
        }
        Function::Predict | Function::Correct => unreachable!("they are of streams"),
    }
}

fn streams(function: Function, [dst, a, b]: [u32; 3], count: u32, width: u32, context: &Context) -> Vec<u8> {
    let integers = |line, count: u32| -> Vec<i32> {
        let lines = context.lines(line, layout::integers(count.into()));
        read_integers(lines).take(count as usize).collect()
    };
    write_integers(match function {
        Function::Predict => {
            arithmetic::predict(&integers(a, count * width), &integers(b, count * count), count as usize)
        }
        _ => arithmetic::correct(&integers(dst, count * width), &integers(a, width), &integers(b, count)),
    })
}
