//! A server with `micro`, and clients of it.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use doorbell_checkpoint::text::Text;
use doorbell_host::{Device, Driver, QueueConfig};
use doorbell_lm::sample::{Sharpness, Truncation};
use doorbell_lm::{About, KvCap, micro};
use doorbell_npu::Published;
use doorbell_serve::engine::{Engine, Size};
use doorbell_serve::http::{Limits, Server, Setup, serve};
use doorbell_verify::ModelPlatform;
use doorbell_verify::language::{Given, Sampling, Version};
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// Weights that versions may have: `micro`'s, with its layers in another order.
pub const TURNS: usize = 4;

static IMPORTS: AtomicUsize = AtomicUsize::new(0);

pub struct Running {
    pub server: Arc<Server>,
    pub address: SocketAddr,
    pub versions: Vec<Version>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How large a test's server is.
pub fn size() -> Size {
    Size {
        slots: 32,
        members: 8,
        prompt_tokens: 32,
        answer_tokens: 64,
        blocks: 256,
        keeps: true,
        waiting: 4096,
        checkpoint: 5,
        seed: 1,
        fault: None,
    }
}

pub fn limits() -> Limits {
    Limits { body: 1 << 16, patience: Duration::from_millis(500), connections: 128, prompts: 64 }
}

fn turned(turn: usize, cap: Option<KvCap>) -> (Published, Version) {
    let mut image = micro();
    image.model.shape.kv_cap = cap;
    image.model = image.model.turned(turn);
    let published = Published::new(image.to_bytes(), &image.about.ends).unwrap();
    (published, Version { model: image.model, ends: image.about.ends })
}

impl Running {
    pub fn start() -> Running {
        Running::with(size(), limits(), None)
    }

    /// Weights at the path `turn-K` are those of turn K; version `K…` has those, whatever stands behind the number.
    pub fn with(size: Size, limits: Limits, key: Option<&str>) -> Running {
        Running::capped(None, size, limits, key)
    }

    /// The same with a cap on keys and values. Weights at the path `whole-K` have none.
    pub fn capped(cap: Option<KvCap>, size: Size, limits: Limits, key: Option<&str>) -> Running {
        Running::over(cap, size, limits, key, |device| device)
    }

    /// The same over what `wrap` makes of the device.
    pub fn over(
        cap: Option<KvCap>,
        size: Size,
        limits: Limits,
        key: Option<&str>,
        wrap: impl FnOnce(Box<dyn Device>) -> Box<dyn Device>,
    ) -> Running {
        Running::built(cap, size, limits, key, wrap, |_| {})
    }

    /// A server whose model has another tokeniser.
    pub fn speaking(tokenizer: &Value) -> Running {
        Running::built(
            None,
            size(),
            limits(),
            None,
            |device| device,
            |about| about.tokenizer = tokenizer.to_string(),
        )
    }

