//! Random histories of a log: appends, commits, ends without a commit, flipped bits, torn and zeroed and foreign tails,
//! reopening, appends again. What was reported as stored and is as it was written is read, in order and under its number;
//! nothing else is; and what is told as damage is there.
//!
//! `DOORBELL_LOG_SEED` chooses the histories, `DOORBELL_LOG_HISTORIES` how many there are.

use std::collections::HashMap;
use std::env;
use std::ops::Range;
use std::time::Instant;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

/// A record that was reported as stored.
struct Stored {
    file: PathBuf,
    /// Where in the file it lies, its head included.
    span: Range<usize>,
    trajectory: Trajectory,
    /// Whether no byte of it has ever been changed or cut off.
    intact: bool,
}

struct History {
    directory: PathBuf,
    random: ChaCha8Rng,
    options: LogOptions,
    /// The files as the log wrote them.
    written: HashMap<PathBuf, Vec<u8>>,
    stored: Vec<Stored>,
    /// Everything that was ever appended, by its number; one that was torn off may be given again.
    appended: HashMap<u64, Vec<Trajectory>>,
    appends: u32,
    /// A file was cut in the middle of the log.
    cut: bool,
}

impl History {
    fn below(&mut self, bound: usize) -> usize {
        self.random.next_u32() as usize % bound.max(1)
    }

    fn files(&self) -> Vec<PathBuf> {
        files(&self.directory).unwrap().into_iter().map(|(_, path)| path).collect()
    }

    /// Opens the log, appends, commits or not, and ends.
    fn write(&mut self) {
        let told = self.check();
        let (mut log, recovery) = Log::open(&self.directory, self.options).unwrap();
        assert_eq!((recovery.next, &recovery.torn), (told.next, &told.torn), "reader and writer agree");
        let last = self.files().pop();
        let in_last = |damage: &&Damage| Some(&damage.file) == last.as_ref() && damage.bytes > 0;
        assert!(recovery.damage.iter().eq(told.damage.iter().filter(in_last)), "{:?}", recovery.damage);
        // Opening cuts off what is torn, writes the head that is missing then, and does nothing else. A file that was cut
        // where a record ends is as good as a shorter one.
        if let Some(last) = &last {
            let now = fs::read(last).unwrap();
            let written = self.written.get_mut(last).unwrap();
            if let Some(torn) = &recovery.torn {
                let head = if recovery.damage.is_empty() { frame::FILE_HEAD as u64 } else { 0 };
                assert_eq!(now.len() as u64, torn.offset.max(head));
            }
            if recovery.torn.is_some() || recovery.damage.is_empty() {
                written.truncate(now.len());
            }
            if written.len() < frame::FILE_HEAD && recovery.damage.is_empty() {
                written.clone_from(&now);
            }
        }
        let before: HashMap<PathBuf, usize> =
            self.files().into_iter().map(|file| (file.clone(), fs::read(file).unwrap().len())).collect();
        let count = self.below(9);
        let mut appended = vec![];
        for _ in 0..count {
            let tokens = [0, 1, 5, 30][self.below(4)];
            let mut next = trajectory(recovery.next + appended.len() as u64, tokens);
            // No two records are the same, though they may have the same number.
            self.appends += 1;
            next.finished.request = self.appends.into();
            next.tokens.iter_mut().for_each(|token| *token ^= self.random.next_u32());
            assert_eq!(log.append(&next.finished, &next.body()).unwrap(), next.number);
            self.appended.entry(next.number).or_default().push(next.clone());
            appended.push(next);
            if self.below(3) == 0 {
                log.commit().unwrap();
            }
        }
        if self.below(4) > 0 {
            log.commit().unwrap();
            assert_eq!(log.stored(), recovery.next + count as u64);
        }
        let stored = log.stored();
        drop(log);
        // What has grown holds the stored ones, one behind the other.
        let mut records = appended.into_iter().filter(|record| record.number < stored);
        for file in self.files() {
            let now = fs::read(&file).unwrap();
            let written = self.written.entry(file.clone()).or_default();
            let mut at = match before.get(&file) {
                Some(&len) if now.len() == len => continue,
                Some(&len) => {
                    assert_eq!(now[..len], written[..], "nothing is written after damage");
                    len
                }
                None => frame::FILE_HEAD,
            };
            written.clone_from(&now);
            while at < now.len() {
                let trajectory = records.next().expect("nothing else is written");
                let span = at..at + frame::RECORD_HEAD + record::FIXED + 4 * trajectory.tokens.len();
                at = span.end;
                self.stored.push(Stored { file: file.clone(), span, trajectory, intact: true });
            }
            assert_eq!(at, now.len());
        }
        assert_eq!(records.next(), None, "all that is stored is in a file");
    }

