//! QEMU, a kernel and busybox, of Debian's packages: fetched and unpacked into a folder, and not installed.

use std::env::consts::ARCH;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use doorbell_setup::shell;

/// The device that QEMU must have.
const DEVICE: &str = "vfio-user-pci";
/// Signs Debian's lists of packages.
const KEYS: &str = doorbell_setup::DEBIANS_KEYS;
const MIRROR: &str = "http://deb.debian.org/debian";
/// A release of Debian. Its QEMU lacks the device, and its kernel is the one that this was tried with.
const RELEASE: &str = "trixie";
/// Newer packages for that release.
const NEWER: &str = "trixie-backports";
/// With what they depend on; the kernel's is the one for virtual machines, which has few modules.
const PACKAGES: [&str; 3] = ["qemu-system-x86", "linux-image-cloud-amd64", "busybox-static"];

/// The folder in which they lie as they would in the root of a Debian.
pub struct Packages {
    root: PathBuf,
}

/// Fetches what is not there yet into `folder`; inside, why it cannot be had here.
///
/// # Errors
/// When a file cannot be written, or a package that was fetched cannot be unpacked.
pub fn get(folder: &Path) -> Result<Result<Packages, String>> {
    let packages = Packages { root: folder.join("root") };
    if !packages.root.exists() {
        if let Some(reason) = missing() {
            return Ok(Err(reason));
        }
        let apt = Apt::new(folder.join("apt"))?;
        if let Err(reason) = apt.fetch() {
            return Ok(Err(reason));
        }
        apt.unpack(&packages.root)?;
    }
    let output = packages.qemu().args(["-device", "help"]).output();
    let output = output.with_context(|| format!("cannot run the QEMU in {}", packages.root.display()))?;
    let has = String::from_utf8_lossy(&output.stdout).contains(DEVICE);
    let lacks = || {
        format!(
            "the QEMU in {} has no {DEVICE}; remove that folder, to fetch another",
            packages.root.display()
        )
    };
    Ok(if has { Ok(packages) } else { Err(lacks()) })
}

/// What is missing on this machine to fetch packages.
fn missing() -> Option<String> {
    if ARCH != "x86_64" {
        return Some(format!(
            "the guest is an x86-64, as its program is this machine's, and this machine is {ARCH}"
        ));
    }
    let path = shell::path();
    if let Some(program) =
        ["apt-get", "dpkg-deb", "ldd"].into_iter().find(|program| shell::find(program, &path).is_none())
    {
        return Some(format!("there is no {program} to fetch QEMU and a kernel from Debian's packages"));
    }
    (!Path::new(KEYS).exists()).then(|| {
        format!("there is no {KEYS}, which Debian's packages are signed with: install debian-archive-keyring")
    })
}

