//! The cxx bridge to the C++ simulator. Everything here is plain data or one simulator object; errors come back as
//! exceptions, with their details in `Simulator::failure`.

use crate::npu::NpuObserver;

#[cxx::bridge(namespace = "doorbell")]
pub(crate) mod ffi {
    /// What broke.
    #[derive(Debug)]
    enum FailureKind {
        /// Nothing yet.
        None,
        /// An assertion in RTL.
        Assertion,
        /// A check of the memory side: AXI protocol or a queue rule.
        Memory,
        /// The register port did not answer in time (R15).
        Timeout,
        /// The simulator itself, such as a combinational loop or an unwritable waveform.
        Simulator,
    }

    /// The first failure of a simulator; every later use of it repeats it.
    #[derive(Debug, Clone)]
    struct Failure {
        kind: FailureKind,
        /// `R1` … `R15` or `AXI`; may be empty.
        rule: String,
        message: String,
        /// Clock cycle since the simulator was made.
        cycle: u64,
    }

    /// What goes wrong in the memory, from [`Fault::at`] on, which counts what is named here from 0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum FaultKind {
        /// Reads are never answered, from this read burst on.
        HangReads,
        /// The read of this 64-byte beat, i.e. of this descriptor, is answered SLVERR.
        ReadError,
        /// The write of this token beat is answered SLVERR and not stored.
        TokenWriteError,
        /// The write of this completion is answered SLVERR and not stored.
        CompletionWriteError,
        /// A bit of this token beat is flipped on its way to memory.
        CorruptToken,
        /// A bit of this completion is flipped on its way to memory.
        CorruptCompletion,
        /// One write response comes that nothing asked for, from this clock cycle on as soon as no completion is being
        /// written; the device's own assertions must see it.
        SpuriousResponse,
        /// A bit of this 64-byte beat is flipped on its way to the device.
        CorruptRead,
        /// The memory sees this read burst in the name of the function beside: AxUSER with its lowest bit flipped.
        OtherFunction,
    }

    /// A fault of the memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Fault {
        /// What goes wrong.
        kind: FaultKind,
        /// Where, counted from 0 when the device is made.
        at: u64,
        /// Which bit is flipped, modulo those that are written; 0 where none is.
        bit: u32,
    }

    /// A range of addresses whose accesses are answered with an error now and then.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct FaultyRange {
        /// Its first byte.
        first: u64,
        /// Its last byte.
        last: u64,
        /// One beat of so many, at least 1, chosen at random.
        one_in: u32,
    }

    /// How the memory behaves from now on.
    #[derive(Clone, Debug, PartialEq, Eq, Default)]
    struct Weather {
        /// Cycles that it takes to answer, at least and at most.
        latency: [u32; 2],
        /// Chance, in percent up to 95, that a channel (AR, R, AW, W, B) stands still in a cycle.
        stall_percent: [u8; 5],
        /// Read data is withheld as long as this lasts, and comes then.
        withholds_reads: bool,
        /// Write responses likewise.
        withholds_writes: bool,
        /// Accesses that are answered with an error, writes without effect.
        faults: Vec<FaultyRange>,
    }

    /// What the bus was asked for and has not given.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Owed {
        /// Beats of read data.
        read_beats: u64,
        /// Responses to writes.
        write_responses: u64,
    }

    /// A beat that was answered with an error.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Injected {
        /// Its first byte that counts, by the strobes.
        address: u64,
        /// Bytes to the last that counts.
        bytes: u32,
        /// Whether it was a write.
        is_write: bool,
        /// Whether the answer was DECERR, else SLVERR.
        is_decerr: bool,
    }

    /// When a descriptor came through the device, as its LIFE event says (R23). Deltas are from `stamp` on, at most EVENT_DELTA_MAX.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Life {
        /// Clock cycle of the simulator in which its slot had been read.
        stamp: u64,
        /// Running index of its completion.
        index: u32,
        /// Its worker.
        worker: u32,
        /// Until a worker began with it.
        start: u32,
        /// Until its first token.
        first_token: u32,
        /// Until its end was known.
        ended: u32,
        /// Until its completion was visible.
        visible: u32,
    }

    /// A beat that was moved to or from what a function was given.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Moved {
        /// Bus address.
        address: u64,
        /// Where it lies in this process.
        host: u64,
        /// ARID or AWID.
        id: u32,
        /// Whether it was a write.
        is_write: bool,
    }

    /// When something was transferred to the device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Moment {
        /// Clock cycle of the memory.
        cycle: u64,
        /// BID of a write response; `u32::MAX`: a beat that was read.
        id: u32,
        /// Completions that are visible with it; descriptors that are read with it.
        count: u32,
    }

    #[derive(Debug, Clone)]
    struct SimulatorConfig {
        latency_min: u32,
        latency_max: u32,
        /// Chance that a channel (AR, R, AW, W, B) stands still in a cycle.
        stall_percent: [u8; 5],
        reorder: bool,
        seed: u64,
        /// Functions whose owners keep to nothing, a bit each.
        hostile: u32,
        /// Each function has a memory of its own, in ranges.
        by_function: bool,
        /// Keeps when beats come and responses go.
        moments: bool,
        /// Its weather changes while it runs.
        changes: bool,
        faults: Vec<Fault>,
        /// FST file; empty for none.
        wave_path: String,
        wave_from: u64,
        wave_to: u64,
    }

    /// A device that was built.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Built {
        /// Workers.
        workers: u32,
        /// Queue pairs.
        queues: u32,
        /// Functions.
        functions: u32,
        /// Engines: 2 with a language model's.
        engines: u32,
    }

    /// What the NPU did.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum NpuEventKind {
        /// A step begins; registers: its context above its step.
        StepBegins,
        /// A word is done; registers: its place.
        WordDone,
        /// A step is over; registers: its result.
        StepOver,
    }

    /// A line that a word wrote.
    #[derive(Clone, Debug)]
    struct NpuLine {
        /// Its number.
        line: u64,
        /// A bit for each byte that was written.
        strobe: u64,
        words: [u32; 16],
    }

    /// Something that the NPU did.
    #[derive(Clone, Debug)]
    struct NpuEvent {
        kind: NpuEventKind,
        /// Whose step it is of: contexts of a gang lie behind each other.
        context: u32,
        /// The gang that this context is of.
        gang: u32,
        /// Clock cycle.
        cycle: u64,
        /// Of a word: the clock cycle in which its unit began.
        began: u64,
        /// Of a word: why it could not be finished; 0: it was.
        end: u32,
        /// As the packed records of `npu_control_pkg` have their bits, the lowest first.
        registers: Vec<u32>,
        /// Lines of on-chip memory.
        chip: Vec<NpuLine>,
        /// Lines of memory.
        stores: Vec<NpuLine>,
        logits: Vec<u32>,
    }

    extern "Rust" {
        type NpuObserver;
        fn happened(self: &mut NpuObserver, event: &NpuEvent) -> Result<()>;
    }

    struct RegisterAnswer {
        value: u32,
        okay: bool,
    }

    #[cfg(feature = "bare")]
    struct RegisterWrite {
        address: u32,
        value: u32,
    }

    #[cfg(feature = "bare")]
    /// What the bare loop did, from the doorbell to the last completion.
    #[derive(Debug, Clone)]
    struct BareRun {
        cycles: u64,
        seconds: f64,
        completions: u64,
        token_beats: u64,
    }

    unsafe extern "C++" {
        include!("doorbell-cosim/src/bridge.h");

        type Simulator;

        fn built_variants() -> Vec<Built>;
        fn make_simulator(built: &Built, config: &SimulatorConfig) -> Result<UniquePtr<Simulator>>;
        /// # Safety
        /// `host` is the start of `bytes` writable bytes that outlive the simulator, and nothing else accesses them
        /// non-atomically while a function of the simulator runs.
        unsafe fn attach(self: Pin<&mut Simulator>, host: *mut u8, bytes: u64, bus: u64);
        /// # Safety
        /// As [`attach`](Self::attach), until [`unmap_range`](Self::unmap_range) has come back.
        unsafe fn map_range(
            self: Pin<&mut Simulator>,
            function: u32,
            address: u64,
            bytes: u64,
            host: *mut u8,
            writable: bool,
        );
        fn unmap_range(self: Pin<&mut Simulator>, function: u32, address: u64, bytes: u64);
        fn set_master(self: Pin<&mut Simulator>, function: u32, may: bool);
        fn refused(self: &Simulator, function: u32) -> u64;
        /// With `bus`, the bus forgets what is in flight; else the device alone is reset.
        fn reset(self: Pin<&mut Simulator>, cycles: u32, bus: bool) -> Result<()>;
        fn set_weather(self: Pin<&mut Simulator>, weather: &Weather) -> Result<()>;
        fn take_injected(self: Pin<&mut Simulator>) -> Vec<Injected>;
        fn take_moments(self: Pin<&mut Simulator>) -> Vec<Moment>;
        fn take_moved(self: Pin<&mut Simulator>) -> Vec<Moved>;
        fn write_register(
            self: Pin<&mut Simulator>,
            address: u32,
            value: u32,
            strobe: u8,
        ) -> Result<RegisterAnswer>;
        fn read_register(self: Pin<&mut Simulator>, address: u32) -> Result<RegisterAnswer>;
        /// Returns how many completions became visible.
        fn run(self: Pin<&mut Simulator>, max_cycles: u64, want: u64) -> Result<u64>;
        fn messages(self: &Simulator, queue: u32) -> u64;
        fn cycles(self: &Simulator) -> u64;
        fn hostile_bursts(self: &Simulator) -> u64;
        fn strays(self: &Simulator) -> u64;
        fn failure(self: &Simulator) -> Failure;
        fn flush_wave(self: Pin<&mut Simulator>) -> Result<()>;
        /// From here on `observer` hears what the NPU does, with what the words write if `writes`, and ends the run with an error of its
        /// own. Whether there is an NPU.
        fn observe_npu(self: Pin<&mut Simulator>, observer: Box<NpuObserver>, writes: bool) -> bool;
        /// From here on cycles in which a part of the device rests are counted; `awake`: none does.
        fn watch_rests(self: Pin<&mut Simulator>, awake: bool);
        fn rested(self: &Simulator) -> u64;
        /// Whether this build can tell the lives of descriptors; from here on they are kept.
        fn watch_lives(self: Pin<&mut Simulator>) -> bool;
        /// Copies those of a queue pair's completions that were not taken yet, and returns how many.
        fn take_lives(self: Pin<&mut Simulator>, queue: u32, lives: &mut [Life]) -> usize;
        fn keep_strip(self: Pin<&mut Simulator>);
        fn strip(self: &Simulator) -> Vec<u64>;
        fn owed(self: &Simulator) -> Owed;

        #[cfg(feature = "bare")]
        fn bare_loop(
            workers: u32,
            registers: &[RegisterWrite],
            descriptors: &[u8],
            token_bytes: u64,
        ) -> Result<BareRun>;

        /// Of a descriptor, by C++.
        fn c_descriptor_fields(bytes: &[u8]) -> Vec<u64>;
        /// Of a completion, by C++.
        fn c_completion_fields(bytes: &[u8]) -> Vec<u64>;
        /// Of a descriptor, by RTL.
        fn rtl_descriptor_fields(bytes: &[u8]) -> Vec<u64>;
        /// Of a completion, by RTL.
        fn rtl_completion_fields(bytes: &[u8]) -> Vec<u64>;
    }
}
