//! `doorbell generate` and `doorbell model`, on the model that needs no file.
#![cfg(feature = "lm")]

mod common;

use std::fs;

use common::doorbell;
use rstest::rstest;
use tempfile::tempdir;

#[test]
fn micro_is_listed_and_shown() {
    let directory = tempdir().unwrap();
    let list = doorbell(directory.path(), "model list");
    assert_eq!(list.code, 0, "{}", list.stderr);
    for built_in in ["| tiny        | built in", "| micro       | built in", "| micro-gemma | built in"] {
        assert!(list.stdout.contains(built_in), "{}", list.stdout);
    }
    let info = doorbell(directory.path(), "model info micro");
    assert_eq!((info.code, info.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(info.stdout);
    let json = doorbell(directory.path(), "model info micro --json");
    assert!(json.stdout.contains("\"macs_per_token\": 38912"), "{}", json.stdout);
}

/// The same text whatever the threads: a golden answer of the whole engine.
#[test]
fn the_same_seed_gives_the_same_text() {
    let directory = tempdir().unwrap();
    let of = |arguments: &str| {
        let run = doorbell(directory.path(), &format!("generate --model micro {arguments} hello"));
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert!(run.stderr.starts_with("prompt: 5 tokens, "), "{}", run.stderr);
        run.stdout
    };
    let first = of("--tokens 40 --seed 1 --threads 1");
    insta::assert_snapshot!(first);
    assert_eq!(first, of("--tokens 40 --seed 1 --threads 2"));
    assert_ne!(first, of("--tokens 40 --seed 2"));
    assert_eq!(of("--tokens 40 --temperature 0 --seed 1"), of("--tokens 40 --temperature 0 --seed 2"));
    insta::assert_snapshot!("log_probabilities", of("--tokens 6 --logprobs --temperature 0"));
    assert_eq!(of("--tokens 0"), "\n");
}

/// An answer that ends because the model takes no more tokens says so.
#[test]
fn an_answer_that_the_context_ends_says_so() {
    let directory = tempdir().unwrap();
    for (tokens, says) in [("20", false), ("100000", true)] {
        let command = format!("generate --model micro --raw --temperature 0 --tokens {tokens} hello");
        let run = doorbell(directory.path(), &command);
        let told = format!("the answer ends before its {tokens} tokens: the model's context of 1024 is full");
        assert_eq!((run.code, run.stderr.contains(&told)), (0, says), "{}", run.stderr);
    }
}

/// What `generate` runs where no model is named: a golden answer of Gemma 3N's operators, and of a model that was trained.
#[test]
fn tiny_tells_a_story() {
    let directory = tempdir().unwrap();
    let run = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_doorbell"));
        command.args(["generate", "Once upon a time", "--tokens", "64"]).args(more);
        let run = command.current_dir(directory.path()).output().unwrap();
        let told = String::from_utf8(run.stderr).unwrap();
        assert!(run.status.success() && told.starts_with("prompt: 4 tokens, "), "{told}");
        String::from_utf8(run.stdout).unwrap()
    };
    let story = run(&[]);
    insta::assert_snapshot!(story);
    assert_eq!(run(&["--threads", "1", "--raw"]), story);
    if cfg!(feature = "rtl") {
        assert_eq!(run(&["--device", "rtl"]), story);
    }
}

/// What the page of docs/web.md names as the native command of its story; `web/tests/tab.rs` holds the page's calls to the same.
#[test]
fn the_story_of_the_tab_has_its_sha256() {
    use sha2::Digest as _;
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_doorbell"));
    command.args("generate --model tiny --tokens 64 --seed 3 --temperature 0.8 --logprobs --".split(' '));
    command.arg("Once upon a time, there was a little dog named");
    let run = command.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let sha256: String = sha2::Sha256::digest(run.stdout).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(sha256, "9976b2f6010e62bbf39ef33ba1801550cb14055da5804a45eecc0240976c7ccc");
}

#[test]
fn an_image_is_read_back_and_damage_is_told() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("micro.image");
    let bytes = doorbell_lm::micro().to_bytes();
    fs::write(&path, &bytes).unwrap();
    let own = |model: &str| {
        doorbell(directory.path(), &format!("generate --model {model} --tokens 20 hello")).stdout
    };
    assert_eq!(own("micro.image"), own("micro"));
    let mut damaged = bytes;
    damaged[9000] ^= 1;
    fs::write(&path, damaged).unwrap();
    let run = doorbell(directory.path(), "model info micro.image");
    assert_eq!(run.code, 2);
    assert!(run.stderr.starts_with("error: micro.image: its check is "), "{}", run.stderr);
    assert!(run.stderr.ends_with("it is damaged; import the model again\n"), "{}", run.stderr);
}

