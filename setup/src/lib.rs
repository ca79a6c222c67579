//! Installs what Doorbell's builds and tests need: `cargo xtask setup`, and what the Makefile runs first. A crate of its
//! own, and small, because on a bare machine everything else waits for it.

#[path = "../../cosim/build/cache.rs"]
pub mod cache;
#[cfg(test)]
mod fake;
pub mod model;
#[allow(dead_code, reason = "the rest is for the build script")]
#[path = "../../gpu/build/nvcc.rs"]
pub mod nvcc;
pub mod shell;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, Error, Result, bail};
use nvcc::{KERNELS, Places};

/// Oldest Verilator that the build supports.
const VERILATOR: (u32, u32) = (5, 6);

/// How to tell that a package is there.
#[derive(Clone, Copy)]
enum Sign {
    Program(&'static str),
    Header(&'static str),
    /// Of Python.
    Module(&'static str),
    /// Python as a library, which a simulator loads.
    Library(&'static str),
    /// By its path.
    File(&'static str),
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Sign::Program(name)
        | Sign::Header(name)
        | Sign::Module(name)
        | Sign::Library(name)
        | Sign::File(name)) = self;
        f.write_str(name)
    }
}

/// Sign, Debian and Ubuntu package, and who needs it.
type Need = (Sign, &'static str, &'static str);

const NEEDS: &[Need] = &[
    (Sign::Program("verilator"), "verilator", "co-simulation and lint"),
    (Sign::Program("perl"), "perl", "verilator"),
    (Sign::Program("g++"), "g++", "co-simulation"),
    (Sign::Header("zlib.h"), "zlib1g-dev", "waveforms of the co-simulation"),
    (Sign::Program("iverilog"), "iverilog", "the testbenches"),
    (Sign::Program("vvp"), "iverilog", "the testbenches"),
    (Sign::Program("make"), "make", "the Makefile"),
];

const WAVE_NEEDS: &[Need] = &[(Sign::Program("gtkwave"), "gtkwave", "showing waves")];

/// What Debian's packages are signed with: QEMU and a kernel come from these, and only an x86-64 has a guest.
const GUEST_NEEDS: &[Need] = &[(Sign::File(DEBIANS_KEYS), "debian-archive-keyring", "the guest")];
/// Where that lies.
pub const DEBIANS_KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

const PERF_NEEDS: &[Need] = &[(Sign::Program("valgrind"), "valgrind", "counting instructions")];

/// To install from PyPI. Debian's Python is not to be installed into, and its virtual environments are a package of their
/// own.
const PIP_NEEDS: &[Need] = &[
    (Sign::Program("python3"), "python3", "installing from PyPI"),
    (Sign::Module("ensurepip"), "python3-venv", "installing from PyPI"),
];

/// Beside what comes from PyPI.
const COCOTB_NEEDS: &[Need] = &[(Sign::Library("libpython3"), "libpython3-dev", "the cocotb tests")];

/// Loads the library of the Python that runs this.
const LOAD_LIBPYTHON: &str = "import ctypes, os, sysconfig; name = sysconfig.get_config_var('INSTSONAME'); \
                              path = os.path.join(sysconfig.get_config_var('LIBDIR'), name); \
                              ctypes.CDLL(path if os.path.exists(path) else name)";

/// nvdisasm, as PyPI has it.
const DISASSEMBLER: &str = "nvidia-cuda-nvdisasm==13.*";

/// nvcc, NVRTC and nvdisasm, as PyPI has them.
const WHEELS: [&str; 6] = [
    "nvidia-cuda-nvcc==13.*",
    "nvidia-cuda-crt==13.*",
    "nvidia-nvvm==13.*",
    "nvidia-cuda-runtime==13.*",
    "nvidia-cuda-nvrtc==13.*",
    DISASSEMBLER,
];

/// What is to be set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Install nothing; name what is missing and fail.
    pub check: bool,
    /// Also what showing waves needs.
    pub wave: bool,
    /// Also what counting instructions needs.
    pub perf: bool,
    /// Also what a guest needs that its own step cannot fetch.
    pub guest: bool,
    /// Also the compiler of the GPU's kernels, and what prints their machine code: from PyPI, into ~/.cache/doorbell, where
    /// there is none.
    pub gpu: bool,
    /// Also what the cocotb tests run on: from PyPI, into a virtual environment under `target`.
    pub cocotb: bool,
}

/// Where cargo builds the repository at `root`: cargo says it, because its configuration files may name a folder, too. An absolute path if `root` is one.
pub fn target(root: &Path) -> PathBuf {
    static TOLD: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let ask = || told_by_cargo(root).unwrap_or_else(|| root.join("target"));
    told.entry(root.to_owned()).or_insert_with(ask).clone()
}

/// `None` where there is no cargo, or `root` has no workspace.
fn told_by_cargo(root: &Path) -> Option<PathBuf> {
    if let Some(folder) = env::var_os("CARGO_TARGET_DIR") {
        return Some(root.join(folder));
    }
    let mut command = shell::cargo(root, &["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = command.stderr(Stdio::null()).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    folder_in(&text).map(PathBuf::from)
}

/// The value of `target_directory`. This crate has no reader of JSON, as everything else waits for it on a bare machine.
fn folder_in(metadata: &str) -> Option<String> {
    let (_, rest) = metadata.split_once("\"target_directory\":\"")?;
    let mut folder = String::new();
    let mut letters = rest.chars();
    loop {
        match letters.next()? {
            '"' => return Some(folder),
            '\\' => match letters.next()? {
                letter @ ('"' | '\\' | '/') => folder.push(letter),
                // A path with control characters: the default does.
                _ => return None,
            },
            letter => folder.push(letter),
        }
    }
}

/// The virtual environment of the cocotb tests.
pub struct Cocotb {
    venv: PathBuf,
    /// What it is to have.
    requirements: PathBuf,
}

impl Cocotb {
    /// That of the repository at `root`.
    pub fn of(root: &Path) -> Cocotb {
        Cocotb {
            venv: target(root).join("cocotb/venv"),
            requirements: root.join("tb/cocotb/requirements.txt"),
        }
    }

    /// Its Python.
    pub fn python(&self) -> PathBuf {
        self.venv.join("bin/python")
    }

    /// What it has, as it was written down when that was installed.
    fn installed(&self) -> PathBuf {
        self.venv.join("requirements.txt")
    }

    fn is_there(&self) -> bool {
        let texts = [&self.installed(), &self.requirements].map(|path| fs::read_to_string(path).ok());
        texts[0].is_some() && texts[0] == texts[1] && self.runs()
    }

    /// Whether cocotb can be imported: another Python may have come in the place of the one that was linked.
    fn runs(&self) -> bool {
        runs(&self.python(), "cocotb")
    }
}

/// Whether the `python` of a virtual environment finds `module` in it: the machine's Python may have become another version since.
pub fn runs(python: &Path, module: &str) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", &format!("import {module}")]).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// What there is not of CUDA's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// nvcc, and what is to come with it.
    Compiler,
    /// nvdisasm alone.
    Disassembler,
}

impl Lack {
    fn program(self) -> &'static str {
        match self {
            Lack::Compiler => "nvcc",
            Lack::Disassembler => "nvdisasm",
        }
    }

    fn purpose(self) -> &'static str {
        match self {
            Lack::Compiler => "the GPU's kernels",
            Lack::Disassembler => "gpu-check",
        }
    }

    fn megabytes(self) -> u32 {
        match self {
            Lack::Compiler => 200,
            Lack::Disassembler => 5,
        }
    }
}

/// What setup sees of the machine.
struct Host {
    path: OsString,
    include: Vec<PathBuf>,
    root: bool,
    /// The environment variable `VERILATOR` names another one, which is then the caller's affair.
    own_verilator: bool,
    compilers: Places,
    /// A build without nvcc does not look for one again before this changes.
    kernels: PathBuf,
    cocotb: Cocotb,
}

impl Host {
    fn this(repository: &Path) -> Host {
        // /proc/self belongs to the effective user.
        let root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
        Host {
            path: shell::path(),
            include: vec!["/usr/include".into(), "/usr/local/include".into()],
            root,
            own_verilator: env::var_os("VERILATOR").is_some_and(|command| !command.is_empty()),
            compilers: Places::this(),
            kernels: repository.join(KERNELS),
            cocotb: Cocotb::of(repository),
        }
    }

