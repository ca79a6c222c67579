//! Four functions, over one buffer that JavaScript writes to and reads from.

use std::cell::RefCell;

use doorbell_web::Calls;

thread_local! {
    static CALLS: RefCell<Calls> = RefCell::default();
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(vec![]) };
}

/// Room for `bytes` bytes, which JavaScript fills before it calls [`tab_open`] or [`tab_call`], and from which it reads the answer.
#[unsafe(no_mangle)]
pub extern "C" fn tab_buffer(bytes: usize) -> *mut u8 {
    BUFFER.with_borrow_mut(|buffer| {
        buffer.clear();
        buffer.resize(bytes, 0);
        buffer.as_mut_ptr()
    })
}

/// [`Calls::open`] of the bytes in the buffer; how many bytes of answer it holds then.
#[unsafe(no_mangle)]
pub extern "C" fn tab_open() -> usize {
    let image = BUFFER.take();
    answered(CALLS.with_borrow_mut(|calls| calls.open(&image)))
}

/// [`Calls::call`] of the text in the buffer; how many bytes of answer it holds then.
#[unsafe(no_mangle)]
pub extern "C" fn tab_call() -> usize {
    let text = BUFFER.take();
    let text = String::from_utf8_lossy(&text);
    answered(CALLS.with_borrow_mut(|calls| calls.call(&text)))
}

/// Where the answer begins.
#[unsafe(no_mangle)]
pub extern "C" fn tab_answer() -> *const u8 {
    BUFFER.with_borrow(|buffer| buffer.as_ptr())
}

fn answered(text: String) -> usize {
    let bytes = text.len();
    BUFFER.set(text.into_bytes());
    bytes
}
