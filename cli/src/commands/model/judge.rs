//! `doorbell model judge`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use doorbell_checkpoint::text::Text;
use doorbell_lm::judge::{Judgement, judge, vouches};
use indicatif::ProgressBar;
use serde_json::json;

use crate::failure::{DIFFERENT, Failure};
use crate::inputs;
use crate::models;
use crate::output;

/// Runs both over text, and compares their distributions at every position; the first few tokens by the plain loops of the specification,
/// too. Ends with code 1 beyond a bar, or if those give other bytes.
#[derive(clap::Args)]
pub struct Args {
    /// The model as it was published: a name, a GGUF file or a directory
    model: String,
    /// Tokens in all
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    tokens: usize,
    /// Texts, one after the other; by default the contract, the architecture and the licence in this program
    #[arg(value_name = "TEXT")]
    texts: Vec<PathBuf>,
    /// Tokens that a position sees at most: the text is cut into sequences of so many
    #[arg(long, value_name = "N", default_value_t = 512)]
    window: usize,
    #[command(flatten)]
    cap: models::CapArgs,
    /// Largest mean divergence, in nats
    #[arg(long, value_name = "NATS", default_value_t = 0.02)]
    max_divergence: f64,
    /// Largest change of the perplexity
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = crate::commands::fraction)]
    max_change: f64,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Tokens that the plain loops run.
const PLAIN: usize = 8;

/// Text of our own, so that no file is needed.
const TEXTS: [&str; 3] = [
    include_str!("../../../../docs/contract.md"),
    include_str!("../../../../docs/architecture.md"),
    include_str!("../../../../LICENSE"),
];

/// What the default text says nothing about.
const UNFIT: &str = "the text is documentation of this program, which the model may not have been made for: the two perplexities compare with each \
                     other only. Give a TEXT of the model's own kind to judge the model\n";

/// Prints how near the integers come.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let texts: Vec<String> = if args.texts.is_empty() {
        TEXTS.map(str::to_owned).into()
    } else {
        args.texts.iter().map(|path| inputs::text("the text", path)).collect::<Result<_, _>>()?
    };
    // What the cap costs shows against the model as it was published, which sees all.
    let (exact, image) = models::published(&args.model)?;
    let image = args.cap.apply(image)?;
    let shape = image.model.shape;
    if !(2..=shape.context).contains(&args.window) {
        return Err(Failure::input(format!(
            "--window is {}; it must be 2 to {}",
            args.window, shape.context
        )));
    }
    let text = Text::new(&image.about, shape.vocabulary).map_err(Failure::input)?;
    let mut sequences: Vec<Vec<u32>> = vec![];
    let mut rest = args.tokens;
    for part in &texts {
        let tokens = text.encode(part).map_err(Failure::input)?;
        let tokens = &tokens[..tokens.len().min(rest)];
        rest -= tokens.len();
        sequences.extend(tokens.chunks(args.window).map(<[u32]>::to_vec));
    }
    if sequences.is_empty() {
        return Err(Failure::input("there is nothing to judge: give a text, and --tokens above 0"));
    }
    let began = Instant::now();
    let first = &sequences[0][..sequences[0].len().min(PLAIN)];
    if !vouches(&image.model, first) {
        return Err(Failure::failed(
            "a pass with many tokens gives other bytes than the plain loops: report this",
        ));
    }
    let bar =
        if output::shows_progress() { ProgressBar::new(args.tokens as u64) } else { ProgressBar::hidden() };
    let mut all = Judgement::default();
    for sequence in &sequences {
        all.add(&judge(&exact, &image.model, sequence));
        bar.inc(sequence.len() as u64);
    }
    bar.finish_and_clear();
    let [published, held] = all.perplexities();
    let change = held / published - 1.0;
    // 10 fraction bits, and 4 of the scale.
    let largest = f64::from(all.largest_scale) * 127.0 / 16_384.0;
    let good = all.mean_divergence() <= args.max_divergence && change.abs() <= args.max_change;
    if args.json {
        let value = json!({
            "model": image.about.name, "text": if args.texts.is_empty() { "documentation of this program" } else { "given" },
            "positions": all.positions, "window": args.window,
            "mean_divergence": all.mean_divergence(), "largest_divergence": all.largest,
            "perplexity": { "exact": published, "held": held, "change": change },
            "agreement": all.agreement(), "largest_stored": largest, "seconds": began.elapsed().as_secs_f64(), "good": good,
        });
        output::print_raw(&output::json(&value))?;
    } else {
        output::print(&format!(
            "{}: {} positions, {} tokens to a sequence, {:.1} s\n\
             divergence  {:.4} nats in the mean (bar {}), {:.3} at most\n\
             perplexity  {held:.3} for {published:.3} ({:+.2} %, bar {:.2} %)\n\
             most likely token the same at {:.1} % of positions\n\
             keys and values up to {:.1} (cut at 508.0)\n{}",
            output::plain(&image.about.name),
            all.positions,
            args.window,
            began.elapsed().as_secs_f64(),
            all.mean_divergence(),
            args.max_divergence,
            all.largest,
            100.0 * change,
            100.0 * args.max_change,
            100.0 * all.agreement(),
            largest,
            if args.texts.is_empty() { UNFIT } else { "" },
        ))?;
    }
    Ok(ExitCode::from(if good { 0 } else { DIFFERENT }))
}
