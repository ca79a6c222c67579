//! Candle, the language models of Hugging Face in Rust, with the same file, prompt and number of threads as ours.
//!
//! It takes its number of threads from the environment, once in a process. So each number has a process of its own, which sleeps on its
//! standard input while others are measured.

use std::env;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use candle_core::quantized::gguf_file::{self, Content};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{D, Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;

use crate::lm::Answer;
use crate::{BenchError, Elapsed, timed};

/// The program's command that is [`serve`]; with this flag it repacks.
pub const COMMAND: &str = "candle";
const REPACK: &str = "--repack";

/// Ours have 8 bits, and candle's products of these are written for the processor's vectors.
const REPACKED: GgmlDType = GgmlDType::Q8_0;

/// What a process is asked: a prompt, and how many tokens are to follow.
type Job = (Vec<u32>, usize);
/// What it says: seconds of the prompt and of the tokens, by the clock and of the processor, and the tokens.
type Said = ([f64; 4], Vec<u32>);

/// A process with candle in it.
pub(crate) struct Candle {
    child: Child,
    /// Closed, it ends the process.
    jobs: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// How the weights are packed.
    pub packing: String,
}

impl Candle {
    /// Starts one with so many threads, on a GGUF file as it is or with every matrix in 8 bits.
    pub(crate) fn start(threads: usize, file: &Path, repack: bool) -> Result<Self, BenchError> {
        let failed = |error: io::Error| BenchError::failed(format!("cannot start candle's process: {error}"));
        let threads = threads.to_string();
        let mut child = Command::new(env::current_exe().map_err(failed)?)
            .arg(COMMAND)
            .arg(file)
            .args(repack.then_some(REPACK))
            .envs(["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"].map(|name| (name, &threads)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let jobs = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut candle = Self { child, jobs, answers, packing: String::new() };
        candle.packing = candle.hear()?;
        Ok(candle)
    }

    /// Runs a prompt, and so many tokens behind it.
    pub(crate) fn answer(&mut self, prompt: &[u32], count: usize) -> Result<Answer, BenchError> {
        let jobs = self.jobs.as_mut().expect("it is open until the end");
        // Whoever went away says nothing any more.
        let _ = tell(jobs, &(prompt, count));
        let ([wall, cpu, decode_wall, decode_cpu], tokens): Said = self.hear()?;
        let elapsed =
            |wall, cpu| Elapsed { wall: Duration::from_secs_f64(wall), cpu: Duration::from_secs_f64(cpu) };
        Ok(Answer { prompt: elapsed(wall, cpu), decode: elapsed(decode_wall, decode_cpu), tokens })
    }

    fn hear<T: for<'a> serde::Deserialize<'a>>(&mut self) -> Result<T, BenchError> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        let said = read.ok().and_then(|_| serde_json::from_str(&line).ok());
        said.ok_or_else(|| BenchError::failed("candle's process ended early: what it said stands above"))
    }
}

impl Drop for Candle {
    fn drop(&mut self) {
        self.jobs = None;
        let _ = self.child.wait();
    }
}

/// Answers jobs, a line each, until there are no more.
///
/// # Errors
/// If the file is none that candle takes, or candle fails.
pub fn serve(file: &Path, repack: bool) -> Result<(), BenchError> {
    let told = |error: &dyn std::fmt::Display| BenchError::input(format!("{}: {error}", file.display()));
    let mut reader = BufReader::new(File::open(file).map_err(|error| told(&error))?);
    let loaded = Loaded::read(&mut reader, repack).map_err(|error| told(&error))?;
    loaded.serve(io::stdin().lock(), io::stdout().lock())
}

fn tell(to: &mut impl Write, what: &impl serde::Serialize) -> io::Result<()> {
    writeln!(to, "{}", serde_json::to_string(what)?)?;
    to.flush()
}

struct Loaded {
    weights: ModelWeights,
    packing: GgmlDType,
}

impl Loaded {
    fn read<R: Read + Seek>(reader: &mut R, repack: bool) -> candle_core::Result<Self> {
        let content = Content::read(reader)?;
        if repack {
            let mut file = repacked(&content, reader)?;
            return Self::read(&mut file, false);
        }
        let query = content.tensor_infos.get("blk.0.attn_q.weight");
        let packing = query.map_or(GgmlDType::F32, |tensor| tensor.ggml_dtype);
        Ok(Self { weights: ModelWeights::from_gguf(content, reader, &Device::Cpu)?, packing })
    }

    fn serve(mut self, jobs: impl BufRead, mut answers: impl Write) -> Result<(), BenchError> {
        tell(&mut answers, &format!("{:?}", self.packing)).map_err(BenchError::failed)?;
        for job in jobs.lines() {
            let (prompt, count): Job = serde_json::from_str(&job.map_err(BenchError::failed)?)
                .map_err(|error| BenchError::input(format!("not a job: {error}")))?;
            let said = self.answer(&prompt, count).map_err(BenchError::failed)?;
            tell(&mut answers, &said).map_err(BenchError::failed)?;
        }
        Ok(())
    }

    fn answer(&mut self, prompt: &[u32], count: usize) -> candle_core::Result<Said> {
        // Position 0 begins a new sequence.
        let (logits, first) = timed(|| self.logits(prompt, 0));
        let (tokens, rest) = timed(|| {
            let mut logits = logits?;
            let mut tokens = vec![];
            while tokens.len() < count {
                let token = logits.squeeze(0)?.argmax(D::Minus1)?.to_scalar()?;
                logits = self.logits(&[token], prompt.len() + tokens.len())?;
                tokens.push(token);
            }
            candle_core::Result::Ok(tokens)
        });
        let times = [first.wall, first.cpu, rest.wall, rest.cpu].map(|time| time.as_secs_f64());
        Ok((times, tokens?))
    }

    fn logits(&mut self, tokens: &[u32], position: usize) -> candle_core::Result<Tensor> {
        self.weights.forward(&Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?, position)
    }
}

/// The same file with its matrices packed anew.
fn repacked(content: &Content, reader: &mut (impl Read + Seek)) -> candle_core::Result<Cursor<Vec<u8>>> {
    let mut tensors = vec![];
    for name in content.tensor_infos.keys() {
        let mut tensor = content.tensor(reader, name, &Device::Cpu)?;
        if tensor.rank() == 2 && tensor.dtype() != REPACKED {
            tensor = QTensor::quantize(&tensor.dequantize(&Device::Cpu)?, REPACKED)?;
        }
        tensors.push((name.as_str(), tensor));
    }
    let metadata: Vec<_> = content.metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let mut file = Cursor::new(vec![]);
    gguf_file::write(&mut file, &metadata, &tensors)?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::gguf_file::Value;

    use super::*;

    /// One layer, 64 tokens, weights by where they stand.
    fn file() -> Cursor<Vec<u8>> {
        let counts = [("head_count", 2), ("head_count_kv", 1), ("layer_norm_rms_epsilon", 0)];
        let mut metadata: Vec<(String, Value)> = counts
            .into_iter()
            .map(|(name, count)| (format!("llama.attention.{name}"), Value::U32(count)))
            .collect();
        metadata[2].1 = Value::F32(1e-5);
        for (name, count) in [("block_count", 1), ("embedding_length", 64), ("rope.dimension_count", 32)] {
            metadata.push((format!("llama.{name}"), Value::U32(count)));
        }
        metadata.push(("general.architecture".into(), Value::String("llama".into())));
        let tensor = |dims: &[usize]| {
            let length = dims.iter().product::<usize>() as u32;
            let values: Vec<f32> = (0..length).map(|at| (at * 37 % 101) as f32 / 100.0 - 0.5).collect();
            let tensor = Tensor::from_vec(values, dims, &Device::Cpu).unwrap();
            QTensor::quantize(&tensor, GgmlDType::F32).unwrap()
        };
        let names = [
            ("token_embd", vec![64, 64]),
            ("output_norm", vec![64]),
            ("blk.0.attn_norm", vec![64]),
            ("blk.0.attn_q", vec![64, 64]),
            ("blk.0.attn_k", vec![32, 64]),
            ("blk.0.attn_v", vec![32, 64]),
            ("blk.0.attn_output", vec![64, 64]),
            ("blk.0.ffn_norm", vec![64]),
            ("blk.0.ffn_gate", vec![96, 64]),
            ("blk.0.ffn_up", vec![96, 64]),
            ("blk.0.ffn_down", vec![64, 96]),
        ];
        let tensors = names.map(|(name, dims)| (format!("{name}.weight"), tensor(&dims)));
        let metadata: Vec<_> = metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let mut file = Cursor::new(vec![]);
        gguf_file::write(&mut file, &metadata, &tensors).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn each_job_is_a_sequence_of_its_own_whatever_the_packing() {
        for (repack, packing) in [(false, "F32"), (true, "Q8_0")] {
            let mut answers = vec![];
            let jobs = "[[3,1,4,1,5],7]\n[[2],3]\n[[3,1,4,1,5],7]\n";
            Loaded::read(&mut file(), repack).unwrap().serve(jobs.as_bytes(), &mut answers).unwrap();
            let lines: Vec<&[u8]> = answers.split(|&byte| byte == b'\n').collect();
            assert_eq!(serde_json::from_slice::<String>(lines[0]).unwrap(), packing);
            let said = |line: usize| serde_json::from_slice::<Said>(lines[line]).unwrap();
            assert_eq!((said(1).1.len(), said(2).1.len()), (7, 3));
            assert_eq!(said(1).1, said(3).1);
            assert!(said(1).0.iter().all(|&seconds| seconds >= 0.0));
        }
    }

    #[test]
    fn what_is_no_model_or_no_job_is_told() {
        assert!(Loaded::read(&mut Cursor::new(b"no model"), false).is_err());
        let error = Loaded::read(&mut file(), false).unwrap().serve(&b"once\n"[..], vec![]);
        assert!(error.unwrap_err().to_string().starts_with("not a job: "));
    }
}
