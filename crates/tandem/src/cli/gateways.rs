//! `tandem gateways`: lists the exits that announce a gateway, as Tor's control port reports them.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::endpoint::Via;
use crate::transport::tor::{Control, GatewayExit};

use super::Failure;

/// The longest time that a newly started Tor client may need to learn its network.
const BOOTSTRAP_TIMEOUT: Duration = Duration::from_secs(60);

/// The time after which the user learns the reason for the wait.
const QUIET: Duration = Duration::from_secs(3);

const EXAMPLES: &str = "Examples:
  tandem gateways
      List the gateways that the Tor client at 127.0.0.1:9051 knows
  tandem gateways --via tor:///run/tor/control --json
      List them as JSON, through the control socket";

/// Arguments of `tandem gateways`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct GatewaysArgs {
    /// Tor's control port or socket: tor://ADDRESS:PORT or tor:///PATH
    #[arg(long, value_name = "URL", default_value = "tor://127.0.0.1:9051")]
    via: Via,
    /// File with the password of Tor's control port, if the port requires one
    #[arg(long, value_name = "FILE")]
    tor_password_file: Option<std::path::PathBuf>,
    /// The address and port that the exits announce
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "192.0.2.80:9980")]
    address: std::net::SocketAddrV4,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &GatewaysArgs) -> Result<(), Failure> {
    // The error about Tor's cookie names its file in the log only.
    super::start_log(Some("error"))?;
    let password = match &args.tor_password_file {
        None => None,
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            Some(text.lines().next().unwrap_or_default().to_owned())
        }
    };
    let mut found = super::runtime()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let search = async {
            let mut control = Control::connect(&args.via, password.as_deref()).await?;
            Ok(control
                .gateways(
                    &args.address.ip().to_string(),
                    args.address.port(),
                    BOOTSTRAP_TIMEOUT,
                )
                .await?)
        };
        let waiting = async {
            tokio::time::sleep(QUIET).await;
            super::note("tandem: waiting for Tor and its list of relays, for up to a minute");
            std::future::pending().await
        };
        // The drop of the search restores the configuration of Tor.
        tokio::select! {
            found = search => found,
            ended = waiting => ended,
            _ = terminate.recv() => Err(Failure::from("interrupted")),
            _ = interrupt.recv() => Err(Failure::from("interrupted")),
        }
    })?;
    found.sort_by(|a, b| {
        b.bandwidth
            .cmp(&a.bandwidth)
            .then_with(|| a.fingerprint.cmp(&b.fingerprint))
    });
    print(&found, args.json)
}

fn print(found: &[GatewayExit], json: bool) -> Result<(), Failure> {
    if json {
        let rows: Vec<_> = found
            .iter()
            .map(|exit| {
                serde_json::json!({ "fingerprint": exit.fingerprint, "nickname": exit.nickname, "address": exit.address, "bandwidth": exit.bandwidth })
            })
            .collect();
        super::print(serde_json::to_string_pretty(&rows)?)?;
    } else if found.is_empty() {
        return Err("no exit announces a gateway".into());
    } else {
        super::print(format_args!(
            "{:<42} {:<20} {:<16} {:>9}",
            "fingerprint", "nickname", "address", "weight"
        ))?;
        for exit in found {
            super::print(format_args!(
                "{:<42} {:<20} {:<16} {:>9}",
                exit.fingerprint, exit.nickname, exit.address, exit.bandwidth
            ))?;
        }
    }
    Ok(())
}
