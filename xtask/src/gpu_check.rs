//! `cargo xtask gpu-check`: compiles the GPU's kernels for every architecture, without a GPU.
//!
//! A register that ptxas spills goes to memory in every turn of a loop that never ends: none may be, of the kernel of engine 0. Engine 1 has
//! kernels of its own, of many functions that call each other a few times for each token: what is compiled for them may save registers there.
//!
//! A kernel that copies weights in bulk, by the async proxy, reads what stores of the generic proxy have written: it has to have a proxy fence.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail, ensure};

use crate::steps::Steps;
use doorbell_setup::cache::Cache;
use doorbell_setup::nvcc::{ARCHITECTURES, CACHE, Nvcc, Places};
use doorbell_setup::{shell, target};

/// Compiles with nvcc and, where it is, NVRTC.
///
/// # Errors
/// When there is no nvcc, the kernels do not compile, or a register is spilled.
pub fn run(root: &Path) -> Result<()> {
    let nvcc = nvcc()?;
    let mut steps = Steps::new("gpu-check");
    with_nvcc(root, &nvcc, &mut steps);
    with_nvrtc(root, &nvcc, &["--package", "doorbell-gpu"], &mut steps);
    steps.finish()
}

/// Compiles with nvcc alone.
///
/// # Errors
/// As [`run`].
pub fn kernels(root: &Path) -> Result<()> {
    let mut steps = Steps::new("gpu-check");
    with_nvcc(root, &nvcc()?, &mut steps);
    steps.finish()
}

/// Compiles with NVRTC alone, where it is: a test, which is built as one of the whole workspace. (Cargo would build anew
/// what has other features for its package alone.)
pub fn nvrtc(root: &Path, steps: &mut Steps) {
    match nvcc() {
        Ok(nvcc) => with_nvrtc(root, &nvcc, &["--workspace"], steps),
        Err(error) => steps.run("NVRTC", || Err(error)),
    }
}

fn nvcc() -> Result<Nvcc> {
    Places::this().find().map_err(Error::msg)?.context(
        "there is no nvcc of CUDA 12.4 or later, or DOORBELL_CUDA is off: `cargo xtask setup --gpu` installs one",
    )
}

fn with_nvcc(root: &Path, nvcc: &Nvcc, steps: &mut Steps) {
    steps.run(format!("nvcc {}", nvcc.version), || check(root, nvcc));
}

fn with_nvrtc(root: &Path, nvcc: &Nvcc, packages: &[&str], steps: &mut Steps) {
    let Some(dir) = library(nvcc) else {
        return steps.skip("NVRTC", format!("no libnvrtc beside {}", nvcc.program.display()));
    };
    steps.run("NVRTC", || {
        let args = [&["test", "--release"], packages, &["--lib", "image::nvrtc"]].concat();
        let mut search = vec![dir];
        search.extend(std::env::split_paths(&std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default()));
        let mut command = shell::cargo(root, &args);
        command.env("LD_LIBRARY_PATH", std::env::join_paths(search)?).env("DOORBELL_NVRTC", "required");
        shell::run(&mut command)
    });
}

