//! The functions of `doorbell.h`.

use std::ffi::{CStr, c_char, c_int};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::slice;
use std::time::Duration;

use doorbell_contract::{DescFlags, HwCompletion, HwDesc, HwPolicy, MEMBER_NONE, PREFIX_NONE, PolicyMode};
use doorbell_devices::Kind;
use static_assertions::const_assert_eq;

use crate::code::{self, Code, Refusal};
use crate::handle::{self, Open};

/// `DOORBELL_API_VERSION`.
const VERSION: u32 = 0x0001_0002;

/// `doorbell_device *`: a key, never an address.
type Handle = *mut Device;

/// `doorbell_device`.
#[repr(C)]
pub struct Device {
    _opaque: [u8; 0],
}

/// `struct infer_decode`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct InferDecode {
    size: u32,
    rollout_id: u32,
    seq_len: u32,
    max_tokens: u32,
    delta_offset: u64,
    user_data: u64,
    checkpoint: u32,
    seed: u32,
    flags: u32,
    reserved: u32,
    prefix_id: u32,
    member: u16,
    policy_version: u16,
}

// The offsets that doorbell.h asserts.
const_assert_eq!(size_of::<InferDecode>(), 56);
const_assert_eq!(offset_of!(InferDecode, delta_offset), 16);
const_assert_eq!(offset_of!(InferDecode, checkpoint), 32);
const_assert_eq!(offset_of!(InferDecode, prefix_id), 48);
const_assert_eq!(offset_of!(InferDecode, policy_version), 54);

impl InferDecode {
    /// Bytes of the structure of version 1.0.
    const FIRST: usize = std::mem::offset_of!(InferDecode, prefix_id);
    /// What a shorter one means.
    const NONE: InferDecode = InferDecode {
        size: 0,
        rollout_id: 0,
        seq_len: 0,
        max_tokens: 0,
        delta_offset: 0,
        user_data: 0,
        checkpoint: 0,
        seed: 0,
        flags: 0,
        reserved: 0,
        prefix_id: PREFIX_NONE,
        member: MEMBER_NONE,
        policy_version: 0,
    };
}

/// `struct doorbell_features`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceFeatures {
    size: u32,
    capability: u32,
    groups: u32,
    policy_slots: u32,
    reward_models: u32,
    functions: u32,
}

const_assert_eq!(size_of::<DeviceFeatures>(), 24);
const_assert_eq!(offset_of!(DeviceFeatures, functions), 20);

/// Runs the body of a call: no panic leaves it, and a refusal becomes its code, with the text kept.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Refusal>) -> c_int {
    // What a panic may have left half done is behind the lock of its device, which is poisoned then.
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
        Err(Refusal::new(Code::Internal, format!("a fault of the library: {text}; close the device")))
    });
    match result {
        Ok(()) => Code::Ok as c_int,
        Err(Refusal { code, text }) => {
            code::keep(&text);
            code as c_int
        }
    }
}

pub(crate) fn bad(what: &str) -> Refusal {
    Refusal::new(Code::BadArgument, what)
}

pub(crate) fn checked<T>(pointer: *const T, name: &str) -> Result<(), Refusal> {
    if pointer.is_null() {
        return Err(bad(&format!("{name} is NULL")));
    }
    if !pointer.is_aligned() {
        return Err(bad(&format!("{name} is not aligned to {} bytes", align_of::<T>())));
    }
    Ok(())
}

/// The bytes of an array are no more than an object can have.
fn countable<T>(count: usize, name: &str) -> Result<(), Refusal> {
    match count.checked_mul(size_of::<T>()).and_then(|bytes| isize::try_from(bytes).ok()) {
        Some(_) => Ok(()),
        None => Err(bad(&format!("{count} {name} are more than memory holds"))),
    }
}

