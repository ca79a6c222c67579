//! Trajectories as Parquet, for whoever trains on them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{Float32Builder, ListBuilder, StructBuilder, UInt16Builder, UInt32Builder};
use arrow_array::{ArrayRef, Float64Array, Int32Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{ArrowError, DataType, Field, Fields};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use super::log::{LogError, Reader, Run, Verified, run_of, runs};
use crate::reward::Scorer;

use super::record::{Finished, GroupScore, Span, Trajectory};

/// How a log is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// Most rows of a row group.
    pub row_group_rows: usize,
    /// Tokens after which a row group ends. With the longest trajectory this bounds the memory of the export, to some
    /// ten bytes per token.
    pub row_group_tokens: usize,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self { row_group_rows: 1 << 16, row_group_tokens: 1 << 24 }
    }
}

/// Why a log could not be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),

    /// The file cannot be written.
    #[error("cannot write {}: {source}; give a path that can be written, on a disk with room", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },

    /// Parquet says no.
    #[error("cannot write {} as Parquet: {source}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ParquetError,
    },
}

/// Writes every whole record of the log in `directory` to the Parquet file `path`, and says what the log held, damage
/// included.
///
/// The rows come in the order of the log, with the columns of `docs/trajectories.md`. They are written to a file with
/// another name beside `path`, which is renamed when it is whole and on disk: whoever sees `path` sees all of it, and an
/// older file stays until then.
///
/// # Errors
/// `Log`, `Io` or `Parquet`; then, if it is a regular file, `path` is as it was.
pub fn export(directory: &Path, path: &Path, options: ExportOptions) -> Result<Verified, ExportError> {
    let reader = Reader::open(directory)?;
    let io = |source| ExportError::Io { path: path.to_owned(), source };
    // A link is followed; a device or a pipe is written through, as renaming would replace it.
    let target = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => fs::canonicalize(path).map_err(io)?,
        Ok(_) => {
            let file = File::options().write(true).open(path).map_err(io)?;
            return write(reader, directory, &file, path, options);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::symlink_metadata(path) {
            Ok(_) => {
                return Err(io(io::Error::new(error.kind(), "it is a link to a file that is not there")));
            }
            Err(_) => path.to_owned(),
        },
        Err(error) => return Err(io(error)),
    };
    // Renaming asks only for the directory, but a file that may not be written is not replaced.
    if target != path || target.exists() {
        File::options().write(true).open(&target).map_err(io)?;
    }
    let path = &*target;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    let mut scratch = tempfile::Builder::new();
    scratch.prefix(&name).suffix(".partial");
    // As any new file: the mask takes away what it should.
    #[cfg(unix)]
    scratch.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    // Goes away unless it is renamed.
    let scratch = scratch.tempfile_in(parent).map_err(|error| io(bare(error)))?;
    let verified = write(reader, directory, scratch.as_file(), path, options)?;
    scratch.as_file().sync_all().map_err(io)?;
    scratch.persist(path).map_err(|error| io(error.error))?;
    // The name is the only one now; where a directory cannot be synced, the rename still holds for this machine's life.
    File::open(parent).and_then(|directory| directory.sync_all()).map_err(io)?;
    Ok(verified)
}

/// The error without the path of a file that nobody knows.
fn bare(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|error| error.source()?.downcast_ref::<io::Error>());
    inner.and_then(io::Error::raw_os_error).map_or(error, io::Error::from_raw_os_error)
}

