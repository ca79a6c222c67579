//! Where nvcc is, and how it is called: shared by the build script and `cargo xtask`, so that what `gpu-check` judges is
//! what the build embeds. Needs nothing but `std`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, fmt, fs, thread};

use super::cache::{Cache, Key};

/// The kernels, from the repository's root. Other files are what it includes.
pub const KERNELS: &str = "gpu/kernels/doorbell.cu";
/// Where `#include "…"` looks, besides the directory of the file that includes.
pub const INCLUDES: [&str; 2] = ["contract", "gpu/kernels"];
/// Architectures that get machine code: A100, H100 and H200, B200. Others compile the PTX when they load it.
pub const ARCHITECTURES: [&str; 3] = ["80", "90a", "100"];
/// What the sources of the kernels end with.
const SOURCES: [&str; 3] = ["cu", "cuh", "h"];
/// What prints machine code.
const DISASSEMBLER: &str = "nvdisasm";
const CODE: &str = "doorbell.cubin";
const PTX: &str = "doorbell.ptx";
const REPORT: &str = "ptxas.txt";
/// Architecture of the PTX: every GPU from this one on takes it. One of [`ARCHITECTURES`].
const PTX_ARCHITECTURE: &str = "80";
/// Versions of PTX from [`OLDEST`] on: a driver takes those up to its own.
const PTX_VERSIONS: [&str; 6] = ["8.4", "8.5", "8.6", "8.7", "8.8", "9.0"];
/// The language, as nvcc and NVRTC take it.
pub const STANDARD: &str = "-std=c++17";
/// The environment variable that chooses among [`ARCHITECTURES`], as in `90a` or `80,90a`. Those it leaves out take a minute or more of a core each.
pub const CHOICE: &str = "DOORBELL_CUDA_ARCHITECTURES";
/// Environment variables that decide which nvcc is used.
pub const VARIABLES: [&str; 7] =
    ["DOORBELL_CUDA", "NVCC", "NVCC_APPEND_FLAGS", "CUDA_HOME", "CUDA_PATH", "XDG_CACHE_HOME", "HOME"];

/// The folder in the target directory that keeps what was compiled, by its content.
pub const CACHE: &str = "doorbell-gpu";

/// The first toolkit whose assembler knows 16-byte accesses of system scope.
const OLDEST: Version = Version(12, 4);

/// Major and minor of a toolkit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Where an nvcc may be, in the order in which they are tried.
pub struct Places {
    /// `DOORBELL_CUDA`: `off` is none at all.
    pub switch: String,
    /// `NVCC`: this one and no other.
    pub named: Option<PathBuf>,
    /// `PATH`.
    pub path: OsString,
    /// Toolkits: directories with a `bin`.
    pub toolkits: Vec<PathBuf>,
    /// The virtual environment of `cargo xtask setup --gpu`.
    pub venv: Option<PathBuf>,
    /// [`CHOICE`]; empty: all.
    pub architectures: String,
}

