//! Full descriptors. A setting makes Tor fetch them, and the exits that announce a gateway are
//! found among them.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::time::Instant;

use super::super::directory::{GatewayExit, announces, parse_gateways, parse_weights};
use super::super::unreachable;
use super::Control;
use crate::error::Error;

/// The time for full descriptors to arrive.
const DESCRIPTORS_TIMEOUT: Duration = Duration::from_secs(90);

/// The setting with which Tor fetches full descriptors.
const FULL: &str = "UseMicrodescriptors=0";

/// The time between two checks of the descriptors that have arrived.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 400 });

/// The number of checks without a new descriptor after which no more are expected.
const STILL: u32 = 12;

/// The uptime in seconds up to which a Tor client may not know its whole network yet.
const YOUNG: u64 = 180;

/// The setting `UseMicrodescriptors` before it was changed, as Tor reports it.
#[derive(Default)]
pub(super) struct Before(Option<String>);

impl Before {
    /// Returns the command that restores it, if it was changed.
    pub(super) fn command(self) -> Option<String> {
        let before = self.0?;
        let verb = if before.contains('=') {
            "SETCONF"
        } else {
            "RESETCONF"
        };
        Some(format!("{verb} {before}"))
    }
}

/// A lock held while the setting is changed. Other processes may change it at any time.
static FETCHING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn gateway_address(host: &str) -> Result<Ipv4Addr, Error> {
    host.parse()
        .map_err(|_| unreachable("a gateway at an exit has an IPv4 address such as 192.0.2.80"))
}

impl Control {
    /// Returns the exits that announce `host:port` with an exact line of their policy. If none is
    /// found and the Tor client has just started, tries again for up to `patience`.
    pub async fn gateways(
        &mut self,
        host: &str,
        port: u16,
        patience: Duration,
    ) -> Result<Vec<GatewayExit>, Error> {
        let address = gateway_address(host)?;
        let _alone = FETCHING.lock().await;
        let deadline = Instant::now() + patience;
        loop {
            // Tor reports the consensus in the flavour in use. After the change of the setting it
            // would have to fetch the other flavour first.
            let weights = self.relays(deadline).await?;
            let found = self.wait_for_descriptors(&weights, address, port).await;
            self.restore().await?;
            let found = found?;
            if !found.is_empty() || !self.may_improve(deadline).await? {
                return Ok(found);
            }
        }
    }

    /// Makes Tor hold the full descriptor of the relay with this fingerprint, and checks that it
    /// announces `host:port`. With only the microdescriptor, Tor would not use the relay for a port
    /// that few exits allow.
    pub async fn descriptor(
        &mut self,
        fingerprint: &str,
        host: &str,
        port: u16,
        patience: Duration,
    ) -> Result<(), Error> {
        let address = gateway_address(host)?;
        let _alone = FETCHING.lock().await;
        let deadline = Instant::now() + patience;
        loop {
            let mut known = self
                .info_if_known(&format!("desc/id/{fingerprint}"))
                .await?;
            let good = |text: &String| announces(text, address, port);
            let is_relay =
                known.is_some() || self.relays(deadline).await?.contains_key(fingerprint);
            if is_relay && !known.as_ref().is_some_and(good) {
                let fetched = self.wait_for_descriptor(fingerprint, good).await;
                self.restore().await?;
                known = fetched?;
            }
            let problem = match known {
                Some(text) if good(&text) => return Ok(()),
                Some(_) => "the exit with that fingerprint announces no gateway at that address",
                None if is_relay => {
                    "the descriptor of the exit with that fingerprint did not arrive in time"
                }
                None => "Tor knows no running relay with that fingerprint",
            };
            if !self.may_improve(deadline).await? {
                return Err(unreachable(problem));
            }
        }
    }

