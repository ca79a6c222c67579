//! What becomes of each entry of the contract: `generated.rs` only lists them.

use crate::CONTRACT_VERSION;

const _: () = assert!(cfg!(target_endian = "little"), "the contract needs a little-endian host");

/// A byte that is no code point of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:#04x} is no {set} of contract version {CONTRACT_VERSION:#010x}")]
pub struct UnknownCode {
    /// The set's name.
    pub set: &'static str,
    /// The byte.
    pub value: u8,
}

/// Describes one field of the record `T`.
#[derive(Clone, Copy, Debug)]
pub struct Field<T: 'static> {
    /// Name in the contract.
    pub name: &'static str,
    /// Bytes from the start of the record.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// Reads the field, zero-extended.
    pub get: fn(&T) -> u64,
}

/// Who may write a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Nobody: a write answers SLVERR.
    ReadOnly,
    /// The host, always.
    ReadWrite,
    /// The host, while what the register belongs to is inactive; else a write answers SLVERR.
    Config,
    /// A write clears the bits that are 1 in it.
    WriteOneClears,
}

/// A queue pair and the function that owns it: which of the registers of one name is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Number of the function.
    pub function: u8,
    /// Number of the queue pair in the device.
    pub queue: u8,
}

impl Place {
    /// Queue pair 0 of function 0, which every device has.
    pub const FIRST: Self = Self { function: 0, queue: 0 };
}

