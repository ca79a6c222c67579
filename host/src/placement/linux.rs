//! What is asked of Linux.

use std::fs;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use memmap2::{Advice, MmapMut, MmapOptions};

use super::{Account, HUGE, MOST_NODES, Node, PageKind, Placement, kibibytes};

/// `len` zeroed bytes, a multiple of a page, placed so, and what keeps them. Says why not, and what to do about it.
pub fn map(len: usize, placement: &Placement) -> Result<(NonNull<u8>, MmapMut), String> {
    let mut options = MmapOptions::new();
    if placement.is_default() {
        let mut map = options.len(len).no_reserve_swap().map_anon().map_err(|error| error.to_string())?;
        let base = NonNull::new(map.as_mut_ptr()).ok_or("null mapping")?;
        return Ok((base, map));
    }
    let whole = match placement.pages {
        PageKind::Usual => len,
        _ => len.checked_next_multiple_of(HUGE).ok_or("the size overflows")?,
    };
    match placement.pages {
        PageKind::Usual => options.len(whole),
        // More than that, so that it can begin with a huge page.
        PageKind::Transparent => options.len(whole.checked_add(HUGE).ok_or("the size overflows")?),
        PageKind::Reserved => options.len(whole).huge(Some(HUGE.trailing_zeros() as u8)),
    };
    let mut map = options.map_anon().map_err(|error| match placement.pages {
        PageKind::Reserved => {
            format!("reserved huge pages of 2 MiB: {error}; {}", of_reserved(whole))
        }
        _ => error.to_string(),
    })?;
    let start = match placement.pages {
        PageKind::Transparent => map.as_ptr().align_offset(HUGE),
        _ => 0,
    };
    let failed = |what: &str, error: io::Error| format!("{what}: {error}");
    let base = NonNull::new(map[start..].as_mut_ptr()).ok_or("null mapping")?;
    let block = base.addr().get()..base.addr().get() + whole;
    let node = placement.node.map(number).transpose()?;
    if let Some(node) = node {
        bind(base, whole, node).map_err(|error| {
            let next = "allow mbind in the container, or leave the node out";
            format!("{}; {next}", failed(&format!("bind to node {node}"), error))
        })?;
    }
    if placement.pages == PageKind::Transparent {
        let advised = map.advise_range(Advice::HugePage, start, whole);
        advised.map_err(|error| failed("transparent huge pages (madvise)", error))?;
    }
    map.advise_range(Advice::PopulateWrite, start, whole).map_err(|error| {
        let more = match (placement.pages, node) {
            (PageKind::Reserved, Some(node)) => format!(
                "; node {node} may have too few: see /sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/free_hugepages"
            ),
            (PageKind::Reserved, None) => format!("; {}", of_reserved(whole)),
            (_, Some(node)) => format!("; node {node} may have too little memory: see `numactl --hardware`"),
            _ => String::new(),
        };
        failed("touch the pages (Linux 5.14 or later)", error) + &more
    })?;
    if placement.pages == PageKind::Transparent
        && account(std::slice::from_ref(&block)).is_ok_and(|account| account.huge < whole as u64)
    {
        // Those that the kernel found none for at the first touch. Whether it worked is seen below.
        let _ = collapse(base, whole);
    }
    if placement.locked {
        // SAFETY: locking pages changes nothing that a program sees; they are those of the mapping.
        if unsafe { libc::mlock(base.as_ptr().cast(), whole) } != 0 {
            return Err(format!(
                "lock {whole} bytes: {}; raise `ulimit -l`, or grant CAP_IPC_LOCK",
                io::Error::last_os_error()
            ));
        }
    }
    let account =
        account(std::slice::from_ref(&block)).map_err(|error| failed("read /proc/self/smaps", error))?;
    check(&account, placement, node)?;
    Ok((base, map))
}

/// Whether the kernel's account has what was asked for.
fn check(account: &Account, placement: &Placement, node: Option<u32>) -> Result<(), String> {
    let pages = |bytes: u64| bytes / HUGE as u64;
    if placement.pages != PageKind::Usual && account.huge < account.bytes {
        let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        return Err(format!(
            "{} of {} huge pages were had, by /proc/self/smaps (transparent_hugepage/enabled: {}); free memory, or `echo 1 > \
             /proc/sys/vm/compact_memory` as root, or leave huge pages out",
            pages(account.huge),
            pages(account.bytes),
            setting.trim()
        ));
    }
    if placement.locked && placement.pages != PageKind::Reserved && account.locked < account.bytes {
        return Err(format!("{} of {} bytes are locked, by /proc/self/smaps", account.locked, account.bytes));
    }
    let elsewhere = account.nodes.iter().find(|(other, bytes)| Some(*other) != node && *bytes > 0);
    if let (Some(node), Some((other, bytes))) = (node, elsewhere) {
        return Err(format!("{bytes} bytes lie on node {other}, not {node}, by /proc/self/numa_maps"));
    }
    let there = account.nodes.iter().map(|(_, bytes)| bytes).sum::<u64>();
    if node.is_some() && there < account.bytes {
        return Err(format!(
            "/proc/self/numa_maps tells where {there} of {} bytes lie, so the node is not known; use a kernel with NUMA, or leave the \
             node out",
            account.bytes
        ));
    }
    Ok(())
}

