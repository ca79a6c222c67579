//! `doorbell serve`: the program, its exits and what it says.
#![cfg(feature = "serve")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use rstest::rstest;
use serde_json::{Value, json};

/// A server that ends with this.
struct Server {
    child: Child,
    address: String,
    told: BufReader<std::process::ChildStderr>,
}

impl Server {
    fn start(arguments: &str) -> Server {
        Server::of("micro", arguments)
    }

    fn of(model: &str, arguments: &str) -> Server {
        let mut command = Command::new(cargo_bin("doorbell"));
        command
            .args(["serve", "--model", model, "--listen", "127.0.0.1:0"])
            .args(arguments.split_whitespace());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        let address = line.trim().rsplit_once("http://").unwrap_or_else(|| panic!("{line}")).1.to_owned();
        Server { child, address, told }
    }

    fn post(&self, endpoint: &str, body: &Value) -> Value {
        let response =
            ureq::post(format!("http://{}{endpoint}", self.address)).send(body.to_string()).unwrap();
        serde_json::from_reader(response.into_body().into_reader()).unwrap()
    }

    /// Status and message of a request that is refused.
    fn refused(&self, endpoint: &str, body: &Value) -> (u16, String) {
        let agent = ureq::Agent::config_builder().http_status_as_error(false);
        let agent: ureq::Agent = agent.build().into();
        let response =
            agent.post(format!("http://{}{endpoint}", self.address)).send(body.to_string()).unwrap();
        let status = response.status().as_u16();
        let told: Value = serde_json::from_reader(response.into_body().into_reader()).unwrap();
        (status, told["error"]["message"].as_str().unwrap_or_default().to_owned())
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A signal ends the server in order: what runs is answered with the tokens that it has, then the program exits with the signal's code.
#[rstest]
#[case("-INT", 130)]
#[case("-TERM", 143)]
fn a_signal_ends_it_in_order(#[case] signal: &str, #[case] code: i32) {
    let mut server = Server::start("");
    let body = json!({ "prompt": [1, 2], "max_tokens": 20, "seed": 3, "return_token_ids": true });
    let whole = server.post("/v1/completions", &body)["choices"][0]["token_ids"].clone();
    // At rest, the answer is still there when the signal comes.
    server.post("/pause?mode=keep", &json!({}));
    let url = format!("http://{}/v1/completions", server.address);
    let asked = body.to_string();
    let waiting = thread::spawn(move || {
        let response = ureq::post(url).send(asked).unwrap();
        serde_json::from_reader::<_, Value>(response.into_body().into_reader()).unwrap()
    });
    thread::sleep(Duration::from_millis(100));
    server.signal(signal);
    let told = waiting.join().unwrap();
    let choice = &told["choices"][0];
    assert_eq!(choice["finish_reason"], "abort", "{told}");
    let tokens = choice["token_ids"].as_array().unwrap();
    assert_eq!(tokens[..], whole.as_array().unwrap()[..tokens.len()]);
    assert_eq!(server.child.wait().unwrap().code(), Some(code));
    let mut rest = String::new();
    server.told.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

/// Address and seed are results: without them nobody finds the server, or draws the same again.
#[test]
fn a_quiet_server_says_where_it_is_and_what_it_draws_by() {
    let mut command = Command::new(cargo_bin("doorbell"));
    command.args("--quiet serve --model micro --listen 127.0.0.1:0".split(' ')).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut told = BufReader::new(child.stderr.take().unwrap());
    // One that says nothing is not waited for.
    let (done, over) = mpsc::channel::<()>();
    let pid = child.id().to_string();
    let watch = thread::spawn(move || {
        if over.recv_timeout(Duration::from_secs(20)) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").arg(pid).status();
        }
    });
    told.read_line(&mut line).unwrap();
    drop(done);
    watch.join().unwrap();
    let _ = child.kill();
    let _ = child.wait();
    assert!(line.starts_with("micro on model, seed ") && line.contains(": http://127.0.0.1:"), "{line}");
}

/// The same request draws the same tokens on every device.
#[cfg(feature = "rtl")]
#[test]
fn the_rtl_answers_as_the_golden_model() {
    let body = json!({ "prompt": [5, 6, 7], "n": 3, "max_tokens": 24, "seed": 11, "logprobs": 0, "return_token_ids": true });
    let answers = ["--device model", "--device rtl"].map(|device| {
        let server = Server::start(&format!("{device} --slots 16"));
        server.post("/v1/completions", &body)["choices"].clone()
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0].as_array().unwrap().len(), 3);
}

/// Weights whose tokens tell, as directories of Hugging Face.
fn weights(to: &Path) {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lifecycle");
    let mut command = Command::new("python3");
    command.args(["-m", "doorbell_lifecycle", "weights"]).arg(to).env("PYTHONPATH", suite);
    assert!(command.stdout(Stdio::null()).status().unwrap().success());
}

/// Trainers push weights without the rest of a model: what the directory lacks is that of the model that is served.
#[test]
fn weights_alone_are_an_update() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    weights(scratch.path());
    let server = Server::of(path("version-0").to_str().unwrap(), "");
    let ask = || {
        server.post("/v1/completions", &json!({ "prompt": "p0 p1", "max_tokens": 4, "seed": 1 }))["choices"]
            [0]["text"]
            .clone()
    };
    let letter =
        |text: &Value| text.as_str().unwrap().chars().find(|letter| "ABC".contains(*letter)).unwrap();
    assert_eq!(letter(&ask()), 'A');
    fs::create_dir(path("alone")).unwrap();
    fs::copy(path("version-1/model.safetensors"), path("alone/model.safetensors")).unwrap();
    server.post("/update_weights", &json!({ "weight_dir": path("alone") }));
    assert_eq!(letter(&ask()), 'B');
    // Shards with an index, and a config.json of the same model.
    fs::create_dir(path("shards")).unwrap();
    let bytes = fs::read(path("version-2/model.safetensors")).unwrap();
    let size = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let names: Value = serde_json::from_slice(&bytes[8..8 + size]).unwrap();
    let map: serde_json::Map<String, Value> = names
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| *name != "__metadata__")
        .map(|name| (name.clone(), json!("model-00001-of-00001.safetensors")))
        .collect();
    fs::write(path("shards/model-00001-of-00001.safetensors"), bytes).unwrap();
    fs::write(path("shards/model.safetensors.index.json"), json!({ "weight_map": map }).to_string()).unwrap();
    fs::copy(path("version-2/config.json"), path("shards/config.json")).unwrap();
    server.post("/update_weights", &json!({ "weight_dir": path("shards") }));
    assert_eq!(letter(&ask()), 'C');
    // What is there must agree, and a directory without weights has none.
    let mut config: Value =
        serde_json::from_slice(&fs::read(path("version-1/config.json")).unwrap()).unwrap();
    config["eos_token_id"] = json!(300);
    fs::write(path("alone/config.json"), config.to_string()).unwrap();
    fs::write(path("alone/generation_config.json"), json!({ "eos_token_id": 301 }).to_string()).unwrap();
    let (status, told) = server.refused("/update_weights", &json!({ "weight_dir": path("alone") }));
    assert!(status == 400 && told.contains("other end tokens"), "{told}");
    fs::create_dir(path("nothing")).unwrap();
    let (status, told) = server.refused("/update_weights", &json!({ "weight_dir": path("nothing") }));
    assert!(status == 400 && told.contains("there are no weights in it"), "{told}");
    let (status, told) =
        server.refused("/update_weights", &json!({ "weight_dir": path("version-1/model.safetensors") }));
    assert!(status == 400 && told.contains("give the directory"), "{told}");
    assert_eq!(letter(&ask()), 'C');
    // A model that is no directory has no config.json to lend.
    let server = Server::of("micro", "");
    let (status, told) = server.refused("/update_weights", &json!({ "weight_dir": path("shards-none") }));
    assert!(status == 400 && told.contains("there is nothing at"), "{told}");
    fs::remove_file(path("alone/config.json")).unwrap();
    let (status, told) = server.refused("/update_weights", &json!({ "weight_dir": path("alone") }));
    assert!(status == 400 && told.contains("config.json"), "{told}");
}