    fn has(&self, sign: Sign) -> bool {
        match sign {
            Sign::Program("verilator") if self.own_verilator => true,
            Sign::Program(name) => shell::find(name, &self.path).is_some(),
            Sign::Header(name) => self.include.iter().any(|dir| dir.join(name).is_file()),
            Sign::Module(name) => self.python_runs(&format!("import {name}")),
            Sign::Library(_) => self.python_runs(LOAD_LIBPYTHON),
            Sign::File(path) => Path::new(path).is_file(),
        }
    }

    fn python_runs(&self, text: &str) -> bool {
        shell::find("python3", &self.path).is_some_and(|python| {
            let mut command = Command::new(python);
            command.args(["-c", text]).env("PATH", &self.path).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        })
    }

    /// What is missing of all that is needed always, by what `options` name, and to install from PyPI what is named.
    fn missing(&self, options: Options, cuda: bool, cocotb: bool) -> Vec<Need> {
        let lists = [
            (true, NEEDS),
            (options.wave, WAVE_NEEDS),
            (options.perf, PERF_NEEDS),
            (options.guest, GUEST_NEEDS),
            (cuda || cocotb, PIP_NEEDS),
            (cocotb, COCOTB_NEEDS),
        ];
        let wanted = lists.into_iter().filter(|(wanted, _)| *wanted).flat_map(|(_, list)| list);
        wanted.copied().filter(|(sign, ..)| !self.has(*sign)).collect()
    }