impl Places {
    /// Those of this process's environment.
    pub fn this() -> Self {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set).map(PathBuf::from);
        let cache = set("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")));
        Self {
            switch: env::var("DOORBELL_CUDA").unwrap_or_default(),
            named: set("NVCC").map(PathBuf::from),
            path: set("PATH").unwrap_or_default(),
            toolkits: toolkits.chain([PathBuf::from("/usr/local/cuda")]).collect(),
            venv: cache.map(|cache| cache.join("doorbell/cuda")),
            architectures: env::var(CHOICE).unwrap_or_default(),
        }
    }

    /// Whether the environment wants no nvcc at all.
    pub fn is_off(&self) -> bool {
        self.switch == "off"
    }

    /// The first nvcc that is there and new enough, if there is one and it is not switched off.
    ///
    /// # Errors
    /// When the environment asks for something that cannot be.
    pub fn find(&self) -> Result<Option<Nvcc>, String> {
        if self.is_off() {
            return Ok(None);
        }
        if !self.switch.is_empty() {
            return Err(format!("DOORBELL_CUDA is {:?}: it can be `off`, or unset", self.switch));
        }
        let wanted = chosen(&self.architectures)?;
        Ok(self.first()?.map(|nvcc| Nvcc { wanted, ..nvcc }))
    }

    fn first(&self) -> Result<Option<Nvcc>, String> {
        if let Some(named) = &self.named {
            let program = self.in_path(named).unwrap_or_else(|| named.clone());
            let nvcc =
                Nvcc::new(program).map_err(|error| format!("NVCC names no working compiler: {error}"))?;
            return match nvcc.version {
                version if version < OLDEST => Err(format!(
                    "NVCC is {}, of CUDA {version}, and {OLDEST} is the oldest that works: name a newer one, or unset it",
                    nvcc.program.display()
                )),
                _ => Ok(Some(nvcc)),
            };
        }
        let good = |program: PathBuf| Nvcc::new(program).ok().filter(|nvcc| nvcc.version >= OLDEST);
        let installed = self.in_path(Path::new("nvcc")).into_iter();
        let installed = installed.chain(self.toolkits.iter().map(|toolkit| toolkit.join("bin/nvcc")));
        Ok(installed
            .filter(|program| program.is_file())
            .find_map(good)
            .or_else(|| {
                site_packages_of_venv(self.venv.as_deref()?)
                    .iter()
                    .flat_map(|dir| wheels(dir, "nvcc"))
                    .find_map(good)
            })
            .or_else(|| {
                self.site_packages_of_python().iter().flat_map(|dir| wheels(dir, "nvcc")).find_map(good)
            }))
    }

    /// The disassembler: beside the compiler, in `PATH`, or installed with what `cargo xtask setup --gpu` installs.
    pub fn disassembler(&self, nvcc: &Nvcc) -> Option<PathBuf> {
        let beside = nvcc.program.canonicalize().ok().map(|program| program.with_file_name(DISASSEMBLER));
        let installed = self.venv.as_deref().map(site_packages_of_venv).unwrap_or_default();
        let places = beside.into_iter().chain(self.in_path(Path::new(DISASSEMBLER)));
        places
            .chain(installed.iter().flat_map(|dir| wheels(dir, DISASSEMBLER)))
            .find(|program| program.is_file())
    }

    fn in_path(&self, program: &Path) -> Option<PathBuf> {
        env::split_paths(&self.path).map(|dir| dir.join(program)).find(|file| file.is_file())
    }

    /// Where `python3` looks for packages.
    fn site_packages_of_python(&self) -> Vec<PathBuf> {
        let Some(python) = self.in_path(Path::new("python3")) else { return vec![] };
        let mut command = Command::new(python);
        command.args(["-c", "import sys; print(*sys.path, sep='\\n')"]).env("PATH", &self.path);
        let output = command.stderr(Stdio::null()).output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect()
    }
}

fn site_packages_of_venv(venv: &Path) -> Vec<PathBuf> {
    children(&venv.join("lib"), "python3").into_iter().map(|dir| dir.join("site-packages")).collect()
}

/// Where NVIDIA's wheels have put a program, in a directory of packages; the newest major version first.
fn wheels(site_packages: &Path, program: &str) -> Vec<PathBuf> {
    let mut toolkits = children(&site_packages.join("nvidia"), "cu");
    toolkits.sort_unstable_by(|a, b| b.cmp(a));
    toolkits
        .into_iter()
        .map(|toolkit| toolkit.join("bin").join(program))
        .filter(|file| file.is_file())
        .collect()
}

fn children(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    named.map(|entry| entry.path()).collect()
}

/// A compiler that answers.
#[derive(Debug)]
pub struct Nvcc {
    /// The program.
    pub program: PathBuf,
    /// The toolkit's version.
    pub version: Version,
    /// Of [`ARCHITECTURES`], those for which machine code is wanted.
    wanted: Vec<&'static str>,
}

impl Nvcc {
    fn new(program: PathBuf) -> Result<Self, String> {
        let text = said(Command::new(&program).arg("--version"))?;
        let version = version_of(&text)
            .ok_or_else(|| format!("{} --version does not give a version, but: {text}", program.display()))?;
        Ok(Self { program, version, wanted: ARCHITECTURES.to_vec() })
    }

