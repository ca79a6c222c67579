//! Makes the process resident, so that its hot path touches no page for the first time.

use std::fmt;
use std::fs;
use std::hint::black_box;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::time::{Instant, SystemTime};

const PAGE: usize = 4096;

/// Stack that is left to whoever is called beyond the depth that was asked for, in bytes.
const STACK_MARGIN: usize = 32 * 1024;

/// How far [`prefault`] goes. [`Default`] makes one, whose fields can be set; there may be more of them in later versions.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PrefaultOptions {
    /// How far below the caller the calling thread's stack is touched, in bytes.
    pub stack_bytes: usize,
    /// Most bytes that mappings may come to take; one that does not fit is left as it is, and named. `None` is half of
    /// what the system has available, as a region that is reserved generously may be larger than the memory.
    pub limit_bytes: Option<u64>,
}

impl Default for PrefaultOptions {
    fn default() -> Self {
        Self { stack_bytes: 256 * 1024, limit_bytes: None }
    }
}

/// What [`prefault`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefault {
    /// Mappings that are resident now.
    pub mappings: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes of stack below the caller that are resident now.
    pub stack_bytes: usize,
    /// Whether what is resident stays so (`mlockall`).
    pub locked: bool,
    /// What could not be done, and why.
    pub could_not: Vec<String>,
}

impl fmt::Display for Prefault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locked = if self.locked { "locked" } else { "not locked" };
        let (mappings, mib, stack) = (self.mappings, self.bytes >> 20, self.stack_bytes >> 10);
        write!(f, "{mappings} mappings resident, {mib} MiB, {locked}; {stack} KiB of stack")?;
        self.could_not.iter().try_for_each(|what| write!(f, "\n  could not: {what}"))
    }
}

/// Makes every mapping of the process resident: code is read in, what may be written is made the process's own, and the
/// calling thread's stack is touched down to a depth. Then locks it all in memory, if the system allows that. To be
/// called by the hot thread, after all storage has been made.
///
/// What the kernel does later by itself may still fault: it takes pages back where they could not be locked, and moves
/// them between nodes of memory.
pub fn prefault(options: PrefaultOptions) -> Prefault {
    let mut done = Prefault::default();
    touch_stack(options.stack_bytes, &mut done);
    // The clocks' pages cannot be asked for; reading them is what maps them.
    black_box((Instant::now(), SystemTime::now()));

    // Not MCL_CURRENT alone, which would populate a region of any size.
    // SAFETY: locking pages changes nothing that a program sees.
    done.locked = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) } == 0;
    if !done.locked {
        let error = io::Error::last_os_error();
        done.could_not.push(format!(
            "lock memory: {error}; pages may be taken back: raise `ulimit -l`, or grant CAP_IPC_LOCK"
        ));
    }
    let maps = match fs::read_to_string("/proc/self/maps") {
        Ok(maps) => maps,
        Err(error) => {
            done.could_not.push(format!("read /proc/self/maps: {error}"));
            return done;
        }
    };
    let mut left = options.limit_bytes.unwrap_or_else(|| available().map_or(u64::MAX, |bytes| bytes / 2));
    for mapping in maps.lines().filter_map(Mapping::parse) {
        let bytes = mapping.range.len() as u64;
        if bytes > left {
            done.could_not
                .push(format!("populate {mapping}: {bytes} bytes are more than the {left} that are left"));
            continue;
        }
        match mapping.populate() {
            Ok(()) => {
                left -= bytes;
                done.mappings += 1;
                done.bytes += bytes;
            }
            Err(error) => done.could_not.push(format!("populate {mapping}: {error}")),
        }
    }
    done
}

/// A line of `/proc/self/maps` that can be populated.
struct Mapping<'a> {
    range: Range<usize>,
    writable: bool,
    name: &'a str,
}