/// Weights of another shape are refused by their config.json: no tensor is read.
#[test]
fn another_shape_is_refused_before_its_tensors_are_read() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    weights(scratch.path());
    let server = Server::of(path("version-0").to_str().unwrap(), "");
    let mut config: Value =
        serde_json::from_slice(&fs::read(path("version-1/config.json")).unwrap()).unwrap();
    config["intermediate_size"] = json!(4096);
    config["num_hidden_layers"] = json!(64);
    fs::write(path("version-1/config.json"), config.to_string()).unwrap();
    fs::write(path("version-1/model.safetensors"), b"no tensors").unwrap();
    let (status, told) = server.refused("/update_weights", &json!({ "weight_dir": path("version-1") }));
    assert!(status == 400 && told.contains("another shape"), "{told}");
}

/// Servers that were given no seed draw different answers to requests without one, and each tells its seed; with a seed they draw the same.
#[test]
fn servers_without_a_seed_draw_apart() {
    let draw = |server: &Server| {
        let body =
            json!({ "prompt": [1, 2], "max_tokens": 30, "ignore_eos": true, "return_token_ids": true });
        server.post("/v1/completions", &body)["choices"][0]["token_ids"].clone()
    };
    let seed = |server: &Server| {
        let response = ureq::get(format!("http://{}/server_info", server.address)).call().unwrap();
        let told: Value = serde_json::from_reader(response.into_body().into_reader()).unwrap();
        told["random_seed"].as_u64().unwrap()
    };
    let (one, other) = (Server::start(""), Server::start(""));
    let drawn = draw(&one);
    assert_ne!(drawn, draw(&other));
    let again = Server::start(&format!("--seed {}", seed(&one)));
    assert_eq!(draw(&again), drawn);
}

