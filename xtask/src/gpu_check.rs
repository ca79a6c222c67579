//! `cargo xtask gpu-check`: compiles the GPU's kernels for every architecture, without a GPU.
//!
//! A register that ptxas spills goes to memory in every turn of a loop that never ends: none may be, of the kernel of engine 0. Engine 1 has
//! kernels of its own, of many functions that call each other a few times for each token: what is compiled for them may save registers there.
//!
//! A kernel that copies weights in bulk, by the async proxy, reads what stores of the generic proxy have written: it has to have a proxy fence.
//! Both are counted in the machine code, which nvdisasm prints: PTX does not tell what ptxas leaves out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result, bail, ensure};

use crate::steps::Steps;
use crate::test::FULL;
use doorbell_setup::cache::Cache;
use doorbell_setup::nvcc::{ARCHITECTURES, CACHE, CHOICE, Nvcc, Places, said};
use doorbell_setup::{shell, target};

/// Compiles with nvcc and, where it is, NVRTC.
///
/// # Errors
/// When there is no nvcc or nvdisasm, the kernels do not compile, a register is spilled, or a proxy fence is missing.
pub fn run(root: &Path) -> Result<()> {
    let nvcc = nvcc()?;
    let mut steps = Steps::new("gpu-check");
    with_nvcc(root, &nvcc, &mut steps);
    with_nvrtc(
        root,
        &nvcc,
        &["--package", "doorbell-gpu"],
        // Builds for some architectures alone embed no PTX, so that these tests look at it here.
        &["--", "image::tests", "--include-ignored"],
        &mut steps,
    );
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

/// Compiles with NVRTC alone, where it is, and the kernels to PTX only: a test, which is built as one of the whole workspace. (Cargo would build anew
/// what has other features for its package alone.)
pub fn nvrtc(root: &Path, steps: &mut Steps) {
    match nvcc() {
        Ok(nvcc) => with_nvrtc(root, &nvcc, &["--workspace", "--features", FULL], &[], steps),
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

/// `more` are arguments behind the tests' names.
fn with_nvrtc(root: &Path, nvcc: &Nvcc, packages: &[&str], more: &[&str], steps: &mut Steps) {
    let Some(dir) = library(nvcc) else {
        return steps.skip("NVRTC", format!("no libnvrtc beside {}", nvcc.program.display()));
    };
    steps.run("NVRTC", || {
        let args = [&["test", "--release"], packages, &["--lib", "image::nvrtc"], more].concat();
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
        println!("sm_{unknown} is left out: this nvcc does not know it, or {CHOICE} does not name it");
    }
    let mut rows = vec![];
    for code in codes {
        let architecture = code.architecture;
        let report = fs::read_to_string(&code.report)
            .with_context(|| format!("cannot read {}", code.report.display()))?;
        ensure!(!warns(&report), "nvcc warns, for sm_{architecture}:\n{}", report.trim_end());
        let functions = parse(&report).with_context(|| format!("for sm_{architecture}"))?;
        rows.extend(functions.into_iter().map(|function| (architecture, function)));
        if has_async_proxy(architecture) {
            check_proxies(nvcc, architecture, &code.code)?;
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

/// Counts what the machine code for an architecture has of the async proxy, prints it and judges it.
fn check_proxies(nvcc: &Nvcc, architecture: &str, code: &Path) -> Result<()> {
    let disassembler = Places::this().disassembler(nvcc).context(
        "there is no nvdisasm beside nvcc, in PATH or from PyPI: `cargo xtask setup --gpu` installs one",
    )?;
    let text = said(Command::new(&disassembler).arg("-c").arg(code)).map_err(Error::msg)?;
    let kernels = kernels_of(&text);
    ensure!(
        kernels.iter().any(|kernel| kernel.copies > 0),
        "{} names no bulk copy in the machine code for sm_{architecture}, which has some: its fences cannot be judged",
        disassembler.display()
    );
    for kernel in kernels {
        let Proxies { name, copies, fences, .. } = &kernel;
        println!("sm_{architecture}: {name}: {copies} bulk copies, {fences} proxy fences");
        ensure!(
            *fences >= kernel.fences_needed(),
            "{name} for sm_{architecture} has {copies} bulk copies from global memory and {fences} proxy fences \
             (fence.proxy.async.global), and needs {}: who has stored weights passes one, and who copies them (stream::publish and \
             stream::subscribe, gpu/kernels/language_memory.cuh)",
            kernel.fences_needed()
        );
    }
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

/// What a kernel's machine code has of the async proxy, with all functions that it calls.
#[derive(Debug, PartialEq, Eq)]
struct Proxies {
    name: String,
    /// Bulk copies from global memory to shared memory.
    copies: usize,
    /// Proxy fences that order global memory.
    fences: usize,
    /// Whether it stores weights as well: a function of `Publication` is one of those that it calls.
    publishes: bool,
}

impl Proxies {
    /// One of whoever copies, and two of whoever has stored what is copied: behind each stretch, and behind what is written anew.
    fn fences_needed(&self) -> usize {
        if self.copies == 0 { 0 } else { 1 + 2 * usize::from(self.publishes) }
    }
}

/// Whether an architecture copies in bulk: those from sm_90 on do.
fn has_async_proxy(architecture: &str) -> bool {
    architecture.trim_end_matches(char::is_alphabetic).parse::<u32>().is_ok_and(|number| number >= 90)
}

/// The kernels in what nvdisasm prints. A kernel has a section of its own, in which ptxas puts every function that it calls, too.
fn kernels_of(text: &str) -> Vec<Proxies> {
    let mut kernels: Vec<Proxies> = vec![];
    for line in text.lines() {
        if let Some(name) = line.strip_prefix(".text.").and_then(|label| label.trim_end().strip_suffix(':')) {
            kernels.push(Proxies { name: name.to_owned(), copies: 0, fences: 0, publishes: false });
        } else if let Some((kernel, function)) = kernels.last_mut().zip(line.strip_prefix('$')) {
            kernel.publishes |= function.contains("Publication");
        } else if let (Some(instruction), Some(kernel)) = (instruction(line), kernels.last_mut()) {
            // From global memory (G) to shared memory (S). A fence that ends in S orders shared memory alone.
            kernel.copies += usize::from(instruction.starts_with("UBLKCP.S.G"));
            kernel.fences += usize::from(instruction.starts_with("FENCE.VIEW.ASYNC.G"));
        }
    }
    kernels
}

/// The name of the instruction in a line such as `/*0150*/ @!P0 UBLKCP.S.G [UR6], [UR4], UR8 ;`.
fn instruction(line: &str) -> Option<&str> {
    let (_, words) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    words.split_whitespace().find(|word| !word.starts_with('@'))
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

    /// What nvdisasm 13.5 prints, shortened: kernels that call a function which copies in bulk; `half` and `fenced` publish as well.
    const MACHINE_CODE: &str = "\
\t.section\t.text.bare,\"ax\",@progbits
.text.bare:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*00f0*/                   UBLKPF.L2 [UR4], UR7 ;
        /*0100*/                   UBLKCP.G.S [UR4], [UR6], UR7 ;
        .type           $bare$_Z6copiesPKv,@function
$bare$_Z6copiesPKv:
        /*0150*/                   UBLKCP.S.G [UR6], [UR4], UR8 ;
        /*0160*/                   FENCE.VIEW.ASYNC.S ;
.text.probe:
        /*0040*/                   FENCE.VIEW.ASYNC.G ;
        /*0050*/              @!P0 UBLKCP.S.G [UR6], [UR4], UR8 ;
        /*0060*/              @UP0 UBLKCP.S.G [UR6], [UR4], UR8 ;
.text.half:
        /*0030*/                   FENCE.VIEW.ASYNC.G ;
        /*0040*/                   FENCE.VIEW.ASYNC.G ;
        /*0050*/                   UBLKCP.S.G [UR6], [UR4], UR8 ;
$half$_ZNK8language11Publication4loadEPcR11LoadedModelj:
        /*0060*/                   FENCE.VIEW.ASYNC.S ;
.text.fenced:
        /*0040*/                   FENCE.VIEW.ASYNC.G ;
        /*0050*/                   UBLKCP.S.G [UR6], [UR4], UR8 ;
$fenced$_ZNK8language11Publication4loadEPcR11LoadedModelj:
        /*0060*/                   FENCE.VIEW.ASYNC.G ;
        /*0070*/                   FENCE.VIEW.ASYNC.G ;
.text.plain:
        /*0000*/                   EXIT ;
";

    #[test]
    fn a_kernel_with_bulk_copies_and_too_few_proxy_fences_is_found() {
        let kernels = kernels_of(MACHINE_CODE);
        let kernel = |name: &str, copies, fences, publishes| Proxies {
            name: name.to_owned(),
            copies,
            fences,
            publishes,
        };
        let expected = [
            kernel("bare", 1, 0, false),
            kernel("probe", 2, 1, false),
            kernel("half", 1, 2, true),
            kernel("fenced", 1, 3, true),
            kernel("plain", 0, 0, false),
        ];
        assert_eq!(kernels, expected);
        let fenced: Vec<bool> =
            kernels.iter().map(|kernel| kernel.fences >= kernel.fences_needed()).collect();
        assert_eq!(fenced, [false, true, false, true, true]);
    }

    #[test]
    fn architectures_that_copy_in_bulk_are_known() {
        assert!(["90", "90a", "100", "120f"].into_iter().all(has_async_proxy));
        assert!(!has_async_proxy("80") && !has_async_proxy("89"));
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
