//! Where a block of shared memory lies, and in which pages: huge pages, a node, locked, touched before it is used.
//!
//! Nothing falls back: a block is what was asked for by the kernel's own account, or the error says what the machine lacks.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) use linux::{account, map};

/// Bytes of a huge page.
pub const HUGE: usize = 2 << 20;

/// Pages of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageKind {
    /// What the system gives by default.
    #[default]
    Usual,
    /// Transparent huge pages, which the kernel makes as it can: `madvise`.
    Transparent,
    /// Huge pages of 2 MiB that somebody reserved: hugetlb.
    Reserved,
}

/// A node of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// The node of this number.
    Number(u32),
    /// The node of the GPU that uses the block; for a device without a node, that of the processor that the calling thread runs
    /// on.
    Near,
}

/// How a block of shared memory is to be placed. With the default the system decides, and pages take memory once they are
/// touched. With anything else every page is touched before the block is handed out.
///
/// ```
/// use doorbell_host::placement::{Node, PageKind, Placement};
///
/// let placement: Placement = "transparent+node=0+locked".parse().unwrap();
/// let same = Placement { pages: PageKind::Transparent, node: Some(Node::Number(0)), locked: true, ..Placement::default() };
/// assert_eq!(placement, same);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Its pages.
    pub pages: PageKind,
    /// The node that it lies on.
    pub node: Option<Node>,
    /// Whether it stays in memory (`mlock`).
    pub locked: bool,
    /// Whether every page is touched before the block is used, where nothing else above asks for that.
    pub touched: bool,
}

impl Placement {
    /// The words that `FromStr` takes, apart by `+`.
    pub const WORDS: [(&'static str, &'static str); 6] = [
        ("transparent", "transparent huge pages"),
        ("reserved", "reserved huge pages of 2 MiB (hugetlb)"),
        ("near", "the node of the GPU; without one, that of the processor that opens the device"),
        ("node=N", "node N"),
        ("locked", "locked in memory"),
        ("touched", "touched before the start, which each of the others brings along"),
    ];

    /// Whether the system decides all.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The same with [`Node::Near`] replaced by `node`, of a device that has one.
    #[must_use]
    pub fn near(self, node: Option<u32>) -> Self {
        let node = node.map(Node::Number).filter(|_| self.node == Some(Node::Near));
        Self { node: node.or(self.node), ..self }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = match self.pages {
            PageKind::Usual => None,
            PageKind::Transparent => Some("transparent".to_owned()),
            PageKind::Reserved => Some("reserved".to_owned()),
        };
        let node = self.node.map(|node| match node {
            Node::Number(number) => format!("node={number}"),
            Node::Near => "near".to_owned(),
        });
        let locked = self.locked.then(|| "locked".to_owned());
        let touched = self.touched.then(|| "touched".to_owned());
        let words: Vec<String> = [pages, node, locked, touched].into_iter().flatten().collect();
        f.write_str(&words.join("+"))
    }
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut placement = Self::default();
        for word in text.split('+').map(str::trim) {
            match word {
                "transparent" | "reserved" if placement.pages != PageKind::Usual => {
                    return Err("transparent and reserved pages exclude each other".into());
                }
                "near" | "node" if placement.node.is_some() => return Err("two nodes".into()),
                "transparent" => placement.pages = PageKind::Transparent,
                "reserved" => placement.pages = PageKind::Reserved,
                "near" => placement.node = Some(Node::Near),
                "locked" => placement.locked = true,
                "touched" => placement.touched = true,
                _ => {
                    let number = word.strip_prefix("node=").and_then(|number| number.parse().ok());
                    let number = number.filter(|&number| number < MOST_NODES).ok_or_else(|| {
                        let words = Self::WORDS.map(|(word, _)| word).join(", ");
                        format!("'{word}' says nothing of memory; there are {words}, apart by '+'")
                    })?;
                    if placement.node.replace(Node::Number(number)).is_some() {
                        return Err("two nodes".into());
                    }
                }
            }
        }
        Ok(placement)
    }
}

/// Nodes that Linux has at most.
const MOST_NODES: u32 = 1024;

/// What the kernel says of a block, or of several: bytes, by the names that `/proc/self/smaps` has for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Bytes of it that are in memory.
    pub resident: u64,
    /// Bytes of it that are mapped by huge pages: the sum of `by_name`.
    pub huge: u64,
    /// Those, by the names of `smaps`; names with none are left out.
    pub by_name: Vec<(&'static str, u64)>,
    /// Bytes that are locked. Reserved huge pages stay in memory without that, and count as none.
    pub locked: u64,
    /// Bytes by node, as `/proc/self/numa_maps` has them; empty where the kernel does not tell.
    pub nodes: Vec<(u32, u64)>,
}

