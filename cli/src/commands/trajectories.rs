//! `doorbell trajectories …`: looks into what a run stored.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use doorbell_checkpoint::text::Text;
use doorbell_runtime::reward::Scorer;
use doorbell_runtime::trajectory::log::{LogError, Reader, Run, Verified, run_of, runs};
#[cfg(feature = "parquet")]
use doorbell_runtime::trajectory::parquet::{ExportError, ExportOptions, export};
use doorbell_runtime::trajectory::{Outcome, Trajectory};
use serde_json::json;

use crate::busy::Busy;
use crate::failure::{DIFFERENT, Failure};
use crate::models;
use crate::output;
use crate::output::table;

/// Trajectories that a run stored. A torn write at the end of a log is no damage: nothing of it was ever stored.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Show what a log holds
    Info {
        /// The directory of the log
        directory: PathBuf,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Read every record, and report each damaged one with file, offset and number
    Verify {
        /// The directory of the log
        directory: PathBuf,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Write all whole records to a file that other programs read
    Export {
        /// The directory of the log
        directory: PathBuf,
        /// The Parquet file; an older one is replaced when the new one is whole
        #[arg(long, value_name = "FILE")]
        parquet: PathBuf,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Print the first records
    Show {
        /// The directory of the log
        directory: PathBuf,
        /// How many records
        #[arg(long, short = 'n', default_value_t = 20)]
        limit: usize,
        /// How many tokens of each
        #[arg(long, default_value_t = 6)]
        tokens: usize,
        /// Show them as text, as this language model has it (`doorbell model list`)
        #[arg(long)]
        model: Option<String>,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
}

/// Runs the subcommand.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    let verified = match command {
        Command::Info { directory, json } => info(&directory, json)?,
        Command::Verify { directory, json } => {
            let read = || Reader::open(&directory).and_then(Reader::verify);
            let verified = Busy::during("reading the log", read).map_err(failure)?;
            // Damage there hides no damage of the records.
            let noted = runs(&directory);
            if json {
                let mut value = whole(&verified);
                value["runs_problem"] = json!(noted.as_ref().err().map(ToString::to_string));
                output::print_raw(&output::json(&value))?;
            } else {
                output::print(&format!(
                    "{} of {} records whole in {}: {} tokens, {} bytes\n",
                    verified.records,
                    verified.records + lost(&verified),
                    files(&verified),
                    verified.tokens,
                    verified.bytes
                ))?;
            }
            let code = end(&verified);
            return noted.map(|_| code).map_err(failure);
        }
        #[cfg(not(feature = "parquet"))]
        Command::Export { .. } => return Err(crate::left_out::command("trajectories export", "parquet")),
        #[cfg(feature = "parquet")]
        Command::Export { directory, parquet, json } => {
            output::check("Parquet", &parquet)?;
            let write = || export(&directory, &parquet, ExportOptions::default());
            let verified = Busy::during("writing Parquet", write).map_err(|error| match error {
                ExportError::Log(error) => failure(error),
                error => Failure::input(error),
            })?;
            if json {
                let mut value = whole(&verified);
                value["parquet"] = json!(output::path(&parquet));
                output::print_raw(&output::json(&value))?;
                return Ok(end(&verified));
            }
            output::print(&format!(
                "{} trajectories, {} tokens written to {}\n",
                verified.records,
                verified.tokens,
                parquet.display()
            ))?;
            verified
        }
        Command::Show { directory, limit, tokens, model, json } => {
            show(&directory, limit, tokens, model.as_deref(), json)?
        }
    };
    Ok(end(&verified))
}

/// Tells what is not whole.
fn end(verified: &Verified) -> ExitCode {
    tell(verified);
    if verified.damage.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) }
}

/// What was read, for programs.
fn whole(verified: &Verified) -> serde_json::Value {
    json!({
        "files": verified.files, "records": verified.records, "tokens": verified.tokens, "bytes": verified.bytes,
        "damaged": verified.damage.len(), "lost": lost(verified),
        "torn_bytes": verified.torn.as_ref().map_or(0, |torn| torn.bytes),
    })
}