    /// What is missing of nvcc and its disassembler, where nobody has said that there shall be none.
    fn lacks_of_cuda(&self) -> Result<Option<Lack>> {
        let nvcc = self.compilers.find().map_err(Error::msg)?;
        if self.compilers.is_off() {
            return Ok(None);
        }
        let Some(nvcc) = nvcc else { return Ok(Some(Lack::Compiler)) };
        Ok(self.compilers.disassembler(&nvcc).is_none().then_some(Lack::Disassembler))
    }

    /// The commands that install it.
    fn cuda_plan(&self, lack: Lack) -> Result<[Vec<String>; 2]> {
        let venv = self.compilers.venv.as_ref().context(
            "there is no place to install nvcc to: set HOME or XDG_CACHE_HOME, or install the CUDA toolkit and set NVCC",
        )?;
        Ok(match lack {
            Lack::Compiler => pip_plan(venv, &WHEELS),
            Lack::Disassembler => pip_plan(venv, &[DISASSEMBLER]),
        })
    }

    /// The commands that install what the cocotb tests run on.
    fn cocotb_plan(&self) -> [Vec<String>; 2] {
        pip_plan(&self.cocotb.venv, &["-r", &self.cocotb.requirements.display().to_string()])
    }

    /// Installs what virtual environments are made with, where it is missing.
    fn pip(&self) -> Result<()> {
        let missing: Vec<&str> =
            PIP_NEEDS.iter().filter(|(sign, ..)| !self.has(*sign)).map(|&(_, package, _)| package).collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.plan(&missing)?.iter().try_for_each(|words| self.run(words))
    }

    fn run(&self, words: &[String]) -> Result<()> {
        let program = shell::find(&words[0], &self.path).unwrap_or_else(|| (&words[0]).into());
        shell::run(Command::new(program).args(&words[1..]).env("PATH", &self.path))
    }

    /// Why the Verilator that is there will not do.
    fn verilator_problem(&self) -> Option<String> {
        let program = shell::find("verilator", &self.path).filter(|_| !self.own_verilator)?;
        let output = Command::new(&program).arg("--version").env("PATH", &self.path).output().ok()?;
        let found = version(&String::from_utf8_lossy(&output.stdout))?;
        (found < VERILATOR).then(|| {
            format!(
                "{} is Verilator {}.{:03}, and 5.006 is the oldest that works: install a newer one, or a newer \
                 distribution (Debian 12, Ubuntu 24.04), and put it first in PATH",
                program.display(),
                found.0,
                found.1
            )
        })
    }

