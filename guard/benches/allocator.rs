//! What counting costs: an allocation and its free through the system's allocator, with and without the count, and while
//! a watch counts for the process as well. `cargo bench -p doorbell-guard --bench allocator`

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;

use divan::Bencher;
use doorbell_guard::{CountingAllocator, SystemCallError, Watch};

fn main() {
    divan::main();
}

fn pair(bencher: Bencher, allocator: impl GlobalAlloc + Sync) {
    let layout = Layout::new::<[u64; 8]>();
    bencher.bench(|| {
        // SAFETY: the layout has a size, and what was allocated with it is freed with it once.
        unsafe {
            let pointer = allocator.alloc(black_box(layout));
            allocator.dealloc(black_box(pointer), layout);
        }
    });
}

#[divan::bench]
fn a_system(bencher: Bencher) {
    pair(bencher, System);
}

#[divan::bench]
fn b_counting(bencher: Bencher) {
    pair(bencher, CountingAllocator::new());
}

#[divan::bench]
fn c_counting_while_watched(bencher: Bencher) {
    let mut unasked = Err(SystemCallError::NotAsked);
    let watch = Watch::begin(&mut unasked).expect("the kernel tells the usage");
    pair(bencher, CountingAllocator::new());
    drop(watch);
}