    fn built(
        cap: Option<KvCap>,
        size: Size,
        limits: Limits,
        key: Option<&str>,
        wrap: impl FnOnce(Box<dyn Device>) -> Box<dyn Device>,
        about: impl FnOnce(&mut About),
    ) -> Running {
        let mut image = micro();
        about(&mut image.about);
        let shape = image.model.shape;
        let text = Arc::new(Text::new(&image.about, shape.vocabulary).unwrap());
        let (model, _) = turned(0, cap);
        let config = QueueConfig { sq_depth: 64, cq_depth: 64, ..QueueConfig::default() };
        let device = Driver::new(ModelPlatform::new(), size.queue(&model, config)).unwrap();
        let engine = Engine::start(wrap(Box::new(device)), size, model, text.clone(), "0").unwrap();
        let server = Server::new(Setup {
            engine,
            model: "micro".into(),
            text,
            template: Some("{% for m in messages %}{{ m.content }}{% endfor %}".into()),
            positions: shape.context as u32,
            vocabulary: shape.vocabulary as u32,
            import: Box::new(move |path| {
                let name = path.to_string_lossy();
                // How many are read at a time.
                if name == "one-at-a-time" {
                    let others = IMPORTS.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(50));
                    IMPORTS.fetch_sub(1, Ordering::SeqCst);
                    return if others == 0 {
                        Ok(turned(0, cap).0)
                    } else {
                        Err("another one is read".into())
                    };
                }
                if name == "takes-long" {
                    std::thread::sleep(Duration::from_secs(2));
                }
                let of = |kind| name.strip_prefix(kind).and_then(|turn| turn.parse().ok());
                let weights = of("turn-").map(|turn| turned(turn, cap));
                let weights = weights.or_else(|| of("whole-").map(|turn| turned(turn, None)));
                weights.map(|(weights, _)| weights).ok_or_else(|| format!("{name} has no weights"))
            }),
            key: key.map(str::to_owned),
            limits,
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let of = server.clone();
        let thread = std::thread::spawn(move || {
            runtime.block_on(serve(of, listener, async { drop(stopped.await) })).unwrap();
        });
        let versions = (0..TURNS).map(|turn| turned(turn, cap).1).collect();
        Running { server, address, versions, stop: Some(stop), thread: Some(thread) }
    }

    /// Tells it to end.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    pub fn url(&self, endpoint: &str) -> String {
        format!("http://{}{endpoint}", self.address)
    }

    /// Status and body of a request.
    pub fn post(&self, endpoint: &str, body: &Value) -> (u16, Value) {
        send(&self.url(endpoint), body, None)
    }

    /// The body of a request that is answered with 200.
    pub fn ok(&self, endpoint: &str, body: &Value) -> Value {
        let (status, told) = self.post(endpoint, body);
        assert_eq!(status, 200, "{endpoint} {body}: {told}");
        told
    }

    pub fn get(&self, endpoint: &str) -> Value {
        let response = ureq::get(self.url(endpoint)).call().unwrap();
        response.into_body().read_json().unwrap()
    }

    /// The lines of a streamed answer.
    pub fn streamed(&self, endpoint: &str, body: &Value) -> Vec<Value> {
        let response = ureq::post(self.url(endpoint)).send_json(body).unwrap();
        let mut values = vec![];
        let mut done = false;
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line.unwrap();
            let Some(data) = line.strip_prefix("data: ") else { continue };
            assert!(!done, "a line behind [DONE]");
            match data {
                "[DONE]" => done = true,
                data => values.push(serde_json::from_str(data).unwrap()),
            }
        }
        assert!(done, "no [DONE]");
        values
    }