    /// Those of [`ARCHITECTURES`] that are wanted and that this compiler knows.
    ///
    /// # Errors
    /// When it does not run.
    pub fn architectures(&self) -> Result<Vec<&'static str>, String> {
        let known = said(Command::new(&self.program).arg("--list-gpu-arch"))?;
        let knows = |architecture: &&str| {
            let generation = architecture.trim_end_matches(char::is_alphabetic);
            known.lines().any(|line| line.trim().strip_prefix("compute_") == Some(generation))
        };
        Ok(self.wanted.iter().copied().filter(knows).collect())
    }

    /// The kernels, compiled for each of [`Nvcc::architectures`], side by side. What was compiled before, of the same sources
    /// with the same compiler, is taken from `cache`: a minute or more for each.
    ///
    /// # Errors
    /// When they do not compile.
    pub fn machine_code(&self, root: &Path, cache: &Cache) -> Result<Vec<MachineCode>, String> {
        let architectures = self.architectures()?;
        let root =
            &fs::canonicalize(root).map_err(|error| format!("cannot find {}: {error}", root.display()))?;
        thread::scope(|scope| {
            let compilations: Vec<_> = architectures
                .into_iter()
                .map(|architecture| {
                    scope.spawn(move || match architecture {
                        PTX_ARCHITECTURE => self.compile_by_ptx(root, cache),
                        _ => self.compile(root, cache, architecture),
                    })
                })
                .collect();
            compilations.into_iter().map(|one| one.join().expect("a compilation does not panic")).collect()
        })
    }

    fn compile(&self, root: &Path, cache: &Cache, architecture: &'static str) -> Result<MachineCode, String> {
        let mut command = self.command(root);
        command.args(["-cubin", "-Xptxas=-v", &format!("-arch=sm_{architecture}"), KERNELS]);
        let name = format!("sm_{architecture}");
        let directory = cache.get(&name, &self.key(root, &command)?, |directory| {
            let report = said(command.arg("-o").arg(directory.join(CODE)))?;
            fs::write(directory.join(REPORT), report)
                .map_err(|error| format!("cannot write {}: {error}", directory.display()))
        })?;
        let report = directory.join(REPORT);
        Ok(MachineCode { architecture, code: directory.join(CODE), report, ptx: None })
    }

    /// The kernels for [`PTX_ARCHITECTURE`]: their PTX, which is kept, and the machine code that the assembler makes of it.
    fn compile_by_ptx(&self, root: &Path, cache: &Cache) -> Result<MachineCode, String> {
        let architecture = PTX_ARCHITECTURE;
        let mut command = self.command(root);
        command.args(["-ptx", &format!("-arch=compute_{architecture}"), KERNELS]);
        // What is done to nvcc's text below is part of what is made.
        let key = self.key(root, &command)?.text(PTX_VERSIONS.join(" "));
        let directory = cache.get(&format!("sm_{architecture}"), &key, |directory| {
            let ptx = directory.join(PTX);
            let warned = said(command.arg("-o").arg(&ptx))?;
            let assembled = self.assemble(&ptx, &directory.join(CODE))?;
            fs::write(directory.join(REPORT), warned + &assembled)
                .map_err(|error| format!("cannot write {}: {error}", directory.display()))
        })?;
        let report = directory.join(REPORT);
        Ok(MachineCode { architecture, code: directory.join(CODE), report, ptx: Some(directory.join(PTX)) })
    }

    /// Assembles the PTX in `file`, gives it the lowest version with which that succeeds, and returns what the assembler said. nvcc writes
    /// its own version, which only drivers as new as it is take.
    fn assemble(&self, file: &Path, code: &Path) -> Result<String, String> {
        let problem = |verb, error| format!("cannot {verb} {}: {error}", file.display());
        let text = fs::read_to_string(file).map_err(|error| problem("read", error))?;
        let own = text
            .lines()
            .find_map(|line| line.strip_prefix(".version "))
            .ok_or("nvcc wrote PTX without a version")?;
        let with = |version: &str| {
            let lowered = text.replacen(&format!(".version {own}"), &format!(".version {version}"), 1);
            fs::write(file, lowered).map_err(|error| problem("write", error))?;
            let mut command = Command::new(&self.program);
            command.args(["-cubin", "-Xptxas=-v", &format!("-arch=sm_{PTX_ARCHITECTURE}"), "-o"]);
            said(command.arg(code).arg(file))
        };
        // What the kernels use may be newer than all of these: then the PTX stays as nvcc wrote it.
        PTX_VERSIONS.into_iter().find_map(|version| with(version).ok()).map_or_else(|| with(own), Ok)
    }

    /// All that the output of a call of [`Nvcc::command`] depends on.
    ///
    /// # Errors
    /// When a source cannot be read.
    pub fn key(&self, root: &Path, command: &Command) -> Result<Key, String> {
        let mut key = Key::default().text(format!("{} {command:?}", self.version));
        for variable in VARIABLES {
            key = key.text(format!("{variable}={:?}", env::var_os(variable)));
        }
        let directories = INCLUDES.map(|directory| root.join(directory));
        let mut sources: Vec<_> = directories.iter().flat_map(|directory| children(directory, "")).collect();
        let folders: Vec<_> = sources.iter().filter(|path| path.is_dir()).cloned().collect();
        sources.extend(folders.iter().flat_map(|folder| children(folder, "")));
        let of_kernels = |file: &PathBuf| {
            file.extension().is_some_and(|extension| SOURCES.iter().any(|known| extension == *known))
        };
        sources.retain(of_kernels);
        sources.sort_unstable();
        sources.iter().try_fold(key, |key, source| key.file(source))
    }

    /// A call that compiles for the device, in the repository at `root`; input, output and architecture are to be added.
    pub fn command(&self, root: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(root).args([STANDARD, "-O3"]);
        // Nothing is compiled for the host: a host compiler newer than the toolkit does no harm.
        command.arg("-allow-unsupported-compiler");
        for dir in INCLUDES {
            command.arg("-I").arg(dir);
        }
        command
    }
}

