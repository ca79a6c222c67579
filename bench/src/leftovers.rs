//! Programs that benches start and folders that they make. They go with whoever has them, and with a signal that ends this program.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
#[cfg(feature = "serve")]
use std::process::ChildStderr;
use std::process::{Child, ChildStdout, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
#[cfg(any(feature = "gpu", feature = "serve"))]
use std::{io::Read as _, process::Output, process::Stdio};

use tempfile::TempDir;

use crate::BenchError;

/// What there is to clear away.
struct Leftovers {
    programs: Vec<Child>,
    folders: Vec<PathBuf>,
}

static LEFTOVERS: Mutex<Leftovers> = Mutex::new(Leftovers { programs: vec![], folders: vec![] });

fn lock() -> MutexGuard<'static, Leftovers> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Leftovers {
    /// The program of this number, if nobody has waited for its end.
    fn take(&mut self, id: u32) -> Option<Child> {
        let at = self.programs.iter().position(|child| child.id() == id)?;
        Some(self.programs.swap_remove(at))
    }
}

/// Ends every program that benches started, and removes their folders. For a process that ends now: no bench starts or ends a program any
/// more, or makes or removes a folder.
pub fn clear() {
    let mut leftovers = lock();
    for child in &mut leftovers.programs {
        // It may have ended by itself.
        let _ = child.kill();
    }
    for folder in &leftovers.folders {
        // Until whoever still writes there has ended.
        for _ in 0..100 {
            match fs::remove_dir_all(folder) {
                Err(error) if error.kind() != ErrorKind::NotFound => thread::sleep(Duration::from_millis(5)),
                _ => break,
            }
        }
    }
    std::mem::forget(leftovers);
}

/// A program. It is killed with this.
pub struct Program {
    id: u32,
    /// What it says, where that is piped.
    pub stdout: Option<ChildStdout>,
    #[cfg(feature = "serve")]
    pub stderr: Option<ChildStderr>,
}

impl Program {
    /// Starts it.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut leftovers = lock();
        let mut child = command.spawn()?;
        let program = Self {
            id: child.id(),
            stdout: child.stdout.take(),
            #[cfg(feature = "serve")]
            stderr: child.stderr.take(),
        };
        leftovers.programs.push(child);
        Ok(program)
    }

    /// Starts it, and waits for all that it has to say on standard output and for its end.
    #[cfg(any(feature = "gpu", feature = "serve"))]
    pub fn output(command: &mut Command) -> io::Result<Output> {
        let mut program = Self::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let mut stdout = vec![];
        if let Some(mut out) = program.stdout.take() {
            out.read_to_end(&mut stdout)?;
        }
        let child = lock().take(program.id);
        let mut child = child.ok_or(ErrorKind::NotFound)?;
        Ok(Output { status: child.wait()?, stdout, stderr: vec![] })
    }

    /// Ends it as a machine does that loses its power: without a word.
    pub fn kill(&mut self) -> io::Result<()> {
        let mut leftovers = lock();
        match leftovers.take(self.id) {
            Some(mut child) => child.kill().and_then(|()| child.wait()).map(drop),
            None => Ok(()),
        }
    }

    #[cfg(feature = "serve")]
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.kill();
    }
}

/// A folder. It is removed with this.
pub struct Folder(Option<TempDir>);

impl Folder {
    /// One where the system has temporary files.
    pub fn new() -> Result<Self, BenchError> {
        let place = std::env::temp_dir();
        Self::new_in(&place).map_err(|error| {
            BenchError::input(format!(
                "cannot make a folder in {}: {error}; set TMPDIR to a directory that can be written",
                place.display()
            ))
        })
    }

    /// One in this place. An error has no path: whoever calls knows the place, and nobody the folder.
    pub fn new_in(place: &Path) -> Result<Self, ErrorKind> {
        let mut leftovers = lock();
        let folder = tempfile::tempdir_in(place).map_err(|error| error.kind())?;
        leftovers.folders.push(folder.path().to_owned());
        Ok(Self(Some(folder)))
    }

    pub fn path(&self) -> &Path {
        self.0.as_ref().map_or(Path::new(""), TempDir::path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let mut leftovers = lock();
        if let Some(folder) = self.0.take() {
            leftovers.folders.retain(|path| path != folder.path());
            // Best effort, as ever with temporary files.
            let _ = folder.close();
        }
    }
}