#[test]
fn micro_is_judged_against_what_its_integers_stand_for() {
    let directory = tempdir().unwrap();
    fs::write(directory.path().join("text"), "the quick brown fox jumps over the lazy dog. ".repeat(12))
        .unwrap();
    let judged = doorbell(directory.path(), "model judge micro text --tokens 300 --window 100");
    assert_eq!(judged.code, 0, "{}{}", judged.stdout, judged.stderr);
    assert!(
        judged.stdout.starts_with("micro: 300 positions, 100 tokens to a sequence, "),
        "{}",
        judged.stdout
    );
    let strict = doorbell(directory.path(), "model judge micro text --tokens 300 --max-divergence 0.000001");
    assert_eq!(strict.code, 1, "{}", strict.stdout);
}

/// Files of a published model: one layer, no weights, 32 tokens.
fn write_published(directory: &std::path::Path, merges: &str, template: &str) {
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), "[32,32]", 4096),
        ("model.norm.weight".to_owned(), "[32]", 128),
    ];
    for name in ["input_layernorm", "post_attention_layernorm"] {
        tensors.push((format!("model.layers.0.{name}.weight"), "[32]", 128));
    }
    for name in ["q_proj", "k_proj", "v_proj", "o_proj"].map(|name| format!("self_attn.{name}")) {
        tensors.push((format!("model.layers.0.{name}.weight"), "[32,32]", 4096));
    }
    for name in ["gate_proj", "up_proj", "down_proj"] {
        tensors.push((format!("model.layers.0.mlp.{name}.weight"), "[32,32]", 4096));
    }
    let mut end = 0;
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, shape, bytes)| {
            let from = end;
            end += bytes;
            format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{from},{end}]}}"#)
        })
        .collect();
    let head = format!("{{{}}}", entries.join(","));
    let mut bytes = (head.len() as u64).to_le_bytes().to_vec();
    bytes.extend(head.as_bytes());
    bytes.resize(bytes.len() + end, 0);
    fs::write(directory.join("model.safetensors"), bytes).unwrap();
    let config = r#"{"model_type": "llama", "tie_word_embeddings": true, "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 1, "intermediate_size": 32, "vocab_size": 32, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "eos_token_id": 0}"#;
    fs::write(directory.join("config.json"), config).unwrap();
    let tokenizer = format!(
        r#"{{"version": "1.0", "added_tokens": [], "model": {{"type": "BPE", "vocab": {{"a": 0, "b": 1, "ab": 2}}, "merges": {merges}}}}}"#
    );
    fs::write(directory.join("tokenizer.json"), tokenizer).unwrap();
    fs::write(directory.join("chat_template.jinja"), template).unwrap();
}