/// # Safety
/// `pointer` is NULL, misaligned, or valid for reads of `count` records while the result lives.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, count: usize, name: &str) -> Result<&'a [T], Refusal> {
    if count == 0 {
        return Ok(&[]);
    }
    checked(pointer, name)?;
    countable::<T>(count, name)?;
    // SAFETY: not NULL, aligned, within an object's size, and valid for reads by the caller's word.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// # Safety
/// As [`array`], for writes too, and nothing else uses the records. They hold no value that their type lacks.
pub(crate) unsafe fn array_mut<'a, T>(
    pointer: *mut T,
    count: usize,
    name: &str,
) -> Result<&'a mut [T], Refusal> {
    if count == 0 {
        return Ok(&mut []);
    }
    checked(pointer, name)?;
    countable::<T>(count, name)?;
    // SAFETY: as in `array`; records of plain numbers, of which any bytes are a value.
    Ok(unsafe { slice::from_raw_parts_mut(pointer, count) })
}

/// # Safety
/// `pointer` is NULL, misaligned, or valid for a write.
pub(crate) unsafe fn store<T>(pointer: *mut T, value: T, name: &str) -> Result<(), Refusal> {
    checked(pointer, name)?;
    // SAFETY: not NULL, aligned, and valid for a write by the caller's word.
    unsafe { pointer.write(value) };
    Ok(())
}

/// # Safety
/// `pointer` is NULL, or the start of a string that ends with a 0 and outlives the result.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Refusal> {
    checked(pointer, name)?;
    // SAFETY: not NULL, and ends with a 0 by the caller's word.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| bad(&format!("{name} is not UTF-8")))
}

/// See `doorbell.h`.
#[unsafe(no_mangle)]
pub extern "C" fn doorbell_api_version() -> u32 {
    VERSION
}

/// See `doorbell.h`.
#[unsafe(no_mangle)]
pub extern "C" fn doorbell_error_text() -> *const c_char {
    code::kept()
}

/// See `doorbell.h`.
#[unsafe(no_mangle)]
pub extern "C" fn doorbell_result_name(result: c_int) -> *const c_char {
    let known = Code::ALL.iter().find(|(code, _)| *code as c_int == result);
    known.map_or(c"unknown", |(_, name)| name).as_ptr()
}

/// See `doorbell.h`.
///
/// # Safety
/// Strings end with a 0; `device` is NULL, misaligned, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_open(
    name: *const c_char,
    options: *const c_char,
    device: *mut Handle,
) -> c_int {
    call(|| {
        // SAFETY: by the caller's word.
        unsafe { store(device, ptr::null_mut(), "device") }?;
        // SAFETY: by the caller's word.
        let name = unsafe { text(name, "name") }?;
        // SAFETY: by the caller's word.
        let options = if options.is_null() { "" } else { unsafe { text(options, "options") }? };
        let kind = Kind::parse(name)?;
        let opened = kind.open(&kind.settings(options)?)?;
        let key = handle::insert(Open::new(opened));
        // SAFETY: by the caller's word.
        unsafe { store(device, ptr::without_provenance_mut(key), "device") }
    })
}

/// See `doorbell.h`.
#[unsafe(no_mangle)]
pub extern "C" fn doorbell_close(device: Handle) -> c_int {
    call(|| handle::remove(device.addr()))
}

