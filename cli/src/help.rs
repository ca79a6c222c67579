//! What `--help` says beyond the commands' own words: groups of commands and of options, and examples.

use clap::Command;

/// What `doorbell` without a command says.
pub const FIRST: &str = "\
Doorbell: a small AI accelerator that you can read, run and break.

  doorbell demo       one story from every device of this machine, byte for byte
  doorbell compare    one trace on every device, or the first difference
  doorbell doctor     what this machine has, and what it lacks
  doorbell --help     all commands";

/// Groups of commands, in the order of `--help`.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Begin", &["demo", "devices", "doctor"]),
    ("Devices", &["compare", "why", "report", "cosim", "wave", "bench", "vfio-user"]),
    ("Rollouts", &["run", "top", "trace", "trajectories", "nic"]),
    ("Language models", &["generate", "serve", "model"]),
    ("Shell", &["completions", "man", "help"]),
];

/// Headings of options, of the commands that have many: command, heading, names of options.
const HEADINGS: &[(&str, &str, &[&str])] = &[
    (
        "compare",
        "What runs",
        &["devices", "trace", "limit", "group", "checkpoint", "resident", "reward_threshold", "eos", "seed"],
    ),
    ("compare", "Language model", &["model", "kv_window", "kv_sinks", "lockstep"]),
    ("compare", "Stops and versions", &["stop_every", "stop_groups", "publish_every", "publish_mode"]),
    (
        "compare",
        "Device",
        &["workers", "gpus", "sms", "queues", "functions", "sq_depth", "cq_depth", "wait_states", "patience"],
    ),
    ("compare", "Memory of the RTL", &["latency", "stalls", "reorder", "random_memory"]),
    ("compare", "Faults", &["inject"]),
    (
        "compare",
        "Chaos",
        &[
            "chaos",
            "chaos_seeds",
            "chaos_rounds",
            "chaos_round",
            "chaos_descriptors",
            "chaos_jobs",
            "chaos_shapes",
            "chaos_seconds",
        ],
    ),
    ("compare", "Output", &["json"]),
    ("why", "What is explained", &["hang", "divergence"]),
    ("report", "Output", &["out"]),
    ("compare", "Waveform", &["wave", "trace_from", "trace_to", "trace_scope"]),
    (
        "run",
        "What runs",
        &["trace", "limit", "repeat", "group", "checkpoint", "eos", "abort_every", "seed", "policy"],
    ),
    (
        "run",
        "Language model",
        &[
            "model",
            "kv_window",
            "kv_sinks",
            "prompts",
            "max_tokens",
            "raw",
            "temperature",
            "prefill_tokens",
            "swap_blocks",
            "check",
            "logprobs",
        ],
    ),
    (
        "run",
        "Rewards",
        &["reward", "reward_model", "reward_ranges", "reward_queue", "reward_threshold", "rules"],
    ),
    (
        "run",
        "Judges",
        &["judges", "judge_group", "judge_deadline", "judge_delay", "inject_judge", "max_failures"],
    ),
    ("run", "Versions of the policy", &["publish_every", "publish_mode", "max_staleness"]),
    (
        "run",
        "Device",
        &[
            "device",
            "workers",
            "queues",
            "functions",
            "gpus",
            "sms",
            "wait",
            "coalesce",
            "depth",
            "memory",
            "device_times",
        ],
    ),
    ("run", "Room", &["slots", "credits", "in_flight", "window", "kv_blocks", "share_groups_only"]),
    ("run", "Output", &["store", "nic", "no_sync", "perfetto", "no_events", "listen", "json"]),
    ("run", "Checks", &["strict", "warm_up"]),
    (
        "serve",
        "Language model",
        &["model", "kv_window", "kv_sinks", "served_model_name", "weight_version", "chat_template", "seed"],
    ),
    ("serve", "Device", &["device", "workers", "memory"]),
    (
        "serve",
        "Rollouts",
        &["slots", "max_prompt", "max_answer", "kv_blocks", "no_prefix_cache", "checkpoint"],
    ),
    (
        "serve",
        "Clients",
        &["listen", "api_key", "max_waiting", "max_connections", "max_body", "request_timeout"],
    ),
];