/// A table of runs that is damaged is stored data that is damaged; the rest is input that cannot be read.
fn failure(error: LogError) -> Failure {
    match error {
        LogError::Runs { .. } => Failure::failed(error),
        error => Failure::input(error),
    }
}

/// Records that are known to be lost.
fn lost(verified: &Verified) -> u64 {
    verified.damage.iter().map(|damage| damage.lost).sum()
}

fn files(verified: &Verified) -> String {
    format!("{} file{}", verified.files, if verified.files == 1 { "" } else { "s" })
}

/// What is not whole, to standard error.
fn tell(verified: &Verified) {
    for damage in &verified.damage {
        output::tell(format_args!("damaged: {damage}"));
    }
    if let Some(torn) = &verified.torn {
        output::tell(format_args!(
            "torn: {}: {} bytes from offset {} on are a write that did not come to its end, or is under way; none of it \
             was stored",
            torn.file.display(),
            torn.bytes,
            torn.offset
        ));
    }
}

/// What `info` adds up.
#[derive(Default)]
struct Sums {
    outcomes: [u64; Outcome::ALL.len()],
    lengths: Vec<u32>,
    score: f64,
    segments: u64,
    /// By the number of their run: both begin anew in each.
    requests: HashSet<(u32, u64)>,
    versions: HashSet<(u32, u16)>,
    logprobs: u64,
    groups: u64,
    scorers: [u64; Scorer::ALL.len()],
}

impl Sums {
    fn add(&mut self, run: u32, trajectory: &Trajectory) {
        let finished = &trajectory.finished;
        self.outcomes[finished.outcome as usize] += 1;
        self.lengths.push(finished.answer_tokens);
        self.score += trajectory.score();
        self.segments += u64::from(finished.segments);
        self.requests.insert((run, finished.request));
        self.versions.extend(trajectory.spans.iter().map(|span| (run, span.version)));
        self.logprobs += u64::from(finished.has_logprobs);
        self.groups += u64::from(finished.group.is_some());
        if let Some(scorer) = finished.scorer {
            self.scorers[scorer as usize - 1] += 1;
        }
    }

    /// How many each has scored, by name.
    fn scored(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Scorer::ALL.into_iter().map(|scorer| (scorer.name(), self.scorers[scorer as usize - 1]))
    }

    /// The length that `percent` of the answers do not exceed.
    fn length(&self, percent: usize) -> u32 {
        let last = self.lengths.len().saturating_sub(1);
        self.lengths.get(last * percent / 100).copied().unwrap_or(0)
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / self.lengths.len().max(1) as f64
    }
}

fn info(directory: &Path, json: bool) -> Result<Verified, Failure> {
    let mut sums = Sums::default();
    let reader = Reader::open(directory).map_err(failure)?;
    let noted = runs(directory).map_err(failure)?;
    let verified = reader
        .verify_each(|trajectory| {
            sums.add(run_of(&noted, trajectory.number).map_or(0, |run| run.run), &trajectory);
            Ok(())
        })
        .map_err(failure)?;
    sums.lengths.sort_unstable();
    let [p50, p99, longest] = [50, 99, 100].map(|percent| sums.length(percent));
    let (score, segments) = (sums.mean(sums.score), sums.mean(sums.segments as f64));
    if json {
        let outcomes =
            Outcome::ALL.map(|outcome| (outcome.name().to_owned(), sums.outcomes[outcome as usize].into()));
        let value = json!({
            "files": verified.files, "records": verified.records, "tokens": verified.tokens, "bytes": verified.bytes,
            "requests": sums.requests.len(), "answers": { "p50": p50, "p99": p99, "max": longest },
            "score_mean": score, "segments_mean": segments, "versions": sums.versions.len(),
            "with_logprobs": sums.logprobs, "with_advantages": sums.groups,
            "scored_by": sums.scored().map(|(name, count)| (name.to_owned(), count.into()))
                .collect::<serde_json::Map<_, _>>(),
            "outcomes": outcomes.into_iter().collect::<serde_json::Map<_, _>>(),
            "damaged": verified.damage.len(), "lost": lost(&verified),
            "runs": noted,
            "torn_bytes": verified.torn.as_ref().map_or(0, |torn| torn.bytes),
        });
        output::print_raw(&output::json(&value))?;
        return Ok(verified);
    }
    let outcomes: Vec<String> = Outcome::ALL
        .iter()
        .map(|&outcome| format!("{} {outcome}", sums.outcomes[outcome as usize]))
        .collect();
    let scored: Vec<String> = sums
        .scored()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    output::print(&format!(
        "records   {} for {} requests, in {} of {} bytes\nanswers   {} tokens; p50 {p50}, p99 {p99}, longest {longest}\n\
         outcomes  {}\nscore     {score:.4} on average{}\nsegments  {segments:.2} on average\ndamage    {} place{}, {} \
         record{} lost\n{}",
        verified.records,
        sums.requests.len(),
        files(&verified),
        verified.bytes,
        verified.tokens,
        outcomes.join(", "),
        if scored.is_empty() { String::new() } else { format!("; by {}", scored.join(", ")) },
        verified.damage.len(),
        if verified.damage.len() == 1 { "" } else { "s" },
        lost(&verified),
        if lost(&verified) == 1 { "" } else { "s" },
        noted
            .iter()
            .map(|Run { run, id, first, seed, .. }| format!(
                "run       {run} ({}), from record {first}, seed {seed}\n",
                output::plain(id)
            ))
            .collect::<String>(),
    ))?;
    Ok(verified)
}