impl Packages {
    /// QEMU, without arguments: started by the loader that it was built for.
    pub fn qemu(&self) -> Command {
        let inside = |path: &str| self.root.join(path);
        let mut libraries = OsString::from(inside("usr/lib/x86_64-linux-gnu"));
        libraries.push(":");
        libraries.push(inside("usr/lib"));
        let mut command = Command::new(inside("usr/lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(libraries).arg(inside("usr/bin/qemu-system-x86_64"));
        for data in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(inside(data));
        }
        command
    }

    /// Programs of a shell, in one that needs no library.
    pub fn busybox(&self) -> PathBuf {
        self.root.join("usr/bin/busybox")
    }

    /// The kernel.
    pub fn kernel(&self) -> Result<PathBuf> {
        let is_kernel = |name: &str| name.starts_with("vmlinuz-");
        find(&self.root.join("boot"), &is_kernel)?.context("there is no kernel among the packages")
    }

    /// The file of a module of the kernel, if it has that.
    pub fn module(&self, name: &str) -> Result<Option<PathBuf>> {
        let names = [format!("{name}.ko"), format!("{name}.ko.xz")];
        find(&self.root.join("usr/lib/modules"), &|file| names.iter().any(|name| name == file))
    }
}

/// The first file in `folder` whose name will do.
fn find(folder: &Path, will_do: &dyn Fn(&str) -> bool) -> Result<Option<PathBuf>> {
    let problem = || format!("cannot read {}", folder.display());
    let mut entries =
        fs::read_dir(folder).with_context(problem)?.collect::<Result<Vec<_>, _>>().with_context(problem)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let found = if entry.file_type().with_context(problem)?.is_dir() {
            find(&entry.path(), will_do)?
        } else {
            entry.file_name().to_str().is_some_and(will_do).then(|| entry.path())
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// An apt that knows of nothing installed, and keeps what it fetches in a folder.
struct Apt(PathBuf);

impl Apt {
    fn new(folder: PathBuf) -> Result<Self> {
        let problem = || format!("cannot write in {}", folder.display());
        for inner in ["state/lists/partial", "cache/archives/partial", "none"] {
            fs::create_dir_all(folder.join(inner)).with_context(problem)?;
        }
        let source = |suite| format!("deb [signed-by={KEYS}] {MIRROR} {suite} main\n");
        let preferences = format!("Package: linux-image-*\nPin: release n={RELEASE}\nPin-Priority: 1001\n");
        for (name, text) in [
            ("sources.list", source(RELEASE) + &source(NEWER)),
            ("preferences", preferences),
            ("status", String::new()),
        ] {
            fs::write(folder.join(name), text).with_context(problem)?;
        }
        let at = |name: &str| folder.join(name).display().to_string();
        let settings = [
            ("Dir::State", at("state")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("cache")),
            ("Dir::Etc::sourcelist", at("sources.list")),
            ("Dir::Etc::sourceparts", at("none")),
            ("Dir::Etc::preferences", at("preferences")),
            ("Dir::Etc::preferencesparts", at("none")),
            ("APT::Architecture", "amd64".to_owned()),
            ("APT::Architectures", "amd64".to_owned()),
            ("APT::Install-Recommends", "false".to_owned()),
            // The folder need not be readable for the user that apt has for downloads.
            ("APT::Sandbox::User", "root".to_owned()),
            ("Acquire::Languages", "none".to_owned()),
            ("Debug::NoLocking", "true".to_owned()),
        ];
        let text: String = settings.iter().map(|(name, value)| format!("{name} \"{value}\";\n")).collect();
        fs::write(folder.join("apt.conf"), text).with_context(problem)?;
        Ok(Self(folder))
    }

    /// Fetches the packages; why not, where it fails.
    fn fetch(&self) -> Result<(), String> {
        println!("vm: QEMU, a kernel and busybox are fetched from {MIRROR} (80 MB), and not installed");
        let fetch =
            [&["install", "--yes", "--download-only", "--target-release", NEWER][..], &PACKAGES].concat();
        for arguments in [&["update"][..], &fetch] {
            let mut command = Command::new("apt-get");
            command.env("APT_CONFIG", self.0.join("apt.conf")).arg("-qq").args(arguments);
            shell::run(&mut command)
                .map_err(|error| format!("Debian's packages cannot be had: {error:#}"))?;
        }
        Ok(())
    }

    /// Unpacks all of them; `root` is there only once they all are. The archives go.
    fn unpack(&self, root: &Path) -> Result<()> {
        let part = self.0.join("part");
        let problem = || format!("cannot write {}", part.display());
        if part.exists() {
            fs::remove_dir_all(&part).with_context(problem)?;
        }
        let archives = self.0.join("cache/archives");
        let listing = || format!("cannot read {}", archives.display());
        let mut count = 0;
        for entry in fs::read_dir(&archives).with_context(listing)? {
            let path = entry.with_context(listing)?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                let mut command = Command::new("dpkg-deb");
                command.arg("--extract").arg(&path).arg(&part);
                let status =
                    command.status().with_context(|| format!("cannot run {}", shell::shown(&command)))?;
                ensure!(status.success(), "`{}` ended with {status}", shell::shown(&command));
                count += 1;
            }
        }
        ensure!(count > 0, "no package lies in {}", archives.display());
        fs::rename(&part, root).with_context(problem)?;
        fs::remove_dir_all(&self.0).with_context(|| format!("cannot remove {}", self.0.display()))
    }
}
