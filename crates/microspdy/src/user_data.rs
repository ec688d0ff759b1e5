//! Pointers that belong to the program: the library stores them and hands them back.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A pointer of the program, which the library never follows.
#[derive(Debug, Default)]
pub(crate) struct UserData(AtomicPtr<c_void>);

impl UserData {
    pub(crate) const fn new(pointer: *mut c_void) -> Self {
        Self(AtomicPtr::new(pointer))
    }

    pub(crate) fn get(&self) -> *mut c_void {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, pointer: *mut c_void) {
        self.0.store(pointer, Ordering::Release);
    }
}

impl Clone for UserData {
    fn clone(&self) -> Self {
        Self::new(self.get())
    }
}
