//! The guest's file system: busybox, the kernel's modules of vfio, and `doorbell` with the libraries that it is linked to.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::packages::Packages;
use doorbell_setup::shell;

/// What each line of the guest's own begins with; before the first, the firmware has cleared the screen.
pub const MARK: &str = "vm:";
/// Behind it stands a program that starts, with its arguments.
pub const STARTED: &str = "vm: run ";
/// Behind it stands the exit code of a program.
pub const ENDED: &str = "vm: ended with";
/// Where a trace lies in the guest.
pub const TRACE: &str = "/trace";

/// The first program that the kernel runs; what is run there follows it.
const INIT: &str = include_str!("init.sh");
/// In the order in which they are loaded. A kernel may have one built in, or not at all.
const MODULES: [&str; 6] =
    ["irqbypass", "vfio", "vfio_virqfd", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci"];

/// Programs that run at once, after each function was bound to vfio-pci anew.
#[derive(Debug, Default)]
pub struct Round {
    /// Programs with their arguments, as a shell reads them.
    pub starts: Vec<String>,
    /// Lines of the shell, while they run.
    pub meanwhile: Vec<String>,
}

/// Packs it into `folder`; the file is for QEMU's `-initrd`. The guest runs the rounds one after the other.
///
/// # Errors
/// When a file cannot be written, or a library of a program is not found.
pub fn pack(
    folder: &Path,
    packages: &Packages,
    programs: &[&Path],
    trace: Option<&Path>,
    addresses: &[String],
    rounds: &[Round],
) -> Result<PathBuf> {
    let tree = Tree(folder.join("guest"));
    if tree.0.exists() {
        fs::remove_dir_all(&tree.0).with_context(|| format!("cannot remove {}", tree.0.display()))?;
    }
    for empty in ["dev", "proc", "sys", "tmp", "modules"] {
        tree.folder(empty)?;
    }
    let busybox = packages.busybox();
    tree.copy(&busybox, "bin/busybox")?;
    for program in programs {
        tree.copy(program, Path::new("usr/bin").join(program.file_name().context("a program has no name")?))?;
        for library in libraries(program)? {
            tree.copy(&library, library.strip_prefix("/").unwrap_or(&library))?;
        }
    }
    if let Some(trace) = trace {
        tree.copy(trace, TRACE.trim_start_matches('/'))?;
    }
    for (place, module) in MODULES.iter().enumerate() {
        if let Some(file) = packages.module(module)? {
            tree.module(&busybox, &file, &format!("modules/{place}-{module}.ko"))?;
        }
    }
    tree.write("init", &(INIT.to_owned() + &script(addresses, rounds)))?;

    let image = folder.join("guest.cpio");
    let file = File::create(&image).with_context(|| format!("cannot write {}", image.display()))?;
    let mut pack = Command::new(&busybox);
    pack.args(["sh", "-c", "\"$0\" find . | \"$0\" cpio -o -H newc"]).arg(&busybox);
    let packed = pack.current_dir(&tree.0).stdout(file).stderr(Stdio::null()).status();
    let packed = packed.with_context(|| format!("cannot run {}", busybox.display()))?;
    ensure!(packed.success(), "packing {} ended with {packed}", image.display());
    Ok(image)
}

/// What the guest's first program does once it is ready.
fn script(addresses: &[String], rounds: &[Round]) -> String {
    let bind: String = addresses.iter().map(|address| format!("rebind {address}\n")).collect();
    let round = |Round { starts, meanwhile }: &Round| {
        let start: String = starts.iter().map(|program| format!("start {program}\n")).collect();
        let meanwhile: String = meanwhile.iter().map(|line| format!("{line}\n")).collect();
        format!("{bind}{start}{meanwhile}settle\n")
    };
    rounds.iter().map(round).collect::<String>() + "finish\n"
}

/// The libraries that `program` is linked to, and the loader.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("cannot run ldd, which comes with the C library")?;
    ensure!(output.status.success(), "`ldd {}` ended with {}", program.display(), output.status);
    Ok(listed(&String::from_utf8_lossy(&output.stdout)))
}

/// The files that `ldd` names. The kernel's own, linux-vdso, is no file.
fn listed(text: &str) -> Vec<PathBuf> {
    let words = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    words.map(PathBuf::from).collect()
}

/// A folder that becomes the guest's root.
struct Tree(PathBuf);

impl Tree {
    fn folder(&self, name: &str) -> Result<()> {
        let folder = self.0.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))
    }

    /// The file's place, with the folder that it lies in.
    fn place(&self, name: impl AsRef<Path>) -> Result<PathBuf> {
        let place = self.0.join(name);
        let folder = place.parent().unwrap_or(&self.0);
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(place)
    }

    fn copy(&self, from: &Path, name: impl AsRef<Path>) -> Result<()> {
        let to = self.place(name)?;
        fs::copy(from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        Ok(())
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let to = self.place(name)?;
        let written =
            fs::write(&to, text).and_then(|()| fs::set_permissions(&to, PermissionsExt::from_mode(0o755)));
        written.with_context(|| format!("cannot write {}", to.display()))
    }

    /// A module of the kernel, unpacked if it is packed.
    fn module(&self, busybox: &Path, from: &Path, name: &str) -> Result<()> {
        if from.extension().is_none_or(|extension| extension != "xz") {
            return self.copy(from, name);
        }
        let to = self.place(name)?;
        let file = File::create(&to).with_context(|| format!("cannot write {}", to.display()))?;
        let mut unpack = Command::new(busybox);
        unpack.arg("xzcat").arg(from).stdout(file);
        let status = unpack.status().with_context(|| format!("cannot run {}", busybox.display()))?;
        ensure!(status.success(), "`{}` ended with {status}", shell::shown(&unpack));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_that_are_files() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let files = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(listed(text), files);
    }

    /// What the guest's first program runs, with programs that stand in for real ones: how each ended is told in the order of their
    /// start.
    #[test]
    fn every_program_is_run_and_how_it_ended_is_told() {
        let functions = &INIT[INIT.find("# Starts").unwrap()..INIT.find("finish()").unwrap()];
        let stand_ins = "tmp=$(mktemp -d)\n\
                         doorbell() { sleep \"$2\"; echo \"ran $1\"; return \"$3\"; }\n\
                         rebind() { echo \"bound $1\"; }\n\
                         finish() { rm -r \"$tmp\"; }\n";
        let round = |starts: &[&str], meanwhile: &[&str]| {
            let [starts, meanwhile] =
                [starts, meanwhile].map(|lines| lines.iter().map(|&line| line.to_owned()).collect());
            Round { starts, meanwhile }
        };
        let rounds = [
            round(&["doorbell slow 0.3 0", "doorbell fast 0 3"], &[]),
            round(&["doorbell last 0 1"], &["echo meanwhile"]),
        ];
        let text = format!("{stand_ins}{functions}{}", script(&["A".to_owned()], &rounds));
        let output = Command::new("sh").args(["-c", &text]).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            told.lines().collect::<Vec<_>>(),
            [
                "bound A",
                "vm: run doorbell slow 0.3 0",
                "vm: run doorbell fast 0 3",
                "ran slow",
                "vm: ended with 0",
                "ran fast",
                "vm: ended with 3",
                "bound A",
                "vm: run doorbell last 0 1",
                "meanwhile",
                "ran last",
                "vm: ended with 1",
            ],
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// A shell reads all of it without complaint.
    #[test]
    fn the_first_program_is_one() {
        let status = Command::new("sh").args(["-n", "-c", &(INIT.to_owned() + &script(&[], &[]))]).status();
        assert!(status.unwrap().success());
    }
}
