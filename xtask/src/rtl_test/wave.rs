//! Waveforms of benches: `rtl-test BENCH -- +wave` or `+wave=FILE`.

use std::fs;
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context as _, Result, bail, ensure};

use doorbell_setup as setup;

/// Where the waveforms of one call go.
pub enum Wave {
    /// The file of the only run.
    File(PathBuf),
    /// A file of each run in this folder.
    Folder(PathBuf),
}

impl Wave {
    /// The file of a run.
    pub fn of(&self, run: &str) -> PathBuf {
        match self {
            Wave::File(file) => file.clone(),
            Wave::Folder(folder) => folder.join(format!("{run}.fst")),
        }
    }
}

/// Takes `+wave` out of the plusargs. `several`: there is more than one run.
///
/// # Errors
/// When the file cannot be written, or several runs would write it.
pub fn plusargs(root: &Path, given: &[String], several: bool) -> Result<(Vec<String>, Option<Wave>)> {
    let (waves, others): (Vec<&String>, Vec<&String>) =
        given.iter().partition(|text| *text == "+wave" || text.starts_with("+wave="));
    let wave = match waves[..] {
        [] => None,
        [only] => Some(match only.strip_prefix("+wave=") {
            None => {
                let folder = setup::target(root).join("wave");
                fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
                Wave::Folder(absolute(&folder)?)
            }
            Some(file) => {
                ensure!(
                    !several,
                    "{only} is the file of one run, and there are several: give +wave, which makes a file of each, or one bench and one seed"
                );
                let path = absolute(file).with_context(|| format!("{only} names no file"))?;
                // Icarus goes on without a waveform that it cannot write.
                fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
                Wave::File(path)
            }
        }),
        _ => bail!("there are {} of +wave: give one", waves.len()),
    };
    Ok((others.into_iter().cloned().collect(), wave))
}

/// What tells Icarus the format of a file: FST by its name, else VCD.
pub fn format(file: &Path) -> Option<&'static str> {
    file.extension().is_some_and(|extension| extension == "fst").then_some("-fst")
}
