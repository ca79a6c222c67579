//! `doorbell serve` under many clients, beside `doorbell run` on the same work.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use doorbell_devices::Kind;
use serde_json::{Value, json};

use crate::leftovers::{Folder, Program};
use crate::{BenchError, Section, median, table, verdict};

/// Clients at a time.
const CLIENTS: usize = 64;
/// Tokens of an answer.
const TOKENS: u64 = 128;
/// What a server may have of the tokens of a CPU second of a run: answers that come whole, and those that come as they are made.
const WHOLE: f64 = 0.90;
const STREAMED: f64 = 0.75;
/// What a server may have of a run's tokens a second on a GPU, whose hot thread never rests.
const ON_A_GPU: f64 = 0.5;
/// Answers of a prompt there.
const GROUP: usize = 16;
/// Beginnings of prompts, which take turns.
const PROMPTS: [&str; 4] = ["dog", "cat", "girl", "boy"];

/// What a program did.
#[derive(Clone, Copy)]
struct Rate {
    tokens: f64,
    seconds: f64,
    processor: f64,
}

/// What is asked of both programs.
#[derive(Clone, Copy)]
struct Work {
    device: &'static str,
    requests: usize,
    /// Answers of a prompt.
    group: usize,
}

/// Tokens for a CPU second of `tiny` on the golden model: by `doorbell run`, and by `doorbell serve` for 64 clients, whose own CPU seconds do not count.
pub fn on_the_model(quick: bool) -> Result<Section, BenchError> {
    let work = Work { device: "model", requests: if quick { 128 } else { 640 }, group: 1 };
    Ok(section(work, &measured(work, quick)?))
}

/// Tokens a second of the same on a GPU, where there is one, in groups of 16.
pub fn on_a_gpu(quick: bool) -> Result<Vec<Section>, BenchError> {
    if Kind::Gpu.missing().is_some() {
        return Ok(vec![]);
    }
    let work = Work { device: "gpu", requests: if quick { 256 } else { 1024 }, group: GROUP };
    Ok(vec![section(work, &measured(work, quick)?)])
}

/// A run, a server whose answers come whole, and one that streams them: in turns, so that all have the same machine.
fn measured(work: Work, quick: bool) -> Result<[Vec<Rate>; 3], BenchError> {
    let rounds = if quick { 1 } else { 3 };
    let program = std::env::current_exe().map_err(BenchError::failed)?;
    let mut rates: [Vec<Rate>; 3] = Default::default();
    for _ in 0..rounds {
        rates[0].push(run(&program, work)?);
        rates[1].push(served(&program, work, false)?);
        rates[2].push(served(&program, work, true)?);
    }
    Ok(rates)
}

fn section(work: Work, rates: &[Vec<Rate>; 3]) -> Section {
    let Work { device, requests, group } = work;
    let of = |rate: fn(&Rate) -> f64| rates.each_ref().map(|rates| median(rates.iter().map(rate)));
    let own = of(|rate| rate.tokens / rate.processor);
    let clock = of(|rate| rate.tokens / rate.seconds);
    let mut table = table(["program", "tokens a CPU second", "of run", "tokens a second", "of run"], 1);
    for (place, name) in
        ["doorbell run", "doorbell serve, whole", "doorbell serve, streamed"].into_iter().enumerate()
    {
        table.add_row([
            name.to_owned(),
            format!("{:.0}", own[place]),
            format!("{:.2}", own[place] / own[0]),
            format!("{:.0}", clock[place]),
            format!("{:.2}", clock[place] / clock[0]),
        ]);
    }
    let notes = match device {
        "gpu" => vec![format!(
            "whole answers have {ON_A_GPU} of a run's tokens a second: {}",
            verdict(clock[1] >= ON_A_GPU * clock[0])
        )],
        _ => vec![
            format!(
                "whole answers have {WHOLE} of a run's tokens for a CPU second: {}",
                verdict(own[1] >= WHOLE * own[0])
            ),
            format!("streamed ones {STREAMED}: {}", verdict(own[2] >= STREAMED * own[0])),
        ],
    };
    Section {
        heading: format!(
            "tiny on {device}, {requests} prompts of {CLIENTS} clients, {group} answers of at most {TOKENS} tokens each: medians of {}; CPU seconds without the clients",
            rates[0].len()
        ),
        table,
        notes,
        json: json!({ "tokens_per_cpu_second": own, "tokens_per_second": clock }),
    }
}

fn prompt(number: usize) -> String {
    format!("Once upon a time there was a {}", PROMPTS[number % PROMPTS.len()])
}

/// `doorbell run` on the prompts.
fn run(program: &Path, work: Work) -> Result<Rate, BenchError> {
    let folder = Folder::new()?;
    let prompts = folder.path().join("prompts.jsonl");
    let lines: String =
        (0..work.requests).map(|number| json!({ "prompt": prompt(number) }).to_string() + "\n").collect();
    std::fs::write(&prompts, lines).map_err(BenchError::failed)?;
    let mut command = Command::new(program);
    command.args(["run", "--model", "tiny", "--raw", "--logprobs", "--no-events", "--json", "-"]);
    command.args(["--device", work.device, "--group", &work.group.to_string()]);
    command.args(["--slots", &slots(work), "--max-tokens", &TOKENS.to_string(), "--prompts"]);
    command.arg(&prompts).stderr(Stdio::null());
    let before = children()?;
    let output = Program::output(&mut command).map_err(BenchError::failed)?;
    let processor = children()? - before;
    let report: Value = serde_json::from_slice(&output.stdout).map_err(BenchError::failed)?;
    let tokens = report["counters"]["tokens_generated"].as_f64().zip(report["seconds"].as_f64());
    let (tokens, seconds) =
        tokens.ok_or_else(|| BenchError::failed(format!("run ended with {}", output.status)))?;
    Ok(Rate { tokens, seconds, processor })
}

