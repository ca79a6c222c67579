//! GTKWave on a display of its own, photographed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{SAVE_FILE, gtkwave, require};

/// What [`render`] runs.
pub const PROGRAMS: [&str; 3] = ["gtkwave", "Xvfb", "import"];

/// GTKWave's looks: nothing but the signals, in letters small enough for a page.
const LOOKS: &str = "\
hide_sst on
splash_disable on
fontname_signals Monospace 8
fontname_waves Monospace 8
";

/// How often to look, and for how long (rule R15).
#[derive(Clone, Copy)]
pub struct Pace {
    /// Between two photographs.
    pub interval: Duration,
    /// For each thing that is waited for.
    pub limit: Duration,
}

/// Fit for a slow machine.
pub const PACE: Pace = Pace { interval: Duration::from_secs(1), limit: Duration::from_secs(60) };

/// Photographs that must be alike before the last one counts.
const ALIKE: u32 = 3;

/// Renders `waveform` as the save file shows it, in the size that the save file gives, to `png`.
///
/// # Errors
/// When a program is missing, fails or does not come to an end, or a file cannot be read or written.
pub fn render(root: &Path, waveform: &Path, png: &Path, path: &OsStr, pace: Pace) -> Result<()> {
    require(&PROGRAMS, path)?;
    let save_file = root.join(SAVE_FILE);
    let save =
        fs::read_to_string(&save_file).with_context(|| format!("cannot read {}", save_file.display()))?;
    let (width, height) =
        size(&save).with_context(|| format!("{SAVE_FILE} has no line `[size] WIDTH HEIGHT`"))?;
    let room = tempfile::tempdir().context("cannot create a temporary directory")?;
    let looks = room.path().join("gtkwaverc");
    fs::write(&looks, LOOKS).with_context(|| format!("cannot write {}", looks.display()))?;

    let (_screen, display) = screen(width, height, path, pace)?;
    let photograph = || photograph(&display, room.path(), path, pace);
    let empty = photograph()?;

    let log = room.path().join("log");
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut viewer = gtkwave(root, waveform);
    viewer.arg("--nomenus").arg("--rcfile").arg(&looks);
    viewer.env("PATH", path).env("DISPLAY", &display).env_remove("WAYLAND_DISPLAY");
    viewer.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut viewer = Guard::start(viewer)?;

    let deadline = Instant::now() + pace.limit;
    let (mut last, mut alike) = (empty.clone(), 0);
    while alike < ALIKE {
        thread::sleep(pace.interval);
        let said = || fs::read_to_string(&log).unwrap_or_default();
        if let Some(status) = viewer.0.try_wait().context("cannot watch gtkwave")? {
            bail!("gtkwave ended by itself, with {status}; it said:\n{}", said());
        }
        let next = photograph()?;
        alike = match () {
            () if next == empty => 0,
            () if next == last => alike + 1,
            () => 1,
        };
        last = next;
        if alike < ALIKE && Instant::now() > deadline {
            bail!("R15 gtkwave drew no lasting picture within {:?}; it said:\n{}", pace.limit, said());
        }
    }
    fs::write(png, last).with_context(|| format!("cannot write {}", png.display()))
}

/// `[size] WIDTH HEIGHT` of a save file, in pixels.
fn size(save: &str) -> Option<(u32, u32)> {
    let mut numbers = save.lines().find_map(|line| line.strip_prefix("[size] "))?.split_whitespace();
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// An X server of that size and its name, `:N`.
fn screen(width: u32, height: u32, path: &OsStr, pace: Pace) -> Result<(Guard, String)> {
    let mut command = Command::new("Xvfb");
    command.args(["-displayfd", "1", "-nolisten", "tcp", "-screen", "0", &format!("{width}x{height}x24")]);
    command.env("PATH", path).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Guard::start(command)?;
    let stdout = server.0.stdout.take().context("Xvfb has no output")?;
    let (sender, receiver) = mpsc::channel();
    // Ends with the server at the latest.
    thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(stdout).read_line(&mut line);
        let _ = sender.send(line);
    });
    let line = receiver.recv_timeout(pace.limit);
    let line = line.map_err(|_| anyhow::anyhow!("R15 Xvfb named no display within {:?}", pace.limit))?;
    match line.trim().parse::<u32>() {
        Ok(number) => Ok((server, format!(":{number}"))),
        Err(_) => bail!("Xvfb did not start; run `Xvfb -displayfd 1` to see why"),
    }
}