impl<'a> Mapping<'a> {
    /// `None` for what nobody may read, and for the kernel's own pages.
    fn parse(line: &'a str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let address = |hex| usize::from_str_radix(hex, 16).ok();
        let permissions = rest.as_bytes();
        // Permissions, offset, device, inode, and a name that may hold spaces.
        let name = rest.splitn(5, ' ').nth(4).unwrap_or("").trim_start();
        let kernels = ["[vvar", "[vdso", "[vsyscall"].iter().any(|prefix| name.starts_with(prefix));
        (permissions.first() == Some(&b'r') && !kernels).then_some(Self {
            range: address(start)?..address(end)?,
            writable: permissions.get(1) == Some(&b'w'),
            name: if name.is_empty() { "anonymous memory" } else { name },
        })
    }

    fn populate(&self) -> io::Result<()> {
        let advice = if self.writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        loop {
            let start = ptr::without_provenance_mut(self.range.start);
            // SAFETY: the advice changes no byte of whatever is mapped there now, and fails where nothing is.
            if unsafe { libc::madvise(start, self.range.len(), advice) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => {}
                // Another thread has just unmapped it.
                Some(libc::ENOMEM) if !self.is_mapped() => return Ok(()),
                Some(libc::EINVAL) => {
                    return Err(io::Error::other(format!(
                        "{error}: memory of a device, or a kernel before Linux 5.14"
                    )));
                }
                _ => return Err(error),
            }
        }
    }

    fn is_mapped(&self) -> bool {
        let mut resident = vec![0_u8; self.range.len() / PAGE];
        let start = ptr::without_provenance_mut(self.range.start);
        // SAFETY: the kernel writes one byte for each page of the range, and fails where nothing is mapped.
        unsafe { libc::mincore(start, self.range.len(), resident.as_mut_ptr()) == 0 }
    }
}

impl fmt::Display for Mapping<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x} ({})", self.range.start, self.range.end, self.name)
    }
}

/// Bytes of memory that the system could still hand out.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn touch_stack(want: usize, done: &mut Prefault) {
    let here = ptr::from_ref(&want).addr();
    let room = stack_bottom().map_or(0, |bottom| here.saturating_sub(bottom).saturating_sub(STACK_MARGIN));
    if want > room {
        done.could_not.push(format!("touch {want} bytes of stack: only {room} are left on this thread"));
    }
    done.stack_bytes = want.min(room);
    if done.stack_bytes > 0 {
        touch_below(here - done.stack_bytes);
    }
}

/// Touches the stack from here down to the address `end`.
#[inline(never)]
fn touch_below(end: usize) {
    let mut page = [0_u8; PAGE];
    let page = black_box(&mut page);
    if page.as_ptr().addr() > end {
        touch_below(end);
    }
    // Behind the call, so that the frame is still needed while it runs.
    black_box(page);
}

/// The lowest address that the calling thread's stack may grow to.
fn stack_bottom() -> Option<usize> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut bottom, mut size, mut guard) = (ptr::null_mut(), 0, 0);
    // SAFETY: `pthread_getattr_np` fills the attributes if it returns 0; they are read and destroyed only then.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let stack = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut bottom, &raw mut size);
        libc::pthread_attr_getguardsize(attributes.as_ptr(), &raw mut guard);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (stack == 0).then(|| bottom.addr() + guard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("7f00-9f00 rw-p 00000000 00:00 0 ", Some((0x7f00..0x9f00, true, "anonymous memory")))]
    #[case("7f00-9f00 r-xp 00001000 fe:00 12   /a file (deleted)", Some((0x7f00..0x9f00, false, "/a file (deleted)")))]
    #[case("7f00-9f00 ---p 00000000 00:00 0", None)]
    #[case("7f00-9f00 r--p 00000000 00:00 0       [vvar_vclock]", None)]
    #[case("ffff-fffff --xp 00000000 00:00 0    [vsyscall]", None)]
    #[case("7f00 rw-p", None)]
    #[case("", None)]
    fn lines_of_maps(#[case] line: &str, #[case] expected: Option<(Range<usize>, bool, &str)>) {
        let parsed = Mapping::parse(line).map(|mapping| (mapping.range, mapping.writable, mapping.name));
        assert_eq!(parsed, expected);
    }
}