/// Rollouts at a time: as many as the clients ask for.
fn slots(work: Work) -> String {
    (CLIENTS * work.group).to_string()
}

/// `doorbell serve` under the clients.
fn served(program: &Path, work: Work, streams: bool) -> Result<Rate, BenchError> {
    let mut command = Command::new(program);
    command.args(["serve", "--model", "tiny", "--device", work.device, "--listen", "127.0.0.1:0"]);
    command.args(["--slots", &slots(work)]);
    let mut server = Program::start(command.stderr(Stdio::piped())).map_err(BenchError::failed)?;
    let told = server.stderr.take();
    let (mut said, mut address) = (String::new(), None);
    // A device may have something to say first.
    for line in told.into_iter().flat_map(|told| BufReader::new(told).lines()) {
        let line = line.map_err(BenchError::failed)?;
        address = line.rsplit_once("http://").map(|(_, address)| address.trim().to_owned());
        if address.is_some() {
            break;
        }
        said += &line;
    }
    let address = address.ok_or_else(|| BenchError::failed(format!("serve said: {said}")))?;
    let (next, tokens) = (AtomicUsize::new(0), AtomicU64::new(0));
    let (began, before) = (Instant::now(), process(server.id())?);
    let clients: Result<Vec<()>, BenchError> = thread::scope(|scope| {
        let client = || -> Result<(), BenchError> {
            let mut stream = BufReader::new(TcpStream::connect(&address).map_err(BenchError::failed)?);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= work.requests {
                    return Ok(());
                }
                tokens.fetch_add(ask(&mut stream, number, work.group, streams)?, Ordering::Relaxed);
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let joined = clients.into_iter().map(|client| client.join());
        joined.map(|ended| ended.unwrap_or_else(|_| Err(BenchError::failed("a client panicked")))).collect()
    });
    clients?;
    let (seconds, processor) = (began.elapsed().as_secs_f64(), process(server.id())? - before);
    Ok(Rate { tokens: tokens.into_inner() as f64, seconds, processor })
}

/// Sends a request and reads its answer; how many tokens that has.
fn ask(
    stream: &mut BufReader<TcpStream>,
    number: usize,
    group: usize,
    streams: bool,
) -> Result<u64, BenchError> {
    let body = json!({
        "prompt": prompt(number), "n": group, "max_tokens": TOKENS, "seed": number, "logprobs": 0, "stream": streams,
        "stream_options": { "include_usage": true },
    });
    let body = body.to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.get_mut().write_all(request.as_bytes()).map_err(BenchError::failed)?;
    let mut length = None;
    loop {
        let line = line(stream)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((_, value)) =
            line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        {
            length = value.trim().parse().ok();
        }
    }
    let mut answer = vec![];
    match length {
        Some(length) => read(stream, &mut answer, length)?,
        // In chunks, the last of which is empty.
        None => loop {
            let size = line(stream)?;
            let size = usize::from_str_radix(size.trim_end(), 16).map_err(BenchError::failed)?;
            read(stream, &mut answer, size)?;
            line(stream)?;
            if size == 0 {
                break;
            }
        },
    }
    let text = String::from_utf8_lossy(&answer);
    let last = match streams {
        false => Some(text.as_ref()),
        true => text.lines().filter_map(|line| line.strip_prefix("data: {")).next_back(),
    };
    let last = last.map(|last| if streams { format!("{{{last}") } else { last.to_owned() });
    let usage = last.and_then(|last| serde_json::from_str::<Value>(&last).ok());
    let tokens = usage.and_then(|told| told["usage"]["completion_tokens"].as_u64());
    tokens.ok_or_else(|| BenchError::failed(format!("the server answered {text:.300}")))
}

fn line(stream: &mut BufReader<TcpStream>) -> Result<String, BenchError> {
    let mut line = String::new();
    stream.read_line(&mut line).map_err(BenchError::failed)?;
    if line.is_empty() { Err(BenchError::failed("the server has hung up")) } else { Ok(line) }
}

fn read(stream: &mut BufReader<TcpStream>, answer: &mut Vec<u8>, length: usize) -> Result<(), BenchError> {
    let from = answer.len();
    answer.resize(from + length, 0);
    stream.read_exact(&mut answer[from..]).map_err(BenchError::failed)
}

/// Ticks of the kernel's clock in a second, on every architecture that Rust runs on (`USER_HZ`).
const TICKS: f64 = 100.0;

/// CPU seconds of a process.
fn process(id: u32) -> Result<f64, BenchError> {
    seconds(&format!("/proc/{id}/stat"), 11)
}

/// CPU seconds of the processes that this one has started and that have ended.
fn children() -> Result<f64, BenchError> {
    seconds("/proc/self/stat", 13)
}

/// Two fields of proc(5)'s `stat` from `first` on, counted from behind the name.
fn seconds(path: &str, first: usize) -> Result<f64, BenchError> {
    let text = std::fs::read_to_string(path).map_err(BenchError::failed)?;
    let fields = text.rsplit_once(')').map(|(_, fields)| fields.split_whitespace().skip(first).take(2));
    let ticks: Option<f64> = fields.and_then(|fields| fields.map(|field| field.parse::<f64>().ok()).sum());
    ticks
        .map(|ticks| ticks / TICKS)
        .ok_or_else(|| BenchError::failed(format!("{path} is not as it should be")))
}
