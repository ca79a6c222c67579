//! What is slow to make and depends on its inputs alone, kept by their content in the target directory.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Versions of a part that are kept: one per compiler or set of flags that takes turns, and the one before an edit.
const KEPT: usize = 4;
/// Written last, with what the part was made of: what lacks it was not finished.
const DONE: &str = "done";

/// Hash of everything that a part depends on. The hasher has no seed; another one of another Rust makes parts anew.
#[derive(Clone, Default)]
pub struct Key {
    hasher: DefaultHasher,
    /// The same for people: commands, and hashes of files.
    told: String,
}

impl Key {
    /// With a text: a command, a version.
    pub fn text(mut self, text: String) -> Self {
        text.hash(&mut self.hasher);
        self.told += &format!("{text}\n");
        self
    }

    /// With the name and the content of a file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn file(mut self, path: &Path) -> Result<Self, String> {
        let content = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        (path, content).hash(&mut self.hasher);
        self.told += &format!("{}: {:016x}\n", path.display(), self.hasher.finish());
        Ok(self)
    }
}

/// The folder of all parts.
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// That of `name` in the target directory in which `out`, a build script's `OUT_DIR`, lies.
    ///
    /// # Errors
    /// When `out` lies in none, or the folder cannot be created.
    pub fn of_build(out: &Path, name: &str) -> Result<Self, String> {
        // <target>/[<triple>/]<profile>/build/<package>-<hash>/out
        let profile = out.ancestors().nth(3).ok_or_else(|| format!("{} is no OUT_DIR", out.display()))?;
        Self::of_target(profile.parent().unwrap_or(profile), name)
    }

    /// That of `name` in this target directory.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub fn of_target(target: &Path, name: &str) -> Result<Self, String> {
        let root = target.join(name);
        fs::create_dir_all(&root).map_err(|error| format!("cannot create {}: {error}", root.display()))?;
        Ok(Self { root })
    }

    /// The folder of the part `name` for `key`, which `make` fills if it is not there yet. Builds that run side by side
    /// wait for each other.
    ///
    /// # Errors
    /// Those of `make`, or when nothing can be written there.
    pub fn get(
        &self,
        name: &str,
        key: &Key,
        make: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<PathBuf, String> {
        let problem = |error: std::io::Error| format!("cannot write {}: {error}", self.root.display());
        let lock = File::create(self.root.join(format!("{name}.lock"))).map_err(problem)?;
        lock.lock().map_err(problem)?;
        let directory = self.root.join(format!("{name}-{:016x}", key.hasher.finish()));
        let done = directory.join(DONE);
        if !done.exists() {
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir_all(&directory).map_err(problem)?;
            make(&directory)?;
        }
        // The time of its last use.
        fs::write(&done, &key.told).map_err(problem)?;
        self.prune(name);
        Ok(directory)
    }

    /// Removes what was not used for longest. Best effort: what stays does no harm.
    fn prune(&self, name: &str) {
        let prefix = format!("{name}-");
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let mut versions: Vec<(SystemTime, PathBuf)> = entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| {
                let used = fs::metadata(entry.path().join(DONE)).and_then(|file| file.modified());
                (used.unwrap_or(SystemTime::UNIX_EPOCH), entry.path())
            })
            .collect();
        versions.sort();
        versions.iter().rev().skip(KEPT).for_each(|(_, path)| drop(fs::remove_dir_all(path)));
    }
}
