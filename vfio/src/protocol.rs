//! The messages of vfio-user (QEMU's `docs/interop/vfio-user.rst`): as bytes, and as what they say. Nothing here does anything.
//!
//! A message is a header of 16 bytes and a body. Numbers are little-endian.

use crate::refusal::Refusal;

/// Bytes of a header.
pub const HEADER: usize = 16;
/// Bytes of a region that one message reads or writes, at most.
pub const MAX_DATA: usize = 256;
/// Longest message that is taken: a version with its capabilities is the longest that there is.
pub const MAX_MESSAGE: usize = 4096;
/// File descriptors of one message, at most.
pub const MAX_DESCRIPTORS: usize = 16;

/// Region of BAR 0.
pub const BAR0: u32 = 0;
/// Region of the configuration space.
pub const CONFIG: u32 = 7;
/// Regions of a PCI device.
pub const REGIONS: u32 = 9;
/// Interrupts of the kind MSI-X.
pub const MSIX: u32 = 2;
/// Kinds of interrupts of a PCI device.
pub const IRQS: u32 = 5;

const FLAG_TYPE: u32 = 0xF;
const FLAG_REPLY: u32 = 1;
const FLAG_NO_REPLY: u32 = 1 << 4;
const FLAG_ERROR: u32 = 1 << 5;

/// Commands by number.
pub mod command {
    #![allow(missing_docs, reason = "the names of the specification")]
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const GET_INFO: u16 = 4;
    pub const GET_REGION_INFO: u16 = 5;
    pub const GET_IRQ_INFO: u16 = 7;
    pub const SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const RESET: u16 = 13;
}

/// Bits of DMA_MAP's flags.
pub mod dma {
    /// The device may read.
    pub const READ: u32 = 1;
    /// The device may write.
    pub const WRITE: u32 = 2;
    /// DMA_UNMAP: all ranges. QEMU sets the first bit, rust-vmm the second.
    pub const UNMAP_ALL: u32 = 2 | 4;
}

/// Bits of SET_IRQS's flags.
pub mod irq {
    /// No data behind it.
    pub const NONE: u32 = 1;
    /// A file descriptor for each interrupt, or none to take them back.
    pub const EVENTFD: u32 = 4;
    /// Masks them.
    pub const MASK: u32 = 8;
    /// Unmasks them.
    pub const UNMASK: u32 = 16;
    /// Fires them, or says what fires.
    pub const TRIGGER: u32 = 32;
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Chosen by whoever asks, and repeated in the reply.
    pub id: u16,
    /// What is asked for.
    pub command: u16,
    /// Bytes of the message with its header.
    pub size: u32,
    /// Reply, no reply wanted, error.
    pub flags: u32,
    /// Errno of a reply with an error.
    pub error: u32,
}

