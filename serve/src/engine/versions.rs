//! Names of versions: texts outside, 16 bits inside.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The name of each version, and the name of the resident one. Consecutive versions share a name and weights if the engine publishes the
/// same weights again. Only the control thread changes the names: a client that asked for a version may leave before it is resident.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<RwLock<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    of: HashMap<u16, Name>,
    resident: String,
    /// The largest number that was used as a name.
    largest: u64,
}

/// The name of a version. The number of its weights distinguishes versions of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Name {
    pub text: String,
    pub weights: u64,
}

/// Names that are numbers from here on count as plain text: no later name continues from them.
const LARGEST: u64 = 1 << 53;

impl Names {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// `version` has this name from now on.
    pub fn set(&self, version: u16, name: Name) {
        self.write().of.insert(version, name);
    }

    /// The version of this name is the one that is resident.
    pub fn set_resident(&self, name: &str) {
        let mut inner = self.write();
        name.clone_into(&mut inner.resident);
        let number = name.parse().ok().filter(|&number| number < LARGEST);
        inner.largest = inner.largest.max(number.unwrap_or(0));
    }

    /// The name of `version`.
    pub fn of(&self, version: u16) -> Name {
        let unnamed = || Name { text: version.to_string(), weights: u64::MAX };
        self.read().of.get(&version).cloned().unwrap_or_else(unnamed)
    }

    /// The name of the version that is resident.
    pub fn resident(&self) -> String {
        self.read().resident.clone()
    }

    /// The default name of the version that follows the resident one: a number that no version has had.
    pub fn next(&self) -> String {
        (self.read().largest + 1).to_string()
    }
}