/// What to do for reserved pages.
fn of_reserved(bytes: usize) -> String {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let count = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse::<usize>().ok()).unwrap_or(0)
    };
    let (all, free) =
        (count("HugePages_Total"), count("HugePages_Free").saturating_sub(count("HugePages_Rsvd")));
    let needed = bytes / HUGE;
    let size = memory.lines().find_map(|line| line.strip_prefix("Hugepagesize:")).and_then(kibibytes);
    let other = match size {
        Some(size) if size != HUGE as u64 => format!(" (this system's default size is {} kB)", size / 1024),
        _ => String::new(),
    };
    format!(
        "{needed} are needed and {free} are free{other}: `sysctl vm.nr_hugepages={}` as root reserves enough, or ask for transparent \
         ones",
        all + needed.saturating_sub(free)
    )
}

/// The number of a node that the machine has.
fn number(node: Node) -> Result<u32, String> {
    let number = match node {
        Node::Number(number) => number,
        Node::Near => {
            let (mut processor, mut node) = (0_u32, 0_u32);
            // SAFETY: the kernel writes two numbers, to where they lie; the third argument is unused since Linux 2.6.24.
            let told = unsafe {
                libc::syscall(libc::SYS_getcpu, &raw mut processor, &raw mut node, std::ptr::null_mut::<u8>())
            };
            if told != 0 {
                return Err(format!("ask for the node of this processor: {}", io::Error::last_os_error()));
            }
            node
        }
    };
    if fs::exists(format!("/sys/devices/system/node/node{number}")).unwrap_or(false) {
        return Ok(number);
    }
    let online = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let online = if online.trim().is_empty() { "none that the kernel shows" } else { online.trim() };
    Err(format!("there is no node {number}; nodes here: {online}"))
}

/// Has pages of `len` bytes from `base`, none of which was touched, come from `node` alone.
fn bind(base: NonNull<u8>, len: usize, node: u32) -> io::Result<()> {
    let mut mask = [0_u64; MOST_NODES as usize / 64];
    mask[node as usize / 64] |= 1 << (node % 64);
    // One more than the bits of the mask: the kernel takes one off.
    let bits = u64::from(MOST_NODES) + 1;
    // SAFETY: the call reads the mask, which has that many bits, and changes where pages come from that hold nothing yet.
    let bound = unsafe {
        libc::syscall(libc::SYS_mbind, base.as_ptr(), len, libc::MPOL_BIND, mask.as_ptr(), bits, 0_u64)
    };
    if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the kernel bring `len` bytes from `base` into huge pages now, as far as it can.
fn collapse(base: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: the advice moves pages, and changes no byte of them.
    if unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_COLLAPSE) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// The kernel's account of these blocks together.
pub fn account(blocks: &[Range<usize>]) -> io::Result<Account> {
    // A kernel without NUMA has no such file.
    let numa = fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
    Ok(Account::read(&fs::read_to_string("/proc/self/smaps")?, &numa, blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account_of(bytes: u64, huge: u64, locked: u64, nodes: &[(u32, u64)]) -> Account {
        Account { bytes, huge, locked, nodes: nodes.to_vec(), ..Account::default() }
    }

    #[test]
    fn less_than_was_asked_for_is_an_error() {
        let asked = |text: &str| text.parse::<Placement>().unwrap();
        let huge = HUGE as u64;
        let few = account_of(4 * huge, 3 * huge, 0, &[]);
        for pages in ["transparent", "reserved"] {
            let error = check(&few, &asked(pages), None).unwrap_err();
            assert!(error.starts_with("3 of 4 huge pages were had, by /proc/self/smaps"), "{error}");
        }
        assert_eq!(check(&few, &asked("touched"), None), Ok(()));
        let unlocked = account_of(4096, 0, 0, &[]);
        assert_eq!(
            check(&unlocked, &asked("locked"), None).unwrap_err(),
            "0 of 4096 bytes are locked, by /proc/self/smaps"
        );
        let far = account_of(8192, 0, 0, &[(0, 4096), (1, 4096)]);
        let error = check(&far, &asked("node=0"), Some(0)).unwrap_err();
        assert_eq!(error, "4096 bytes lie on node 1, not 0, by /proc/self/numa_maps");
        let unknown = check(&account_of(8192, 0, 0, &[(0, 4096)]), &asked("node=0"), Some(0)).unwrap_err();
        assert!(unknown.starts_with("/proc/self/numa_maps tells where 4096 of 8192 bytes lie"), "{unknown}");
        assert_eq!(check(&account_of(8192, 0, 0, &[(0, 8192)]), &asked("node=0"), Some(0)), Ok(()));
    }
}
