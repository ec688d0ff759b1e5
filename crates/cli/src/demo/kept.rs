//! The part of the demo that a browser uses (`--keep`).
//!
//! ```text
//!  browser ─▶ client ═══ slow path ═══▶ reverse gateway ─▶ origin    http://demo.example/
//!                  └════ slow path ═══▶ the demo's gateway ─▶ …      all other sites
//! ```
//!
//! Browsers never send requests for addresses of loopback to a proxy. The page has a name
//! therefore, which only the reverse gateway resolves: no other way leads to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tandem::cli::Failure;
use tandem::config::{ClientOptions, GatewayOptions};
use tandem::endpoint::Endpoint;
use tandem::runtime::Running;
use tandem_net::slowpath::{Running as Slow, SlowPath};
use tandem_web::origin::{Origin, Running as RunningOrigin};
use tandem_web::page::{Page, Site};

/// The name of the page. No public name ends like it (RFC 2606 section 3).
const NAME: &str = "demo.example";

/// The processes for a browser.
pub(super) struct Kept {
    _origin: RunningOrigin,
    _between: Slow,
    gateway: Running,
    client: Running,
    /// The proxy for the browser.
    proxy: SocketAddr,
    /// The URL of the page.
    url: String,
}

impl Kept {
    /// Starts an origin of the page, and a pair with the session `session` over `way`. Other sites
    /// go to the gateway at `other`.
    pub(super) async fn start(
        page: Page,
        session: &str,
        way: SlowPath,
        other: SocketAddr,
    ) -> Result<Self, Failure> {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{NAME}{}", page.resources[0].path);
        let origin = Origin::new(Site::new(page, &[NAME])?).spawn(listener)?;
        let any: Endpoint = format!("{session}+tcp://127.0.0.1:0").parse()?;
        let gateway = GatewayOptions {
            listen: vec![any.clone()],
            mode: Some(format!("reverse=http://{}", origin.address).parse()?),
            allow_host: vec![NAME.parse()?],
            ..super::gateway_options()
        };
        let gateway = Running::start(Arc::new(gateway.typed()?)).await?;
        let gateway_at = gateway.address(&any).ok_or("the gateway does not listen")?;
        let between = way.spawn(gateway_at).await?;
        let listen: Endpoint = "http://127.0.0.1:0".parse()?;
        let client = ClientOptions {
            listen: vec![listen.clone()],
            gateway: vec![format!("{session}+tcp://{other}").parse()?],
            route: vec![format!("{NAME}={session}+tcp://{}", between.address).parse()?],
            ..ClientOptions::default()
        };
        let client = Running::start(Arc::new(client.typed()?)).await?;
        let proxy = client
            .address(&listen)
            .ok_or("the client does not listen")?;
        Ok(Self {
            _origin: origin,
            _between: between,
            gateway,
            client,
            proxy,
            url,
        })
    }

    /// Tells how a browser loads the page, and waits until the user interrupts the program.
    pub(super) async fn wait(self) -> Result<(), Failure> {
        let Self { proxy, url, .. } = &self;
        tandem::cli::note(format_args!(
            "\ntandem demo: listening on http://{proxy}\n\
             Set the browser's HTTP proxy to {proxy}, or its proxy configuration to\n  \
             http://{proxy}/proxy.pac\nand open\n  {url}\n\
             Running until interrupted (Ctrl-C)."
        ));
        tokio::signal::ctrl_c().await?;
        self.client.drain(Duration::from_secs(1)).await;
        self.gateway.drain(Duration::from_secs(1)).await;
        Ok(())
    }
}
