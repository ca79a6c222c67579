//! Lab 3: what it costs to find a page.
#![forbid(unsafe_code)]

use std::fs;
use std::hint::black_box;
use std::io;
use std::process::ExitCode;

use clap::Parser;
use doorbell_guard::Usage;
use doorbell_labs::{Options, Pair, Report, cpu_time, median, nanoseconds_each, needs_counters, table};
use memmap2::{Advice, MmapMut, MmapOptions};

#[derive(Parser)]
#[command(about = "Lab 3, huge pages and the TLB: what it costs to find a page")]
struct Args {
    #[command(flatten)]
    options: Options,
}

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
/// Far more than any TLB covers with small pages.
const LARGE: usize = 512 << 20;

#[derive(Clone, Copy, PartialEq)]
enum Pages {
    Small,
    Transparent,
    Explicit,
}

const KINDS: [(Pages, &str); 3] =
    [(Pages::Small, "4 KiB"), (Pages::Transparent, "transparent huge"), (Pages::Explicit, "2 MiB (hugetlb)")];

/// Memory in pages of a kind, every one of them touched.
struct Region {
    map: MmapMut,
    /// Bytes to the first 2-MiB boundary in `map`.
    start: usize,
    bytes: usize,
    faults: u64,
}

impl Region {
    fn new(pages: Pages, bytes: usize) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        if pages == Pages::Explicit {
            options.huge(Some(21));
        }
        let map = options.len(bytes + HUGE).map_anon()?;
        match pages {
            Pages::Small => map.advise(Advice::NoHugePage)?,
            Pages::Transparent => map.advise(Advice::HugePage)?,
            Pages::Explicit => {}
        }
        let start = map.as_ptr().align_offset(HUGE);
        let mut region = Self { map, start, bytes, faults: 0 };
        let before = Usage::of_this_thread()?;
        for page in region.words_mut().chunks_mut(PAGE) {
            page[0] = 1;
        }
        region.faults = (Usage::of_this_thread()? - before).minor_faults;
        Ok(region)
    }

    fn words_mut(&mut self) -> &mut [u8] {
        let end = self.start + self.bytes;
        &mut self.map[self.start..end]
    }

    /// Nanoseconds for one read at a random place, each of which waits for the one before.
    fn random_reads(&self, reads: u64) -> f64 {
        let bytes = &self.map[self.start..self.start + self.bytes];
        let mask = self.bytes - 1;
        let mut place = 1_usize;
        let start = cpu_time();
        for _ in 0..reads {
            // Knuth's MMIX generator; the byte read is part of the next address, so reads cannot overlap.
            place = place
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407 ^ usize::from(bytes[(place >> 20) & mask]));
        }
        black_box(place);
        nanoseconds_each(cpu_time() - start, reads)
    }

    /// How much of it the kernel holds in huge pages, from 0 to 1.
    fn huge_share(&self) -> Option<f64> {
        let maps = fs::read_to_string("/proc/self/smaps").ok()?;
        let first = self.map.as_ptr().addr();
        let (mut inside, mut huge) = (false, 0_u64);
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let head = words.next()?;
            if let Some((from, to)) = head.split_once('-') {
                let address = |hex| usize::from_str_radix(hex, 16).ok();
                if let (Some(from), Some(to)) = (address(from), address(to)) {
                    inside = from < first + self.map.len() && first < to;
                }
            } else if inside && (head == "AnonHugePages:" || head == "Private_Hugetlb:") {
                huge += words.next()?.parse::<u64>().ok()? * 1024;
            }
        }
        Some((huge as f64 / self.bytes as f64).min(1.0))
    }
}

fn main() -> ExitCode {
    let Args { options } = Args::parse();
    // For its processor alone: this lab has one thread.
    Pair::find().pin(0);
    let (mut sizes, reads, repeats) =
        options.pick(([2 << 20, 16 << 20], 50_000, 3), ([2 << 20, LARGE], 200_000, 7));
    let mut unmeasured = vec![];
    // One region for each kind of page, and as much again for everybody else.
    let most = available().map_or(LARGE, |bytes| bytes / (2 * KINDS.len()));
    if sizes[1] > most {
        unmeasured.push(format!(
            "a region of {} MiB: there is too little memory; a smaller one stands in",
            sizes[1] >> 20
        ));
        sizes[1] = sizes[1].min(1 << most.max(HUGE).ilog2());
    }
    let mut table =
        table(["region", "pages", "page faults to touch it", "in huge pages", "ns/read", "of 4 KiB"], 2);
    for bytes in sizes {
        let regions: Vec<(Pages, &str, io::Result<Region>)> =
            KINDS.map(|(pages, name)| (pages, name, Region::new(pages, bytes))).into();
        let mut times = [const { vec![] }; KINDS.len()];
        for _ in 0..repeats {
            for ((.., region), times) in regions.iter().zip(&mut times) {
                if let Ok(region) = region {
                    times.push(region.random_reads(reads));
                }
            }
        }
        let times = times.map(median);
        for ((pages, name, region), time) in regions.into_iter().zip(times) {
            let mib = format!("{} MiB", bytes >> 20);
            match region {
                Ok(region) => {
                    let share = region.huge_share();
                    if pages == Pages::Transparent && share.is_none_or(|share| share < 0.5) {
                        unmeasured.push(format!(
                            "transparent huge pages over {mib}: the kernel gave few or none ({}); the row is of small ones",
                            thp_mode()
                        ));
                    }
                    table.add_row([
                        mib,
                        name.to_owned(),
                        region.faults.to_string(),
                        share.map_or("?".into(), |share| format!("{:.0} %", 100.0 * share)),
                        format!("{time:.1}"),
                        format!("{:.2}", time / times[0]),
                    ]);
                }
                Err(error) => unmeasured.push(format!(
                    "{name} pages over {mib}: {error}; `sysctl vm.nr_hugepages={}` reserves enough",
                    bytes / HUGE + 1
                )),
            }
        }
    }
    unmeasured.push(needs_counters("TLB misses", "dTLB-loads,dTLB-load-misses"));
    Report {
        heading: format!(
            "Huge pages and the TLB: CPU time of random reads that wait for each other, median of {repeats} runs of {reads}"
        ),
        table,
        look: "the bytes read are the same and so are the cache misses; what differs is how many translations cover the \
               region. A small region is covered by either, so the ratio is near 1. Over the large one the processor \
               walks the page table for almost every read of a 4-KiB page, and hardly for one of 2 MiB. Look at the page \
               faults too: one for 4 KiB against one for 2 MiB is what a first touch costs, which a hot path must not pay \
               (see doorbell_guard::prefault)."
            .into(),
        unmeasured,
    }
    .print();
    ExitCode::SUCCESS
}

/// Bytes of memory that the system could still hand out.
fn available() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<usize>().ok().map(|kib| kib * 1024)
}

/// The system's setting, of which the one in force is in brackets.
fn thp_mode() -> String {
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    fs::read_to_string(file).map_or("it has none".into(), |mode| format!("{file} is {}", mode.trim()))
}