/// See `doorbell.h`.
///
/// # Safety
/// `decode` is NULL, misaligned, or valid for reads of the size that it begins with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infer_submit_decode(device: Handle, decode: *const InferDecode) -> c_int {
    call(|| {
        checked(decode, "decode")?;
        // SAFETY: not NULL, aligned; its first field at least is there by the caller's word.
        let size = unsafe { (*decode).size };
        let (size, mut given) = (size as usize, InferDecode::NONE);
        if size != size_of::<InferDecode>() && size != InferDecode::FIRST {
            return Err(bad(&format!(
                "decode.size is {size}: this version knows {} bytes; set it to sizeof(struct infer_decode)",
                size_of::<InferDecode>()
            )));
        }
        // SAFETY: `size` bytes of it are there by the caller's word, and no more than `given` has; both are plain numbers.
        unsafe { ptr::copy_nonoverlapping(decode.cast::<u8>(), (&raw mut given).cast::<u8>(), size) };
        let decode = given;
        let flags = u8::try_from(decode.flags).ok().and_then(DescFlags::from_bits);
        let flags =
            flags.ok_or_else(|| bad(&format!("decode.flags is {:#x}: no such flags", decode.flags)))?;
        if decode.reserved != 0 {
            return Err(bad("decode.reserved is not 0"));
        }
        let desc = HwDesc::decode(decode.rollout_id, decode.seq_len, decode.max_tokens)
            .with_delta_offset(decode.delta_offset)
            .with_user_data(decode.user_data)
            .with_checkpoint(decode.checkpoint)
            .with_seed(decode.seed)
            .with_version(decode.policy_version);
        let desc = if flags.contains(DescFlags::COW_PREFIX) {
            desc.with_member(decode.prefix_id, decode.member)
        } else {
            desc
        };
        let desc = desc.with_flags(flags);
        handle::with(device.addr(), |device| submit(device, &[desc]).map(drop))
    })
}

fn submit(device: &mut Open, descs: &[HwDesc]) -> Result<usize, Refusal> {
    match device.submit(descs)? {
        0 if !descs.is_empty() => Err(Refusal::new(Code::Full, "the submission queue is full: poll")),
        submitted => Ok(submitted),
    }
}

/// See `doorbell.h`.
///
/// # Safety
/// `descs` is NULL, misaligned, or valid for reads of `count` descriptors; `submitted` the same for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_submit(
    device: Handle,
    descs: *const HwDesc,
    count: usize,
    submitted: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: by the caller's word.
        unsafe { store(submitted, 0, "submitted") }?;
        // SAFETY: by the caller's word.
        let descs = unsafe { array(descs, count, "descs") }?;
        let taken = handle::with(device.addr(), |device| submit(device, descs))?;
        // SAFETY: by the caller's word.
        unsafe { store(submitted, taken, "submitted") }
    })
}

/// See `doorbell.h`.
///
/// # Safety
/// `completions` is NULL, misaligned, or valid for writes of `capacity` completions; `count` the same for one number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infer_poll_completion(
    device: Handle,
    completions: *mut HwCompletion,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: by the caller's word.
        unsafe { store(count, 0, "count") }?;
        // SAFETY: by the caller's word.
        let out = unsafe { array_mut(completions, capacity, "completions") }?;
        let taken = handle::with(device.addr(), |device| Ok(device.poll(out)?))?;
        // SAFETY: by the caller's word.
        unsafe { store(count, taken, "count") }
    })
}

/// See `doorbell.h`.
#[unsafe(no_mangle)]
pub extern "C" fn doorbell_wait(device: Handle, microseconds: u64) -> c_int {
    call(|| {
        let limit = Duration::from_micros(microseconds);
        if handle::with(device.addr(), |device| Ok(device.wait(limit)?))? {
            return Ok(());
        }
        Err(Refusal::new(Code::TimedOut, format!("no completion came within {microseconds} us")))
    })
}

/// See `doorbell.h`.
///
/// # Safety
/// `tokens` is NULL, misaligned, or valid for writes of `count` tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_tokens(
    device: Handle,
    delta_offset: u64,
    tokens: *mut u32,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: by the caller's word.
        let out = unsafe { array_mut(tokens, count, "tokens") }?;
        handle::with(device.addr(), |device| Ok(device.tokens(delta_offset, out)?))
    })
}

/// See `doorbell.h`.
///
/// # Safety
/// `logps` is NULL, misaligned, or valid for writes of `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_logps(
    device: Handle,
    delta_offset: u64,
    logps: *mut i32,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: by the caller's word.
        let out = unsafe { array_mut(logps, count, "logps") }?;
        handle::with(device.addr(), |device| Ok(device.logps(delta_offset, out)?))
    })
}