/// Bytes of the field that `get` points to.
pub(crate) const fn size_of_field<T, F>(_get: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// A record of the wire: the structure, the proof of its layout, and its fields as data.
macro_rules! record {
    (
        $(#[$doc:meta])*
        $name:ident, $size:tt { $($(#[$about:meta])* $offset:literal $field:ident: $type:ty,)* }
        $(compared { $($compared:ident),* })?
    ) => {
        $(#[$doc])*
        #[repr(C, align($size))]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name {
            $($(#[$about])* pub $field: $type,)*
        }

        static_assertions::const_assert_eq!(size_of::<$name>(), $size);
        static_assertions::const_assert_eq!(align_of::<$name>(), $size);
        $(static_assertions::const_assert_eq!(core::mem::offset_of!($name, $field), $offset);)*
        // Fields that follow each other without a gap: no padding that a device could read.
        static_assertions::const_assert_eq!($(size_of::<$type>() +)* 0, $size);

        impl $name {
            /// Every field, by rising offset.
            pub const FIELDS: [$crate::Field<Self>; [$($offset),*].len()] =
                [$($crate::define::field!($field)),*];

            $(
                /// The fields that two devices must agree on; the others depend on timing.
                pub const COMPARED: [$crate::Field<Self>; [$(stringify!($compared)),*].len()] =
                    [$($crate::define::field!($compared)),*];
            )?
        }
    };
}

macro_rules! field {
    ($field:ident) => {
        $crate::Field {
            name: stringify!($field),
            offset: core::mem::offset_of!(Self, $field),
            size: $crate::define::size_of_field(|record: &Self| &record.$field),
            get: |record| record.$field as u64,
        }
    };
}

/// Code points of which a field of 8 bits holds exactly one.
macro_rules! code_points {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $code:ident = $value:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$about])* $code = $value,)*
        }

        impl TryFrom<u8> for $name {
            type Error = $crate::UnknownCode;

            fn try_from(value: u8) -> Result<Self, $crate::UnknownCode> {
                match value {
                    $($value => Ok(Self::$code),)*
                    _ => Err($crate::UnknownCode { set: stringify!($name), value }),
                }
            }
        }

        impl From<$name> for u8 {
            fn from(code: $name) -> u8 {
                code as u8
            }
        }

        $crate::define::named! { $name { $($code $text),* } }
    };
}

/// `ALL`, `name` and `Display`.
macro_rules! named {
    ($name:ident { $($variant:ident $text:expr),* }) => {
        impl $name {
            /// Every one, in the contract's order.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$variant),*];

            /// The contract's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

/// The registers, in blocks; a counter is two of them, in that of the device or of a queue pair.
macro_rules! registers {
    (
        blocks {
            $($(#[$what:meta])* $block:ident = $base:literal, $per_function:literal, $per_queue:literal, $per_worker:literal,
                $title:literal;)*
        }
        registers {
            $(
                $(#[$doc:meta])*
                $register:ident = $address:literal, $of:ident, $text:literal, $access:ident, $reset:expr;
            )*
        }
        counters {
            $($(#[$about:meta])* $counter:ident = $label:literal, $lo:ident $low:literal, $hi:ident $high:literal;)*
        }
        queue_counters {
            $(
                $(#[$about_own:meta])*
                $own:ident = $own_label:literal, $own_lo:ident $own_low:literal, $own_hi:ident $own_high:literal;
            )*
        }
        worker_counters {
            $(
                $(#[$about_worker:meta])*
                $worker:ident = $worker_label:literal,
                $worker_lo:ident $worker_low:literal, $worker_hi:ident $worker_high:literal;
            )*
        }
    ) => {
        /// A group of registers that a device has once, or once for each function, queue pair or worker.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Block {
            $($(#[$what])* $block,)*
        }

        $crate::define::named! { Block { $($block $title),* } }

        impl Block {
            /// Bytes from one function's to the next one's; 0: it belongs to no function.
            pub const fn per_function(self) -> u32 {
                match self {
                    $(Self::$block => $per_function,)*
                }
            }

            /// Bytes from one queue pair's to the next one's; 0: it belongs to no queue pair.
            pub const fn per_queue(self) -> u32 {
                match self {
                    $(Self::$block => $per_queue,)*
                }
            }

            /// Bytes from one worker's to the next one's; 0: it belongs to no worker.
            pub const fn per_worker(self) -> u32 {
                match self {
                    $(Self::$block => $per_worker,)*
                }
            }
        }

        /// Registers, each 32 bits, by their address for function 0, queue pair 0 and worker 0; counters are two registers each.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Register {
            $($(#[$doc])* $register = $address,)*
            $(
                $(#[$about])*
                ///
                /// The low half (ro).
                $lo = $low,
                $(#[$about])*
                ///
                /// The high half (ro).
                $hi = $high,
            )*
            $(
                $(#[$about_own])*
                ///
                /// The low half (ro).
                $own_lo = $own_low,
                $(#[$about_own])*
                ///
                /// The high half (ro).
                $own_hi = $own_high,
            )*
            $(
                $(#[$about_worker])*
                ///
                /// The low half (ro).
                $worker_lo = $worker_low,
                $(#[$about_worker])*
                ///
                /// The high half (ro).
                $worker_hi = $worker_high,
            )*
        }

        $crate::define::named! {
            Register {
                $($register $text,)*
                $($lo concat!($label, "_LO"), $hi concat!($label, "_HI"),)*
                $($own_lo concat!("QUEUE_", $own_label, "_LO"), $own_hi concat!("QUEUE_", $own_label, "_HI"),)*
                $($worker_lo concat!("WORKER_", $worker_label, "_LO"), $worker_hi concat!("WORKER_", $worker_label, "_HI")),*
            }
        }

        impl Register {
            /// Its block.
            pub const fn block(self) -> Block {
                match self {
                    $(Self::$register => Block::$of,)*
                    $(Self::$lo | Self::$hi => Block::Device,)*
                    $(Self::$own_lo | Self::$own_hi => Block::Queue,)*
                    $(Self::$worker_lo | Self::$worker_hi => Block::Worker,)*
                }
            }

            /// Its bus address, from the start of the device's pages, for what `place` names. In [`Block::Worker`]
            /// `place.queue` is the worker's number.
            pub const fn address(self, place: $crate::Place) -> u32 {
                self as u32
                    + self.block().per_function() * place.function as u32
                    + self.block().per_queue() * place.queue as u32
                    + self.block().per_worker() * place.queue as u32
            }

            /// Who may write it.
            pub const fn access(self) -> $crate::Access {
                match self {
                    $(Self::$register => $crate::Access::$access,)*
                    _ => $crate::Access::ReadOnly,
                }
            }

            /// Value after reset; `None` where it depends on how the device was built.
            pub const fn reset(self) -> Option<u32> {
                match self {
                    $(Self::$register => $reset,)*
                    _ => Some(0),
                }
            }
        }

        /// 64-bit counters of the device, which clear when a queue pair is enabled while none is active. Who reads one reads
        /// [`hi`](Counter::hi), [`lo`](Counter::lo) and `hi` again, to know whether the halves belong together.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Counter {
            $($(#[$about])* $counter,)*
        }

        $crate::define::named! { Counter { $($counter $label),* } }

        impl Counter {
            /// Register of the low half.
            pub const fn lo(self) -> Register {
                match self {
                    $(Self::$counter => Register::$lo,)*
                }
            }

            /// Register of the high half.
            pub const fn hi(self) -> Register {
                match self {
                    $(Self::$counter => Register::$hi,)*
                }
            }
        }

        /// 64-bit counters of a queue pair, which clear when it is enabled; read as those of the device are.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum QueueCounter {
            $($(#[$about_own])* $own,)*
        }

        $crate::define::named! { QueueCounter { $($own $own_label),* } }

        impl QueueCounter {
            /// Register of the low half.
            pub const fn lo(self) -> Register {
                match self {
                    $(Self::$own => Register::$own_lo,)*
                }
            }

            /// Register of the high half.
            pub const fn hi(self) -> Register {
                match self {
                    $(Self::$own => Register::$own_hi,)*
                }
            }

            /// What counts the same for all queue pairs together.
            pub const fn of_device(self) -> Counter {
                match self {
                    $(Self::$own => Counter::$own,)*
                }
            }
        }

        /// 64-bit counters of a worker, which clear with those of the device; read as those are.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum WorkerCounter {
            $($(#[$about_worker])* $worker,)*
        }

        $crate::define::named! { WorkerCounter { $($worker $worker_label),* } }

        impl WorkerCounter {
            /// Register of the low half.
            pub const fn lo(self) -> Register {
                match self {
                    $(Self::$worker => Register::$worker_lo,)*
                }
            }

            /// Register of the high half.
            pub const fn hi(self) -> Register {
                match self {
                    $(Self::$worker => Register::$worker_hi,)*
                }
            }

            /// What counts the same for all workers together.
            pub const fn of_device(self) -> Counter {
                match self {
                    $(Self::$worker => Counter::$worker,)*
                }
            }
        }
    };
}

pub(crate) use {code_points, field, named, record, registers};