/// Writes to `file` what is to be called `path`.
fn write(
    reader: Reader,
    directory: &Path,
    file: &File,
    path: &Path,
    options: ExportOptions,
) -> Result<Verified, ExportError> {
    let io = |source| ExportError::Io { path: path.to_owned(), source };
    let parquet = |source| ExportError::Parquet { path: path.to_owned(), source };
    let [tokens, logprobs] = ["tokens", "logprobs"]
        .map(|column| ColumnPath::from([column, "list", "item"].map(str::to_owned).to_vec()));
    let properties = WriterProperties::builder()
        .set_created_by(concat!("doorbell ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::SNAPPY)
        // Row groups are ended here, by tokens.
        .set_max_row_group_row_count(Some(options.row_group_rows.max(1)))
        // Tokens hardly repeat within a page, and their least and greatest tell nothing.
        .set_column_dictionary_enabled(tokens, false)
        .set_column_dictionary_enabled(logprobs, false)
        .build();
    // A run is noted before its first record, so the runs of these records are known now, also while somebody writes.
    let batch = |rows: &[Trajectory]| -> Result<RecordBatch, ExportError> {
        batch(rows, &runs(directory)?).map_err(|error| parquet(error.into()))
    };
    let schema = batch(&[])?.schema();
    let out = file.try_clone().map_err(io)?;
    let mut writer = ArrowWriter::try_new(out, schema, Some(properties)).map_err(parquet)?;
    let mut rows = vec![];
    let (mut batch_tokens, mut group_tokens) = (0, 0);
    let verified = reader.verify_each(|trajectory| {
        batch_tokens += trajectory.tokens.len();
        group_tokens += trajectory.tokens.len();
        rows.push(trajectory);
        let ends = group_tokens >= options.row_group_tokens;
        if ends || rows.len() >= BATCH_ROWS || batch_tokens >= BATCH_TOKENS {
            writer.write(&batch(&rows)?).map_err(parquet)?;
            rows.clear();
            batch_tokens = 0;
        }
        if ends {
            writer.flush().map_err(parquet)?;
            group_tokens = 0;
        }
        Ok::<_, ExportError>(())
    })?;
    writer.write(&batch(&rows)?).map_err(parquet)?;
    let runs = serde_json::to_string(&runs(directory)?).map_err(|error| io(error.into()))?;
    writer.append_key_value_metadata(KeyValue::new("doorbell.runs".to_owned(), runs));
    writer.close().map_err(parquet)?;
    Ok(verified)
}

/// Rows, and tokens, after which the columns are handed to Parquet, which encodes them at once.
const BATCH_ROWS: usize = 1024;
const BATCH_TOKENS: usize = 1 << 20;

/// The columns of these rows.
fn batch(rows: &[Trajectory], runs: &[Run]) -> Result<RecordBatch, ArrowError> {
    fn wide(rows: &[Trajectory], of: fn(&Trajectory) -> u64) -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(of)))
    }
    fn narrow(rows: &[Trajectory], of: fn(&Finished) -> u32) -> ArrayRef {
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| of(&row.finished))))
    }
    let item = Field::new("item", DataType::UInt32, false);
    let mut tokens = ListBuilder::new(UInt32Builder::new()).with_field(item);
    for row in rows {
        tokens.values().append_slice(&row.tokens);
        tokens.append(true);
    }
    let scores = Float64Array::from_iter_values(rows.iter().map(Trajectory::score));
    let raw_scores = Int32Array::from_iter_values(rows.iter().map(|row| row.finished.score));
    let scorers = StringArray::from_iter(rows.iter().map(|row| row.finished.scorer.map(Scorer::name)));
    let outcomes = StringArray::from_iter_values(rows.iter().map(|row| row.finished.outcome.name()));
    let prefixes = || rows.iter().map(Trajectory::prefix);
    let prefix_ids = UInt32Array::from_iter(prefixes().map(|prefix| prefix.map(|(id, _)| id)));
    let prefix_hashes = UInt64Array::from_iter(prefixes().map(|prefix| prefix.map(|(_, hash)| hash)));
    let run = || rows.iter().map(|row| run_of(runs, row.number));
    let run_ids = StringArray::from_iter(run().map(|run| run.map(|run| &*run.id)));
    let run: ArrayRef = Arc::new(UInt32Array::from_iter(run().map(|run| run.map(|run| run.run))));
    let texts = StringArray::from_iter(rows.iter().map(|row| row.prompt.as_ref()?.text.as_deref()));
    RecordBatch::try_from_iter_with_nullable([
        ("run", run, true),
        ("run_id", Arc::new(run_ids), true),
        ("number", wide(rows, |row| row.number), false),
        ("rollout", wide(rows, |row| row.finished.rollout.to_bits()), false),
        ("request", wide(rows, |row| row.finished.request), false),
        ("member", narrow(rows, |of| of.member), false),
        ("prompt_tokens", narrow(rows, |of| of.prompt_tokens), false),
        ("prompt_token_ids", prompts(rows), true),
        ("prompt_text", Arc::new(texts), true),
        ("answer_tokens", narrow(rows, |of| of.answer_tokens), false),
        ("tokens", Arc::new(tokens.finish()) as ArrayRef, false),
        ("score", Arc::new(scores), false),
        ("score_raw", Arc::new(raw_scores), false),
        ("scored_by", Arc::new(scorers), true),
        ("outcome", Arc::new(outcomes), false),
        ("segments", narrow(rows, |of| of.segments), false),
        ("seed", narrow(rows, |of| of.seed), false),
        ("device_rollout", narrow(rows, |of| of.device_rollout), false),
        ("prefix_id", Arc::new(prefix_ids), true),
        ("prefix_hash", Arc::new(prefix_hashes), true),
        ("spans", spans(rows)?, false),
        ("group_mean", group(rows, |group| group.mean), true),
        ("advantage", group(rows, |group| group.advantage), true),
        ("logprobs", logprobs(rows), true),
    ])
}

