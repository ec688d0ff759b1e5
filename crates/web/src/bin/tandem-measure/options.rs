//! The command line of `tandem-measure`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tandem_net::completions::CompletionsArgs;
use tandem_web::browser::Kind;
use tandem_web::loader::{Protocol, Via};
use tandem_web::origin::Protocols;

/// Loads pages and measures them.
///
/// A PAGE is built in (demo, thesis, twitter, youtube, imgur, uniform:NxBYTES, gallery:NxBYTES) or
/// a file: a recorded page, a HAR file or a page model.
#[derive(Debug, Parser)]
#[command(name = "tandem-measure", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serves a page here and loads it
    Page(PageArguments),
    /// Only serves a page, until it is stopped
    Serve(ServeArguments),
    /// Only loads a page that is served somewhere, or any URL
    Load(LoadArguments),
    /// Writes shell completions to standard output
    Completions(CompletionsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PageArguments {
    /// The page
    pub(crate) page: String,
    /// Address to serve the page at; port 0 is any free one, further shards count up from it
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:0",
        help_heading = "Origin"
    )]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) origin: OriginArguments,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// The page
    pub(crate) page: String,
    /// Address to serve the page at; further shards count up from the port
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        default_value = "0.0.0.0:8080",
        help_heading = "Origin"
    )]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) origin: OriginArguments,
}

/// The layout of a page on origins.
#[derive(Debug, Args)]
pub(crate) struct OriginArguments {
    /// Origins that share the page's hosts; 0 is one for each host
    #[arg(
        long,
        default_value_t = 1,
        value_name = "NUMBER",
        help_heading = "Origin"
    )]
    pub(crate) shards: usize,
    /// Host (and port) by which an origin is reached, one for each shard; by default its address
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Origin")]
    pub(crate) authority: Vec<String>,
    /// Serve it over TLS, with a certificate made on the spot
    #[arg(long, help_heading = "Origin")]
    pub(crate) tls: bool,
    /// TLS: protocols that clients may choose
    #[arg(long, value_enum, default_value = "both", help_heading = "Origin")]
    pub(crate) alpn: Alpn,
}

/// Protocols offered over TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Alpn {
    /// HTTP/2 and HTTP/1.1
    Both,
    /// Only HTTP/1.1
    H1,
    /// Only HTTP/2
    H2,
}

impl OriginArguments {
    /// TLS of the origin.
    pub(crate) fn protocols(&self) -> Option<Protocols> {
        self.tls.then_some(match self.alpn {
            Alpn::Both => Protocols::Both,
            Alpn::H1 => Protocols::Http1,
            Alpn::H2 => Protocols::H2,
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct LoadArguments {
    /// The page
    #[arg(required_unless_present = "url")]
    pub(crate) page: Option<String>,
    /// Host (and port) by which its origin is reached, one for each shard; by default port 8080 of
    /// $TANDEM_LINK_PEER, else of 127.0.0.1
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Origin")]
    pub(crate) authority: Vec<String>,
    /// The origin has TLS
    #[arg(long, help_heading = "Origin")]
    pub(crate) tls: bool,
    /// URL to load instead of a page; with a browser
    #[arg(long, conflicts_with_all = ["page", "authority"])]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// The options of the client that loads the page.
#[derive(Debug, Args)]
pub(crate) struct ClientArguments {
    /// Client that loads the page
    #[arg(long, value_enum, default_value = "loader", help_heading = "Client")]
    pub(crate) browser: Browser,
    /// The way to the origins: http://HOST:PORT or socks5://[USER[:PASSWORD]@]HOST:PORT; with a
    /// browser https://HOST:PORT too
    #[arg(long, value_name = "URL", help_heading = "Client")]
    pub(crate) proxy: Option<String>,
    /// Number of loads, each time cold
    #[arg(
        long,
        default_value_t = 1,
        value_name = "NUMBER",
        help_heading = "Client"
    )]
    pub(crate) loads: usize,
    /// Chromium: loads in the same browser before each one that counts. Its connections stay open,
    /// and its cache is emptied
    #[arg(
        long,
        default_value_t = 0,
        value_name = "NUMBER",
        help_heading = "Client"
    )]
    pub(crate) earlier: usize,
    /// Time for one load
    #[arg(long, default_value = "300s", value_name = "TIME", value_parser = tandem_link::text::duration, help_heading = "Client")]
    pub(crate) deadline: Duration,
    /// Loader: protocol to the origins
    #[arg(long, value_enum, default_value = "h1", help_heading = "Client")]
    pub(crate) protocol: Spoken,
    /// Loader: requests in flight to one authority: connections of HTTP/1.1, streams of HTTP/2. By
    /// default 6, or for HTTP/2 100
    #[arg(long, value_name = "NUMBER", help_heading = "Client")]
    pub(crate) parallel: Option<usize>,
    /// Loader: all resources are known at the start
    #[arg(long, help_heading = "Client")]
    pub(crate) list: bool,
    /// Address of a name without a proxy, NAME=ADDRESS[:PORT]; * stands for any text. Firefox takes
    /// one address for all names
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = rule, help_heading = "Client")]
    pub(crate) resolve: Vec<(String, String)>,
    /// Browser: a further argument for it
    #[arg(
        long,
        value_name = "ARGUMENT",
        allow_hyphen_values = true,
        help_heading = "Client"
    )]
    pub(crate) browser_argument: Vec<String>,
}

/// The client that loads pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Browser {
    /// The lab's own loader, which checks every byte
    Loader,
    /// Headless Chromium with a fresh profile
    Chromium,
    /// Headless Firefox with a fresh profile
    Firefox,
}

impl Browser {
    /// Returns the browser to drive, or none for the loader.
    pub(crate) const fn kind(self) -> Option<Kind> {
        match self {
            Self::Loader => None,
            Self::Chromium => Some(Kind::Chromium),
            Self::Firefox => Some(Kind::Firefox),
        }
    }
}

/// The protocol of the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Spoken {
    /// HTTP/1.1
    H1,
    /// HTTP/2 in one session
    H2,
}

/// The options of the output.
#[derive(Debug, Args)]
pub(crate) struct OutputArguments {
    /// Write everything as JSON; - is standard output
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) json: Option<PathBuf>,
    /// Write a line for each load as CSV; - is standard output
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) csv: Option<PathBuf>,
    /// Write the requests as HAR 1.2; each load after the first has its number in the name
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) har: Option<PathBuf>,
    /// Recorded with the results
    #[arg(
        long,
        default_value_t = 1,
        value_name = "NUMBER",
        help_heading = "Output"
    )]
    pub(crate) seed: u64,
    /// Print no summary
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

fn rule(text: &str) -> Result<(String, String), String> {
    let (name, to) = text.split_once('=').ok_or("not NAME=ADDRESS")?;
    let plain = |part: &str| !part.is_empty() && !part.contains([',', ' ']);
    if plain(name) && plain(to) {
        Ok((name.into(), to.into()))
    } else {
        Err("not NAME=ADDRESS".into())
    }
}

impl ClientArguments {
    /// Returns the loader's protocol and its number of concurrent requests.
    pub(crate) fn spoken(&self) -> (Protocol, usize) {
        match self.protocol {
            Spoken::H1 => (Protocol::Http1, self.parallel.unwrap_or(6)),
            Spoken::H2 => (Protocol::H2, self.parallel.unwrap_or(100)),
        }
    }

    /// The loader's way to the origins.
    pub(crate) fn via(&self) -> Result<Via, tandem_web::loader::BadVia> {
        self.proxy.as_deref().unwrap_or("direct").parse()
    }
}
