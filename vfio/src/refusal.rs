//! Why something was refused: each reason has a name, an errno, and is counted.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $errno:ident, $fate:ident;)*) => {
        /// Why a message, an access or a client was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Refusal {
            $($(#[$doc])* $name,)*
        }

        impl Refusal {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The reason in words.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// What the client is answered.
            pub const fn errno(self) -> rustix::io::Errno {
                match self {
                    $(Self::$name => rustix::io::Errno::$errno,)*
                }
            }

            /// Whether the connection ends with it: nobody knows then where the next message begins, or what a client may do.
            pub const fn ends_connection(self) -> bool {
                match self {
                    $(Self::$name => refusals!(@ $fate),)*
                }
            }
        }
    };
    (@ ends) => { true };
    (@ stays) => { false };
}

refusals! {
    /// A message whose size is smaller than its header.
    ShortMessage = "a message shorter than its header", INVAL, ends;
    /// A message that is larger than any that there is.
    OversizedMessage = "a message longer than the longest that is taken", MSGSIZE, ends;
    /// A reply, which nobody asked for, or reserved flags.
    NotACommand = "a message that is no command", INVAL, ends;
    /// Another command before the version was agreed on, or the version twice.
    OutOfOrder = "a command before the version, or a second version", PROTO, ends;
    /// A version that is not this one.
    BadVersion = "a version of the protocol other than 0.x", NOTSUP, ends;
    /// More file descriptors than a message has.
    DescriptorFlood = "more file descriptors than a message may bring", MFILE, ends;
    /// A second client while there is one.
    Busy = "a second client while there is one", BUSY, ends;
    /// A command that is not served.
    UnknownCommand = "a command that is not served", NOTSUP, stays;
    /// A message whose fields do not fit its size, or each other.
    Malformed = "a message whose fields do not fit its size or each other", INVAL, stays;
    /// File descriptors with a message that has none.
    UnwantedDescriptors = "file descriptors with a message that takes none", INVAL, stays;
    /// Bytes of no region, or in a size that the region does not have.
    BadRegion = "an access outside of every region, or of a size that it does not have", INVAL, stays;
    /// An interrupt that there is not, or an action that it does not have.
    BadInterrupt = "an interrupt or an action that there is not", INVAL, stays;
    /// Something else than an eventfd that does not block.
    NotAnEventfd = "a trigger that is no eventfd with EFD_NONBLOCK", BADF, stays;
    /// An empty range, or one that is not of whole pages.
    MapUnaligned = "a DMA range that is empty or not of whole pages of 4 KiB", INVAL, stays;
    /// A range past the end of all addresses, or of all offsets.
    MapWraps = "a DMA range that runs past the end of all addresses or offsets", OVERFLOW, stays;
    /// A range with bytes that another one has.
    MapOverlaps = "a DMA range that overlaps another", EXIST, stays;
    /// A range past the end of its file.
    MapBeyondFile = "a DMA range that runs past the end of its file", NXIO, stays;
    /// A range without memory.
    MapWithoutDescriptor = "a DMA range to be written that brings no file descriptor", BADF, stays;
    /// Memory that could be taken away while it is used.
    MapNotSealed = "DMA memory that is no memfd sealed with F_SEAL_SHRINK", PERM, stays;
    /// Memory whose pages may be missing when they are touched.
    MapHugePages = "DMA memory of huge pages, which the system may not have when they are touched", NOTSUP, stays;
    /// More memory than a function may have.
    TooManyBytes = "more DMA memory than the 1 TiB that a function may have", NOSPC, stays;
    /// More ranges than a function has.
    TooManyRanges = "more DMA ranges than a function has", NOSPC, stays;
    /// More files than a function has mapped.
    TooManyFiles = "more files under DMA ranges than a function has", MFILE, stays;
    /// The system refuses to map the memory.
    MapFailed = "DMA memory that the system does not map", NOMEM, stays;
    /// An unmap that takes a part of a range.
    UnmapCuts = "an unmap of a part of a DMA range", INVAL, stays;
    /// A register that is not there, is another's, or does not take the value now.
    Register = "an access that the device refuses, or to a register of others", ACCESS, stays;
    /// A function level reset that did not end in time.
    ResetTimeout = "a reset that did not end in time", TIMEDOUT, stays;
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// What a function has seen since the server began. All threads may read it.
#[derive(Debug)]
pub struct Tally {
    refused: Box<[AtomicU64]>,
    messages: AtomicU64,
    clients: AtomicU64,
    resets: AtomicU64,
    outside: AtomicU64,
    interrupts: AtomicU64,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            refused: Refusal::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            messages: AtomicU64::new(0),
            clients: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            outside: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
        }
    }
}

macro_rules! tallied {
    ($($(#[$doc:meta])* $name:ident, $note:ident;)*) => {
        impl Tally {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> u64 {
                    self.$name.load(Ordering::Relaxed)
                }

                pub(crate) fn $note(&self) {
                    self.$name.fetch_add(1, Ordering::Relaxed);
                }
            )*
        }
    };
}

tallied! {
    /// Messages of clients.
    messages, note_message;
    /// Clients that have come.
    clients, note_client;
    /// Resets of the function: by FLR, by a message, and after each client.
    resets, note_reset;
    /// Interrupts that were handed to a client.
    interrupts, note_interrupt;
}

impl Tally {
    /// How often something was refused for this reason.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused[refusal as usize].load(Ordering::Relaxed)
    }

    /// Accesses of the function to addresses that it was not given, which the bus answered DECERR.
    pub fn outside(&self) -> u64 {
        self.outside.load(Ordering::Relaxed)
    }

    pub(crate) fn note_refusal(&self, refusal: Refusal) {
        self.refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_outside(&self, outside: u64) {
        self.outside.store(outside, Ordering::Relaxed);
    }
}

/// One line: what was served, and what was refused and why.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (messages, interrupts, resets) = (self.messages(), self.interrupts(), self.resets());
        write!(f, "{messages} messages, {interrupts} interrupts, {resets} resets")?;
        if self.outside() > 0 {
            write!(f, ", {} accesses outside of its memory", self.outside())?;
        }
        for &refusal in Refusal::ALL {
            match self.refused(refusal) {
                0 => {}
                count => write!(f, ", refused {count} × {refusal}")?,
            }
        }
        Ok(())
    }
}