impl Header {
    /// Reads one.
    pub fn decode(bytes: &[u8; HEADER]) -> Self {
        let mut fields = Fields(bytes);
        let (id, command) = (fields.half(), fields.half());
        Self { id, command, size: fields.word(), flags: fields.word(), error: fields.word() }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(&self.id.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[12..].copy_from_slice(&self.error.to_le_bytes());
        bytes
    }

    /// The header of a command with a body of so many bytes.
    pub fn command(id: u16, command: u16, body: usize) -> Self {
        Self { id, command, size: (HEADER + body) as u32, flags: 0, error: 0 }
    }

    /// The same of a command that is not answered, as a write on PCI is not.
    pub fn posted(id: u16, command: u16, body: usize) -> Self {
        Self { flags: FLAG_NO_REPLY, ..Self::command(id, command, body) }
    }

    /// Whether whoever asks wants a reply.
    pub fn wants_reply(&self) -> bool {
        self.flags & FLAG_NO_REPLY == 0
    }

    /// The errno of a reply that says that the command failed.
    pub fn failure(&self) -> Option<u32> {
        (self.flags & FLAG_ERROR != 0).then_some(self.error)
    }

    /// How long the message is, header included.
    ///
    /// # Errors
    /// Its length, or its kind, is none that a command has.
    pub fn length(&self) -> Result<usize, Refusal> {
        match self.size as usize {
            size if size < HEADER => Err(Refusal::ShortMessage),
            size if size > MAX_MESSAGE => Err(Refusal::OversizedMessage),
            _ if self.flags & !FLAG_NO_REPLY & (FLAG_TYPE | FLAG_ERROR) != 0 => Err(Refusal::NotACommand),
            size => Ok(size),
        }
    }
}

/// The reply to a command.
pub fn reply(to: &Header, outcome: Result<(), Refusal>, body: &[u8]) -> Vec<u8> {
    let (flags, error) = match outcome {
        Ok(()) => (FLAG_REPLY, 0),
        Err(refusal) => (FLAG_REPLY | FLAG_ERROR, refusal.errno().raw_os_error() as u32),
    };
    let header = Header { id: to.id, command: to.command, size: (HEADER + body.len()) as u32, flags, error };
    [&header.encode()[..], body].concat()
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// VERSION: the one that the client speaks, and its capabilities as JSON.
    Version {
        /// Versions with another one do not fit.
        major: u16,
        /// The client's.
        minor: u16,
        /// Without the 0 at its end.
        capabilities: &'a [u8],
    },
    /// DMA_MAP.
    DmaMap {
        /// Bits of [`dma`].
        flags: u32,
        /// Into the file.
        offset: u64,
        /// Bus address.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// DMA_UNMAP.
    DmaUnmap {
        /// Bits of [`dma`].
        flags: u32,
        /// Bus address.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// DEVICE_GET_INFO.
    GetInfo,
    /// DEVICE_GET_REGION_INFO.
    GetRegionInfo {
        /// Which.
        index: u32,
    },
    /// DEVICE_GET_IRQ_INFO.
    GetIrqInfo {
        /// Which kind.
        index: u32,
    },
    /// DEVICE_SET_IRQS.
    SetIrqs {
        /// Bits of [`irq`].
        flags: u32,
        /// Which kind.
        index: u32,
        /// The first.
        start: u32,
        /// How many.
        count: u32,
    },
    /// REGION_READ.
    RegionRead {
        /// Which.
        region: u32,
        /// Of its first byte.
        offset: u64,
        /// Bytes.
        count: u32,
    },
    /// REGION_WRITE.
    RegionWrite {
        /// Which.
        region: u32,
        /// Of its first byte.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// DEVICE_RESET.
    Reset,
}

impl<'a> Request<'a> {
    /// What a command with this body says.
    ///
    /// # Errors
    /// `UnknownCommand`, or `Malformed` where the body does not fit.
    pub fn decode(command: u16, body: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Fields(body);
        let request = match command {
            command::VERSION => {
                fields.needs(4)?;
                let (major, minor) = (fields.half(), fields.half());
                let text = std::mem::take(&mut fields.0);
                let capabilities = match text.split_last() {
                    None => text,
                    Some((0, text)) if !text.contains(&0) => text,
                    Some(_) => return Err(Refusal::Malformed),
                };
                Self::Version { major, minor, capabilities }
            }
            command::DMA_MAP => {
                fields.needs(32)?;
                fields.word();
                let flags = fields.word();
                Self::DmaMap { flags, offset: fields.long(), address: fields.long(), size: fields.long() }
            }
            command::DMA_UNMAP => {
                fields.needs(24)?;
                fields.word();
                let flags = fields.word();
                Self::DmaUnmap { flags, address: fields.long(), size: fields.long() }
            }
            command::GET_INFO => {
                fields.needs(16)?;
                fields.0 = &[];
                Self::GetInfo
            }
            command::GET_REGION_INFO => {
                fields.needs(32)?;
                let _ = fields.long();
                let index = fields.word();
                fields.0 = &[];
                Self::GetRegionInfo { index }
            }
            command::GET_IRQ_INFO => {
                fields.needs(16)?;
                let _ = fields.long();
                let index = fields.word();
                fields.word();
                Self::GetIrqInfo { index }
            }
            command::SET_IRQS => {
                fields.needs(20)?;
                fields.word();
                let (flags, index) = (fields.word(), fields.word());
                Self::SetIrqs { flags, index, start: fields.word(), count: fields.word() }
            }
            command::REGION_READ => {
                fields.needs(16)?;
                let offset = fields.long();
                Self::RegionRead { offset, region: fields.word(), count: fields.word() }
            }
            command::REGION_WRITE => {
                fields.needs(16)?;
                let (offset, region, count) = (fields.long(), fields.word(), fields.word());
                let data = std::mem::take(&mut fields.0);
                if data.len() != count as usize {
                    return Err(Refusal::Malformed);
                }
                Self::RegionWrite { region, offset, data }
            }
            command::RESET => Self::Reset,
            _ => return Err(Refusal::UnknownCommand),
        };
        if fields.0.is_empty() { Ok(request) } else { Err(Refusal::Malformed) }
    }
}

/// The version that is spoken, and what this end takes. QEMU takes no minor version above its own, 0.
pub fn version(extra: &str) -> Vec<u8> {
    let capabilities = format!(
        "{{\"capabilities\":{{\"max_msg_fds\":{MAX_DESCRIPTORS},\"max_data_xfer_size\":{MAX_DATA}{extra}}}}}\0"
    );
    [&[0; 4], capabilities.as_bytes()].concat()
}

/// Numbers one behind the other.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The fields of a body, taken off its front. What is not there reads as 0: [`needs`](Fields::needs) comes first.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    fn needs(&self, bytes: usize) -> Result<(), Refusal> {
        if self.0.len() < bytes { Err(Refusal::Malformed) } else { Ok(()) }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) =
            self.0.split_first_chunk().map_or(([0; N], &[][..]), |(taken, rest)| (*taken, rest));
        self.0 = rest;
        taken
    }

    pub fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}
