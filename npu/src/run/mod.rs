//! Executors of programs: what the words do, to the bit.

mod context;
mod device;
mod execute;
mod machine;
mod observe;
mod scoreboard;
mod sequence;
mod work;

pub use context::{Arena, Context, Sample, Sampling};
pub use device::{Begun, Ended, Event, Retired};
pub use execute::{Space, Write};
pub use machine::{Machine, Outcome, Settings, Stop};
pub use observe::{Divergence, Dump, Element, Observer, Place, Record, Trace, mix, say};
pub use scoreboard::{Hazards, Idle, Latency, Scoreboard, Timing};
pub use sequence::{Issue, Next, Refused, Sequencer};
pub use work::{Engine, Function, KvAt, MatrixAt, Range, Seen, Work};