    /// Returns the running relays and their weights, once Tor has a consensus.
    async fn relays(&mut self, deadline: Instant) -> Result<HashMap<String, u64>, Error> {
        loop {
            let weights = parse_weights(&self.info_if_known("ns/all").await?.unwrap_or_default());
            if !weights.is_empty() {
                return Ok(weights);
            }
            if Instant::now() >= deadline {
                let phase = self
                    .info_if_known("status/bootstrap-phase")
                    .await?
                    .unwrap_or_default();
                let percent = phase
                    .split(' ')
                    .find_map(|word| word.strip_prefix("PROGRESS=")?.parse::<u8>().ok());
                let progress = percent.map_or_else(String::new, |n| format!(" ({n} % done)"));
                return Err(unreachable(format!(
                    "Tor has not started yet{progress}: it knows no relays"
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Pauses and returns true if another try may find more: Tor has just started, and the deadline
    /// has not passed.
    async fn may_improve(&mut self, deadline: Instant) -> Result<bool, Error> {
        let uptime = self
            .info_if_known("uptime")
            .await?
            .and_then(|seconds| seconds.parse().ok());
        let again =
            uptime.is_some_and(|seconds: u64| seconds < YOUNG) && Instant::now() + PAUSE < deadline;
        if again {
            tokio::time::sleep(PAUSE * 5).await;
        }
        Ok(again)
    }

    /// Makes Tor fetch full descriptors. Each check calls this, since another process may have
    /// ended and restored the setting. If Tor fetches them already, the setting is not changed.
    async fn fetch_full(&mut self) -> Result<(), Error> {
        let now = self.ask("GETCONF UseMicrodescriptors").await?;
        let now = now
            .first()
            .map_or("UseMicrodescriptors", |line| line.text.as_str());
        if now == FULL {
            return Ok(());
        }
        self.before = Before(Some(now.to_owned()));
        self.ask(&format!("SETCONF {FULL}")).await.map(drop)
    }

    /// Restores the user's setting.
    async fn restore(&mut self) -> Result<(), Error> {
        let Some(command) = std::mem::take(&mut self.before).command() else {
            return Ok(());
        };
        self.ask(&command).await.map(drop)
    }

    /// Waits for a descriptor that is `good`. An old one may arrive before the new one.
    async fn wait_for_descriptor(
        &mut self,
        fingerprint: &str,
        good: impl Fn(&String) -> bool,
    ) -> Result<Option<String>, Error> {
        let deadline = Instant::now() + DESCRIPTORS_TIMEOUT;
        let mut still = 0;
        loop {
            self.fetch_full().await?;
            let known = self
                .info_if_known(&format!("desc/id/{fingerprint}"))
                .await?;
            still += u32::from(known.is_some());
            if known.as_ref().is_some_and(&good) || still >= STILL || Instant::now() >= deadline {
                return Ok(known);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until there are as many full descriptors as relays, or no more arrive. Their arrival
    /// takes several seconds.
    async fn wait_for_descriptors(
        &mut self,
        weights: &HashMap<String, u64>,
        address: Ipv4Addr,
        port: u16,
    ) -> Result<Vec<GatewayExit>, Error> {
        let deadline = Instant::now() + DESCRIPTORS_TIMEOUT;
        let (mut last, mut still) = (0, 0);
        loop {
            self.fetch_full().await?;
            let text = self
                .info_if_known("desc/all-recent")
                .await?
                .unwrap_or_default();
            let count = text
                .lines()
                .filter(|line| line.starts_with("router "))
                .count();
            still = if count == last { still + 1 } else { 0 };
            last = count;
            let complete = count > 0 && (count >= weights.len() || still >= STILL);
            if complete || Instant::now() >= deadline {
                return Ok(parse_gateways(&text, weights, address, port));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn setting_is_restored_when_the_wait_is_dropped() {
        let (near, mut far) = tokio::io::duplex(4096);
        far.write_all(b"250 UseMicrodescriptors\r\n").await.unwrap();
        let mut control = Control::over(Box::new(near));
        let changing = tokio::time::timeout(PAUSE, control.fetch_full()).await;
        assert!(changing.is_err(), "there is no answer yet");
        drop(control);
        let mut said = String::new();
        far.read_to_string(&mut said).await.unwrap();
        assert_eq!(
            said.lines().collect::<Vec<_>>(),
            [
                "GETCONF UseMicrodescriptors",
                "SETCONF UseMicrodescriptors=0",
                "RESETCONF UseMicrodescriptors"
            ]
        );
    }
}
