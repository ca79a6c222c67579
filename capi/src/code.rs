//! Results and the text that goes with them.

use std::cell::UnsafeCell;

use doorbell_devices::OpenError;
use doorbell_host::DeviceError;

macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        /// `enum doorbell_result`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum Code { $($name = $value),* }

        impl Code {
            /// Every code with its name in C.
            pub const ALL: &[(Code, &std::ffi::CStr)] = &[$((Code::$name, $text)),*];
        }
    };
}

codes! {
    Ok = 0, c"DOORBELL_OK";
    Full = 1, c"DOORBELL_FULL";
    TimedOut = 2, c"DOORBELL_TIMED_OUT";
    BadArgument = -1, c"DOORBELL_BAD_ARGUMENT";
    BadHandle = -2, c"DOORBELL_BAD_HANDLE";
    UnknownDevice = -3, c"DOORBELL_UNKNOWN_DEVICE";
    BadOption = -4, c"DOORBELL_BAD_OPTION";
    Unavailable = -5, c"DOORBELL_UNAVAILABLE";
    OutOfBounds = -6, c"DOORBELL_OUT_OF_BOUNDS";
    Hung = -7, c"DOORBELL_HUNG";
    DeviceFailed = -8, c"DOORBELL_DEVICE_FAILED";
    Internal = -9, c"DOORBELL_INTERNAL";
    BadWeights = -10, c"DOORBELL_BAD_WEIGHTS";
}

/// Why a call did not do what it was asked to.
#[derive(Debug)]
pub struct Refusal {
    pub code: Code,
    pub text: String,
}

impl Refusal {
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        let code = code_of(&error);
        Self::new(code, error.to_string())
    }
}

fn code_of(error: &DeviceError) -> Code {
    match error {
        DeviceError::RingDepth { .. } | DeviceError::Config { .. } => Code::BadOption,
        DeviceError::Unavailable { .. }
        | DeviceError::NotADevice { .. }
        | DeviceError::Version { .. }
        | DeviceError::Memory { .. }
        | DeviceError::Placement { .. } => Code::Unavailable,
        DeviceError::OutOfBounds { .. } => Code::OutOfBounds,
        DeviceError::Timeout(_) => Code::Hung,
        DeviceError::Shard { error, .. } => code_of(error),
        _ => Code::DeviceFailed,
    }
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Self {
        let code = match error {
            OpenError::Device(error) => return error.into(),
            OpenError::Unknown { .. } => Code::UnknownDevice,
            _ => Code::BadOption,
        };
        Self::new(code, error.to_string())
    }
}

/// Bytes of a text with its 0; a longer one is cut.
const TEXT_BYTES: usize = 2048;
/// What stands where a text was cut.
const CUT: &str = " ...";

thread_local! {
    // Nothing that is dropped: a text can be kept in any moment of a thread's life, the destructors of its keys
    // (pthread_key_create) included, which run after those of Rust.
    static TEXT: UnsafeCell<[u8; TEXT_BYTES]> = const { UnsafeCell::new([0; TEXT_BYTES]) };
}
const _: () = assert!(!std::mem::needs_drop::<UnsafeCell<[u8; TEXT_BYTES]>>());

/// Keeps the text of this thread's last refusal.
pub fn keep(text: &str) {
    let fits = |bytes: usize| bytes < TEXT_BYTES;
    let text = text.replace('\0', "\\0");
    let (head, tail) = if fits(text.len()) {
        (text.as_str(), "")
    } else {
        let room = TEXT_BYTES - 1 - CUT.len();
        // A letter has at most four bytes, so one of these four places lies between two letters.
        let end = (room - 3..=room).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        (&text[..end], CUT)
    };
    let bytes = head.bytes().chain(tail.bytes()).chain([0]);
    TEXT.with(|kept| {
        // SAFETY: this thread's own, and nothing else is called while the reference lives. The C program reads it between calls.
        let kept = unsafe { &mut *kept.get() };
        kept.iter_mut().zip(bytes).for_each(|(kept, byte)| *kept = byte);
    });
}

/// Where it lies, until the next is kept.
pub fn kept() -> *const std::ffi::c_char {
    TEXT.with(|kept| kept.get().cast_const().cast())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_text_is_kept_whole_or_cut_between_letters() {
        for (text, expected) in [
            ("short".to_owned(), "short".to_owned()),
            ("a\0b".to_owned(), "a\\0b".to_owned()),
            ("x".repeat(TEXT_BYTES - 1), "x".repeat(TEXT_BYTES - 1)),
            ("x".repeat(TEXT_BYTES), "x".repeat(TEXT_BYTES - 5) + CUT),
            // Two bytes each, from an odd place on.
            (
                "x".to_owned() + &"é".repeat(TEXT_BYTES),
                "x".to_owned() + &"é".repeat((TEXT_BYTES - 6) / 2) + CUT,
            ),
            (String::new(), String::new()),
        ] {
            keep(&text);
            // SAFETY: ends with a 0, and nothing is kept meanwhile.
            assert_eq!(unsafe { CStr::from_ptr(kept()) }.to_str(), Ok(expected.as_str()));
        }
    }
}
