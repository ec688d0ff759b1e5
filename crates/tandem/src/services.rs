//! The services that all threads of the process share.
//!
//! The process owns them from the first configuration to its end. A role opens the services that it
//! needs before it is built; a reload finds them as they are.

use std::sync::{Arc, OnceLock};

use crate::learned::{Learned, LearnedError, PredictorConfig};

/// The services of a process.
#[derive(Debug, Default)]
pub struct Services {
    learned: OnceLock<Arc<Learned>>,
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