/// A tokeniser at which its crate panics is refused by the importer, which writes no image.
#[test]
fn a_tokeniser_that_cannot_be_used_is_not_imported() {
    let directory = tempdir().unwrap();
    let model = directory.path().join("published");
    fs::create_dir(&model).unwrap();
    write_published(&model, r#"[["ab", "ab"]]"#, "{{ messages[0].content }}");
    for command in ["model import published -o out", "generate --model published a", "model info published"] {
        let run = doorbell(directory.path(), command);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
        let expected = r#"error: published: the model's tokeniser cannot be used: its merge of "ab" and "ab" is no token"#;
        assert!(run.stderr.starts_with(expected) && run.stderr.lines().count() == 1, "{}", run.stderr);
    }
    assert!(!directory.path().join("out").exists());
    write_published(&model, r#"[["a", "b"]]"#, "{{ messages[0].content }}");
    let run = doorbell(directory.path(), "model import published -o out");
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(doorbell(directory.path(), "model info out").code, 0);
}

/// The limits of chat templates hold, and a variable of theirs that is no number is told.
#[test]
fn a_chat_template_cannot_take_the_machine() {
    let directory = tempdir().unwrap();
    let model = directory.path().join("published");
    fs::create_dir(&model).unwrap();
    let run = |limit: &str, value: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_doorbell"));
        command.args(["generate", "--model", "published", "--tokens", "0", "a"]).env(limit, value);
        let run = command.current_dir(directory.path()).output().unwrap();
        (run.status.code(), String::from_utf8(run.stderr).unwrap())
    };
    write_published(
        &model,
        "[]",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    );
    let (code, told) = run("DOORBELL_LIMIT_TEMPLATE_STEPS", "5000");
    assert_eq!(code, Some(2), "{told}");
    assert!(
        told.contains("more than 5000 steps of a chat template; DOORBELL_LIMIT_TEMPLATE_STEPS=N raises"),
        "{told}"
    );
    let (code, told) = run("DOORBELL_LIMIT_TEMPLATE_STEPS", "many");
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("DOORBELL_LIMIT_TEMPLATE_STEPS is \"many\", expected a whole number"), "{told}");
    let double =
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
    write_published(&model, "[]", double);
    let (code, told) = run("DOORBELL_LIMIT_TEMPLATE_MEMORY", "50000000");
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("50000000 bytes of memory") && told.lines().count() == 1, "{told}");
    let (code, told) = run("DOORBELL_LIMIT_JSON_BYTES", "100");
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("config.json: it takes more than 100 bytes of a JSON file"), "{told}");
}

#[rstest]
#[case::unknown(
    "generate --model llama hello",
    "error: there is no model llama: give a path, or one of tiny, micro, micro-gemma, smollm2"
)]
#[case::temperature(
    "generate --model micro --temperature=-1 hello",
    "error: --temperature is -1; it must be 0, or 0.006 to 1000000"
)]
#[case::negative(
    "generate --model micro --temperature -1 hello",
    "error: --temperature is -1; it must be 0, or 0.006 to 1000000"
)]
#[case::negative_count(
    "generate --model micro --tokens -1 hello",
    "error: invalid value '-1' for '--tokens <N>'"
)]
#[case::cold(
    "generate --model micro --temperature 0.001 hello",
    "error: --temperature is 0.001; it must be 0, or 0.006 to 1000000"
)]
#[case::threads(
    "generate --model micro --threads 0 hello",
    "error: invalid value '0' for '--threads <N>': 0 is not in 1..=1024"
)]
#[case::too_many_threads(
    "generate --model micro --threads 100000 hello",
    "error: invalid value '100000' for '--threads <N>': 100000 is not in 1..=1024"
)]
#[case::no_model("model info bad", "error: bad: not a GGUF file that can be read: ")]
#[case::no_source(
    "model import nothing -o out",
    "error: there is no model nothing: give a path, or one of tiny, micro, micro-gemma, smollm2"
)]
#[case::window("model judge micro --window 1", "error: --window is 1; it must be 2 to 1024")]
#[case::text("model judge micro nothing", "error: cannot read the text nothing: ")]
#[case::image(
    "model judge image",
    "error: image: it is an image, which holds no weights as they were published; give what it was imported from"
)]
fn bad_input_is_told_with_code_2(#[case] arguments: &str, #[case] problem: &str) {
    let directory = tempdir().unwrap();
    fs::write(directory.path().join("bad"), "no model at all").unwrap();
    fs::write(directory.path().join("image"), doorbell_lm::micro().to_bytes()).unwrap();
    let run = doorbell(directory.path(), arguments);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    assert!(run.stderr.starts_with(problem), "{}", run.stderr);
    assert!(!directory.path().join("out").exists());
}

/// A prompt on standard input that never ends is refused.
#[test]
fn a_prompt_without_end_is_refused() {
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("doorbell"));
    command.args(["generate", "--model", "micro", "-"]).stdin(fs::File::open("/dev/zero").unwrap());
    let output = command.output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    let expected = "error: cannot read the prompt from standard input: it has more than 16777216 bytes; give a shorter text\n";
    assert_eq!(told, expected);
}