/// Versions of the policy, each with the first of its tokens.
fn spans(rows: &[Trajectory]) -> Result<ArrayRef, ArrowError> {
    let fields = Fields::from(vec![
        Field::new("version", DataType::UInt16, false),
        Field::new("first_token", DataType::UInt32, false),
    ]);
    let item = Field::new("item", DataType::Struct(fields.clone()), false);
    let mut spans = ListBuilder::new(StructBuilder::from_fields(fields, rows.len())).with_field(item);
    let missing = || ArrowError::SchemaError("a span has no such field".into());
    for row in rows {
        for &Span { version, first } in &row.spans {
            let span = spans.values();
            span.field_builder::<UInt16Builder>(0).ok_or_else(missing)?.append_value(version);
            span.field_builder::<UInt32Builder>(1).ok_or_else(missing)?.append_value(first);
            span.append(true);
        }
        spans.append(true);
    }
    Ok(Arc::new(spans.finish()))
}

fn group(rows: &[Trajectory], of: fn(GroupScore) -> f64) -> ArrayRef {
    Arc::new(Float64Array::from_iter(rows.iter().map(|row| row.finished.group.map(of))))
}

/// Tokens of the prompts that were stored.
fn prompts(rows: &[Trajectory]) -> ArrayRef {
    let item = Field::new("item", DataType::UInt32, false);
    let mut lists = ListBuilder::new(UInt32Builder::new()).with_field(item);
    for row in rows {
        lists.values().append_slice(row.prompt.as_ref().map_or(&[], |prompt| &prompt.tokens));
        lists.append(row.prompt.is_some());
    }
    Arc::new(lists.finish())
}

