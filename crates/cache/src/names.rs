//! The names by which several caches of one operator know a target, without its URL.
//!
//! The program makes names with a secret that all these caches have. A response that belongs to one
//! user has no name, so nothing about it is shared.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Key;

/// The name of a target: a keyed hash.
pub type Name = [u8; 16];

/// A keyed hash of the bytes of a target.
type Hash = dyn Fn(&[u8]) -> Name + Send + Sync;

/// The function that makes names of the bytes of targets.
#[derive(Clone)]
pub struct Namer(Arc<Hash>);

impl Namer {
    /// Creates a namer of a keyed hash.
    pub fn new(hash: impl Fn(&[u8]) -> Name + Send + Sync + 'static) -> Self {
        Self(Arc::new(hash))
    }

    /// Returns the name of a key's target, or `None` if the response belongs to one user.
    pub(crate) fn name(&self, key: &Key) -> Option<Name> {
        (!key.has_owner()).then(|| (self.0)(key.base()))
    }
}

impl std::fmt::Debug for Namer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Namer")
    }
}

/// The stored targets by their names.
#[derive(Debug)]
pub(crate) struct Names {
    namer: Namer,
    /// The key of each target without overrides.
    keys: HashMap<Name, Key>,
}

impl Names {
    pub(crate) fn new(namer: Namer) -> Self {
        Self {
            namer,
            keys: HashMap::new(),
        }
    }

    pub(crate) const fn namer(&self) -> &Namer {
        &self.namer
    }

    /// Returns the key of a stored target.
    pub(crate) fn key(&self, name: &Name) -> Option<&Key> {
        self.keys.get(name)
    }

    /// Adds the target of a key that is stored.
    pub(crate) fn enter(&mut self, name: Name, key: &Key) {
        let plain = || match key.has_overrides() {
            true => key.plain(),
            false => key.clone(),
        };
        self.keys.entry(name).or_insert_with(plain);
    }

    /// Removes a target that has no stored key.
    pub(crate) fn leave(&mut self, name: &Name) {
        self.keys.remove(name);
    }

    pub(crate) fn clear(&mut self) {
        self.keys.clear();
    }
}