/// What an earlier importer made of a model is not taken for what this one makes.
#[test]
fn an_image_of_another_importer_is_not_taken() {
    let directory = tempdir().unwrap();
    let models = directory.path().join("doorbell/models");
    let file = doorbell_setup::model::Source::named("smollm2").unwrap().file(&models);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "no model at all").unwrap();
    let hour = std::time::Duration::from_secs(3600);
    let published = fs::File::options().write(true).open(&file).unwrap();
    published.set_modified(std::time::SystemTime::now() - hour).unwrap();
    let mut image = doorbell_lm::micro();
    image.about.special = Some(Default::default());
    let image = image.to_bytes();
    let info = || {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("doorbell"));
        let output =
            command.args(["model", "info", "smollm2"]).env("XDG_CACHE_HOME", directory.path()).output();
        output.unwrap()
    };
    for older in ["smollm2.image", "smollm2-2.image"] {
        fs::write(file.with_file_name(older), &image).unwrap();
        let output = info();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{older}: {told}");
        assert!(told.contains("not a GGUF file that can be read"), "{older}: {told}");
    }
    let own = format!("smollm2-{}.image", doorbell_checkpoint::IMPORTER);
    fs::write(file.with_file_name(own), &image).unwrap();
    let output = info();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("micro"));
}

/// Rollouts of a language model on devices, held to the oracle; what is planted is told.
#[test]
fn rollouts_of_a_language_model_are_compared() {
    let directory = tempdir().unwrap();
    let lines: String = (1..9)
        .map(|k| {
            format!(
                "{{\"timestamp\":0,\"input_length\":{},\"output_length\":{},\"hash_ids\":[]}}\n",
                9 * k,
                5 * k
            )
        })
        .collect();
    fs::write(directory.path().join("trace.jsonl"), lines).unwrap();
    let compare = |more: &str| {
        let arguments = format!("compare --model micro --trace trace.jsonl --group 3 --checkpoint 16 {more}");
        doorbell(directory.path(), &arguments)
    };
    let run = compare("");
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("540 tokens on model"), "{}", run.stdout);
    // Without a name it is tiny.
    let tiny = doorbell(directory.path(), "compare --trace trace.jsonl --group 3 --model --devices model");
    assert_eq!(tiny.code, 0, "{}{}", tiny.stdout, tiny.stderr);
    assert!(tiny.stdout.contains(" tokens on model"), "{}", tiny.stdout);
    let two = compare("--devices model,model:sq_depth=8");
    assert_eq!(two.code, 0, "{}{}", two.stdout, two.stderr);
    let found = compare("--inject language:swapped-blocks");
    assert_eq!(found.code, 1, "{}{}", found.stdout, found.stderr);
    assert!(
        found.stdout.contains("R27: the key of position 0, layer 0, head 0 is another"),
        "{}",
        found.stdout
    );
    let long = compare("--publish-every 3");
    assert_eq!(long.code, 2, "{}{}", long.stdout, long.stderr);
}

#[cfg(feature = "rtl")]
#[test]
fn the_rtl_answers_as_the_model_does() {
    let directory = tempdir().unwrap();
    let answer = |device: &str| {
        let command = format!("generate --model micro --device {device} --tokens 24 --temperature 0.7 hello");
        let run = doorbell(directory.path(), &command);
        assert_eq!(run.code, 0, "{}", run.stderr);
        run.stdout
    };
    let model = answer("model");
    assert_eq!(answer("rtl"), model);
    assert!(!model.is_empty());
}

/// Tokens come one by one, on every device that is there: the answer is read from a pipe in many pieces, none of them long.
#[test]
fn an_answer_comes_token_by_token() {
    use std::io::Read;
    let devices: &[&str] = if cfg!(feature = "rtl") { &["model", "rtl"] } else { &["model"] };
    for device in devices {
        for more in [&[][..], &["--logprobs"]] {
            let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_doorbell"))
                .args([
                    "generate",
                    "--model",
                    "tiny",
                    "--device",
                    device,
                    "--tokens",
                    "24",
                    "Once upon a time",
                ])
                .args(more)
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let mut out = child.stdout.take().unwrap();
            let (mut pieces, mut buffer) = (0, [0; 4096]);
            while out.read(&mut buffer).unwrap() > 0 {
                pieces += 1;
            }
            assert!(child.wait().unwrap().success());
            // The golden model is quick: a reader may find several tokens at once. The RTL takes 15 ms a token.
            let least = if *device == "rtl" { 12 } else { 1 };
            assert!(pieces >= least, "{device} {more:?}: {pieces} pieces");
        }
    }
}