/// The kernels for one architecture, as files.
pub struct MachineCode {
    /// As in [`ARCHITECTURES`].
    pub architecture: &'static str,
    /// What a driver loads.
    pub code: PathBuf,
    /// What the compiler said: its warnings, and of each function what ptxas gave it.
    pub report: PathBuf,
    /// The PTX that it was made of, where that is what other architectures take.
    pub ptx: Option<PathBuf>,
}

/// Those of [`ARCHITECTURES`] that `list` names; all, where it names none.
///
/// # Errors
/// When it names another one.
fn chosen(list: &str) -> Result<Vec<&'static str>, String> {
    let names: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    match names.iter().find(|name| !ARCHITECTURES.contains(name)) {
        Some(unknown) => Err(format!(
            "{CHOICE} names {unknown:?}: it lists some of {}, as in {CHOICE}=80,90a, or is unset",
            ARCHITECTURES.join(", ")
        )),
        None => {
            Ok(ARCHITECTURES.into_iter().filter(|known| names.is_empty() || names.contains(known)).collect())
        }
    }
}

/// The number in `Cuda compilation tools, release 12.4, V12.4.131`.
fn version_of(text: &str) -> Option<Version> {
    let (major, minor) = text.split("release ").nth(1)?.split([',', ' ', '\n']).next()?.split_once('.')?;
    Some(Version(major.parse().ok()?, minor.parse().ok()?))
}

/// What a command that succeeds prints.
///
/// # Errors
/// Its own words, when it fails.
pub fn said(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_owned();
    let Output { status, stdout, stderr } =
        command.output().map_err(|error| format!("cannot run {}: {error}", Path::new(&program).display()))?;
    let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    if status.success() {
        return Ok(text);
    }
    Err(format!("{} ended with {status}:\n{}", Path::new(&program).display(), text.trim_end()))
}
