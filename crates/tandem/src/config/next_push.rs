//! The client's option `push-next`.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use tandem_push::wire::NextPush;

/// The documents for the next page that the client takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum NextPages {
    /// Take none
    #[default]
    Off,
    /// Take heads with validators, about 100 bytes for each document that the browser has already
    Validators,
    /// Take bodies of other documents too, at most 256 KiB for each page. Leave this off if the
    /// path is paid by the byte
    Bodies,
}

impl NextPages {
    /// Checks the option of a client.
    pub(super) fn typed(asked: Option<Self>, is_solo: bool) -> Result<NextPush, ConfigError> {
        match asked.unwrap_or_default() {
            Self::Off => Ok(NextPush::Off),
            _ if is_solo => Err(ConfigError::value(
                "push-next",
                "needs a gateway, which knows the visits of other users: --solo has none",
            )),
            Self::Validators => Ok(NextPush::Validators),
            Self::Bodies => Ok(NextPush::Bodies),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_pages_are_off_by_default_and_need_a_gateway() {
        assert_eq!(NextPages::typed(None, true).unwrap(), NextPush::Off);
        let asked = Some(NextPages::Bodies);
        assert_eq!(NextPages::typed(asked, false).unwrap(), NextPush::Bodies);
        let error = NextPages::typed(asked, true).unwrap_err();
        assert!(error.to_string().contains("push-next"));
    }
}
