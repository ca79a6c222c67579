//! Names of versions: texts outside, 16 bits inside.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Which name each version has, and that of the one that is resident. Several versions in a row have one name if the engine publishes the same weights
/// anew. Only the control thread changes them: whoever asked for a version may go before it is resident.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<RwLock<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    of: HashMap<u16, String>,
    resident: String,
}

impl Names {
    /// `version` has this name from now on.
    pub fn set(&self, version: u16, name: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).of.insert(version, name.to_owned());
    }

    /// The version of this name is the one that is resident.
    pub fn set_resident(&self, name: &str) {
        name.clone_into(&mut self.0.write().unwrap_or_else(PoisonError::into_inner).resident);
    }

    /// The name of `version`.
    pub fn of(&self, version: u16) -> String {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.of.get(&version).cloned().unwrap_or_else(|| version.to_string())
    }

    /// The name of the version that is resident.
    pub fn resident(&self) -> String {
        self.0.read().unwrap_or_else(PoisonError::into_inner).resident.clone()
    }

    /// The name of the version behind the resident one, if nobody gives one: the next number, or 1 behind a name that is none.
    pub fn next(&self) -> String {
        self.resident()
            .parse::<u64>()
            .map_or_else(|_| "1".to_owned(), |number| number.wrapping_add(1).to_string())
    }
}