/// What `smaps` calls mappings by huge pages.
const HUGE_NAMES: [&str; 5] =
    ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb", "Private_Hugetlb"];

impl Account {
    /// That of the addresses in `blocks` together, by the texts of `smaps` and `numa_maps`. The kernel tells of whole mappings: one that goes
    /// beyond the blocks counts as far as it could lie in them, and several blocks of one mapping count no more than it has. Addresses
    /// that are in several blocks count once.
    pub fn read(smaps: &str, numa_maps: &str, blocks: &[Range<usize>]) -> Account {
        let blocks = disjoint(blocks);
        let bytes = blocks.iter().map(|block| block.len() as u64).sum();
        let mut account = Account { bytes, ..Account::default() };
        let mut mappings = vec![];
        // Of the mapping that the lines are about, the bytes that lie in the blocks.
        let mut inside = 0;
        for line in smaps.lines() {
            if let Some(mapping) = mapping(line) {
                let shared = |block: &Range<usize>| {
                    mapping.end.min(block.end).saturating_sub(mapping.start.max(block.start)) as u64
                };
                inside = blocks.iter().map(shared).sum();
                mappings.extend((inside > 0).then_some((mapping.start, inside)));
                continue;
            }
            let Some((name, bytes)) = line.split_once(':').filter(|_| inside > 0) else { continue };
            let Some(bytes) = kibibytes(bytes).map(|bytes| bytes.min(inside)) else { continue };
            if let Some(name) = HUGE_NAMES.into_iter().find(|known| *known == name).filter(|_| bytes > 0) {
                account.huge += bytes;
                add(&mut account.by_name, name, bytes);
            }
            match name {
                "Rss" | "Shared_Hugetlb" | "Private_Hugetlb" => account.resident += bytes,
                "Locked" => account.locked += bytes,
                _ => {}
            }
        }
        for line in numa_maps.lines() {
            let mut words = line.split_whitespace();
            let start = words.next().and_then(|start| usize::from_str_radix(start, 16).ok());
            let Some(&(_, inside)) = mappings.iter().find(|(known, _)| Some(*known) == start) else {
                continue;
            };
            let page =
                words.clone().find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok());
            for word in words {
                let Some((node, pages)) = word.strip_prefix('N').and_then(|word| word.split_once('=')) else {
                    continue;
                };
                let (Ok(node), Ok(pages)) = (node.parse::<u32>(), pages.parse::<u64>()) else { continue };
                let bytes = (pages * page.unwrap_or(4) * 1024).min(inside);
                add(&mut account.nodes, node, bytes);
            }
        }
        account
    }
}

/// The same addresses, each once, in their order.
fn disjoint(blocks: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut blocks = blocks.to_vec();
    blocks.sort_by_key(|block| block.start);
    let mut end = 0;
    for block in &mut blocks {
        block.start = block.start.max(end).min(block.end);
        end = end.max(block.end);
    }
    blocks
}

/// Adds `bytes` to those of `key`.
fn add<K: PartialEq>(sums: &mut Vec<(K, u64)>, key: K, bytes: u64) {
    match sums.iter_mut().find(|(known, _)| *known == key) {
        Some((_, sum)) => *sum += bytes,
        None => sums.push((key, bytes)),
    }
}

/// The addresses of a line of `smaps` that begins a mapping.
fn mapping(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let address = |hex| usize::from_str_radix(hex, 16).ok();
    Some(address(start)?..address(end)?)
}

