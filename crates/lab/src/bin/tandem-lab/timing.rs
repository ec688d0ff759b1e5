//! `tandem-lab timing`: throughput and the delay of single stamps beside it, between two ends of
//! anything.

use std::error::Error;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use tandem_lab::timing::client::{self, Direction, TimingPlan, WarmUp};
use tandem_lab::timing::server::TimingServer;
use tandem_link::text;
use tandem_web::loader::Via;
use tokio::task::LocalSet;

/// The selected end.
#[derive(Debug, Subcommand)]
pub(crate) enum TimingCommand {
    /// Sends, counts and echoes for whoever connects
    Server(ServerArguments),
    /// Measures
    Client(Box<ClientArguments>),
}

/// The server.
#[derive(Debug, Args)]
pub(crate) struct ServerArguments {
    /// Address to listen on; whoever reaches it can make it send
    #[arg(long, default_value = "127.0.0.1:7777", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
}

/// The client.
#[derive(Debug, Args)]
pub(crate) struct ClientArguments {
    /// The server
    #[arg(value_name = "HOST:PORT")]
    server: String,
    /// The way there: direct, http://HOST:PORT (CONNECT) or socks5://[USER[:PASSWORD]@]HOST:PORT
    #[arg(long, default_value = "direct", value_name = "URL")]
    via: Via,
    /// Bulk streams; 0 for stamps alone
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(0..=256))]
    streams: u16,
    /// Direction of bulk
    #[arg(long, default_value = "down", value_name = "WAY")]
    direction: Direction,
    /// Time between two stamps on the kept connection
    #[arg(long, default_value = "50ms", value_name = "TIME", value_parser = text::duration)]
    interval: Duration,
    /// Time between two stamps with a connection of their own; 0s for none
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = text::duration)]
    fresh: Duration,
    /// Stamps without bulk, at first
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = text::duration)]
    base: Duration,
    /// Bulk before anything counts; unless given, until three seconds are within a tenth of the
    /// three before
    #[arg(long, value_name = "TIME", value_parser = text::duration)]
    warm_up: Option<Duration>,
    /// Longest wait for a steady rate
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = text::duration, conflicts_with = "warm_up")]
    steady_within: Duration,
    /// Duration of the measured phase
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = text::duration)]
    time: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the seconds as CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Say nothing while it runs
    #[arg(long, short)]
    quiet: bool,
}

/// Does it.
pub(crate) fn run(command: TimingCommand) -> Result<ExitCode, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match command {
        TimingCommand::Server(arguments) => runtime.block_on(async {
            let server = TimingServer::bind(arguments.listen).await?;
            say(&format!("listening on {}", server.address()?));
            server.run().await;
            Ok(ExitCode::SUCCESS)
        }),
        TimingCommand::Client(arguments) => {
            let (json, csv, quiet) = (arguments.json, arguments.csv, arguments.quiet);
            let plan = plan(*arguments)?;
            let running = client::run(&plan, |line| {
                if quiet {
                } else {
                    say(line)
                }
            });
            let report = LocalSet::new().block_on(&runtime, running)?;
            let text = match (json, csv) {
                (true, _) => serde_json::to_string_pretty(&report)?,
                (_, true) => report.csv(),
                _ => report.text(),
            };
            writeln!(std::io::stdout(), "{}", text.trim_end())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn plan(arguments: ClientArguments) -> Result<TimingPlan, Box<dyn Error>> {
    let ClientArguments {
        server,
        via,
        streams,
        direction,
        interval,
        fresh,
        base,
        warm_up,
        steady_within,
        time,
        ..
    } = arguments;
    if interval < Duration::from_millis(1) || (!fresh.is_zero() && fresh < Duration::from_millis(1))
    {
        return Err("--interval and --fresh are at least 1ms".into());
    }
    Ok(TimingPlan {
        server,
        via,
        streams: streams.into(),
        direction,
        interval,
        fresh: (!fresh.is_zero()).then_some(fresh),
        base,
        warm_up: warm_up.map_or(WarmUp::Steady(steady_within), WarmUp::For),
        time,
    })
}

/// Prints progress. The line is lost if standard error is closed.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "tandem-lab timing: {line}");
}
