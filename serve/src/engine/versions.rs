//! Names of versions: texts outside, 16 bits inside.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Which name each version has. Several versions in a row have one name if the engine publishes the same weights anew.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<RwLock<HashMap<u16, String>>>);

impl Names {
    /// `version` has this name from now on.
    pub fn set(&self, version: u16, name: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(version, name.to_owned());
    }

    /// The name of `version`.
    pub fn of(&self, version: u16) -> String {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.get(&version).cloned().unwrap_or_else(|| version.to_string())
    }
}
