//! The command line of `tandem-link`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tandem_net::completions::CompletionsArgs;
use tandem_net::emulator::rtnl::TcpMetrics;
use tandem_net::emulator::topology::LinkText;

/// Runs a command behind an emulated link: TCP, UDP and ICMP to anywhere go through it, to the
/// network around it.
///
/// The host around the link is reachable as $TANDEM_LINK_PEER, which is also the command's default
/// route. Links nest. Values given as A/B are for the two directions: towards the command
/// (download) and from it (upload).
#[derive(Debug, Parser)]
#[command(
    name = "tandem-link",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_precedence_over_arg = false
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) mode: Option<Mode>,
    #[command(flatten)]
    pub(crate) shell: ShellArguments,
}

/// The other commands of the program.
#[derive(Debug, Subcommand)]
pub(crate) enum Mode {
    /// Runs a command on one host of a network described by a TOML file
    Topology(TopologyArguments),
    /// Lists the named links
    Profiles,
    /// Sends real packets through links of this machine and compares the results with the settings
    SelfTest(crate::self_test::Arguments),
    /// Writes shell completions to standard output
    Completions(CompletionsArgs),
    /// Runs the end inside another shell that `self-test --beside` measures
    #[command(hide = true)]
    ShellEnd(crate::self_test::beside::EndArguments),
}

/// The arguments for one link around a command.
#[derive(Debug, Args)]
pub(crate) struct ShellArguments {
    #[command(flatten)]
    pub(crate) link: LinkText,
    /// Decides the fate of every packet
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) run: RunArguments,
}

/// A topology file around a command.
#[derive(Debug, Args)]
pub(crate) struct TopologyArguments {
    /// The description
    pub(crate) file: PathBuf,
    /// Host that runs the command; the first by name unless given
    #[arg(long, value_name = "HOST")]
    pub(crate) on: Option<String>,
    #[command(flatten)]
    pub(crate) run: RunArguments,
}

/// The arguments that links and topologies share.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Congestion control of TCP over the link at both ends (cubic, bbr, reno)
    #[arg(long, value_name = "NAME", help_heading = "TCP")]
    congestion: Option<String>,
    /// Initial congestion window in segments
    #[arg(long, value_name = "SEGMENTS", help_heading = "TCP", value_parser = clap::value_parser!(u32).range(1..=1000))]
    initcwnd: Option<u32>,
    /// Largest packet in bytes
    #[arg(long, default_value_t = 1500, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(576..=65535))]
    pub(crate) mtu: u32,
    /// Write the packets at the command's end of the link to a pcap file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) pcap: Option<PathBuf>,
    /// Write counters and queue state as CSV while running
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) log: Option<PathBuf>,
    /// Time between lines of the log and of --live
    #[arg(long, default_value = "100ms", value_name = "TIME", value_parser = tandem_link::text::duration, help_heading = "Output")]
    pub(crate) interval: std::time::Duration,
    /// Write the settings of the run and the final counters as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) json: Option<PathBuf>,
    /// Show counters on standard error while running
    #[arg(long, help_heading = "Output")]
    pub(crate) live: bool,
    /// Print no summary at the end
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Do not ask for real-time priority
    #[arg(long)]
    pub(crate) no_realtime: bool,
    /// The command to run; a shell unless given
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

impl RunArguments {
    pub(crate) fn tcp(&self) -> TcpMetrics {
        TcpMetrics {
            congestion: self.congestion.clone(),
            initial_window: self.initcwnd,
        }
    }
}