    /// The commands that install `packages`.
    fn plan(&self, packages: &[&str]) -> Result<Vec<Vec<String>>> {
        let list = packages.join(" ");
        if shell::find("apt-get", &self.path).is_none() {
            bail!(
                "there is no apt-get here: install {list} with this system's package manager, then try again"
            );
        }
        let mut prefix = vec![];
        if !self.root {
            if shell::find("sudo", &self.path).is_none() {
                bail!(
                    "installing {list} needs root, and there is no sudo: run `apt-get install {list}` as root"
                );
            }
            prefix.push("sudo");
        }
        prefix.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=300"]);
        let command = |rest: &[&str]| prefix.iter().chain(rest).map(|&word| word.to_owned()).collect();
        let mut install = vec!["install", "-y", "--no-install-recommends"];
        install.extend(packages);
        Ok(vec![command(&["update"]), command(&install)])
    }
}

/// The commands that make a virtual environment and install into it.
fn pip_plan(venv: &Path, what: &[&str]) -> [Vec<String>; 2] {
    let (python, venv) = (venv.join("bin/python").display().to_string(), venv.display().to_string());
    // Python compiles what is used as it is imported; compiling all that is installed takes longer than most tests.
    let mut install =
        vec![&python as &str, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"];
    install.extend(what);
    [vec!["python3", "-m", "venv", &venv], install]
        .map(|words| words.into_iter().map(str::to_owned).collect())
}

/// Major and minor of `Verilator 5.006 2023-01-22 …`; some builds leave the number out.
fn version(line: &str) -> Option<(u32, u32)> {
    let (major, minor) = line.split_whitespace().nth(1)?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Installs what is missing for the repository at `root`; silent when nothing is. With `check` names it only.
///
/// # Errors
/// When `check` finds something missing, or it cannot be installed.
pub fn run(root: &Path, options: Options) -> Result<()> {
    set_up(&Host::this(root), options)
}

/// Installs what virtual environments are made with, where it is missing.
///
/// # Errors
/// When it cannot be installed.
pub fn pip(root: &Path) -> Result<()> {
    Host::this(root).pip()
}

/// The Python of a virtual environment `target/NAME/venv` that has what the file `requirements` lists, and what the file `bare` lists, if there is one, without what
/// that needs itself. It is made, or made anew, where it is missing or the lists have changed.
///
/// # Errors
/// When it cannot be installed.
pub fn python(root: &Path, name: &str, requirements: &Path, bare: Option<&Path>) -> Result<PathBuf> {
    let host = Host::this(root);
    let venv = target(root).join(name).join("venv");
    let python = venv.join("bin/python");
    let read =
        |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let wanted = read(requirements)? + &bare.map(read).transpose()?.unwrap_or_default();
    let stamp = venv.join("requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|has| has == wanted) && runs(&python, "pip") {
        return Ok(python);
    }
    host.pip()?;
    let file = |path: &Path| path.display().to_string();
    let [make, install] = pip_plan(&venv, &["-r", &file(requirements)]);
    [make, install].iter().try_for_each(|words| host.run(words))?;
    if let Some(bare) = bare {
        let [_, install] = pip_plan(&venv, &["--no-deps", "-r", &file(bare)]);
        host.run(&install)?;
    }
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}

/// Names a file that is locked while something is being installed. Build scripts that need it wait for the lock.
pub const LOCK: &str = "DOORBELL_SETUP_LOCK";

/// As [`run`], while `command` runs, which is a build: what it can do without what is missing, it does meanwhile.
/// Returns its exit code.
///
/// # Errors
/// As [`run`]; when the command cannot be started.
pub fn run_beside(root: &Path, options: Options, command: &mut Command) -> Result<ExitCode> {
    beside(&Host::this(root), root, options, command)
}

fn beside(host: &Host, root: &Path, options: Options, command: &mut Command) -> Result<ExitCode> {
    if host.missing(options, options.gpu, options.cocotb).is_empty() {
        set_up(host, options)?;
        return shell::forward(command);
    }
    let path = root.join("target/setup.lock");
    let problem = || format!("cannot lock {}", path.display());
    fs::create_dir_all(root.join("target")).with_context(problem)?;
    let lock = fs::File::create(&path).with_context(problem)?;
    lock.lock().with_context(problem)?;
    println!("$ {}", shell::shown(command));
    let child = command.env(LOCK, &path).spawn();
    let mut child = child.with_context(|| format!("cannot run {}", shell::shown(command)))?;
    let installed = set_up(host, options);
    drop(lock);
    let status = child.wait().with_context(|| format!("cannot wait for {}", shell::shown(command)))?;
    installed?;
    Ok(shell::code(status))
}

fn set_up(host: &Host, options: Options) -> Result<()> {
    let Options { check, wave, perf, guest, gpu, cocotb } = options;
    let cuda = if gpu { host.lacks_of_cuda()? } else { None };
    let venv = cocotb && !host.cocotb.is_there();
    let missing = host.missing(options, cuda.is_some(), venv);
    for (sign, package, purpose) in &missing {
        println!("setup: {sign} is missing (package {package}; for {purpose})");
    }
    if let Some(lack) = cuda {
        println!("setup: {} is missing (from PyPI; for {})", lack.program(), lack.purpose());
    }
    if venv {
        println!("setup: cocotb is missing, or another one than is asked for (from PyPI; for its tests)");
    }
    let mut packages: Vec<&str> = missing.iter().map(|&(_, package, _)| package).collect();
    packages.sort_unstable();
    packages.dedup();
    if check && (cuda.is_some() || venv || !packages.is_empty()) {
        packages.extend(cuda.map(Lack::program));
        packages.extend(venv.then_some("cocotb"));
        let flags = [
            (wave, " --wave"),
            (perf, " --perf"),
            (guest, " --guest"),
            (gpu, " --gpu"),
            (cocotb, " --cocotb"),
        ];
        let flags = flags.map(|(given, flag)| if given { flag } else { "" });
        bail!("missing: {}; `cargo xtask setup{}` installs that", packages.join(" "), flags.concat());
    }
    if !packages.is_empty() {
        let plan = host.plan(&packages)?;
        println!("setup: going to run, {}:", if host.root { "as root" } else { "through sudo" });
        plan.iter().for_each(|words| println!("  {}", words.join(" ")));
        plan.iter().try_for_each(|words| host.run(words))?;
        if let Some((sign, package, _)) = host.missing(options, cuda.is_some(), venv).first() {
            bail!(
                "{package} was installed, yet {sign} is still not found: look at the output of apt-get above"
            );
        }
    }
    if let Some(lack) = cuda {
        let plan = host.cuda_plan(lack)?;
        println!("setup: going to run, which downloads about {} MB:", lack.megabytes());
        plan.iter().for_each(|words| println!("  {}", words.join(" ")));
        plan.iter().try_for_each(|words| host.run(words))?;
        if let Some(lack) = host.lacks_of_cuda()? {
            bail!(
                "{} was installed, yet it is still not found or does not run: look at the output of pip above",
                lack.program()
            );
        }
        if lack == Lack::Compiler {
            fs::File::options().append(true).open(&host.kernels)?.set_modified(SystemTime::now())?;
        }
    }
    if venv {
        let Cocotb { requirements, .. } = &host.cocotb;
        let plan = host.cocotb_plan();
        println!("setup: going to run, which downloads about 17 MB:");
        plan.iter().for_each(|words| println!("  {}", words.join(" ")));
        plan.iter().try_for_each(|words| host.run(words)).with_context(|| {
            format!(
                "the cocotb tests need what {} names, from PyPI, and that cannot be installed",
                requirements.display()
            )
        })?;
        if !host.cocotb.runs() {
            bail!("cocotb was installed, yet it cannot be imported: look at the output of pip above");
        }
        fs::copy(requirements, host.cocotb.installed())
            .with_context(|| format!("cannot write {}", host.cocotb.installed().display()))?;
    }
    host.verilator_problem().map_or(Ok(()), |problem| bail!(problem))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rstest::rstest;
    use tempfile::TempDir;

    use super::*;
    use crate::fake::fake;

    /// A machine of its own: programs in one directory, headers in another.
    fn host(programs: &[&str], root: bool) -> (TempDir, Host) {
        let dir = tempfile::tempdir().unwrap();
        let include = dir.path().join("include");
        fs::create_dir(&include).unwrap();
        for name in programs {
            fake(dir.path(), name, "");
        }
        let compilers = Places {
            switch: String::new(),
            named: None,
            path: dir.path().into(),
            toolkits: vec![],
            venv: Some(dir.path().join("venv")),
            architectures: String::new(),
        };
        let kernels = dir.path().join("kernels.cu");
        fs::write(&kernels, "").unwrap();
        let path = dir.path().into();
        let requirements = dir.path().join("wanted.txt");
        fs::write(&requirements, "cocotb==2.1.0\n").unwrap();
        let cocotb = Cocotb { venv: dir.path().join("cocotb"), requirements };
        let host =
            Host { path, include: vec![include], root, own_verilator: false, compilers, kernels, cocotb };
        (dir, host)
    }

    /// A machine where nothing is missing but nvcc, with a Python whose pip installs one that says `version`.
    fn host_without_nvcc(version: &str) -> (TempDir, Host) {
        let (dir, host) = host(ALL, true);
        fs::write(dir.path().join("include/zlib.h"), "").unwrap();
        let here = dir.path().display();
        let bin = format!("{here}/venv/lib/python3.11/site-packages/nvidia/cu13/bin");
        let pip = format!(
            "echo \"$@\" >> {here}/pip.log\n/bin/mkdir -p {bin}\n\
             case \"$*\" in *nvcc*) printf '#!/bin/sh\\necho release {version}, V0\\n' > {bin}/nvcc; /bin/chmod 755 {bin}/nvcc;; esac\n\
             case \"$*\" in *nvdisasm*) : > {bin}/nvdisasm;; esac"
        );
        fake(dir.path(), "pip", &pip);
        fake(
            dir.path(),
            "python3",
            &format!(
                "echo \"$@\" >> {here}/log\ncase \"$2\" in venv) /bin/mkdir -p {here}/venv/bin; \
                 /bin/ln -sf {here}/pip {here}/venv/bin/python;; esac"
            ),
        );
        (dir, host)
    }

    /// An apt-get that notes how it was called, and provides what `install` names.
    fn fake_apt(dir: &Path) {
        let here = dir.display();
        fake(
            dir,
            "apt-get",
            &format!(
                "echo \"$@\" >> {here}/log\ncase \"$*\" in *install*) for p in verilator perl g++ iverilog vvp make; do \
                 printf '#!/bin/sh\\n' > {here}/$p; /bin/chmod 755 {here}/$p; done; : > {here}/include/zlib.h;; esac"
            ),
        );
        fake(dir, "env", "while case \"$1\" in *=*) true;; *) false;; esac; do shift; done; exec \"$@\"");
    }

    /// Cargo's words are JSON.
    #[rstest]
    #[case(r#"{"packages":[],"target_directory":"/a/b c","version":1}"#, Some("/a/b c"))]
    #[case(r#"{"target_directory":"/a\\b\"c/\/d"}"#, Some("/a\\b\"c//d"))]
    #[case(r#"{"target_directory":"/a\u0007"}"#, None)]
    #[case(r#"{"target_directory":"/a"#, None)]
    #[case("{}", None)]
    fn the_folder_of_builds_is_the_one_that_cargo_names(
        #[case] metadata: &str,
        #[case] folder: Option<&str>,
    ) {
        assert_eq!(super::folder_in(metadata).as_deref(), folder);
    }

    const INSTALL: Options =
        Options { check: false, wave: false, perf: false, guest: false, gpu: false, cocotb: false };
    const CHECK: Options = Options { check: true, ..INSTALL };
    const GPU: Options = Options { gpu: true, ..INSTALL };
    const CHECK_GPU: Options = Options { gpu: true, ..CHECK };
    const COCOTB: Options = Options { cocotb: true, ..INSTALL };
    const CHECK_COCOTB: Options = Options { cocotb: true, ..CHECK };

    const ALL: &[&str] = &["verilator", "perl", "g++", "iverilog", "vvp", "make"];

    #[test]
    fn with_everything_there_nothing_is_run() {
        let (dir, host) = host(ALL, true);
        fs::write(dir.path().join("include/zlib.h"), "").unwrap();
        fake(dir.path(), "apt-get", "exit 1");
        set_up(&host, INSTALL).unwrap();
        set_up(&host, CHECK).unwrap();
    }

    #[rstest]
    #[case::header(&["verilator", "perl", "g++", "iverilog", "vvp", "make"], "missing: zlib1g-dev;")]
    #[case::simulators(&["perl", "g++", "make"], "missing: iverilog verilator zlib1g-dev;")]
    #[case::half_a_package(&["verilator", "perl", "g++", "iverilog", "make"], "missing: iverilog zlib1g-dev;")]
    fn check_names_what_is_missing_and_installs_nothing(#[case] programs: &[&str], #[case] expected: &str) {
        let (dir, host) = host(programs, true);
        fake_apt(dir.path());
        let error = set_up(&host, CHECK).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(!dir.path().join("log").exists());
    }

    #[test]
    fn missing_packages_are_installed_once() {
        let (dir, host) = host(&["perl"], true);
        fake_apt(dir.path());
        set_up(&host, INSTALL).unwrap();
        set_up(&host, INSTALL).unwrap();
        let log = fs::read_to_string(dir.path().join("log")).unwrap();
        let calls: Vec<&str> = log.lines().collect();
        assert_eq!(calls.len(), 2, "{log}");
        assert!(calls[0].ends_with(" update"), "{log}");
        let packages = "install -y --no-install-recommends g++ iverilog make verilator zlib1g-dev";
        assert!(calls[1].ends_with(packages), "{log}");
    }

    #[test]
    fn an_installation_that_fails_or_provides_nothing_is_an_error() {
        let (dir, host) = host(&[], true);
        fake_apt(dir.path());
        fake(dir.path(), "apt-get", "exit 100");
        assert!(set_up(&host, INSTALL).unwrap_err().to_string().contains("exit status: 100"));
        fake(dir.path(), "apt-get", "exit 0");
        assert!(set_up(&host, INSTALL).unwrap_err().to_string().contains("still not found"));
    }

    #[rstest]
    #[case::no_apt(&["sudo"], "there is no apt-get here")]
    #[case::no_sudo(&["apt-get"], "there is no sudo")]
    fn without_the_means_it_says_what_to_do(#[case] programs: &[&str], #[case] expected: &str) {
        let (_dir, host) = host(programs, false);
        let error = set_up(&host, INSTALL).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("verilator"), "{error}");
    }

    #[test]
    fn without_root_sudo_is_used() {
        let (_dir, host) = host(&["apt-get", "sudo"], false);
        let plan = host.plan(&["make"]).unwrap();
        assert!(plan.iter().all(|words| words[0] == "sudo"), "{plan:?}");
    }

    #[test]
    fn a_verilator_of_the_callers_own_is_not_looked_at() {
        let (dir, mut host) = host(&["perl", "g++", "iverilog", "vvp", "make"], true);
        fs::write(dir.path().join("include/zlib.h"), "").unwrap();
        assert!(set_up(&host, CHECK).is_err());
        host.own_verilator = true;
        set_up(&host, CHECK).unwrap();
        fake(dir.path(), "verilator", "echo Verilator 4.038");
        set_up(&host, CHECK).unwrap();
    }

    #[test]
    fn a_command_runs_beside_the_installation_and_sees_its_lock() {
        let (dir, host) = host(&["perl"], true);
        fake_apt(dir.path());
        // It starts before anything is installed, waits as a build script does, and then finds what it needs.
        let script = format!(
            "[ ! -e {0}/verilator ] || [ -e {0}/log ] || exit 9; \
             while [ ! -e {0}/verilator ]; do /bin/sleep 0.01; done; [ -n \"${LOCK}\" ] || exit 8; exit 7",
            dir.path().display()
        );
        let mut command = Command::new("/bin/sh");
        let code = beside(&host, dir.path(), INSTALL, command.args(["-c", &script])).unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(7)));
        // Nothing is missing any more: no lock, the same code.
        let mut command = Command::new("/bin/sh");
        let code =
            beside(&host, dir.path(), INSTALL, command.args(["-c", &format!("[ -z \"${LOCK}\" ]")])).unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
    }

