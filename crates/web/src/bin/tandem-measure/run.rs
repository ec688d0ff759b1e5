//! The commands.

use std::error::Error;
use std::future::Future;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory as _;
use tandem_http::Scheme;
use tandem_web::browser::{Kind, Settings};
use tandem_web::loader::{Discovery, Loader};
use tandem_web::measure::{self, Client, Listen, MeasureError, Outcome, Report, Run, Served};
use tandem_web::page::{Page, Site};
use tokio::signal::unix::{SignalKind, signal};

use crate::options::{
    Arguments, ClientArguments, Command, LoadArguments, OriginArguments, OutputArguments,
    PageArguments, ServeArguments,
};

type Failure = Box<dyn Error>;

/// Port of an origin of which nothing else is said.
const PORT: u16 = 8080;

/// Carries out a command, until a signal ends it: then whatever it has started is gone before the
/// program is.
pub(crate) fn run(command: Command) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        tokio::select! {
            result = carry_out(command) => result,
            _ = interrupt.recv() => Ok(ExitCode::from(130)),
            _ = terminate.recv() => Ok(ExitCode::from(143)),
            _ = hang_up.recv() => Ok(ExitCode::from(129)),
        }
    })
}

async fn carry_out(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Page(arguments) => page(arguments).await,
        Command::Serve(arguments) => serve(arguments).await,
        Command::Load(arguments) => load(arguments).await,
        Command::Completions(arguments) => {
            arguments.run(Arguments::command())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn start(
    page: &str,
    address: std::net::SocketAddr,
    origin: OriginArguments,
) -> Result<Served, Failure> {
    let tls = origin.protocols();
    let listen = Listen {
        address,
        shards: origin.shards,
        authorities: origin.authority,
        tls,
    };
    Ok(Served::start(Page::open(page)?, &listen).await?)
}

async fn page(arguments: PageArguments) -> Result<ExitCode, Failure> {
    let PageArguments {
        page,
        listen,
        origin,
        client,
        output,
    } = arguments;
    let served = start(&page, listen, origin).await?;
    let client_kind = self::client(&client)?;
    let name = served.site().page().name.clone();
    repeat(name, &client, &output, || client_kind.load(served.site())).await
}

async fn serve(arguments: ServeArguments) -> Result<ExitCode, Failure> {
    let ServeArguments {
        page,
        listen,
        origin,
    } = arguments;
    let served = start(&page, listen, origin).await?;
    for (shard, address) in served.addresses().iter().enumerate() {
        let name = &served.site().authorities()[shard % served.site().authorities().len()];
        tandem_net::output::note(format_args!(
            "tandem-measure: {page} on {address} as {name}\n"
        ));
    }
    std::future::pending().await
}

async fn load(arguments: LoadArguments) -> Result<ExitCode, Failure> {
    let LoadArguments {
        page,
        authority,
        tls,
        url,
        client,
        output,
    } = arguments;
    if let Some(url) = url {
        let Some(kind) = client.browser.kind() else {
            return Err(
                "--url needs --browser chromium or firefox: the loader only loads pages with a model"
                    .into(),
            );
        };
        let settings = settings(kind, &client);
        return repeat(url.clone(), &client, &output, || {
            measure::load_url(&settings, &url)
        })
        .await;
    }
    let authorities = if authority.is_empty() {
        vec![default_authority()]
    } else {
        authority
    };
    let scheme = if tls { Scheme::Https } else { Scheme::Http };
    let site = Site::with_scheme(Page::open(&page.unwrap_or_default())?, scheme, &authorities)?;
    let client_kind = self::client(&client)?;
    repeat(site.page().name.clone(), &client, &output, || {
        client_kind.load(&site)
    })
    .await
}

fn default_authority() -> String {
    let host = std::env::var("TANDEM_LINK_PEER").unwrap_or_else(|_| "127.0.0.1".into());
    format!("{host}:{PORT}")
}

fn client(arguments: &ClientArguments) -> Result<Client, Failure> {
    let (protocol, per_host) = arguments.spoken();
    if arguments.earlier > 0 && arguments.browser.kind() != Some(Kind::Chromium) {
        return Err("--earlier needs --browser chromium, which can empty its cache".into());
    }
    Ok(match arguments.browser.kind() {
        Some(kind) => Client::Browser(settings(kind, arguments)),
        None => Client::Loader(Loader {
            protocol,
            per_host,
            resolve: arguments.resolve.clone(),
            discovery: if arguments.list {
                Discovery::List
            } else {
                Discovery::Triggers
            },
            deadline: arguments.deadline,
            ..Loader::new(arguments.via()?)
        }),
    })
}

fn settings(kind: Kind, arguments: &ClientArguments) -> Settings {
    Settings {
        kind,
        proxy: arguments.proxy.clone(),
        resolve: arguments.resolve.clone(),
        deadline: arguments.deadline,
        arguments: arguments.browser_argument.clone(),
        earlier: arguments.earlier,
        ..Settings::default()
    }
}

/// Loads again and again, and writes the results; fails if a load was not complete.
async fn repeat<F>(
    page: String,
    client: &ClientArguments,
    output: &OutputArguments,
    load: impl Fn() -> F,
) -> Result<ExitCode, Failure>
where
    F: Future<Output = Result<Outcome, MeasureError>>,
{
    let mut report = Report::new(Run::here(output.seed), page);
    for number in 1..=client.loads {
        let outcome = load().await?;
        if let Some(path) = &output.har {
            write(
                &numbered(path, number),
                &serde_json::to_string_pretty(&outcome.har.to_json(&run_of(&report)))?,
            )?;
        }
        report.add(outcome);
    }
    write_all(&report, output)?;
    let complete = report.loads.iter().all(Outcome::is_complete);
    Ok(if complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn run_of(report: &Report) -> serde_json::Value {
    serde_json::to_value(&report.run).unwrap_or_default()
}

fn write_all(report: &Report, output: &OutputArguments) -> Result<(), Failure> {
    if let Some(path) = &output.json {
        write(path, &serde_json::to_string_pretty(&report.json())?)?;
    }
    if let Some(path) = &output.csv {
        write(path, &report.csv())?;
    }
    if !output.quiet {
        // Standard output may be taken by the results.
        let taken = [&output.json, &output.csv]
            .into_iter()
            .flatten()
            .any(|path| is_standard(path));
        if taken {
            tandem_net::output::note(report.text())
        } else {
            write(Path::new("-"), &report.text())?
        }
    }
    Ok(())
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Writes a text and an end of line to a file, or to standard output.
fn write(path: &Path, text: &str) -> Result<(), MeasureError> {
    let text = format!("{}\n", text.trim_end());
    let written = if is_standard(path) {
        std::io::stdout()
            .write_all(text.as_bytes())
            .and_then(|()| std::io::stdout().flush())
    } else {
        std::fs::write(path, text)
    };
    written.map_err(|source| MeasureError::Write {
        path: path.display().to_string(),
        source,
    })
}

/// `a.har`, `a.2.har`, `a.3.har` and so on.
fn numbered(path: &Path, number: usize) -> PathBuf {
    if number == 1 || is_standard(path) {
        return path.to_owned();
    }
    let extension = path
        .extension()
        .map_or_else(|| "har".into(), |e| e.to_string_lossy().into_owned());
    path.with_extension(format!("{number}.{extension}"))
}