/// Reads no further than it shows; so it tells of damage up to there.
fn show(
    directory: &Path,
    limit: usize,
    tokens: usize,
    model: Option<&str>,
    json: bool,
) -> Result<Verified, Failure> {
    use doorbell_runtime::trajectory::log::Piece;

    let text = model.map(|model| {
        let image = models::image(model)?;
        Text::new(&image.about, image.model.shape.vocabulary).map_err(Failure::input)
    });
    let text = text.transpose()?;
    let mut table = table(
        [
            "number",
            "rollout",
            "request",
            "member",
            "prompt",
            "answer",
            "segments",
            "outcome",
            "score",
            "by",
            "seed",
            if text.is_some() { "text" } else { "tokens" },
        ],
        0,
    );
    for column in table.column_iter_mut().skip(11) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    let mut verified = Verified::default();
    let mut records = vec![];
    let mut reader = Reader::open(directory).map_err(failure)?;
    while (verified.records as usize) < limit
        && let Some(piece) = reader.next()
    {
        match piece.map_err(failure)? {
            Piece::Record(trajectory) => {
                verified.records += 1;
                let finished = &trajectory.finished;
                let head = &trajectory.tokens[..tokens.min(trajectory.tokens.len())];
                if json {
                    let text =
                        text.as_ref().map(|text| text.decode(head)).transpose().map_err(Failure::input)?;
                    records.push(json!({
                        "number": trajectory.number, "rollout": finished.rollout.to_string(), "request": finished.request,
                        "member": finished.member, "prompt_tokens": finished.prompt_tokens,
                        "answer_tokens": finished.answer_tokens, "segments": finished.segments,
                        "outcome": finished.outcome.to_string(), "score": trajectory.score(),
                        "scored_by": finished.scorer.map(Scorer::name), "seed": finished.seed, "tokens": head, "text": text,
                    }));
                    continue;
                }
                let mut head = match &text {
                    None => head.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
                    Some(text) => output::plain(&text.decode(head).map_err(Failure::input)?),
                };
                if trajectory.tokens.len() > tokens {
                    head += " …";
                }
                table.add_row([
                    trajectory.number.to_string(),
                    finished.rollout.to_string(),
                    finished.request.to_string(),
                    finished.member.to_string(),
                    finished.prompt_tokens.to_string(),
                    finished.answer_tokens.to_string(),
                    finished.segments.to_string(),
                    finished.outcome.to_string(),
                    format!("{:.4}", trajectory.score()),
                    finished.scorer.map_or("", Scorer::name).to_owned(),
                    finished.seed.to_string(),
                    head,
                ]);
            }
            Piece::Damage(damage) => verified.damage.push(damage),
            Piece::Torn(torn) => verified.torn = Some(torn),
        }
    }
    if json {
        output::print_raw(&output::json(&json!({ "records": records })))?;
    } else {
        output::print(&format!("{table}\n"))?;
    }
    Ok(verified)
}