    #[test]
    fn an_installation_that_fails_beside_a_command_is_told() {
        let (dir, host) = host(&[], true);
        fake_apt(dir.path());
        fake(dir.path(), "apt-get", "exit 100");
        let error = beside(&host, dir.path(), INSTALL, &mut Command::new("true")).unwrap_err();
        assert!(error.to_string().contains("exit status: 100"), "{error}");
    }

    #[test]
    fn waves_need_more() {
        let (dir, host) = host(ALL, true);
        fs::write(dir.path().join("include/zlib.h"), "").unwrap();
        let error = set_up(&host, Options { wave: true, ..CHECK }).unwrap_err().to_string();
        assert_eq!(error, "missing: gtkwave; `cargo xtask setup --wave` installs that");
    }

    #[test]
    fn counting_instructions_needs_valgrind() {
        let (dir, host) = host(ALL, true);
        fs::write(dir.path().join("include/zlib.h"), "").unwrap();
        let perf = Options { perf: true, ..CHECK };
        let error = set_up(&host, perf).unwrap_err().to_string();
        assert_eq!(error, "missing: valgrind; `cargo xtask setup --perf` installs that");
        fake(dir.path(), "valgrind", "");
        set_up(&host, perf).unwrap();
        set_up(&host, CHECK).unwrap();
    }

