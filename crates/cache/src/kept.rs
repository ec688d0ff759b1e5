//! A response that a store holds. Its body knows about that, so that a reader can tell whether the
//! store has removed it.

use std::ops::Deref;
use std::sync::Arc;

use crate::stored::Stored;

/// A response in a store.
#[derive(Debug)]
pub(crate) struct Kept(Arc<Stored>);

impl Kept {
    pub(crate) fn new(response: Arc<Stored>) -> Self {
        response.body.enter_store();
        Self(response)
    }

    /// Returns the response.
    pub(crate) const fn response(&self) -> &Arc<Stored> {
        &self.0
    }
}

impl Clone for Kept {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Deref for Kept {
    type Target = Arc<Stored>;

    fn deref(&self) -> &Arc<Stored> {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.body.leave_store();
    }
}
