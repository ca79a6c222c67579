//! The columns of a trajectory in Parquet: the type of each, and how the rows of a row group fill it.

use parquet::column::writer::ColumnWriterImpl;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::writer::{SerializedColumnWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::TypePtr;

use super::log::Run;
use super::record::{Finished, GroupScore, Span, Trajectory};
use crate::reward::Scorer;

/// What a row is made of.
pub struct Row<'r> {
    /// The record.
    pub trajectory: &'r Trajectory,
    /// The run that stored it, if the log names one.
    pub run: Option<&'r Run>,
}

/// Fills a column with these rows.
type Fill = fn(&[Row<'_>], &mut SerializedColumnWriter<'_>) -> Result<()>;

/// The columns in their order: the type in Parquet's own notation, and what fills each of its leaves. Parquet stores unsigned numbers as the
/// bits of signed ones, and INTEGER tells readers so.
const COLUMNS: &[(&str, &[Fill])] = &[
    (
        "optional int32 run (INTEGER(32,false));",
        &[|rows, to| optional::<Int32Type>(rows, to, |row| Some(row.run?.run as i32))],
    ),
    ("optional binary run_id (STRING);", &[|rows, to| text(rows, to, |row| Some(&*row.run?.id))]),
    ("required int64 number (INTEGER(64,false));", &[|rows, to| wide(rows, to, |row| row.number)]),
    (
        "required int64 rollout (INTEGER(64,false));",
        &[|rows, to| wide(rows, to, |row| row.finished.rollout.to_bits())],
    ),
    ("required int64 request (INTEGER(64,false));", &[|rows, to| wide(rows, to, |row| row.finished.request)]),
    ("required int32 member (INTEGER(32,false));", &[|rows, to| narrow(rows, to, |of| of.member)]),
    (
        "required int32 prompt_tokens (INTEGER(32,false));",
        &[|rows, to| narrow(rows, to, |of| of.prompt_tokens)],
    ),
    (
        "optional group prompt_token_ids (LIST) { repeated group list { required int32 item (INTEGER(32,false)); } }",
        &[|rows, to| {
            list::<Int32Type>(rows, to, |row, items| {
                let prompt = row.prompt.as_ref()?;
                items.extend(prompt.tokens.iter().map(|&token| token as i32));
                Some(())
            })
        }],
    ),
    (
        "optional binary prompt_text (STRING);",
        &[|rows, to| text(rows, to, |row| row.trajectory.prompt.as_ref()?.text.as_deref())],
    ),
    (
        "required int32 answer_tokens (INTEGER(32,false));",
        &[|rows, to| narrow(rows, to, |of| of.answer_tokens)],
    ),
    (
        "required group tokens (LIST) { repeated group list { required int32 item (INTEGER(32,false)); } }",
        &[|rows, to| {
            list::<Int32Type>(rows, to, |row, items| {
                items.extend(row.tokens.iter().map(|&token| token as i32));
                Some(())
            })
        }],
    ),
    ("required double score;", &[|rows, to| required::<DoubleType>(rows, to, Trajectory::score)]),
    ("required int32 score_raw;", &[|rows, to| required::<Int32Type>(rows, to, |row| row.finished.score)]),
    (
        "optional binary scored_by (STRING);",
        &[|rows, to| text(rows, to, |row| row.trajectory.finished.scorer.map(Scorer::name))],
    ),
    (
        "required binary outcome (STRING);",
        &[|rows, to| required::<ByteArrayType>(rows, to, |row| ByteArray::from(row.finished.outcome.name()))],
    ),
    ("required int32 segments (INTEGER(32,false));", &[|rows, to| narrow(rows, to, |of| of.segments)]),
    ("required int32 seed (INTEGER(32,false));", &[|rows, to| narrow(rows, to, |of| of.seed)]),
    (
        "required int32 device_rollout (INTEGER(32,false));",
        &[|rows, to| narrow(rows, to, |of| of.device_rollout)],
    ),
    (
        "optional int32 prefix_id (INTEGER(32,false));",
        &[|rows, to| optional::<Int32Type>(rows, to, |row| Some(row.trajectory.prefix()?.0 as i32))],
    ),
    (
        "optional int64 prefix_hash (INTEGER(64,false));",
        &[|rows, to| optional::<Int64Type>(rows, to, |row| Some(row.trajectory.prefix()?.1 as i64))],
    ),
    (
        "required group spans (LIST) { repeated group list { required group item { \
         required int32 version (INTEGER(16,false)); required int32 first_token (INTEGER(32,false)); } } }",
        &[
            |rows, to| spans(rows, to, |span| i32::from(span.version)),
            |rows, to| spans(rows, to, |span| span.first as i32),
        ],
    ),
    ("optional double group_mean;", &[|rows, to| group(rows, to, |group| group.mean)]),
    ("optional double advantage;", &[|rows, to| group(rows, to, |group| group.advantage)]),
    (
        "optional group logprobs (LIST) { repeated group list { required float item; } }",
        &[|rows, to| {
            list::<FloatType>(rows, to, |row, items| {
                items.extend(row.logprobs.as_ref()?);
                Some(())
            })
        }],
    ),
];

/// The type of a row.
///
/// # Errors
/// None that a caller can bring about: the text is of this module.
pub fn schema() -> Result<TypePtr> {
    let fields: String = COLUMNS.iter().flat_map(|(text, _)| [text, "\n"]).collect();
    Ok(parse_message_type(&format!("message trajectories {{\n{fields}}}"))?.into())
}

/// Writes all columns of these rows.
///
/// # Errors
/// When the file cannot be written.
pub fn write<W: std::io::Write + Send>(
    rows: &[Row<'_>],
    to: &mut SerializedRowGroupWriter<'_, W>,
) -> Result<()> {
    for fill in COLUMNS.iter().flat_map(|(_, fills)| *fills) {
        let missing = || ParquetError::General("the schema has fewer columns than are filled".to_owned());
        let mut column = to.next_column()?.ok_or_else(missing)?;
        fill(rows, &mut column)?;
        column.close()?;
    }
    Ok(())
}

/// Values after which a column is handed to Parquet, which encodes them at once: they bound the memory that a column takes twice.
const BATCH: usize = 1 << 16;

/// Values of a column that Parquet does not have yet, with its levels: of definition, which say what is missing, and of repetition,
/// which say where a list begins.
struct Batch<'c, 'w, T: DataType> {
    column: &'c mut ColumnWriterImpl<'w, T>,
    values: Vec<T::T>,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
}

impl<'c, 'w, T: DataType> Batch<'c, 'w, T> {
    fn of(column: &'c mut SerializedColumnWriter<'w>) -> Self {
        Self { column: column.typed::<T>(), values: vec![], definitions: vec![], repetitions: vec![] }
    }

    /// The row is whole: Parquet takes no part of one.
    fn end_row(&mut self) -> Result<()> {
        if self.values.len().max(self.definitions.len()) < BATCH { Ok(()) } else { self.hand_over() }
    }

    fn hand_over(&mut self) -> Result<()> {
        let column = self.column.get_descriptor();
        let (is_defined, is_repeated) = (column.max_def_level() > 0, column.max_rep_level() > 0);
        self.column.write_batch(
            &self.values,
            is_defined.then_some(&self.definitions[..]),
            is_repeated.then_some(&self.repetitions[..]),
        )?;
        self.values.clear();
        self.definitions.clear();
        self.repetitions.clear();
        Ok(())
    }
}

fn required<T: DataType>(
    rows: &[Row<'_>],
    to: &mut SerializedColumnWriter<'_>,
    of: impl Fn(&Trajectory) -> T::T,
) -> Result<()> {
    let mut batch = Batch::<T>::of(to);
    for row in rows {
        batch.values.push(of(row.trajectory));
        batch.end_row()?;
    }
    batch.hand_over()
}

fn optional<T: DataType>(
    rows: &[Row<'_>],
    to: &mut SerializedColumnWriter<'_>,
    of: impl Fn(&Row<'_>) -> Option<T::T>,
) -> Result<()> {
    let mut batch = Batch::<T>::of(to);
    for row in rows {
        let value = of(row);
        batch.definitions.push(value.is_some().into());
        batch.values.extend(value);
        batch.end_row()?;
    }
    batch.hand_over()
}

/// `of` adds the items of a row's list, or says that the row has none.
fn list<T: DataType>(
    rows: &[Row<'_>],
    to: &mut SerializedColumnWriter<'_>,
    of: impl Fn(&Trajectory, &mut Vec<T::T>) -> Option<()>,
) -> Result<()> {
    let mut batch = Batch::<T>::of(to);
    // Of an item; of an empty list one less, and of a list that is missing, where it may be, two.
    let item = batch.column.get_descriptor().max_def_level();
    for row in rows {
        let before = batch.values.len();
        let is_there = of(row.trajectory, &mut batch.values).is_some();
        let items = batch.values.len() - before;
        let first = match (is_there, items) {
            (false, _) => 0,
            (true, 0) => item - 1,
            (true, _) => item,
        };
        batch.definitions.push(first);
        batch.definitions.extend(std::iter::repeat_n(item, items.saturating_sub(1)));
        batch.repetitions.push(0);
        batch.repetitions.extend(std::iter::repeat_n(1, items.saturating_sub(1)));
        batch.end_row()?;
    }
    batch.hand_over()
}

fn wide(
    rows: &[Row<'_>],
    to: &mut SerializedColumnWriter<'_>,
    of: impl Fn(&Trajectory) -> u64,
) -> Result<()> {
    required::<Int64Type>(rows, to, |row| of(row) as i64)
}

fn narrow(
    rows: &[Row<'_>],
    to: &mut SerializedColumnWriter<'_>,
    of: impl Fn(&Finished) -> u32,
) -> Result<()> {
    required::<Int32Type>(rows, to, |row| of(&row.finished) as i32)
}

fn text(
    rows: &[Row<'_>],
    to: &mut SerializedColumnWriter<'_>,
    of: impl for<'r> Fn(&'r Row<'_>) -> Option<&'r str>,
) -> Result<()> {
    optional::<ByteArrayType>(rows, to, |row| of(row).map(ByteArray::from))
}

fn group(
    rows: &[Row<'_>],
    to: &mut SerializedColumnWriter<'_>,
    of: impl Fn(GroupScore) -> f64,
) -> Result<()> {
    optional::<DoubleType>(rows, to, |row| row.trajectory.finished.group.map(&of))
}

/// Versions of the policy, each with the first of its tokens.
fn spans(rows: &[Row<'_>], to: &mut SerializedColumnWriter<'_>, of: impl Fn(&Span) -> i32) -> Result<()> {
    list::<Int32Type>(rows, to, |row, items| {
        items.extend(row.spans.iter().map(&of));
        Some(())
    })
}