    #[rstest]
    #[case("Verilator 5.006 2023-01-22 rev (Debian 5.006-3)", true)]
    #[case("Verilator 5.020 2024-01-01", true)]
    #[case("Verilator 6.000", true)]
    #[case("Verilator", true)]
    #[case("Verilator 4.038 2020-07-11", false)]
    #[case("Verilator 5.004 2022-12-14", false)]
    fn an_old_verilator_is_refused(#[case] line: &str, #[case] good: bool) {
        let (dir, host) = host(ALL, true);
        fs::write(dir.path().join("include/zlib.h"), "").unwrap();
        fake(dir.path(), "verilator", &format!("echo '{line}'"));
        let result = set_up(&host, CHECK);
        assert_eq!(result.is_ok(), good, "{result:?}");
    }

    #[test]
    fn nvcc_is_installed_once_and_the_kernels_are_built_anew() {
        let (dir, host) = host_without_nvcc("13.1");
        let old = SystemTime::UNIX_EPOCH;
        fs::File::options().append(true).open(&host.kernels).unwrap().set_modified(old).unwrap();
        let error = set_up(&host, CHECK_GPU).unwrap_err().to_string();
        assert_eq!(error, "missing: nvcc; `cargo xtask setup --gpu` installs that");
        set_up(&host, CHECK).unwrap();
        set_up(&host, GPU).unwrap();
        assert!(fs::metadata(&host.kernels).unwrap().modified().unwrap() > old);
        set_up(&host, GPU).unwrap();
        set_up(&host, CHECK_GPU).unwrap();
        let log = fs::read_to_string(dir.path().join("log")).unwrap();
        assert_eq!(log.matches("-m venv").count(), 1, "{log}");
    }