    /// Does something to the files while nobody has them open.
    fn harm(&mut self) {
        let files = self.files();
        let Some(last) = files.last() else { return };
        let what = self.below(8);
        let file = match what {
            0..=3 => &files[self.below(files.len())],
            _ => last,
        };
        let mut bytes = fs::read(file).unwrap();
        let at = self.below(bytes.len() + 1);
        match what {
            0..=2 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            3 if self.below(4) == 0 => {
                self.cut |= file != last;
                bytes.truncate(at);
            }
            4 | 5 => bytes.truncate(at),
            6 => bytes[at..].fill(0),
            7 => {
                let more = self.below(300);
                let zeros = self.below(2) == 0;
                bytes.extend((0..more).map(|_| if zeros { 0 } else { self.random.next_u32() as u8 }));
            }
            _ => return,
        }
        fs::write(file, &bytes).unwrap();
        for stored in self.stored.iter_mut().filter(|stored| stored.file == *file) {
            let span = stored.span.clone();
            stored.intact &=
                bytes.get(span.clone()).is_some_and(|bytes| self.written[file].get(span) == Some(bytes));
        }
    }

    /// Reads the log and judges all that comes; returns what it told, and the next number.
    fn check(&self) -> Told {
        let mut told = Told::default();
        let files = files(&self.directory).unwrap();
        let Some(&(first, _)) = files.first() else { return told };
        told.next = first;
        let mut read: HashMap<u64, Trajectory> = HashMap::new();
        for piece in Reader::open(&self.directory).unwrap() {
            assert_eq!(told.torn, None, "after a torn tail there is nothing");
            match piece.unwrap() {
                Piece::Record(found) => {
                    assert_eq!(found.number, told.next, "in order, and none passed over untold");
                    assert!(self.appended[&found.number].contains(&found), "never appended: {found:?}");
                    told.next += 1;
                    read.insert(found.number, found);
                }
                Piece::Damage(damage) => {
                    assert_eq!(damage.number, told.next);
                    told.next += damage.lost;
                    told.damage.push(damage);
                }
                Piece::Torn(torn) => told.torn = Some(torn),
            }
        }
        for stored in self.stored.iter().filter(|stored| stored.intact) {
            let number = stored.trajectory.number;
            assert_eq!(read.get(&number), Some(&stored.trajectory), "{number} was stored, and is intact");
        }
        // What is told of is where something is amiss, and all that is amiss is told of.
        let mut spans: HashMap<&PathBuf, Vec<Range<usize>>> = HashMap::new();
        for Damage { file, offset, bytes, .. } in &told.damage {
            assert!(*bytes > 0 || self.cut, "no file is missing");
            spans.entry(file).or_default().push(*offset as usize..(offset + bytes) as usize);
        }
        if let Some(Torn { file, offset, bytes }) = &told.torn {
            spans.entry(file).or_default().push(*offset as usize..(offset + bytes) as usize);
        }
        for (_, file) in &files {
            let now = fs::read(file).unwrap();
            let written = &self.written[file];
            let wrong: Vec<usize> = (0..now.len()).filter(|&at| now.get(at) != written.get(at)).collect();
            let spans = spans.get(file).map_or(&[][..], |spans| spans);
            for at in &wrong {
                assert!(
                    spans.iter().any(|span| span.contains(at)),
                    "byte {at} of {}: {spans:?}",
                    file.display()
                );
            }
            for span in spans {
                let cut = span.end == now.len() && now.len() < written.len();
                let there = cut || span.is_empty() || wrong.iter().any(|at| span.contains(at));
                assert!(there, "nothing is wrong at {span:?} of {}", file.display());
            }
        }
        told
    }
}

#[derive(Default)]
struct Told {
    next: u64,
    damage: Vec<Damage>,
    torn: Option<Torn>,
}

fn history(root: &Path, seed: u64) {
    let directory = root.join(format!("{seed}"));
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let options = LogOptions {
        file_bytes: [200, 600, 2000, 1 << 20][random.next_u32() as usize % 4],
        group_bytes: [0, 300, 4000][random.next_u32() as usize % 3],
        ..small()
    };
    let mut history = History {
        directory,
        random,
        options,
        written: HashMap::new(),
        stored: vec![],
        appended: HashMap::new(),
        appends: 0,
        cut: false,
    };
    fs::create_dir(&history.directory).unwrap();
    for _ in 0..2 + history.below(4) {
        history.write();
        for _ in 0..history.below(4) {
            history.harm();
        }
    }
    history.write();
    history.check();
    fs::remove_dir_all(&history.directory).unwrap();
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

#[test]
fn what_is_stored_and_not_damaged_is_read_after_any_history() {
    let seed = number("DOORBELL_LOG_SEED", 1);
    let count = number("DOORBELL_LOG_HISTORIES", 2000);
    // In memory, where there is such a place: no disk is worn, and the syncs cost nothing.
    let memory = Path::new("/dev/shm");
    let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempdir() }.unwrap();
    let begun = Instant::now();
    for seed in seed..seed.wrapping_add(count) {
        let outcome = std::panic::catch_unwind(|| history(directory.path(), seed));
        if let Err(panic) = outcome {
            eprintln!("DOORBELL_LOG_SEED={seed} DOORBELL_LOG_HISTORIES=1 repeats it");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{count} histories from seed {seed} on, in {:.1} s", begun.elapsed().as_secs_f64());
}
