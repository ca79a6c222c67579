//! `cargo xtask setup`: installs what the other commands need.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell;

/// Oldest Verilator that the build supports.
const VERILATOR: (u32, u32) = (5, 6);

/// How to tell that a package is there.
#[derive(Clone, Copy)]
enum Sign {
    Program(&'static str),
    Header(&'static str),
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Sign::Program(name) | Sign::Header(name)) = self;
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

const WAVE_NEEDS: &[Need] = &[
    (Sign::Program("gtkwave"), "gtkwave", "showing waves"),
    (Sign::Program("Xvfb"), "xvfb", "rendering waves without a display"),
    (Sign::Program("convert"), "imagemagick", "rendering waves"),
];

/// What setup sees of the machine.
struct Host {
    path: OsString,
    include: Vec<PathBuf>,
    root: bool,
    /// The environment variable `VERILATOR` names another one, which is then the caller's affair.
    own_verilator: bool,
}

impl Host {
    fn this() -> Host {
        // /proc/self belongs to the effective user.
        let root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
        Host {
            path: shell::path(),
            include: vec!["/usr/include".into(), "/usr/local/include".into()],
            root,
            own_verilator: env::var_os("VERILATOR").is_some_and(|command| !command.is_empty()),
        }
    }

    fn has(&self, sign: Sign) -> bool {
        match sign {
            Sign::Program("verilator") if self.own_verilator => true,
            Sign::Program(name) => shell::find(name, &self.path).is_some(),
            Sign::Header(name) => self.include.iter().any(|dir| dir.join(name).is_file()),
        }
    }

    fn missing(&self, wave: bool) -> Vec<Need> {
        let wanted = NEEDS.iter().chain(if wave { WAVE_NEEDS } else { &[] });
        wanted.copied().filter(|(sign, ..)| !self.has(*sign)).collect()
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

/// Major and minor of `Verilator 5.006 2023-01-22 …`; some builds leave the number out.
fn version(line: &str) -> Option<(u32, u32)> {
    let (major, minor) = line.split_whitespace().nth(1)?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Installs what is missing; silent when nothing is. With `check` names it only.
///
/// # Errors
/// When `check` finds something missing, or it cannot be installed.
pub fn run(check: bool, wave: bool) -> Result<()> {
    set_up(&Host::this(), check, wave)
}

fn set_up(host: &Host, check: bool, wave: bool) -> Result<()> {
    let missing = host.missing(wave);
    for (sign, package, purpose) in &missing {
        println!("setup: {sign} is missing (package {package}; for {purpose})");
    }
    let mut packages: Vec<&str> = missing.iter().map(|&(_, package, _)| package).collect();
    packages.sort_unstable();
    packages.dedup();
    if !packages.is_empty() {
        if check {
            let flag = if wave { " --wave" } else { "" };
            bail!("missing: {}; `cargo xtask setup{flag}` installs that", packages.join(" "));
        }
        let plan = host.plan(&packages)?;
        println!("setup: going to run, {}:", if host.root { "as root" } else { "through sudo" });
        plan.iter().for_each(|words| println!("  {}", words.join(" ")));
        for words in &plan {
            let program = shell::find(&words[0], &host.path).unwrap_or_else(|| (&words[0]).into());
            shell::run(Command::new(program).args(&words[1..]).env("PATH", &host.path))?;
        }
        if let Some((sign, package, _)) = host.missing(wave).first() {
            bail!(
                "{package} was installed, yet {sign} is still not found: look at the output of apt-get above"
            );
        }
    }
    host.verilator_problem().map_or(Ok(()), |problem| bail!(problem))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rstest::rstest;
    use tempfile::TempDir;

    use super::*;
    use crate::shell::fake;

    /// A machine of its own: programs in one directory, headers in another.
    fn host(programs: &[&str], root: bool) -> (TempDir, Host) {
        let dir = tempfile::tempdir().unwrap();
        let include = dir.path().join("include");
        fs::create_dir(&include).unwrap();
        for name in programs {
            fake(dir.path(), name, "");
        }
        let host = Host { path: dir.path().into(), include: vec![include], root, own_verilator: false };
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

    const ALL: &[&str] = &["verilator", "perl", "g++", "iverilog", "vvp", "make"];

    #[test]
    fn with_everything_there_nothing_is_run() {
        let (dir, host) = host(ALL, true);
        fs::write(dir.path().join("include/zlib.h"), "").unwrap();
        fake(dir.path(), "apt-get", "exit 1");
        set_up(&host, false, false).unwrap();
        set_up(&host, true, false).unwrap();
    }

    #[rstest]
    #[case::header(&["verilator", "perl", "g++", "iverilog", "vvp", "make"], "missing: zlib1g-dev;")]
    #[case::simulators(&["perl", "g++", "make"], "missing: iverilog verilator zlib1g-dev;")]
    #[case::half_a_package(&["verilator", "perl", "g++", "iverilog", "make"], "missing: iverilog zlib1g-dev;")]
    fn check_names_what_is_missing_and_installs_nothing(#[case] programs: &[&str], #[case] expected: &str) {
        let (dir, host) = host(programs, true);
        fake_apt(dir.path());
        let error = set_up(&host, true, false).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(!dir.path().join("log").exists());
    }

    #[test]
    fn missing_packages_are_installed_once() {
        let (dir, host) = host(&["perl"], true);
        fake_apt(dir.path());
        set_up(&host, false, false).unwrap();
        set_up(&host, false, false).unwrap();
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
        assert!(set_up(&host, false, false).unwrap_err().to_string().contains("exit status: 100"));
        fake(dir.path(), "apt-get", "exit 0");
        assert!(set_up(&host, false, false).unwrap_err().to_string().contains("still not found"));
    }

    #[rstest]
    #[case::no_apt(&["sudo"], "there is no apt-get here")]
    #[case::no_sudo(&["apt-get"], "there is no sudo")]
    fn without_the_means_it_says_what_to_do(#[case] programs: &[&str], #[case] expected: &str) {
        let (_dir, host) = host(programs, false);
        let error = set_up(&host, false, false).unwrap_err().to_string();
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
        assert!(set_up(&host, true, false).is_err());
        host.own_verilator = true;
        set_up(&host, true, false).unwrap();
        fake(dir.path(), "verilator", "echo Verilator 4.038");
        set_up(&host, true, false).unwrap();
    }

    #[test]
    fn waves_need_more() {
        let (dir, host) = host(ALL, true);
        fs::write(dir.path().join("include/zlib.h"), "").unwrap();
        let error = set_up(&host, true, true).unwrap_err().to_string();
        assert_eq!(error, "missing: gtkwave imagemagick xvfb; `cargo xtask setup --wave` installs that");
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
        let result = set_up(&host, true, false);
        assert_eq!(result.is_ok(), good, "{result:?}");
    }
}