/// What the display shows, as PNG; the same picture gives the same bytes.
fn photograph(display: &str, room: &Path, path: &OsStr, pace: Pace) -> Result<Vec<u8>> {
    let file = room.join("picture.png");
    let mut command = Command::new("import");
    command.args(["-display", display, "-window", "root", "-strip", "+dither", "-colors", "64"]);
    command.args(["-define", "png:exclude-chunks=date,time"]).arg(format!("PNG8:{}", file.display()));
    command.env("PATH", path).stdin(Stdio::null()).stderr(Stdio::null());
    let mut camera = Guard::start(command)?;
    let deadline = Instant::now() + pace.limit;
    let status = loop {
        match camera.0.try_wait().context("cannot watch import")? {
            Some(status) => break status,
            None if Instant::now() > deadline => bail!("R15 import took no picture within {:?}", pace.limit),
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    if !status.success() {
        bail!("import (of ImageMagick) could not photograph display {display}: it ended with {status}");
    }
    fs::read(&file).with_context(|| format!("cannot read {}", file.display()))
}

/// A program that ends with its owner.
struct Guard(Child);

impl Guard {
    fn start(mut command: Command) -> Result<Guard> {
        let name = command.get_program().to_string_lossy().into_owned();
        Ok(Guard(command.spawn().with_context(|| format!("cannot run {name}"))?))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tempfile::TempDir;

    use super::*;
    use crate::shell::fake;

    /// Far longer than anything takes that comes to an end.
    const PATIENT: Pace = Pace { interval: Duration::from_millis(10), limit: Duration::from_secs(60) };
    /// For what must not come to an end.
    const HASTY: Pace = Pace { interval: Duration::from_millis(10), limit: Duration::from_secs(4) };
    const SCREEN: &str = "echo 7; exec sleep 100";
    const VIEWER: &str = "exec sleep 100";
    /// Writes to its last argument: first the empty screen, then always the same.
    const CAMERA: &str = "for f; do :; done; f=${f#PNG8:}; d=${f%/*}; \
        if test -e $d/seen; then echo waves > $f; else echo nothing > $f; : > $d/seen; fi";
    const BLIND: &str = "for f; do :; done; echo nothing > ${f#PNG8:}";

    /// A repository with a save file, and stand-ins for the programs.
    fn machine(screen: &str, viewer: &str, camera: &str) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("tb/wave")).unwrap();
        fs::write(dir.path().join(SAVE_FILE), "[timestart] 0\n[size] 300 200\n").unwrap();
        for (name, body) in [("Xvfb", screen), ("gtkwave", viewer), ("import", camera)] {
            fake(dir.path(), name, body);
        }
        dir
    }

    fn try_render(dir: &Path, pace: Pace) -> Result<String> {
        let path = std::env::join_paths([dir, Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
        let png = dir.join("out.png");
        render(dir, Path::new("case.fst"), &png, &path, pace)?;
        Ok(fs::read_to_string(png)?)
    }

    #[test]
    fn the_picture_is_what_lasts() {
        assert_eq!(try_render(machine(SCREEN, VIEWER, CAMERA).path(), PATIENT).unwrap(), "waves\n");
    }

    #[rstest]
    #[case::no_screen(PATIENT, "exit 1", VIEWER, CAMERA, "Xvfb did not start")]
    #[case::silent_screen(HASTY, "exec sleep 100", VIEWER, CAMERA, "R15 Xvfb named no display within 4s")]
    #[case::viewer_ends(
        PATIENT,
        SCREEN,
        "echo no such file; exit 3",
        BLIND,
        "status: 3; it said:\nno such file"
    )]
    #[case::camera_fails(PATIENT, SCREEN, VIEWER, "exit 1", "could not photograph display :7")]
    #[case::camera_hangs(HASTY, SCREEN, VIEWER, "exec sleep 100", "R15 import took no picture")]
    #[case::nothing_drawn(HASTY, SCREEN, VIEWER, BLIND, "R15 gtkwave drew no lasting picture")]
    #[case::never_still(
        HASTY,
        SCREEN,
        VIEWER,
        "for f; do :; done; date +%N > ${f#PNG8:}",
        "R15 gtkwave drew no"
    )]
    fn every_wait_ends_and_says_for_what(
        #[case] pace: Pace,
        #[case] screen: &str,
        #[case] viewer: &str,
        #[case] camera: &str,
        #[case] expected: &str,
    ) {
        let error = format!("{:#}", try_render(machine(screen, viewer, camera).path(), pace).unwrap_err());
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn missing_programs_are_named_with_what_installs_them() {
        let dir = machine(SCREEN, VIEWER, CAMERA);
        fs::remove_file(dir.path().join("gtkwave")).unwrap();
        let error = require(&PROGRAMS, dir.path().as_os_str()).unwrap_err().to_string();
        assert_eq!(error, "not installed: gtkwave; `cargo xtask setup --wave` installs what waves need");
    }

    #[rstest]
    #[case("[size] 1800 1000\n", Some((1800, 1000)))]
    #[case("[timestart] 5\n", None)]
    #[case("[size] 1800\n", None)]
    fn the_save_file_gives_the_size(#[case] save: &str, #[case] expected: Option<(u32, u32)>) {
        assert_eq!(size(save), expected);
    }
}