fn logprobs(rows: &[Trajectory]) -> ArrayRef {
    let item = Field::new("item", DataType::Float32, false);
    let mut lists = ListBuilder::new(Float32Builder::new()).with_field(item);
    for row in rows {
        lists.values().append_slice(row.logprobs.as_deref().unwrap_or_default());
        lists.append(row.logprobs.is_some());
    }
    Arc::new(lists.finish())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow_array::Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float32Type, Float64Type, Int32Type, UInt16Type, UInt32Type, UInt64Type};
    use doorbell_contract::PREFIX_NONE;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use tempfile::tempdir;

    use super::*;
    use crate::rollout::RolloutId;
    use crate::trajectory::log::{Log, LogOptions};
    use crate::trajectory::{Outcome, Prompt};

    fn trajectory(number: u64) -> Trajectory {
        let k = number as u32;
        let tokens: Vec<u32> = (0..k % 50).map(|position| position ^ k << 8 | 1 << 31).collect();
        let finished = Finished {
            rollout: RolloutId::new(k % 8, k / 8),
            request: number / 4 + (1 << 40),
            member: k % 4,
            device_rollout: k,
            seed: u32::MAX - k,
            prefix_id: [PREFIX_NONE, 0, 7][k as usize % 3],
            prefix_hash: number << 50,
            prompt_tokens: 3 * k,
            answer_tokens: tokens.len() as u32,
            score: 0x8000 - k as i32 * 0x100,
            scorer: Scorer::ALL.get(k as usize % 4).copied(),
            segments: k % 5 + 1,
            outcome: Outcome::ALL[k as usize % 4],
            spans: k % 4,
            group: (!k.is_multiple_of(3))
                .then(|| GroupScore { mean: f64::from(k) / 7.0, advantage: -f64::from(k % 11) }),
            has_logprobs: k % 5 > 1,
            shard: 0,
            offset: 0,
        };
        let span = |place| Span { version: (k + place) as u16, first: place * 3 };
        let logprobs = finished.has_logprobs.then(|| tokens.iter().map(|&t| -((t >> 12) as f32)).collect());
        let prompt = (k % 4 == 1).then(|| Prompt {
            tokens: (0..3 * k).collect(),
            text: (k % 8 == 1).then(|| format!("prompt {k}")),
        });
        Trajectory { number, finished, tokens, spans: (0..k % 4).map(span).collect(), logprobs, prompt }
    }

    fn write_log(directory: &Path, count: u64) {
        let (mut log, _) =
            Log::open(directory, LogOptions { file_bytes: 10_000, ..LogOptions::default() }).unwrap();
        for number in 0..count {
            let trajectory = trajectory(number);
            log.append(&trajectory.finished, &trajectory.body()).unwrap();
        }
        log.commit().unwrap();
    }

    /// Reads the rows with the reader of the parquet crate.
    fn read(path: &Path) -> (usize, Vec<Trajectory>) {
        let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
        let groups = builder.metadata().num_row_groups();
        let mut rows = vec![];
        for batch in builder.build().unwrap() {
            let batch = batch.unwrap();
            let column = |name: &str| batch.column_by_name(name).unwrap().clone();
            let names = ["member", "prompt_tokens", "answer_tokens", "segments", "seed", "device_rollout"];
            let narrow: HashMap<_, _> = names
                .into_iter()
                .map(|name| (name, column(name).as_primitive::<UInt32Type>().clone()))
                .collect();
            let wide = |name: &str| column(name).as_primitive::<UInt64Type>().clone();
            let (number, rollout, request) = (wide("number"), wide("rollout"), wide("request"));
            let (prefix_id, prefix_hash) = (column("prefix_id"), wide("prefix_hash"));
            let prefix_id = prefix_id.as_primitive::<UInt32Type>();
            for row in 0..batch.num_rows() {
                assert_eq!(prefix_id.is_valid(row), prefix_hash.is_valid(row));
                let outcome = column("outcome").as_string::<i32>().value(row).to_owned();
                let double = |name: &str| column(name).as_primitive::<Float64Type>().clone();
                let (mean, advantage) = (double("group_mean"), double("advantage"));
                assert_eq!(mean.is_valid(row), advantage.is_valid(row));
                let group = mean
                    .is_valid(row)
                    .then(|| GroupScore { mean: mean.value(row), advantage: advantage.value(row) });
                let spans = column("spans").as_list::<i32>().value(row);
                let spans = spans.as_struct();
                let versions = spans.column_by_name("version").unwrap().as_primitive::<UInt16Type>();
                let firsts = spans.column_by_name("first_token").unwrap().as_primitive::<UInt32Type>();
                let spans: Vec<Span> = (0..spans.len())
                    .map(|at| Span { version: versions.value(at), first: firsts.value(at) })
                    .collect();
                let scorer = column("scored_by");
                let logprobs = column("logprobs");
                let logprobs = logprobs.as_list::<i32>();
                let logprobs = logprobs
                    .is_valid(row)
                    .then(|| logprobs.value(row).as_primitive::<Float32Type>().values().to_vec());
                let finished = Finished {
                    rollout: RolloutId::from_bits(rollout.value(row)),
                    request: request.value(row),
                    member: narrow["member"].value(row),
                    device_rollout: narrow["device_rollout"].value(row),
                    seed: narrow["seed"].value(row),
                    prefix_id: if prefix_id.is_valid(row) { prefix_id.value(row) } else { PREFIX_NONE },
                    // Without a prefix the hash means nothing, and is not kept.
                    prefix_hash: if prefix_hash.is_valid(row) {
                        prefix_hash.value(row)
                    } else {
                        number.value(row) << 50
                    },
                    prompt_tokens: narrow["prompt_tokens"].value(row),
                    answer_tokens: narrow["answer_tokens"].value(row),
                    score: column("score_raw").as_primitive::<Int32Type>().value(row),
                    scorer: scorer.is_valid(row).then(|| {
                        let name = scorer.as_string::<i32>().value(row);
                        Scorer::ALL.into_iter().find(|known| known.name() == name).unwrap()
                    }),
                    segments: narrow["segments"].value(row),
                    outcome: Outcome::ALL.into_iter().find(|known| known.name() == outcome).unwrap(),
                    spans: spans.len() as u32,
                    group,
                    has_logprobs: logprobs.is_some(),
                    shard: 0,
                    offset: 0,
                };
                let tokens = column("tokens").as_list::<i32>().value(row);
                let tokens = tokens.as_primitive::<UInt32Type>().values().to_vec();
                let (ids, texts) = (column("prompt_token_ids"), column("prompt_text"));
                let (ids, texts) = (ids.as_list::<i32>(), texts.as_string::<i32>());
                let prompt = ids.is_valid(row).then(|| Prompt {
                    tokens: ids.value(row).as_primitive::<UInt32Type>().values().to_vec(),
                    text: texts.is_valid(row).then(|| texts.value(row).to_owned()),
                });
                let number = number.value(row);
                let trajectory = Trajectory { number, finished, tokens, spans, logprobs, prompt };
                let score = column("score").as_primitive::<Float64Type>().value(row);
                assert_eq!(score, trajectory.score());
                rows.push(trajectory);
            }
        }
        (groups, rows)
    }

    #[test]
    fn what_is_exported_is_read_and_row_groups_are_bounded() {
        let directory = tempdir().unwrap();
        let (log, file) = (directory.path().join("log"), directory.path().join("out.parquet"));
        write_log(&log, 3000);
        fs::write(&file, "an older file").unwrap();
        let options = ExportOptions { row_group_rows: 500, row_group_tokens: 5000 };
        let verified = export(&log, &file, options).unwrap();
        assert_eq!((verified.records, verified.damage.len()), (3000, 0));
        let (groups, rows) = read(&file);
        assert_eq!(rows, (0..3000).map(trajectory).collect::<Vec<_>>());
        // 24.5 tokens a row: the tokens end a group before the rows do.
        assert!((14..=16).contains(&groups), "{groups} row groups");
        let names: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "nothing is left behind: {names:?}");
    }

    #[test]
    fn an_export_that_fails_leaves_an_older_file_as_it_was() {
        let directory = tempdir().unwrap();
        let log = directory.path().join("log");
        let file = directory.path().join("out.parquet");
        fs::write(&file, "an older file").unwrap();
        fs::create_dir(&log).unwrap();
        assert!(matches!(
            export(&log, &file, ExportOptions::default()),
            Err(ExportError::Log(LogError::NoLog { .. }))
        ));
        write_log(&log, 3);
        let missing = directory.path().join("no/such/file");
        let error = export(&log, &missing, ExportOptions::default()).unwrap_err();
        assert!(matches!(error, ExportError::Io { .. }), "{error}");
        // A file of another version ends the log in the middle.
        let files: Vec<_> = fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path()).collect();
        let first = files.iter().find(|path| path.extension().is_some()).unwrap();
        let mut bytes = fs::read(first).unwrap();
        bytes[8] = 9;
        let check = crc32c::crc32c(&bytes[..28]);
        bytes[28..32].copy_from_slice(&check.to_le_bytes());
        fs::write(first, bytes).unwrap();
        assert!(matches!(
            export(&log, &file, ExportOptions::default()),
            Err(ExportError::Log(LogError::Version { .. }))
        ));
        assert_eq!(fs::read_to_string(&file).unwrap(), "an older file");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    /// As root, renaming replaced `/dev/null` of the whole machine; here a link stands for it.
    #[cfg(unix)]
    #[test]
    fn an_export_goes_through_links_and_devices() {
        use std::os::unix::fs::symlink;

        let directory = tempdir().unwrap();
        let log = directory.path().join("log");
        write_log(&log, 3);
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "an older file").unwrap();
        for (link, target) in [
            ("link", at("file")),
            ("null", "/dev/null".into()),
            ("full", "/dev/full".into()),
            ("nowhere", at("no")),
        ] {
            symlink(target, at(link)).unwrap();
        }
        export(&log, &at("link"), ExportOptions::default()).unwrap();
        assert_eq!(read(&at("file")).1.len(), 3);
        export(&log, &at("null"), ExportOptions::default()).unwrap();
        for refused in ["full", "nowhere"] {
            export(&log, &at(refused), ExportOptions::default()).unwrap_err();
        }
        for link in ["link", "null", "full", "nowhere"] {
            assert!(at(link).symlink_metadata().unwrap().is_symlink(), "{link}");
        }
    }

    /// Exports of one process to one path, at once: each has a file of its own until it is whole.
    #[test]
    fn exports_at_once_do_not_meet() {
        let directory = tempdir().unwrap();
        let log = directory.path().join("log");
        drop(Log::open(&log, LogOptions::default()).unwrap().0);
        {
            let (mut log, _) = Log::open(&log, LogOptions::default()).unwrap();
            log.append(&trajectory(0).finished, &trajectory(0).body()).unwrap();
            log.commit().unwrap();
        }
        let file = directory.path().join("out.parquet");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        export(&log, &file, ExportOptions::default()).unwrap();
                        ParquetRecordBatchReaderBuilder::try_new(File::open(&file).unwrap()).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left over");
    }
}
