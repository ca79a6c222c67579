//! Prompts of a file, as a model has them.

use std::path::Path;
use std::sync::Arc;

use doorbell_checkpoint::text::Text;
use doorbell_lm::Image;
use doorbell_trace::{Prompt, Request, Trace};

use super::Args;
use crate::failure::Failure;
use crate::models;
use crate::output;

/// The prompts of a file, each of which is a request.
pub struct Prompts {
    /// What has made tokens of them.
    pub text: Arc<Text>,
    /// Their tokens.
    pub tokens: Vec<Vec<u32>>,
    /// What the file has for each.
    pub texts: Vec<String>,
    /// Their reference answers, as far as they have any.
    pub references: Vec<Option<String>>,
}

impl Prompts {
    /// Reads a file of prompts for a model, and makes requests of them.
    pub fn read(path: &Path, args: &Args, image: &Image) -> Result<(Prompts, Trace), Failure> {
        let lines = Prompt::read(path).map_err(Failure::input)?;
        let shape = image.model.shape;
        let text = Text::new(&image.about, shape.vocabulary).map_err(Failure::input)?;
        let source = path.display().to_string();
        let (mut requests, mut tokens, mut texts, mut references) = (vec![], vec![], vec![], vec![]);
        let mut cut = 0;
        for (Prompt { prompt, answer, max_tokens }, line) in lines.into_iter().zip(1..) {
            let given = prompt;
            let prompt = models::prompt(&text, shape.context, &given, args.raw)
                .map_err(|failure| Failure::input(format!("{source}:{line}: {failure}")))?;
            let room = (shape.context - prompt.len()) as u32;
            let most = max_tokens.unwrap_or(args.max_tokens).get();
            cut += usize::from(most > room);
            requests.push(Request {
                arrival_ms: 0,
                prompt_tokens: prompt.len() as u32,
                output_tokens: most.min(room),
                prefix: vec![],
            });
            tokens.push(prompt);
            texts.push(given);
            references.push(answer);
        }
        if cut > 0 {
            output::tell(format_args!(
                "{source}: answers to {cut} of {} prompts end where the model's context of {} is full, before their max_tokens",
                requests.len(),
                shape.context
            ));
        }
        Ok((Prompts { text: Arc::new(text), tokens, texts, references }, Trace { source, requests }))
    }
}
