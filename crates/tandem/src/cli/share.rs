//! `tandem share`: prints the URL and the QR code that configure another client for the same
//! gateway.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};

use super::{Failure, serve};
use crate::config::gateway_ways::GatewayWays;
use crate::config::gateways::RouteOption;
use crate::config::read_secret;
use crate::config::share_url::ShareUrl;
use crate::endpoint::{Endpoint, is_same_onion};
use crate::hosts::HostPattern;
use crate::transport::tls::files::certificates;

const EXAMPLES: &str = "Examples:
  tandem share -c client.toml
      Print the URL and the QR code for the gateway of this client
  tandem share -c client.toml --no-qr | ssh laptop tandem init --from -
      Configure a client on another machine";

/// Arguments of `tandem share`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ShareArgs {
    /// The client's configuration file
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Print the URL only
    #[arg(long)]
    no_qr: bool,
}

pub(super) fn run(args: &ShareArgs) -> Result<(), Failure> {
    let (url, left_out) = url(args)?;
    let text = url.to_string();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    if !args.no_qr {
        let is_terminal = out.is_terminal();
        let image = qr_code(&text, is_terminal)?;
        let columns = is_terminal.then(|| columns(&out)).flatten();
        writeln!(out, "\n{}", fitting(image, columns))?;
    }
    super::note("On the other machine: tandem init --from 'URL'");
    if left_out > 0 {
        super::note(format_args!(
            "The URL has one of {} ways to the gateway, the last one: copy the others, such as one \
             over QUIC, to the other machine's file.",
            left_out + 1
        ));
    }
    if url.token().is_some() {
        super::note("Keep the URL secret: its token admits everyone who has it.");
    }
    Ok(())
}

/// Returns the URL for the first gateway of the client's file, by its last way, and the number of
/// the other ways. Without a default gateway, the only route can name that of an onion service: the
/// other machine gets such a route.
fn url(args: &ShareArgs) -> Result<(ShareUrl, usize), Failure> {
    let file = args.config.display();
    let options = serve::read(Some(&args.config))?
        .client
        .ok_or_else(|| format!("{file}: it has no table [client]"))?;
    let gateways = match &*options.route {
        [route] if options.gateway.is_empty() && is_of_onion(route) => &route.gateway,
        _ => &options.gateway,
    };
    let ways = gateways.first().ok_or_else(|| {
        format!(
            "{file}: it has neither a default gateway nor a single route to an onion service's own \
             gateway: copy the file instead"
        )
    })?;
    let gateway = ways.last();
    let token = options
        .token_file
        .as_deref()
        .map(|file| read_secret("token-file", file))
        .transpose()?;
    let url = ShareUrl::new(gateway, token, ca(gateway)?)?;
    Ok((
        url.through_tor(options.via.is_some()),
        ways.endpoints().len() - 1,
    ))
}

/// Returns whether a route serves one onion service by its own gateway and without a token.
fn is_of_onion(route: &RouteOption) -> bool {
    let gateway = route.gateway.first().map(GatewayWays::last);
    let is_own = |gateway: &Endpoint| {
        route.hosts.iter().all(|pattern| match pattern {
            HostPattern::Name(host) | HostPattern::Below(host) => {
                is_same_onion(host, &gateway.host)
            }
            HostPattern::Any => false,
        })
    };
    route.token_file.is_none() && gateway.is_some_and(is_own)
}

/// Returns the certificate of the option `ca=FILE`.
fn ca(gateway: &Endpoint) -> Result<Option<Vec<u8>>, Failure> {
    let Some(file) = gateway.option("ca") else {
        return Ok(None);
    };
    match certificates(file)?.as_slice() {
        [one] => Ok(Some(one.to_vec())),
        several => Err(format!(
            "{file} holds {} certificates, and a URL can carry one: copy the file instead",
            several.len()
        )
        .into()),
    }
}

/// Returns the number of columns of a terminal, if it tells it.
fn columns(terminal: impl std::os::fd::AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    Some(size.ws_col.into()).filter(|columns| *columns > 0)
}

/// Returns the image of a code for a terminal of `columns`. In place of one that the terminal would
/// wrap, which nothing can read, it returns advice.
fn fitting(image: QrImage, columns: Option<usize>) -> String {
    match columns {
        Some(columns) if columns < image.width => format!(
            "The QR code does not fit: widen the terminal to {} columns (it has {columns}), and \
             run the command again\n",
            image.width
        ),
        _ => image.text,
    }
}

/// A code as text.
struct QrImage {
    text: String,
    /// The number of columns.
    width: usize,
}

/// Renders the code with two rows of squares in each line.
fn qr_code(text: &str, is_terminal: bool) -> Result<QrImage, Failure> {
    let code = QrCode::with_error_correction_level(text, EcLevel::L)
        .map_err(|_| "the URL is too long for a QR code: use --no-qr")?;
    let (mut image, mut width) = (String::new(), 0);
    for line in code.render::<Dense1x2>().build().lines() {
        width = line.chars().count();
        // Black on white is right in terminals of any colour.
        let _ = if is_terminal {
            writeln!(image, "\x1b[30;107m{line}\x1b[0m")
        } else {
            writeln!(image, "{line}")
        };
    }
    Ok(QrImage { text: image, width })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qr_code_is_a_rectangle_with_a_margin() {
        let image = qr_code("tandem://gw.example:443?ip=203.0.113.5", false).expect("a code");
        assert_eq!(image.width, 29 + 2 * 4);
        let image = image.text;
        let widths: Vec<_> = image.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{widths:?}");
        // Version 3 has 29 squares a side, and the margin has four on each side.
        assert_eq!(widths[0], 29 + 2 * 4);
        assert_eq!(widths.len(), widths[0].div_ceil(2));
        let coloured = qr_code("x", true).expect("a code");
        assert!(coloured.text.lines().all(|line| line.ends_with("\x1b[0m")));
        assert!(qr_code(&"x".repeat(3000), false).is_err());
    }

    #[test]
    fn qr_code_that_would_wrap_is_left_out() {
        for (columns, is_shown) in [(None, true), (Some(36), false), (Some(37), true)] {
            let image = qr_code("tandem://gw.example:443?ip=203.0.113.5", true).expect("a code");
            let text = fitting(image, columns);
            assert_eq!(text.contains('\u{2588}'), is_shown, "{columns:?}");
            assert_eq!(text.contains("to 37 columns"), !is_shown, "{text}");
        }
    }
}