/// Examples: the words of the command, and what each line of it does.
const EXAMPLES: &[(&str, [(&str, &str); 2])] = &[
    (
        "report",
        [
            ("doorbell report --devices model,rtl", "Where the time went, as report.html"),
            ("doorbell report --devices rtl --group 8 --checkpoint 16", "Groups and their tails on the RTL"),
        ],
    ),
    (
        "why",
        [
            (
                "doorbell why 12 --devices model,rtl",
                "The life of rollout 12's first descriptor, side by side",
            ),
            ("doorbell why --inject hang", "A device that stops answering: who waits for whom"),
        ],
    ),
    (
        "demo",
        [
            ("doorbell demo", "The story of 64 tokens on all devices"),
            (
                "doorbell demo --inject token:8:0",
                "The same with a bit of a token flipped on its way to memory",
            ),
        ],
    ),
    (
        "compare",
        [
            ("doorbell compare", "The built-in trace on all devices"),
            ("doorbell compare --inject token", "A planted fault: what differs, and a waveform of it"),
        ],
    ),
    (
        "run",
        [
            (
                "doorbell run --group 8 --checkpoint 64 --store log",
                "Groups of 8, judged every 64 tokens and stored",
            ),
            (
                "doorbell run --model tiny --prompts prompts.jsonl --raw --group 4 --store log",
                "A language model's answers to prompts",
            ),
        ],
    ),
    (
        "trace info",
        [
            ("doorbell trace info", "The built-in trace"),
            ("doorbell trace info mooncake_conversation.jsonl", "One in a file, of any known format"),
        ],
    ),
    (
        "trace convert",
        [
            ("doorbell trace convert azure.csv requests.jsonl", "From Azure's format"),
            ("doorbell trace convert mooncake.jsonl requests.jsonl", "From Mooncake's"),
        ],
    ),
    (
        "trace head",
        [
            ("doorbell trace head mooncake.jsonl --requests 100", "The first 100 requests"),
            ("doorbell trace head requests.jsonl --requests 8", "The first 8 of an own trace"),
        ],
    ),
    (
        "trace generate",
        [
            ("doorbell trace generate --requests 1000", "A thousand requests, on standard output"),
            ("doorbell trace generate --requests 64 --seed 7", "Others"),
        ],
    ),
    (
        "trajectories info",
        [
            ("doorbell trajectories info log", "Records, tokens, runs"),
            ("doorbell trajectories info log --json", "The same for programs"),
        ],
    ),
    (
        "trajectories verify",
        [
            ("doorbell trajectories verify log", "Whether every record is whole"),
            ("doorbell trajectories verify log --quiet", "The same in a script"),
        ],
    ),
    (
        "trajectories export",
        [
            ("doorbell trajectories export log --parquet step.parquet", "For pandas, Polars or a trainer"),
            ("doorbell trajectories export log --parquet all.parquet --quiet", "The same in a script"),
        ],
    ),
    (
        "trajectories show",
        [
            ("doorbell trajectories show log", "The first records"),
            ("doorbell trajectories show log --model tiny", "The same as text"),
        ],
    ),
    (
        "nic collect",
        [
            ("doorbell nic collect --store collected", "What NICs of this machine carry, at 127.0.0.1:7700"),
            (
                "doorbell nic collect --store collected --sync",
                "The same, on the disk before it is acknowledged",
            ),
        ],
    ),
    (
        "nic show",
        [
            ("doorbell nic show collected", "Streams, payloads, bytes"),
            ("doorbell nic show collected --json", "The same for programs"),
        ],
    ),
    (
        "nic extract",
        [
            ("doorbell nic extract collected --store log", "The trajectories of all streams as a log"),
            ("doorbell nic extract /var/lib/collected --store /var/lib/log", "The same elsewhere"),
        ],
    ),
    (
        "cosim",
        [("doorbell cosim \"basic decode\"", "One case"), ("doorbell cosim --list", "The names of all")],
    ),
    (
        "serve",
        [
            ("doorbell serve", "tiny, on the golden model, at 127.0.0.1:8000"),
            ("doorbell serve --model smollm2 --device gpu --slots 256", "A published model on a GPU"),
        ],
    ),
    (
        "vfio-user",
        [
            ("doorbell vfio-user --socket /run/doorbell.sock", "The RTL, as one function"),
            (
                "doorbell vfio-user --socket /run/doorbell.sock --functions 4",
                "Four functions, at /run/doorbell.sock.0 to .3",
            ),
        ],
    ),
    (
        "generate",
        [
            ("doorbell generate \"Once upon a time\"", "On the golden model"),
            (
                "doorbell generate --device rtl --tokens 64 \"Once upon a time\"",
                "On the RTL, token by token as it makes them",
            ),
        ],
    ),
    (
        "model list",
        [
            ("doorbell model list", "Names, and what fetches those that are not here"),
            ("doorbell model list --json", "The same for programs"),
        ],
    ),
    (
        "model info",
        [
            ("doorbell model info tiny", "The model that is built in"),
            ("doorbell model info model.gguf", "One in a file"),
        ],
    ),
    (
        "model import",
        [
            ("doorbell model import model.gguf --output model.image", "From GGUF"),
            ("doorbell model import SmolLM2-135M --output smollm2.image", "From a directory of Hugging Face"),
        ],
    ),
    (
        "model program",
        [
            ("doorbell model program tiny", "The words, with what each does"),
            ("doorbell model program micro --json", "The same for programs"),
        ],
    ),
    (
        "model audit",
        [
            ("doorbell model audit tiny", "tiny on Doorbell"),
            ("doorbell model audit gemma-3n-e4b --machine pccx-v002", "Another machine's claims"),
        ],
    ),
    (
        "model judge",
        [
            ("doorbell model judge tiny", "Over texts in the program"),
            ("doorbell model judge model.gguf story.txt --tokens 2000", "Over a text of yours"),
        ],
    ),
    (
        "bench",
        [
            ("doorbell bench hw-fastpath", "Descriptors per second on one core"),
            ("doorbell bench rtl --quick --json rtl.json", "The RTL's cycles, into a file too"),
        ],
    ),
    (
        "wave",
        [
            ("doorbell wave \"basic decode\" --png decode.png", "A picture, without a display"),
            ("doorbell wave --model tiny", "A token of a language model, for GTKWave or Surfer"),
        ],
    ),
    (
        "top",
        [
            ("doorbell top", "A run on this machine that was started with --listen"),
            ("doorbell top --once", "One look, as plain text"),
        ],
    ),
    ("devices", [("doorbell devices", "A line each"), ("doorbell devices --json", "The same for programs")]),
    ("doctor", [("doorbell doctor", "For people"), ("doorbell doctor --json", "For programs")]),
    (
        "completions",
        [
            ("doorbell completions bash > ~/.local/share/bash-completion/completions/doorbell", "For bash"),
            ("doorbell completions fish > ~/.config/fish/completions/doorbell.fish", "For fish"),
        ],
    ),
    (
        "man",
        [
            ("doorbell man ~/.local/share/man/man1", "Where `man doorbell` finds them"),
            ("doorbell man pages", "In a directory here"),
        ],
    ),
];

