//! What a file that others made may cost. The importers, the tokeniser and chat templates take their limits from here.
//!
//! An environment variable sets each limit. The error of a limit names the limit and its variable.

/// A bound of what a file may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What is bounded.
    pub what: &'static str,
    /// The environment variable that sets it.
    pub variable: &'static str,
    /// The bound where the variable is not set.
    pub usual: u64,
}

/// Bytes of a file of weights: GGUF, safetensors, an image.
pub const WEIGHT_BYTES: Limit =
    Limit { what: "bytes of a file of weights", variable: "DOORBELL_LIMIT_WEIGHT_BYTES", usual: 16 << 30 };
/// Bytes of a JSON file: config.json, tokenizer.json, an index of shards.
pub const JSON_BYTES: Limit =
    Limit { what: "bytes of a JSON file", variable: "DOORBELL_LIMIT_JSON_BYTES", usual: 256 << 20 };
/// Bytes of a chat template.
pub const TEMPLATE_BYTES: Limit =
    Limit { what: "bytes of a chat template", variable: "DOORBELL_LIMIT_TEMPLATE_BYTES", usual: 1 << 20 };
/// Instructions that a chat template executes.
pub const TEMPLATE_STEPS: Limit =
    Limit { what: "steps of a chat template", variable: "DOORBELL_LIMIT_TEMPLATE_STEPS", usual: 2_000_000 };
/// Bytes that a chat template writes.
pub const TEMPLATE_OUTPUT: Limit = Limit {
    what: "bytes that a chat template writes",
    variable: "DOORBELL_LIMIT_TEMPLATE_OUTPUT",
    usual: 16 << 20,
};
/// Macros, calls and loops of a chat template within each other, and values within each other in `tojson`.
pub const TEMPLATE_DEPTH: Limit =
    Limit { what: "levels of a chat template", variable: "DOORBELL_LIMIT_TEMPLATE_DEPTH", usual: 100 };
/// Bytes of memory that a chat template takes, its intermediate values included.
pub const TEMPLATE_MEMORY: Limit = Limit {
    what: "bytes of memory for a chat template",
    variable: "DOORBELL_LIMIT_TEMPLATE_MEMORY",
    usual: 256 << 20,
};
/// Seconds of CPU time that a chat template takes.
pub const TEMPLATE_SECONDS: Limit =
    Limit { what: "seconds for a chat template", variable: "DOORBELL_LIMIT_TEMPLATE_SECONDS", usual: 5 };

/// How many times as long a tokeniser may make a text: the product of what each of its stages makes of a byte, in bytes. The
/// same number bounds its stages, and the tokens that it puts around a text.
pub const TOKENIZER_GROWTH: Limit =
    Limit { what: "times the bytes of a text", variable: "DOORBELL_LIMIT_TOKENIZER_GROWTH", usual: 256 };

/// All limits.
pub const ALL: [Limit; 9] = [
    WEIGHT_BYTES,
    JSON_BYTES,
    TEMPLATE_BYTES,
    TEMPLATE_STEPS,
    TEMPLATE_OUTPUT,
    TEMPLATE_DEPTH,
    TEMPLATE_MEMORY,
    TEMPLATE_SECONDS,
    TOKENIZER_GROWTH,
];

impl Limit {
    /// The bound that holds.
    ///
    /// # Errors
    /// If the variable is set to something else than a whole number of at least 1: what, and what to do.
    pub fn value(self) -> Result<u64, String> {
        let Some(set) = std::env::var_os(self.variable) else { return Ok(self.usual) };
        self.parsed(&set.to_string_lossy())
    }

    fn parsed(self, text: &str) -> Result<u64, String> {
        text.parse().ok().filter(|&value| value > 0).ok_or_else(|| {
            let Self { what, variable, usual } = self;
            format!(
                "{variable} is {text:?}, expected a whole number of {what}, at least 1 (without it: {usual})"
            )
        })
    }

    /// What was exceeded, and how to raise it; `held` is the bound that held.
    pub fn exceeded(self, held: u64) -> String {
        format!("it takes more than {held} {}; {}=N raises this limit", self.what, self.variable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_no_number_is_told() {
        assert_eq!(JSON_BYTES.parsed("4096"), Ok(4096));
        for text in ["", "0", "-1", "1e9", "4 GB", "99999999999999999999"] {
            let told = JSON_BYTES.parsed(text).unwrap_err();
            assert!(
                told.starts_with("DOORBELL_LIMIT_JSON_BYTES is ") && told.contains("268435456"),
                "{told}"
            );
        }
    }

    #[test]
    fn every_limit_has_a_variable_of_its_own() {
        for (index, limit) in ALL.iter().enumerate() {
            assert!(ALL[..index].iter().all(|other| other.variable != limit.variable), "{limit:?}");
            let told = limit.exceeded(7);
            let row = format!("| {} | {} | `{}` |\n", limit.what, limit.usual, limit.variable);
            assert!(include_str!("../../docs/limits.md").contains(&row), "docs/limits.md lacks {row}");
            assert!(told.contains(limit.variable) && told.contains(&format!("7 {}", limit.what)), "{told}");
        }
    }
}
