//! The options of a client without a gateway, whose names begin with `solo`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::client::Fallback;
use super::{ClientOptions, ConfigError};
use crate::back::policy::AllowDest;
use crate::hosts::HostPattern;

/// The way of requests without a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SoloMode {
    /// Through the proxy of --via
    #[default]
    Via,
    /// From this machine: it looks up the names of sites and connects to them
    Direct,
}

impl SoloMode {
    /// Returns the error for a proxy that is missing.
    pub(crate) fn needs_via() -> ConfigError {
        ConfigError::value(
            "solo",
            "needs --via, so that nothing else is connected to; --solo=direct connects to sites \
             from this machine",
        )
    }
}

/// The settings of a client without a gateway.
#[derive(Clone, Debug)]
pub struct Solo {
    /// The way of its requests.
    pub mode: SoloMode,
    /// The largest number of connections to one origin.
    pub connections: usize,
    /// True if a connection may carry two requests at once.
    pub pipelining: bool,
    /// The hosts for which nothing is requested early.
    pub except: Vec<HostPattern>,
    /// The exceptions to the addresses that are refused without a proxy.
    pub allow_dest: Vec<AllowDest>,
    /// The share of pages without early requests, for comparison: 0 to 1.
    pub hold_out: f64,
    /// The file that keeps the pages that were visited without an isolation key.
    pub state: Option<PathBuf>,
}

impl ClientOptions {
    /// Checks the options of a client without a gateway. Returns `None` if that is off.
    pub(super) fn solo(&self) -> Result<Option<Solo>, ConfigError> {
        self.check_state()?;
        let bad = |problem: &str| Err(ConfigError::value("solo", problem));
        let Some(mode) = self.solo else {
            let given = self.solo_connections.is_some()
                || self.solo_pipelining.is_some()
                || self.solo_hold_out.is_some()
                || !(self.solo_except.is_empty() && self.solo_allow_dest.is_empty());
            return if given {
                bad("is off, but another option of it is given: add --solo, or remove that one")
            } else {
                Ok(None)
            };
        };
        match (mode, &self.via) {
            (SoloMode::Via, None) => return Err(SoloMode::needs_via()),
            (SoloMode::Direct, Some(_)) => {
                return bad("=direct contradicts --via: it would go around the proxy");
            }
            _ => {}
        }
        if !self.gateway.is_empty() {
            return bad(
                "and --gateway contradict each other, since both serve all other hosts: name the \
                 gateway's hosts in --route",
            );
        }
        if mode == SoloMode::Via && !self.solo_allow_dest.is_empty() {
            return Err(ConfigError::value(
                "solo-allow-dest",
                "needs --solo=direct: with --via the proxy decides",
            ));
        }
        let percent = self.solo_hold_out.unwrap_or(2.0);
        if !(0.0..=100.0).contains(&percent) {
            return Err(ConfigError::value("solo-hold-out", "must be from 0 to 100"));
        }
        let connections = self.solo_connections.unwrap_or(32);
        if !(6..=64).contains(&connections) {
            return Err(ConfigError::value(
                "solo-connections",
                "must be from 6 to 64",
            ));
        }
        Ok(Some(Solo {
            mode,
            connections,
            pipelining: self.solo_pipelining.unwrap_or(true),
            except: self.solo_except.clone(),
            allow_dest: self.solo_allow_dest.clone(),
            hold_out: percent / 100.0,
            state: self.solo_state.clone(),
        }))
    }

    /// Checks whether the file of visited pages is permitted. Behind a proxy it is not: the early
    /// requests of the next process would show a site that the circuits of both have one user.
    fn check_state(&self) -> Result<(), ConfigError> {
        if self.solo_state.is_none() {
            return Ok(());
        }
        let has_proxy = self.via.is_some()
            || self.solo == Some(SoloMode::Via)
            || self.fallback == Some(Fallback::Via);
        let stores_pushes = self.push_memory.is_none_or(|memory| memory.0 > 0);
        let problem = if has_proxy {
            "is refused with a proxy such as Tor (--via, --solo=via, --fallback via), since it \
             would link circuits: leave it out, or use --solo=direct alone"
        } else if self.solo.is_none() {
            "needs --solo=direct"
        } else if !(self.push.unwrap_or(true) && stores_pushes) {
            "needs early requests: leave out --push=false and --push-memory 0B, or this file"
        } else {
            return Ok(());
        };
        Err(ConfigError::value("solo-state", problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::client::tests::options;

    #[test]
    fn file_of_visits_needs_direct_solo() {
        let (direct, via) = (Some(SoloMode::Direct), Some(SoloMode::Via));
        let tor = Some("socks5://127.0.0.1:9050");
        let solo = |solo, via| ClientOptions {
            gateway: Vec::new(),
            solo,
            solo_state: Some("visits".into()),
            ..options("h2+tcp://127.0.0.1:1", via)
        };
        let refused = Some("solo-state: is refused with a proxy");
        let off = Some("solo-state: needs early requests");
        for (options, problem) in [
            (solo(direct, None), None),
            (solo(None, None), Some("solo-state: needs --solo=direct")),
            (solo(None, tor), refused),
            (solo(via, None), refused),
            (solo(via, tor), refused),
            (solo(direct, tor), refused),
            (solo(direct, Some("tor://127.0.0.1:9051")), refused),
            (
                ClientOptions {
                    fallback: Some(Fallback::Via),
                    ..solo(direct, None)
                },
                refused,
            ),
            (
                ClientOptions {
                    push: Some(false),
                    ..solo(direct, None)
                },
                off,
            ),
            (
                ClientOptions {
                    push_memory: "0B".parse().ok(),
                    ..solo(direct, None)
                },
                off,
            ),
        ] {
            let config = options.typed();
            let error = config.as_ref().err().map(ToString::to_string);
            assert_eq!(error.is_some(), problem.is_some(), "{error:?}");
            if let (Some(error), Some(problem)) = (error, problem) {
                assert!(error.contains(problem), "{error}");
            }
            if let Ok(config) = config {
                let state = config.solo.and_then(|solo| solo.state);
                assert_eq!(state, Some("visits".into()));
            }
        }
    }
}