/// Groups that are stopped at any moment, some before their members have begun.
#[cfg(feature = "rtl")]
#[test]
fn a_stop_cuts_rollouts_of_a_language_model_to_right_prefixes() {
    let directory = tempdir().unwrap();
    let stops =
        "compare --model micro --devices model,rtl --limit 4 --group 3 --checkpoint 7 --seed 13 --stop";
    for more in ["-groups 2", "-every 2"] {
        let run = doorbell(directory.path(), &format!("{stops}{more}"));
        assert_eq!(run.code, 0, "{more}: {}{}", run.stdout, run.stderr);
        assert!(run.stdout.contains("where a STOP cut a rollout, each to a right prefix"), "{}", run.stdout);
    }
}

/// The RTL's NPU in lockstep with the interpreter; a bit that is flipped on its way to it is named by the instruction that took it.
#[cfg(feature = "rtl")]
#[test]
fn the_first_instruction_that_differs_is_named() {
    let directory = tempdir().unwrap();
    let compare = |more: &str| {
        let arguments = format!("compare --model micro --limit 2 --group 2 --checkpoint 9 {more}");
        doorbell(directory.path(), &arguments)
    };
    let agrees = compare("--devices model,rtl --lockstep");
    assert_eq!(agrees.code, 0, "{}{}", agrees.stdout, agrees.stderr);
    assert!(agrees.stdout.contains(" steps of rtl did what the interpreter's did"), "{}", agrees.stdout);
    let found = compare("--devices rtl --lockstep --inject read:4000:77 --json out.json");
    assert_eq!(found.code, 1, "{}{}", found.stdout, found.stderr);
    for part in [
        "different: the NPU of rtl differs from the interpreter; the first instruction that did:\nrollout 0, position ",
        "of the program, layer ",
        "    reads lines ",
        "  expected 0x",
        "  begun in cycle ",
        "waveform: divergence.fst (cycles ",
    ] {
        assert!(found.stdout.contains(part), "{part}: {}", found.stdout);
    }
    let json = fs::read_to_string(directory.path().join("out.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let difference = &json["devices"][0]["lockstep"]["difference"];
    let (cycle, began) = (&difference["cycle"], &difference["instruction"]["began"]);
    assert!(began.as_u64() < cycle.as_u64() && began.is_u64(), "{json}");
    let window = &json["waveform"];
    assert!(
        window["first_cycle"].as_u64() < began.as_u64() && cycle.as_u64() < window["last_cycle"].as_u64()
    );
    for (more, problem) in [
        ("--devices model --lockstep", "error: --lockstep holds the RTL's NPU: name it with --devices rtl\n"),
        ("--devices rtl --queues 2 --functions 2 --lockstep", "error: queues is 2: an NPU is held to "),
    ] {
        let refused = compare(more);
        assert_eq!(refused.code, 2, "{}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.starts_with(problem), "{}", refused.stderr);
    }
}

#[test]
fn a_prompt_that_is_too_long_or_empty_is_told() {
    let directory = tempdir().unwrap();
    let run = |text: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_doorbell"));
        command.args(["generate", "--model", "micro", text]).current_dir(directory.path()).output().unwrap()
    };
    let long = run(&"a".repeat(1024));
    assert_eq!(long.status.code(), Some(2));
    let told = "error: the prompt has 1024 tokens, and the model a context of 1024: give a shorter one\n";
    assert_eq!(String::from_utf8(long.stderr).unwrap(), told);
    assert_eq!(run("").stderr, b"error: the prompt is empty: give at least a letter\n");
    // It ends where the context does.
    assert_eq!(run(&"a".repeat(1023)).status.code(), Some(0));
}

/// Claims of a machine, held to their own arithmetic: exit code 1 where one does not hold, 0 where nothing is claimed.
#[test]
fn a_machine_is_audited() {
    let directory = tempdir().unwrap();
    let bare = doorbell(directory.path(), "model audit");
    assert!(bare.code == 2 && bare.stderr.contains("<MODEL>"), "{}", bare.stderr);
    let audit = doorbell(directory.path(), "model audit gemma-3n-e4b --machine pccx-v002");
    assert_eq!((audit.code, audit.stderr.as_str()), (1, ""));
    insta::assert_snapshot!(audit.stdout);
    let own = doorbell(directory.path(), "model audit tiny");
    assert_eq!((own.code, own.stderr.as_str()), (0, ""));
    insta::assert_snapshot!("a_machine_without_claims", own.stdout);
    let json = doorbell(directory.path(), "model audit tiny --machine doorbell --context 1 --json");
    let value: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(
        (json.code, value["context"].as_u64(), value["checks"].as_array().unwrap().len()),
        (0, Some(1), 0)
    );
    assert_eq!(value["floors"].as_array().unwrap().len(), 4);
}

/// What is wrong with a machine, or with what is asked of it, is said.
#[rstest]
#[case::no_machine("--machine nowhere", "error: cannot read machine nowhere: ")]
#[case::no_toml("--machine text.toml", "error: text.toml: TOML parse error")]
#[case::no_lanes("--machine lanes.toml", "error: lanes.toml: lanes is 0; it must be 1 to 1048576")]
#[case::unknown_field("--machine field.toml", "error: field.toml: TOML parse error")]
#[case::no_position(
    "--machine doorbell --context 0",
    "error: --context is 0; it must be 1 to 512, the model's"
)]
#[case::too_many(
    "--machine doorbell --context 513",
    "error: --context is 513; it must be 1 to 512, the model's"
)]
fn what_cannot_be_audited_is_told(#[case] arguments: &str, #[case] problem: &str) {
    let directory = tempdir().unwrap();
    let machine = include_str!("../machines/doorbell.toml");
    let zero: String = machine
        .lines()
        .map(|line| if line.starts_with("lanes") { "lanes = 0\n".into() } else { format!("{line}\n") })
        .collect();
    fs::write(directory.path().join("text.toml"), "not = = toml").unwrap();
    fs::write(directory.path().join("lanes.toml"), zero).unwrap();
    fs::write(directory.path().join("field.toml"), format!("unknown = 1\n{machine}")).unwrap();
    let run = doorbell(directory.path(), &format!("model audit tiny {arguments}"));
    assert_eq!(run.code, 2, "{}", run.stdout);
    assert!(run.stderr.starts_with(problem), "{}", run.stderr);
}

