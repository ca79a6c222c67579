//! `doorbell serve`: the program, its exits and what it says.
#![cfg(feature = "serve")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

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
        let mut command = Command::new(cargo_bin("doorbell"));
        command
            .args("serve --model micro --listen 127.0.0.1:0".split(' '))
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