    #[test]
    fn an_nvcc_that_is_too_old_is_none() {
        let (dir, host) = host_without_nvcc("12.0");
        fake(dir.path(), "nvcc", "echo release 11.8, V11.8.89");
        assert!(set_up(&host, CHECK_GPU).is_err());
        assert!(set_up(&host, GPU).unwrap_err().to_string().contains("still not found"));
        fake(dir.path(), "nvcc", "echo release 12.4, V12.4.131");
        set_up(&host, CHECK_GPU).unwrap();
    }

    /// A machine whose toolkit has no disassembler gets that alone.
    #[test]
    fn an_nvcc_without_nvdisasm_gets_one() {
        let (dir, host) = host_without_nvcc("13.1");
        fake(dir.path(), "nvcc", "echo release 12.4, V12.4.131");
        let old = SystemTime::UNIX_EPOCH;
        fs::File::options().append(true).open(&host.kernels).unwrap().set_modified(old).unwrap();
        let error = set_up(&host, CHECK_GPU).unwrap_err().to_string();
        assert_eq!(error, "missing: nvdisasm; `cargo xtask setup --gpu` installs that");
        set_up(&host, GPU).unwrap();
        set_up(&host, CHECK_GPU).unwrap();
        let log = fs::read_to_string(dir.path().join("pip.log")).unwrap();
        assert!(log.contains("nvdisasm") && !log.contains("nvcc"), "{log}");
        assert_eq!(fs::metadata(&host.kernels).unwrap().modified().unwrap(), old, "the compiler is the same");
    }