/// Compiles for each architecture, or takes what a build has compiled, prints what ptxas reports and judges it.
fn check(root: &Path, nvcc: &Nvcc) -> Result<()> {
    println!("{}", nvcc.program.display());
    let cache = Cache::of_target(&target(root), CACHE).map_err(Error::msg)?;
    let codes = nvcc.machine_code(root, &cache).map_err(Error::msg)?;
    ensure!(!codes.is_empty(), "this nvcc knows none of sm_{}", ARCHITECTURES.join(", sm_"));
    for unknown in ARCHITECTURES.iter().filter(|known| codes.iter().all(|code| code.architecture != **known))
    {
        println!("sm_{unknown} is left out: this nvcc does not know it");
    }
    let mut rows = vec![];
    for code in codes {
        let architecture = code.architecture;
        let report = fs::read_to_string(&code.report)
            .with_context(|| format!("cannot read {}", code.report.display()))?;
        ensure!(!warns(&report), "nvcc warns, for sm_{architecture}:\n{}", report.trim_end());
        let functions = parse(&report).with_context(|| format!("for sm_{architecture}"))?;
        rows.extend(functions.into_iter().map(|function| (architecture, function)));
        let ptx =
            fs::read_to_string(&code.ptx).with_context(|| format!("cannot read {}", code.ptx.display()))?;
        for kernel in kernels_of(&ptx) {
            let Proxies { name, copies, fences } = &kernel;
            println!("sm_{architecture}: {name}: {copies} bulk copies, {fences} proxy fences");
            ensure!(
                kernel.is_fenced(),
                "{name} for sm_{architecture} has {copies} bulk copies from global memory, and no fence.proxy.async.global: \
                 they may read what was there before a POLICY (stream::order_proxies, gpu/kernels/language_memory.cuh)"
            );
        }
    }
    rows.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
    println!("   arch  registers  shared  stack  spill stores  spill loads  function");
    for (arch, function) in &rows {
        let Function { registers, shared, stack, spill_stores, spill_loads, .. } = function;
        let registers = registers.map_or("-".to_owned(), |registers| registers.to_string());
        println!(
            "{:>7}  {registers:>9}  {shared:>6}  {stack:>5}  {spill_stores:>12}  {spill_loads:>11}  {}",
            format!("sm_{arch}"),
            function.place()
        );
    }
    let spilled: Vec<String> = rows
        .iter()
        .filter(|(_, function)| {
            function.spill_stores + function.spill_loads > 0 && !is_of_engine_1(&function.kernel)
        })
        .map(|(architecture, function)| format!("{} for sm_{architecture}", function.place()))
        .collect();
    ensure!(
        spilled.is_empty(),
        "registers are spilled to memory in {}: hold fewer values at a time, or allow more registers (__launch_bounds__)",
        spilled.join(", ")
    );
    Ok(())
}

/// Whether a compiler's report has a warning, of the kernels or of the assembler: other lines may name a function so.
fn warns(report: &str) -> bool {
    report.lines().any(|line| line.contains("warning") && !line.starts_with("ptxas info"))
}

/// Whether a kernel, by its name, is engine 1's: what is compiled for it may spill.
fn is_of_engine_1(kernel: &str) -> bool {
    kernel.contains("language")
}

/// Where the toolkit's NVRTC lies, in a toolkit, a wheel or a distribution's package.
fn library(nvcc: &Nvcc) -> Option<PathBuf> {
    let program = nvcc.program.canonicalize().ok()?;
    let toolkit = program.parent()?.parent()?;
    let host = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    ["lib64", "lib", &host].into_iter().map(|dir| toolkit.join(dir)).find(|dir| {
        let files = dir.read_dir().into_iter().flatten().flatten();
        files.map(|file| file.file_name()).any(|name| name.to_string_lossy().starts_with("libnvrtc.so"))
    })
}

/// What ptxas says about one function; sizes in bytes.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    /// The kernel that it is compiled for: ptxas compiles a function once for each kernel that calls it.
    kernel: String,
    /// Of a kernel; functions that it calls have none of their own.
    registers: Option<u32>,
    shared: u32,
    stack: u32,
    spill_stores: u32,
    spill_loads: u32,
}

impl Function {
    /// Its name, and the kernel's where it is not the kernel itself.
    fn place(&self) -> String {
        if self.name == self.kernel { self.name.clone() } else { format!("{} of {}", self.name, self.kernel) }
    }
}

/// What a kernel's PTX has of the async proxy, with all functions that it calls.
#[derive(Debug, PartialEq, Eq)]
struct Proxies {
    name: String,
    /// `cp.async.bulk` from global memory to shared memory.
    copies: usize,
    /// Proxy fences that order global memory.
    fences: usize,
}

impl Proxies {
    /// Whether what it copies may have been stored.
    fn is_fenced(&self) -> bool {
        self.copies == 0 || self.fences > 0
    }
}