/// Adds groups, headings and examples.
pub fn complete(command: Command) -> Command {
    let groups = groups(&command);
    let template = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    );
    with_examples(with_headings(command), &[]).help_template(template)
}

fn groups(command: &Command) -> String {
    let mut text = String::new();
    let width = terminal_width().clamp(60, 100);
    for (heading, names) in GROUPS {
        let shown: Vec<(&str, String)> = names
            .iter()
            .filter_map(|&name| {
                if name == "help" {
                    return Some((name, "Print this message, or the help of a command".to_owned()));
                }
                let found = command.find_subcommand(name).filter(|found| !found.is_hide_set())?;
                Some((name, found.get_about().map(ToString::to_string).unwrap_or_default()))
            })
            .collect();
        if shown.is_empty() {
            continue;
        }
        text += &format!("{heading}:\n");
        for (name, about) in shown {
            let lines = crate::output::broken(&about, width - 16);
            for (number, line) in lines.iter().enumerate() {
                let name = if number == 0 { name } else { "" };
                text += &format!("  {name:<12}  {line}\n");
            }
        }
        text.push('\n');
    }
    text
}

/// As clap has it.
fn terminal_width() -> usize {
    let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    set.or_else(crate::output::width).unwrap_or(80)
}

fn with_headings(mut command: Command) -> Command {
    // `why` and `report` take the options of `compare`.
    let of_compare = HEADINGS.iter().filter(|(name, ..)| *name == "compare");
    let shared = ["why", "report"]
        .into_iter()
        .flat_map(|own| of_compare.clone().map(move |(_, heading, options)| (own, *heading, *options)));
    for (name, heading, options) in HEADINGS.iter().copied().chain(shared) {
        if command.find_subcommand(name).is_none_or(Command::is_hide_set) {
            continue;
        }
        command = command.mut_subcommand(name, |own| {
            options.iter().fold(own, |own, &id| {
                let long = id.replace('_', "-");
                let found =
                    own.get_arguments().find(|arg| arg.get_id() == id || arg.get_long() == Some(&long));
                match found.map(|arg| arg.get_id().clone()) {
                    Some(id) => own.mut_arg(id, |arg| arg.help_heading(heading)),
                    None => own,
                }
            })
        });
    }
    command
}