    #[test]
    fn python_without_virtual_environments_gets_them_first() {
        let (dir, host) = host_without_nvcc("13.1");
        fake(dir.path(), "python3", "exit 1");
        let error = set_up(&host, CHECK_GPU).unwrap_err().to_string();
        assert!(error.starts_with("missing: python3-venv nvcc;"), "{error}");
    }

    #[test]
    fn whoever_switches_cuda_off_needs_no_nvcc() {
        let (_dir, mut host) = host_without_nvcc("13.1");
        host.compilers.switch = "off".into();
        set_up(&host, CHECK_GPU).unwrap();
        host.compilers.switch = "no".into();
        assert!(set_up(&host, CHECK_GPU).unwrap_err().to_string().contains("DOORBELL_CUDA is \"no\""));
    }

    #[rstest]
    #[case("", &["80", "90a", "100"])]
    #[case("90a", &["90a"])]
    #[case(" 100, 80,", &["80", "100"])]
    fn architectures_are_chosen(#[case] list: &str, #[case] expected: &[&str]) {
        let (dir, host) = host_without_nvcc("13.1");
        let known = "compute_80\ncompute_90\ncompute_100\n";
        fake(dir.path(), "nvcc", &format!("printf 'release 13.1, V13.1.0\n{known}'"));
        let compilers = Places { architectures: list.to_owned(), ..host.compilers };
        assert_eq!(compilers.find().unwrap().unwrap().architectures().unwrap(), expected);
    }

    #[test]
    fn an_architecture_that_is_not_known_is_refused() {
        let (_dir, host) = host_without_nvcc("13.1");
        let compilers = Places { architectures: "80,89".to_owned(), ..host.compilers };
        let error = compilers.find().unwrap_err();
        assert!(
            error.contains("DOORBELL_CUDA_ARCHITECTURES names \"89\"") && error.contains("80, 90a, 100"),
            "{error}"
        );
    }

    /// A machine where nothing is missing but cocotb, with a Python whose pip does `install`.
    fn host_without_cocotb(install: &str) -> (TempDir, Host) {
        let (dir, host) = host(ALL, true);
        fs::write(dir.path().join("include/zlib.h"), "").unwrap();
        let here = dir.path().display();
        let pip = format!(
            "case \"$2\" in pip) echo \"$@\" >> {here}/log; {install};; *) [ -e {here}/cocotb/there ];; esac"
        );
        fake(dir.path(), "pip", &pip);
        let venv =
            format!("/bin/mkdir -p {here}/cocotb/bin; /bin/ln -sf {here}/pip {here}/cocotb/bin/python");
        fake(dir.path(), "python3", &format!("case \"$2\" in venv) {venv};; esac"));
        (dir, host)
    }

    #[test]
    fn cocotb_is_installed_once_and_anew_when_other_versions_are_asked_for() {
        // It is called by the name of the link in `cocotb/bin`.
        let (dir, host) = host_without_cocotb(": > ${0%/bin/python}/there");
        let error = set_up(&host, CHECK_COCOTB).unwrap_err().to_string();
        assert_eq!(error, "missing: cocotb; `cargo xtask setup --cocotb` installs that");
        set_up(&host, CHECK).unwrap();
        set_up(&host, COCOTB).unwrap();
        set_up(&host, COCOTB).unwrap();
        set_up(&host, CHECK_COCOTB).unwrap();
        let log = || fs::read_to_string(dir.path().join("log")).unwrap();
        assert_eq!(log().lines().count(), 1, "{}", log());
        fs::write(&host.cocotb.requirements, "cocotb==2.2.0\n").unwrap();
        set_up(&host, CHECK_COCOTB).unwrap_err();
        set_up(&host, COCOTB).unwrap();
        assert_eq!(log().lines().count(), 2, "{}", log());
    }

    #[test]
    fn without_pypi_cocotb_is_an_error_that_names_what_is_missing() {
        let (_dir, host) = host_without_cocotb("exit 1");
        let error = format!("{:#}", set_up(&host, COCOTB).unwrap_err());
        assert!(error.contains("wanted.txt names, from PyPI") && error.contains("exit status: 1"), "{error}");
        let (_dir, host) = host_without_cocotb("true");
        let error = set_up(&host, COCOTB).unwrap_err().to_string();
        assert!(error.contains("cannot be imported"), "{error}");
        set_up(&host, CHECK_COCOTB).unwrap_err();
    }

    #[test]
    fn cocotb_needs_python_as_a_library() {
        let (dir, host) = host_without_cocotb("true");
        fake(dir.path(), "python3", "case \"$2\" in *CDLL*) exit 1;; esac");
        let error = set_up(&host, CHECK_COCOTB).unwrap_err().to_string();
        assert!(error.starts_with("missing: libpython3-dev cocotb;"), "{error}");
    }
}