/// The kernels in PTX.
fn kernels_of(ptx: &str) -> Vec<Proxies> {
    // Declarations come first: of a function's texts the last one has its body.
    let mut functions: Vec<(&str, bool, &str)> = vec![];
    let starts: Vec<usize> = [".func ", ".entry "]
        .iter()
        .flat_map(|word| ptx.match_indices(word).map(|(at, _)| at))
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    for (k, &start) in starts.iter().enumerate() {
        let text = &ptx[start..starts.get(k + 1).copied().unwrap_or(ptx.len())];
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        // What it returns stands before its name.
        let rest = rest.trim_start();
        let rest =
            if rest.starts_with('(') { rest.split_once(')').map_or("", |(_, rest)| rest) } else { rest };
        let is_of_name = |c: char| c.is_alphanumeric() || "_$%".contains(c);
        let name = rest.trim_start().split(|c: char| !is_of_name(c)).next().unwrap_or_default();
        // What stands behind it names the next function.
        let body = text.find('{').map_or("", |brace| &text[brace..]);
        let body = body.split_once("\n}").map_or(body, |(body, _)| body);
        if !body.is_empty() {
            functions.push((name, word == ".entry", body));
        }
    }
    let reached = |from: usize| {
        let (mut seen, mut left) = (vec![from], vec![from]);
        while let Some(at) = left.pop() {
            let words: std::collections::HashSet<&str> =
                functions[at].2.split(|c: char| !(c.is_alphanumeric() || "_$%".contains(c))).collect();
            for (k, (name, ..)) in functions.iter().enumerate() {
                if words.contains(name) && !seen.contains(&k) {
                    seen.push(k);
                    left.push(k);
                }
            }
        }
        seen
    };
    let count = |body: &str, what: &[&str]| -> usize {
        let line = |line: &&str| what.iter().any(|what| line.trim_start().starts_with(*what));
        body.lines().filter(line).count()
    };
    let entries = (0..functions.len()).filter(|&k| functions[k].1);
    entries
        .map(|k| {
            let bodies: Vec<&str> = reached(k).into_iter().map(|k| functions[k].2).collect();
            let all = |what: &[&str]| -> usize { bodies.iter().map(|&body| count(body, what)).sum() };
            Proxies {
                name: functions[k].0.to_owned(),
                copies: all(&["cp.async.bulk.shared"]),
                fences: all(&["fence.proxy.async.global", "fence.proxy.async;"]),
            }
        })
        .collect()
}

/// Reads the report of `ptxas -v`.
fn parse(report: &str) -> Result<Vec<Function>> {
    let mut functions: Vec<Function> = vec![];
    let mut kernel = "";
    let mut lines = report.lines();
    while let Some(line) = lines.next() {
        if let Some((_, entry)) = line.split_once("Compiling entry function '") {
            kernel = entry.split('\'').next().unwrap_or_default();
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            let properties = lines.next().unwrap_or_default();
            let amount = |label| {
                amount(properties, label)
                    .with_context(|| format!("ptxas gives no{label} of {name}, but: {}", properties.trim()))
            };
            functions.push(Function {
                name: name.trim().to_owned(),
                kernel: kernel.to_owned(),
                registers: None,
                shared: 0,
                stack: amount(" bytes stack frame")?,
                spill_stores: amount(" bytes spill stores")?,
                spill_loads: amount(" bytes spill loads")?,
            });
        } else if let (Some(registers), Some(function)) = (amount(line, " registers"), functions.last_mut()) {
            function.registers = Some(registers);
            function.shared = amount(line, " bytes smem").unwrap_or(0);
        }
    }
    if functions.iter().all(|function| function.registers.is_none()) {
        bail!("ptxas reports no kernel, but:\n{}", report.trim_end());
    }
    Ok(functions)
}