/// See `doorbell.h`.
///
/// # Safety
/// `features` is NULL, misaligned, or valid for reads and writes of the size that it begins with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_get_features(device: Handle, features: *mut DeviceFeatures) -> c_int {
    call(|| {
        checked(features, "features")?;
        // SAFETY: not NULL, aligned; its first field at least is there by the caller's word.
        let size = unsafe { (*features).size };
        if size as usize != size_of::<DeviceFeatures>() {
            return Err(bad(&format!(
                "features.size is {size}: this version knows {} bytes; set it to sizeof(struct doorbell_features)",
                size_of::<DeviceFeatures>()
            )));
        }
        let (has, functions) = handle::with(device.addr(), |device| Ok(device.features()))?;
        let found = DeviceFeatures {
            size,
            capability: has.capability.bits(),
            groups: has.groups,
            policy_slots: has.policy_slots,
            reward_models: has.reward_models,
            functions: functions as u32,
        };
        // SAFETY: the whole of it is there by the caller's word.
        unsafe { store(features, found, "features") }
    })
}

/// See `doorbell.h`.
///
/// # Safety
/// `completions` is NULL, misaligned, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_publish(
    device: Handle,
    delta_offset: u64,
    version: u16,
    salt: u32,
    mode: u32,
    user_data: u64,
    completions: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: by the caller's word.
        unsafe { store(completions, 0, "completions") }?;
        let known = u8::try_from(mode).ok().and_then(|mode| PolicyMode::try_from(mode).ok());
        let known = known.ok_or_else(|| bad(&format!("mode is {mode}: no such mode of a policy")))?;
        let header = HwPolicy::new(version, 0, salt, 0);
        let desc = HwDesc::policy(version, known).with_delta_offset(delta_offset).with_user_data(user_data);
        // An id that no rollout has: it waits for none.
        let desc = HwDesc { rollout_id: PREFIX_NONE, ..desc };
        let sent = handle::with(device.addr(), |device| Ok(device.publish(delta_offset, &header, &desc)?))?;
        if sent == 0 {
            return Err(Refusal::new(Code::Full, "a submission queue is full: poll"));
        }
        // SAFETY: by the caller's word.
        unsafe { store(completions, sent, "completions") }
    })
}

/// See `doorbell.h`.
///
/// # Safety
/// `count` is NULL, misaligned, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_in_flight(device: Handle, count: *mut usize) -> c_int {
    call(|| {
        // SAFETY: by the caller's word.
        unsafe { store(count, 0, "count") }?;
        let in_flight = handle::with(device.addr(), |device| Ok(device.in_flight()))?;
        // SAFETY: by the caller's word.
        unsafe { store(count, in_flight, "count") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_panic_crosses_the_boundary() {
        assert_eq!(call(|| panic!("planted")), Code::Internal as c_int);
        // SAFETY: the library keeps the text until the next call.
        let text = unsafe { CStr::from_ptr(doorbell_error_text()) };
        assert!(text.to_str().unwrap().contains("planted"), "{text:?}");
    }

    #[test]
    fn the_header_names_the_same_codes_and_version() {
        let header = include_str!("../include/doorbell.h");
        for (code, name) in Code::ALL {
            let line = format!("  {} = {}", name.to_str().unwrap(), *code as i32);
            let found = header.lines().any(|found| {
                found.strip_prefix(&line).is_some_and(|rest| rest.is_empty() || rest.starts_with([',', ' ']))
            });
            assert!(found, "{line}");
        }
        let codes = header.split("enum doorbell_result {").nth(1).unwrap().split('}').next().unwrap();
        assert_eq!(codes.matches(" = ").count(), Code::ALL.len());
        assert!(header.contains(&format!("#define DOORBELL_API_VERSION {VERSION:#010x}u")));
    }
}