    /// Waits until nothing lives, and everything was given back.
    pub fn is_empty_soon(&self) {
        let since = Instant::now();
        loop {
            let values = self.server.engine.metrics().counters.values();
            let load = self.server.engine.load();
            if load.live == 0 && values.kv_blocks_in_use == values.kv_blocks_cold && values.groups_open == 0 {
                return;
            }
            assert!(since.elapsed() < Duration::from_secs(10), "{load:?} lives: {values:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Holds a choice of `/inference/v1/generate` to the oracle, under the versions that it says made the prompt's keys and values and the answer.
    pub fn check(&self, prompt: &[u32], choice: &Value, sampling: Sampling) -> Result<(), String> {
        let tokens: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
        let content = choice["logprobs"]["content"].as_array().unwrap();
        let logps: Vec<i32> = content
            .iter()
            .map(|token| (token["logprob"].as_f64().unwrap() * 65_536.0).round() as i32)
            .collect();
        assert_eq!(tokens.len(), logps.len());
        let mut of: Vec<(usize, &Version)> = vec![];
        // Keys and values of a prompt's token are made by the step that adds the next one; those of its last token by the answer's first step.
        let shared = if tokens.is_empty() { 0 } else { prompt.len() - 1 };
        for (key, count, before) in
            [("prompt_weight_versions", shared, 1), ("weight_versions", tokens.len(), prompt.len())]
        {
            let spans = choice[key].as_array().unwrap();
            let mut next = 0;
            for span in spans {
                let (start, end) = (span["start"].as_u64().unwrap(), span["end"].as_u64().unwrap());
                if start != next || end <= start {
                    return Err(format!("{key} have a gap: {spans:?}"));
                }
                next = end;
                of.push((before + end as usize, self.of(span["version"].as_str().unwrap())));
            }
            if next != count as u64 && !tokens.is_empty() {
                return Err(format!("{count} tokens, and {key} to {next}"));
            }
        }
        if tokens.is_empty() {
            return Ok(());
        }
        let given = Given { prompt, tokens: &tokens, logps: Some(&logps), blocks: None };
        given.check(&of, sampling)
    }

    /// The same of one whose prompt only the version of its answer may have made.
    pub fn check_alone(&self, prompt: &[u32], choice: &Value, sampling: Sampling) -> Result<(), String> {
        let names =
            |key: &str| choice[key].as_array().unwrap().iter().map(|span| span["version"].clone()).collect();
        let [before, after]: [Vec<Value>; 2] = ["prompt_weight_versions", "weight_versions"].map(names);
        match before.iter().find(|name| after.first().is_some_and(|first| first != *name)) {
            Some(name) => Err(format!("{name} made a part of the prompt, and {after:?} the answer")),
            None => self.check(prompt, choice, sampling),
        }
    }

    /// The weights of a version, by its name.
    pub fn of(&self, name: &str) -> &Version {
        let turn: usize = name.split('.').next().unwrap().parse().unwrap();
        &self.versions[turn % TURNS]
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(ended.is_some_and(|ended| ended.is_ok()));
        }
    }
}

/// Sends a request, with `behind` behind it, and leaves its answer to whoever reads it.
pub fn begin(server: &Running, endpoint: &str, body: &Value, behind: &str) -> TcpStream {
    begin_raw(server, &(raw(endpoint, body) + behind))
}

/// A request as it is sent.
pub fn raw(endpoint: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {endpoint} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends a request as it is.
pub fn begin_raw(server: &Running, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Status, the fields that the server says it left alone, and body of a request without a body, or with one.
pub fn noted(server: &Running, endpoint: &str, body: Option<&Value>) -> (u16, Option<String>, Value) {
    let agent = ureq::Agent::config_builder().http_status_as_error(false);
    let agent: ureq::Agent = agent.timeout_global(Some(Duration::from_secs(60))).build().into();
    let request = agent.post(server.url(endpoint));
    let response = match body {
        Some(body) => request.send_json(body),
        None => request.send_empty(),
    };
    let response = response.unwrap();
    let status = response.status().as_u16();
    let names = response.headers().get("x-doorbell-ignored").map(|names| names.to_str().unwrap().to_owned());
    (status, names, response.into_body().read_json().unwrap_or(json!(null)))
}

/// Status and body of a request, with a key.
pub fn send(url: &str, body: &Value, key: Option<&str>) -> (u16, Value) {
    let agent = ureq::Agent::config_builder().http_status_as_error(false);
    let agent: ureq::Agent = agent.timeout_global(Some(Duration::from_secs(60))).build().into();
    let request = agent.post(url);
    let request = match key {
        Some(key) => request.header("authorization", format!("Bearer {key}")),
        None => request,
    };
    let response = request.send_json(body).unwrap();
    let status = response.status().as_u16();
    (status, response.into_body().read_json().unwrap_or(json!(null)))
}

/// How an answer draws: `member` of a request with this seed.
pub fn sampling(seed: u64, member: u32, temperature: f64, truncation: Truncation) -> Sampling {
    let sharpness = Sharpness::of(temperature).unwrap();
    let key = doorbell_serve::http::key_of(seed).wrapping_add(member.into());
    Sampling { key, truncation, ..Sampling::new(sharpness, 0, 0) }
}
