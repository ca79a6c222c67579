//! Results and the text that goes with them.

use std::cell::RefCell;
use std::ffi::CString;

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
        | DeviceError::Memory { .. } => Code::Unavailable,
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

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Keeps the text of this thread's last refusal.
pub fn keep(text: &str) {
    let text = CString::new(text.replace('\0', "\\0")).unwrap_or_default();
    TEXT.with(|kept| *kept.borrow_mut() = text);
}

/// Where it lies, until the next is kept.
pub fn kept() -> *const std::ffi::c_char {
    TEXT.with(|kept| kept.borrow().as_ptr())
}
