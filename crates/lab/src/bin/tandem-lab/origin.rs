//! `tandem-lab origin`: serves a page model over HTTP/1.1 until it is stopped.

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;
use tandem_net::output;
use tandem_web::origin::Origin;
use tandem_web::page::{Page, Site};
use tokio::net::TcpListener;

#[derive(Debug, Args)]
pub(crate) struct OriginArguments {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// A page by name (demo, thesis, twitter, youtube, imgur, uniform:NxBYTES, gallery:NxBYTES), or
    /// a file: recorded page, HAR, page model
    #[arg(long, value_name = "PAGE", default_value = "demo")]
    page: String,
    /// Host (and port) under which the page's own links reach this origin; several act as shards.
    /// By default the address
    #[arg(long, value_name = "HOST[:PORT]")]
    authority: Vec<String>,
}

/// Serves.
pub(crate) fn run(arguments: &OriginArguments) -> Result<ExitCode, Box<dyn Error>> {
    let authorities = match &arguments.authority[..] {
        [] => vec![arguments.listen.to_string()],
        given => given.to_vec(),
    };
    let origin = Origin::new(Site::new(Page::open(&arguments.page)?, &authorities)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(arguments.listen)
            .await
            .map_err(|error| format!("cannot listen on {}: {error}", arguments.listen))?;
        output::note(format_args!(
            "tandem-lab origin: {} on http://{}/\n",
            arguments.page,
            listener.local_addr()?
        ));
        origin.serve(listener).await;
        Ok(ExitCode::SUCCESS)
    })
}
