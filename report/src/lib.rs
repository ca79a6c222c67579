//! One HTML page of a run: where the time of each device went. The page needs no network and no script.

mod charts;
mod page;
mod stalls;

pub use charts::lines;
pub use page::{Part, page};
pub use stalls::{Cause, Stalls};
