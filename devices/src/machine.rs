//! The machine: what every figure of time depends on.

use std::fmt;
use std::fs;
use std::thread;

/// What is told beside figures, each as the system names it; empty where it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Kernel, with its release.
    pub kernel: String,
    /// What compiled this program, and with which profile.
    pub compiler: String,
    /// Processes that wanted a core, on average over 1, 5 and 15 minutes.
    pub load: String,
    /// How the frequency is governed.
    pub governor: String,
}

impl Machine {
    /// This one, now.
    pub fn this() -> Self {
        let cpus = read("/proc/cpuinfo");
        let name = ["model name", "Model", "CPU part"].into_iter().find_map(|key| value_of(&cpus, key));
        let load = read("/proc/loadavg");
        Self {
            cpu: name.map_or_else(|| std::env::consts::ARCH.to_owned(), str::to_owned),
            cores: thread::available_parallelism().map_or(1, usize::from),
            kernel: format!("{} {}", read("/proc/sys/kernel/ostype"), read("/proc/sys/kernel/osrelease")),
            compiler: format!("{}, {}", env!("DOORBELL_RUSTC"), env!("DOORBELL_PROFILE")),
            load: load.split_whitespace().take(3).collect::<Vec<_>>().join(" "),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        }
    }

    /// Names and values, for reports.
    pub fn facts(&self) -> [(&'static str, String); 6] {
        [
            ("cpu", self.cpu.clone()),
            ("cores", self.cores.to_string()),
            ("kernel", self.kernel.clone()),
            ("compiler", self.compiler.clone()),
            ("load", self.load.clone()),
            ("governor", self.governor.clone()),
        ]
    }
}

/// One line.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, kernel, compiler, load, governor } = self;
        write!(f, "{cpu}, {cores} cores; {kernel}; {compiler}; load {load}")?;
        if governor.is_empty() { Ok(()) } else { write!(f, "; governor {governor}") }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The value behind `key` and a colon.
fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find_map(|(name, value)| (name.trim() == key).then_some(value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_told_in_one_line() {
        let machine = Machine::this();
        let line = machine.to_string();
        assert_eq!(line.lines().count(), 1, "{line}");
        for fact in [&machine.cpu, &machine.kernel, &machine.load] {
            assert!(!fact.trim().is_empty() && line.contains(fact), "{fact:?} in {line}");
        }
        assert!(machine.cores > 0 && machine.compiler.contains("rustc"), "{line}");
    }

    #[test]
    fn values_stand_behind_a_colon() {
        let text = "processor\t: 0\nmodel name\t: A: fast one\nmodel name\t: another";
        assert_eq!(value_of(text, "model name"), Some("A: fast one"));
        assert_eq!(value_of(text, "model"), None);
    }
}