/// The number before `label`, in a list with commas.
fn amount(line: &str, label: &str) -> Option<u32> {
    line.split(',')
        .find_map(|item| item.trim_end().strip_suffix(label)?.split_whitespace().next_back()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_engine_1_are_known_by_their_names() {
        assert!(
            ["doorbell_language", "doorbell_language_small", "probe_language"]
                .into_iter()
                .all(is_of_engine_1)
        );
        assert!(!is_of_engine_1("doorbell_persistent") && !is_of_engine_1(""));
    }

    /// nvcc 13.5, with a helper that is not inlined and a limit on registers.
    const REPORT: &str = "\
ptxas info    : Overriding global maxrregcount 24 with entry-specific value 32 of .maxnreg
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'plain' for 'sm_90a'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 1 barriers, 1024 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 2.253 ms
ptxas info    : Compiling entry function '_Z5spillILi64EEvPKiPi' for 'sm_90a'
ptxas info    : Function properties for _Z5spillILi64EEvPKiPi
    928 bytes stack frame, 192 bytes spill stores, 204 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 928 bytes cumulative stack size
ptxas info    : Compile time = 33.677 ms
ptxas info    : Function properties for _Z6helperPii
    0 bytes stack frame, 872 bytes spill stores, 1024 bytes spill loads
";

    fn function(name: &str, kernel: &str, registers: Option<u32>, numbers: [u32; 4]) -> Function {
        let [shared, stack, spill_stores, spill_loads] = numbers;
        let (name, kernel) = (name.to_owned(), kernel.to_owned());
        Function { name, kernel, registers, shared, stack, spill_stores, spill_loads }
    }

    #[test]
    fn kernels_and_the_functions_that_they_call_are_read() {
        assert_eq!(
            parse(REPORT).unwrap(),
            [
                function("plain", "plain", Some(8), [1024, 0, 0, 0]),
                function("_Z5spillILi64EEvPKiPi", "_Z5spillILi64EEvPKiPi", Some(24), [0, 928, 192, 204]),
                function("_Z6helperPii", "_Z5spillILi64EEvPKiPi", None, [0, 0, 872, 1024]),
            ]
        );
    }

    #[test]
    fn a_warning_is_found() {
        assert!(!warns(REPORT) && !warns("ptxas info    : Compiling entry function 'warning' for 'sm_80'"));
        assert!(warns(&format!(
            "{REPORT}gpu/kernels/mix.cuh(7): warning #177-D: declared but never referenced\n"
        )));
        assert!(warns("ptxas warning : Stack size cannot be determined\n"));
    }

    /// Two kernels that call one function, which copies in bulk; of the second one another function has a fence.
    const PTX: &str = "\
.version 9.5
.func  (.param .b32 func_retval0) copies
(
\t.param .b64 copies_param_0
)
;
.func  (.param .b32 func_retval0) copies(
\t.param .b64 copies_param_0
)
{
\tcp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], %r2, [%r3];
\tcp.async.bulk.prefetch.L2.global [%rd1], %r1;
\tfence.proxy.async.shared::cta;
\tret;
}
\t// .globl\tbegins
.func begins(
)
{
\tfence.proxy.async.global;
}
.visible .entry bare(
\t.param .u64 bare_param_0
)
{
\tcall.uni (retval0),
\tcopies,
\t(param0);
}
\t// .globl\tfenced
.visible .entry fenced(
\t.param .u64 fenced_param_0
)
{
\tcall.uni begins, ();
\tcall.uni (retval0), copies, (param0);
}
.visible .entry plain()
{
\tret;
}
";

    #[test]
    fn a_kernel_with_bulk_copies_and_no_proxy_fence_is_found() {
        let kernels = kernels_of(PTX);
        let kernel = |name: &str, copies, fences| Proxies { name: name.to_owned(), copies, fences };
        assert_eq!(kernels, [kernel("bare", 1, 0), kernel("fenced", 1, 1), kernel("plain", 0, 0)]);
        let fenced: Vec<bool> = kernels.iter().map(Proxies::is_fenced).collect();
        assert_eq!(fenced, [false, true, true]);
    }

    #[test]
    fn a_report_that_is_not_understood_is_no_clean_one() {
        let error = parse("").unwrap_err().to_string();
        assert!(error.starts_with("ptxas reports no kernel"), "{error}");
        let error = parse(&REPORT.replace("spill stores", "stores")).unwrap_err().to_string();
        assert!(
            error.starts_with("ptxas gives no bytes spill stores of plain, but: 0 bytes stack"),
            "{error}"
        );
    }
}
