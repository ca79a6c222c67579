//! Trajectories as Parquet, for whoever trains on them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;

use super::columns::{self, Row};
use super::log::{LogError, Reader, Verified, run_of, runs};
use super::record::Trajectory;

/// How a log is exported. [`Default`] makes one, whose fields can be set; there may be more of them in later versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportOptions {
    /// Most rows of a row group.
    pub row_group_rows: usize,
    /// Tokens of answers and stored prompts after which a row group ends; four bytes of a prompt's text count as a token. With the
    /// longest trajectory this bounds the memory of the export, to some ten bytes per token.
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
    #[error("cannot write {} as Parquet: {source}; give a path that can be written, on a disk with room", path.display())]
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
    // As any new file, which takes the mask; and without the path in its errors, which nobody knows. It goes away unless it is renamed.
    let make = |path: &Path| File::options().read(true).write(true).create_new(true).open(path);
    let scratch = scratch.make_in(parent, make).map_err(io)?;
    // A file that only some may read stays so. It holds prompts and answers.
    match fs::metadata(path) {
        Ok(metadata) => scratch.as_file().set_permissions(metadata.permissions()).map_err(io)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
    }
    let verified = write(reader, directory, scratch.as_file(), path, options)?;
    scratch.as_file().sync_all().map_err(io)?;
    scratch.persist(path).map_err(|error| io(error.error))?;
    // The file is whole and has its name. A directory that cannot be opened or synced still keeps that, if the machine does not fail soon.
    let _ = File::open(parent).and_then(|directory| directory.sync_all());
    Ok(verified)
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
        // Tokens hardly repeat within a page, and their least and greatest tell nothing.
        .set_column_dictionary_enabled(tokens, false)
        .set_column_dictionary_enabled(logprobs, false)
        .build();
    let out = file.try_clone().map_err(io)?;
    let mut writer =
        SerializedFileWriter::new(out, columns::schema().map_err(parquet)?, Arc::new(properties))
            .map_err(parquet)?;
    // Parquet takes the columns of a row group one after the other, so the rows are kept until it ends.
    let mut write_group = |rows: &mut Vec<Trajectory>| -> Result<(), ExportError> {
        // A run is noted before its first record, so the runs of these records are known now, also while somebody writes.
        let runs = runs(directory)?;
        let known: Vec<Row> =
            rows.iter().map(|trajectory| Row { trajectory, run: run_of(&runs, trajectory.number) }).collect();
        let mut group = writer.next_row_group().map_err(parquet)?;
        columns::write(&known, &mut group).map_err(parquet)?;
        group.close().map_err(parquet)?;
        rows.clear();
        Ok(())
    };
    let mut rows = vec![];
    let mut tokens = 0;
    let verified = reader.verify_each(|trajectory| {
        let prompt = trajectory.prompt.as_ref();
        let text = prompt.and_then(|prompt| prompt.text.as_ref()).map_or(0, String::len);
        tokens += trajectory.tokens.len()
            + prompt.map_or(0, |prompt| prompt.tokens.len())
            + text / size_of::<u32>();
        rows.push(trajectory);
        if tokens < options.row_group_tokens && rows.len() < options.row_group_rows.max(1) {
            return Ok(());
        }
        tokens = 0;
        write_group(&mut rows)
    })?;
    if !rows.is_empty() {
        write_group(&mut rows)?;
    }
    let runs = serde_json::to_string(&runs(directory)?).map_err(|error| io(error.into()))?;
    writer.append_key_value_metadata(KeyValue::new("doorbell.runs".to_owned(), runs));
    writer.close().map_err(parquet)?;
    Ok(verified)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use doorbell_contract::PREFIX_NONE;
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::{Field, RowAccessor as _};
    use tempfile::tempdir;

    use super::super::record::{Finished, GroupScore, Span};
    use super::*;
    use crate::reward::Scorer;
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

    /// Prompts that are stored take memory as answers do, so they count.
    #[test]
    fn row_groups_end_by_prompts_too() {
        let directory = tempdir().unwrap();
        let (mut log, _) = Log::open(directory.path(), LogOptions::default()).unwrap();
        for number in 0..10 {
            let mut record = trajectory(number);
            record.tokens = vec![1];
            record.finished.answer_tokens = 1;
            record.finished.prompt_tokens = 1000;
            (record.finished.has_logprobs, record.logprobs) = (false, None);
            (record.finished.spans, record.spans) = (0, vec![]);
            record.prompt = Some(Prompt { tokens: vec![7; 1000], text: None });
            log.append(&record.finished, &record.body()).unwrap();
        }
        log.commit().unwrap();
        let path = directory.path().join("out.parquet");
        let options = ExportOptions { row_group_tokens: 2000, ..ExportOptions::default() };
        export(directory.path(), &path, options).unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(reader.num_row_groups(), 5);
    }

    /// Whoever may not read the file that is there may not read the new one.
    #[cfg(unix)]
    #[test]
    fn an_existing_file_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempdir().unwrap();
        write_log(directory.path(), 3);
        let path = directory.path().join("out.parquet");
        File::create(&path).unwrap().set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        export(directory.path(), &path, ExportOptions::default()).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
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
        let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        let rows = reader.get_row_iter(None).unwrap();
        (reader.num_row_groups(), rows.map(|row| trajectory_of(&row.unwrap())).collect())
    }

    fn trajectory_of(row: &parquet::record::Row) -> Trajectory {
        let fields: HashMap<&str, &Field> =
            row.get_column_iter().map(|(name, field)| (&**name, field)).collect();
        let narrow = |name: &str| uint(fields[name]).unwrap();
        let wide = |name: &str| match fields[name] {
            Field::ULong(value) => Some(*value),
            Field::Null => None,
            other => panic!("{name} is {other}"),
        };
        let double = |name: &str| match fields[name] {
            Field::Double(value) => Some(*value),
            Field::Null => None,
            other => panic!("{name} is {other}"),
        };
        let text = |name: &str| match fields[name] {
            Field::Str(text) => Some(text.clone()),
            Field::Null => None,
            other => panic!("{name} is {other}"),
        };
        let list = |name: &str| match fields[name] {
            Field::ListInternal(list) => Some(list.elements()),
            Field::Null => None,
            other => panic!("{name} is {other}"),
        };
        let numbers = |list: &[Field]| list.iter().map(|item| uint(item).unwrap()).collect::<Vec<u32>>();
        let Field::Int(score) = *fields["score_raw"] else { panic!("score_raw is no number") };
        let (number, prefix) = (wide("number").unwrap(), (uint(fields["prefix_id"]), wide("prefix_hash")));
        assert_eq!(prefix.0.is_some(), prefix.1.is_some());
        let group = (double("group_mean"), double("advantage"));
        assert_eq!(group.0.is_some(), group.1.is_some());
        let spans = list("spans").unwrap().iter().map(|span| {
            let Field::Group(span) = span else { panic!("a span is {span}") };
            Span { version: span.get_ushort(0).unwrap(), first: span.get_uint(1).unwrap() }
        });
        let spans: Vec<Span> = spans.collect();
        let logprobs = list("logprobs").map(|list| {
            let floats = list.iter().map(|item| match item {
                Field::Float(value) => *value,
                other => panic!("a log-probability is {other}"),
            });
            floats.collect::<Vec<f32>>()
        });
        let scorer = text("scored_by");
        let finished = Finished {
            rollout: RolloutId::from_bits(wide("rollout").unwrap()),
            request: wide("request").unwrap(),
            member: narrow("member"),
            device_rollout: narrow("device_rollout"),
            seed: narrow("seed"),
            prefix_id: prefix.0.unwrap_or(PREFIX_NONE),
            // Without a prefix the hash means nothing, and is not kept.
            prefix_hash: prefix.1.unwrap_or(number << 50),
            prompt_tokens: narrow("prompt_tokens"),
            answer_tokens: narrow("answer_tokens"),
            score,
            scorer: scorer
                .map(|name| Scorer::ALL.into_iter().find(|known| known.name() == name).expect("a scorer")),
            segments: narrow("segments"),
            outcome: Outcome::ALL
                .into_iter()
                .find(|known| text("outcome").as_deref() == Some(known.name()))
                .expect("an outcome"),
            spans: spans.len() as u32,
            group: group.0.zip(group.1).map(|(mean, advantage)| GroupScore { mean, advantage }),
            has_logprobs: logprobs.is_some(),
            shard: 0,
            offset: 0,
        };
        let prompt = list("prompt_token_ids")
            .map(|tokens| Prompt { tokens: numbers(tokens), text: text("prompt_text") });
        let tokens = numbers(list("tokens").unwrap());
        let trajectory = Trajectory { number, finished, tokens, spans, logprobs, prompt };
        assert_eq!(double("score"), Some(trajectory.score()));
        trajectory
    }

    fn uint(field: &Field) -> Option<u32> {
        match field {
            Field::UInt(value) => Some(*value),
            Field::Null => None,
            other => panic!("{other} is no unsigned number"),
        }
    }

    #[test]
    fn what_is_exported_is_read_and_row_groups_are_bounded() {
        let directory = tempdir().unwrap();
        let (log, file) = (directory.path().join("log"), directory.path().join("out.parquet"));
        write_log(&log, 3000);
        fs::write(&file, "an older file").unwrap();
        let options = ExportOptions { row_group_rows: 500, row_group_tokens: 500_000 };
        let verified = export(&log, &file, options).unwrap();
        assert_eq!((verified.records, verified.damage.len()), (3000, 0));
        let (groups, rows) = read(&file);
        assert_eq!(rows, (0..3000).map(trajectory).collect::<Vec<_>>());
        // A quarter of the rows has a prompt, of three times as many tokens as its number: the rows end the first groups, the tokens the last.
        let tokens: usize = rows
            .iter()
            .map(|row| row.tokens.len() + row.prompt.as_ref().map_or(0, |prompt| prompt.tokens.len()))
            .sum();
        assert!(
            (6.max(tokens / 500_000)..=tokens / 500_000 + 3).contains(&groups),
            "{groups} row groups of {tokens} tokens"
        );
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
        assert_eq!(
            error.to_string(),
            format!(
                "cannot write {}: No such file or directory (os error 2); give a path that can be written, on a disk with room",
                missing.display()
            )
        );
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
                        SerializedFileReader::new(File::open(&file).unwrap()).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left over");
    }
}
