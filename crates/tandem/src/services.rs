//! The services that all threads of the process share.
//!
//! The process owns them from the first configuration to its end. A role opens the services that it
//! needs before it is built; a reload finds them as they are.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::learned::{Learned, LearnedError, PredictorConfig};
use crate::response_cache::ResponseCache;
use crate::users::Users;

/// The services of a process.
#[derive(Debug, Default)]
pub struct Services {
    learned: OnceLock<Arc<Learned>>,
    cache: Mutex<Option<Arc<ResponseCache>>>,
    users: Arc<Users>,
}

impl Services {
    /// Opens the predictor. An open predictor stays as it is: a reload keeps what was learned, with
    /// the configuration that it began with.
    ///
    /// # Errors
    /// Returns the reason why the state file cannot be used.
    pub fn open_predictor(&self, config: &PredictorConfig) -> Result<(), LearnedError> {
        if self.learned.get().is_some() {
            return Ok(());
        }
        let learned = Learned::new(config.auto.clone(), config.file.clone())?;
        if learned.begins_anew() {
            tracing::error!(
                "the state file cannot be read, so learning starts with nothing; the file is kept \
                 with .old added to its name"
            );
        }
        // Roles are opened by one thread, one after the other.
        self.learned.get_or_init(|| Arc::new(learned));
        Ok(())
    }

    /// The predictor, where a role has opened it.
    pub fn predictor(&self) -> Option<&Arc<Learned>> {
        self.learned.get()
    }

    /// Opens the cache, or closes it without a configuration. An open cache loses its content: the
    /// new configuration may forbid origins whose responses it holds.
    pub fn open_cache(&self, config: Option<&tandem_cache::Config>) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = cache.take() {
            old.clear();
            *cache = config.filter(|config| *config == old.config()).map(|_| old);
        }
        if cache.is_none() {
            *cache = config.map(|config| Arc::new(ResponseCache::new(config.clone())));
        }
    }

    /// The cache, where a role has opened it.
    pub fn cache(&self) -> Option<Arc<ResponseCache>> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.clone()
    }

    /// The numbers of users.
    pub const fn users(&self) -> &Arc<Users> {
        &self.users
    }

    /// Writes what the services keep in files.
    ///
    /// # Errors
    /// Returns the reason why a file cannot be written.
    pub fn save(&self) -> Result<(), LearnedError> {
        self.learned.get().map_or(Ok(()), |learned| learned.save())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_keep_the_first_predictor() {
        let services = Services::default();
        assert!(services.predictor().is_none() && services.save().is_ok());
        let config = PredictorConfig::default();
        services.open_predictor(&config).expect("no file");
        let first = Arc::clone(services.predictor().expect("open"));
        let nowhere = PredictorConfig {
            file: Some("/nowhere/state".into()),
            ..config
        };
        services.open_predictor(&nowhere).expect("it is open");
        let second = services.predictor().expect("open");
        assert!(Arc::ptr_eq(&first, second));
        let error = Services::default().open_predictor(&nowhere);
        assert!(error.is_err_and(|error| error.to_string().contains("/nowhere/state")));
    }
}