/// A second signal ends the server at once, whatever the first one waits for.
#[test]
fn a_second_signal_ends_it_at_once() {
    let mut server = Server::start("");
    // Half a request, for which the server waits some seconds.
    let mut half = std::net::TcpStream::connect(&server.address).unwrap();
    half.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{").unwrap();
    thread::sleep(Duration::from_millis(200));
    server.signal("-TERM");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(server.child.try_wait().unwrap(), None, "it does not wait");
    let since = Instant::now();
    server.signal("-INT");
    assert_eq!(server.child.wait().unwrap().code(), Some(130));
    assert!(since.elapsed() < Duration::from_secs(2), "it took {:?}", since.elapsed());
}

#[rstest]
#[case("--listen nowhere", 2, "cannot listen at nowhere")]
#[case("--model none", 2, "there is no model none")]
#[case("--chat-template none.jinja", 2, "cannot read the chat template none.jinja")]
#[case("--slots 0", 2, "--slots")]
#[case("--device fpga", 2, "fpga")]
#[case("--listen nowhere --max-answer 0", 2, "--max-answer is 0")]
#[case("--listen nowhere --max-prompt 0", 2, "--max-prompt is 0")]
#[case("--listen nowhere --max-answer 100000", 2, "--max-answer is 100000, and the model takes 512 tokens")]
#[case("--listen nowhere --max-prompt 512", 2, "give 1 to 511")]
#[case("--listen nowhere --request-timeout 86401", 2, "86401 is not in 1..=86400")]
#[case("--listen nowhere --kv-blocks 4294967294", 2, "4294967294 is not in 1..=16777216")]
#[case("--listen nowhere --api-key ", 2, "--api-key is no key")]
#[case("--listen nowhere --api-key k\u{e9}y", 2, "--api-key is no key")]
fn what_cannot_be_served_is_told(#[case] arguments: &str, #[case] code: i32, #[case] expected: &str) {
    let mut command = Command::new(cargo_bin("doorbell"));
    let output = command.arg("serve").args(arguments.split(' ')).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{told}");
    assert!(told.contains(expected), "{told}");
}

/// A key that cannot be read opens no server, and one that nobody can send locks none.
#[rstest]
#[case(b"\xff")]
#[case(b"")]
#[case(b"two words")]
fn a_key_that_is_none_is_told(#[case] key: &[u8]) {
    let mut command = Command::new(cargo_bin("doorbell"));
    command
        .args("serve --model micro --listen nowhere".split(' '))
        .env("DOORBELL_API_KEY", OsStr::from_bytes(key));
    let output = command.output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("DOORBELL_API_KEY is no key"), "{told}");
}