fn with_examples(command: Command, path: &[&str]) -> Command {
    let words = path.join(" ");
    let found = EXAMPLES.iter().find(|(of, _)| *of == words);
    let command = match found {
        Some((_, examples)) => {
            let lines: Vec<String> =
                examples.iter().map(|(line, about)| format!("  {line}\n      {about}")).collect();
            command.after_help(format!("Examples:\n{}", lines.join("\n")))
        }
        None => command,
    };
    let names: Vec<String> = command.get_subcommands().map(|own| own.get_name().to_owned()).collect();
    names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |own| with_examples(own, &[path, &[name]].concat()))
    })
}

#[cfg(all(test, feature = "full"))]
mod tests {
    use super::*;

    /// The commands that do something, by their words.
    fn leaves(command: &Command, path: &str, out: &mut Vec<(String, Command)>) {
        let own: Vec<&Command> =
            command.get_subcommands().filter(|own| !own.is_hide_set() && own.get_name() != "help").collect();
        if own.is_empty() {
            out.push((path.trim().to_owned(), command.clone()));
        }
        own.iter().for_each(|own| leaves(own, &format!("{path} {}", own.get_name()), out));
    }

    fn words(line: &str) -> Vec<String> {
        let mut words = crate::pages::shell::commands(&format!("    $ {line}"), &["doorbell"]);
        words.pop().unwrap_or_default()
    }

    #[test]
    fn every_command_is_in_a_group_and_has_two_examples_that_are_taken() {
        let command = crate::command_line();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        for own in command.get_subcommands().filter(|own| !own.is_hide_set()) {
            assert_eq!(
                grouped.iter().filter(|&&name| name == own.get_name()).count(),
                1,
                "{}",
                own.get_name()
            );
        }
        let mut all = vec![];
        leaves(&command, "", &mut all);
        assert!(all.len() > 20);
        for (path, mut leaf) in all {
            let help = leaf.render_help().to_string();
            assert_eq!(help.matches("\n  doorbell ").count(), 2, "{path}: {help}");
        }
        for (of, examples) in EXAMPLES {
            for (line, _) in examples {
                let words = words(line);
                assert!(words.join(" ").starts_with(of), "{line} is no example of {of}");
                let parsed = crate::command_line()
                    .try_get_matches_from([&["doorbell".to_owned()][..], &words].concat());
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn long_lists_of_options_have_headings() {
        let command = crate::command_line();
        let mut all = vec![];
        leaves(&command, "", &mut all);
        for (path, leaf) in all {
            let options = || leaf.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set());
            if options().count() <= 16 {
                continue;
            }
            for option in options().filter(|option| !["help", "quiet"].contains(&option.get_id().as_str())) {
                assert!(option.get_help_heading().is_some(), "{path} --{} has no heading", option.get_id());
            }
        }
    }

    #[test]
    fn help_fits_80_columns() {
        let mut all = vec![];
        leaves(&crate::command_line(), "", &mut all);
        all.push((String::new(), crate::command_line()));
        for (path, leaf) in all {
            let help = leaf.term_width(80).render_help().to_string();
            for line in help.lines().filter(|line| !line.starts_with("  doorbell ")) {
                assert!(unicode_width::UnicodeWidthStr::width(line) <= 80, "{path}: {line}");
            }
        }
    }
}