/// Whoever reads the answer may have enough of it: `generate … | head -c1`.
#[rstest]
fn a_reader_that_goes_away_is_no_error(#[values("", "--logprobs")] more: &str) {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_doorbell"))
        .args(["generate", "Once upon a time", "--tokens", "64"])
        .args(more.split_whitespace())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Before the first token.
    drop(child.stdout.take());
    let run = child.wait_with_output().unwrap();
    let told = String::from_utf8(run.stderr).unwrap();
    assert_eq!((run.status.code(), told.as_str()), (Some(0), ""));
}

/// What a model says of itself is shown as text, and the names that others take, `import` takes too.
#[test]
fn a_models_own_words_steer_no_terminal() {
    let directory = tempdir().unwrap();
    let mut image = doorbell_lm::micro();
    image.about.name = "mi\u{1b}[31mcro\nsecond\u{9b}2J".into();
    image.about.licence = "\u{1b}]0;title\u{7}".into();
    fs::write(directory.path().join("image"), image.to_bytes()).unwrap();
    let steers = |text: &str| text.contains(|letter: char| letter.is_control() && letter != '\n');
    for command in ["model info image", "model info image --json", "model audit image", "model program image"]
    {
        let run = doorbell(directory.path(), command);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{command}");
        assert!(!steers(&run.stdout), "{command}: {:?}", run.stdout);
    }
    let info = doorbell(directory.path(), "model info image").stdout;
    assert!(info.starts_with("name        mi\\u{1b}[31mcro\\nsecond\\u{9b}2J\n"), "{info}");
    let json = doorbell(directory.path(), "model info image --json").stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (json["name"].as_str(), json["licence"].as_str()),
        (Some(&*image.about.name), Some(&*image.about.licence))
    );
    let import = doorbell(directory.path(), "model import micro -o copy");
    assert_eq!((import.code, import.stderr.as_str()), (0, ""));
    assert_eq!(fs::read(directory.path().join("copy")).unwrap(), doorbell_lm::micro().to_bytes());
}