/// Bytes of a value of `smaps` or `meminfo`, as `  2048 kB`.
fn kibibytes(value: &str) -> Option<u64> {
    value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        write!(f, "{}, {} in memory, ", mib(self.bytes), mib(self.resident))?;
        let names: Vec<String> =
            self.by_name.iter().map(|(name, bytes)| format!("{name} {} kB", bytes / 1024)).collect();
        let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        write!(
            f,
            "{} huge pages of 2 MiB{names}, {} locked",
            self.huge.div_ceil(HUGE as u64),
            mib(self.locked)
        )?;
        self.nodes.iter().try_for_each(|(node, bytes)| write!(f, ", {} on node {node}", mib(*bytes)))
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("touched")]
    #[case("transparent+near+locked")]
    #[case("reserved+node=3")]
    #[case("node=0+locked+touched")]
    fn words_are_read_and_written(#[case] text: &str) {
        let placement: Placement = text.parse().unwrap();
        assert!(!placement.is_default());
        assert_eq!(placement.to_string(), text);
    }

    #[rstest]
    #[case("", "'' says nothing of memory; there are transparent")]
    #[case("huge", "'huge' says nothing")]
    #[case("node=1024", "'node=1024' says nothing")]
    #[case("node=-1", "'node=-1' says nothing")]
    #[case("near+node=1", "two nodes")]
    #[case("node=1+near", "two nodes")]
    #[case("reserved+transparent", "transparent and reserved pages exclude each other")]
    fn what_says_nothing_is_told(#[case] text: &str, #[case] expected: &str) {
        let error = text.parse::<Placement>().unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn near_is_the_node_of_the_device() {
        let near: Placement = "transparent+near".parse().unwrap();
        assert_eq!(near.near(Some(1)).to_string(), "transparent+node=1");
        assert_eq!(near.near(None), near);
        let bound: Placement = "node=0".parse().unwrap();
        assert_eq!(bound.near(Some(1)), bound, "a node that was named stays");
    }

    #[test]
    fn an_account_is_of_its_block_alone() {
        let smaps = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \nSize: 4096 kB\nRss:    4096 kB\nAnonHugePages:      2048 kB\n\
                     ShmemPmdMapped:  0 kB\nPrivate_Hugetlb:  0 kB\nLocked:    4096 kB\nVmFlags: rd wr lo\n\
                     7f0000400000-7f0000800000 rw-p 00000000 00:0f 77   /anon_hugepage (deleted)\nRss: 0 kB\nPrivate_Hugetlb: 4096 kB\n\
                     7f0000800000-7f0000a00000 rw-p 00000000 00:00 0\nRss: 2048 kB\nAnonHugePages: 2048 kB\n";
        let numa = "7f0000000000 default anon=1024 dirty=1024 N0=512 N1=512 kernelpagesize_kB=4\n\
                    7f0000400000 bind:1 file=/anon_hugepage huge anon=2 dirty=2 N1=2 kernelpagesize_kB=2048\n\
                    7f0000800000 default anon=512 N2=512 kernelpagesize_kB=4\n";
        let account = Account::read(smaps, numa, from_ref(&(0x7f00_0000_0000..0x7f00_0080_0000)));
        assert_eq!((account.bytes, account.resident, account.locked), (8 << 20, 8 << 20, 4 << 20));
        assert_eq!(account.by_name, [("AnonHugePages", 2 << 20), ("Private_Hugetlb", 4 << 20)]);
        assert_eq!(account.huge, 6 << 20);
        assert_eq!(account.nodes, [(0, 2 << 20), (1, 6 << 20)]);
        assert_eq!(
            account.to_string(),
            "8.0 MiB, 8.0 MiB in memory, 3 huge pages of 2 MiB (AnonHugePages 2048 kB, Private_Hugetlb 4096 kB), 4.0 MiB locked, \
             2.0 MiB on node 0, 6.0 MiB on node 1"
        );
        // Of a mapping that goes beyond it, no more than it has itself.
        let part = Account::read(smaps, numa, from_ref(&(0x7f00_0000_0000..0x7f00_0010_0000)));
        assert_eq!((part.resident, part.huge), (1 << 20, 1 << 20));
    }

    /// Queue pairs of one device have parts of one mapping, of which the kernel tells as a whole.
    #[test]
    fn parts_of_a_mapping_have_no_more_than_it_has() {
        let smaps = "7f0000000000-7f0000800000 rw-p 00000000 00:00 0 \nRss: 6144 kB\nAnonHugePages: 4096 kB\nLocked: 2048 kB\n";
        let numa = "7f0000000000 default anon=1536 dirty=1536 N0=1024 N1=512 kernelpagesize_kB=4\n";
        let whole = Account::read(smaps, numa, from_ref(&(0x7f00_0000_0000..0x7f00_0080_0000)));
        assert_eq!(
            (whole.bytes, whole.resident, whole.huge, whole.locked),
            (8 << 20, 6 << 20, 4 << 20, 2 << 20)
        );
        assert_eq!(whole.nodes, [(0, 4 << 20), (1, 2 << 20)]);
        let quarter = |k: usize| 0x7f00_0000_0000 + k * 0x20_0000..0x7f00_0000_0000 + (k + 1) * 0x20_0000;
        assert_eq!(Account::read(smaps, numa, &[2, 0, 3, 1].map(quarter)), whole);
        // Two that lie over each other.
        let twice = [0x7f00_0000_0000..0x7f00_0060_0000, 0x7f00_0020_0000..0x7f00_0080_0000];
        assert_eq!(Account::read(smaps, numa, &twice), whole);
    }
}
