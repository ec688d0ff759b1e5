//! The readers of the answers to the questions of `tandem init`.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use crate::cli::Failure;
use crate::config::share_url::ShareUrl;
use crate::endpoint::{Endpoint, Usage, is_onion, onion_service, split_authority};

/// Returns the absolute path of a file, if an endpoint can name it.
pub(super) fn absolute(file: &Path) -> Result<String, Failure> {
    let path = std::path::absolute(file)?.display().to_string();
    if path.contains('&') {
        return Err(format!("{path}: an endpoint cannot name a path with &").into());
    }
    // Another user may be the only one who can reach it.
    match std::fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Err(format!("{path}: {error}").into()),
        _ => Ok(path),
    }
}

/// Reads the name or the address of a gateway.
pub(super) fn host(text: &str) -> Result<String, String> {
    if text.parse::<IpAddr>().is_ok() {
        return address(text).map(|ip| ip.to_string());
    }
    if text.contains("://") {
        return Err(format!(
            "{text:?}: give the name or the address alone, without a scheme and a port"
        ));
    }
    match split_authority(text, Some(1)) {
        Ok((host, 1)) if text.starts_with('[') => Err(format!(
            "{text:?}: give the address without brackets, as {host}"
        )),
        Ok((host, _)) if is_onion(&host) => Err(format!(
            "{text:?} is an onion service: the role onion-operator sets up its gateway"
        )),
        Ok((host, _)) if !text.contains([':', '[']) => Ok(host),
        Ok(_) => Err(format!("{text:?}: give the name without a port")),
        Err(problem) => Err(format!("{text:?}: {problem}")),
    }
}

/// Reads the address of a gateway.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    match text.parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => Err(format!(
            "{text:?} is no machine's address: give the address that clients connect to"
        )),
        Ok(ip) => Ok(ip),
        Err(_) => Err(format!(
            "{text:?} is no address, such as 203.0.113.5 or 2001:db8::5"
        )),
    }
}

/// Reads a port.
pub(super) fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("{text:?} is no port from 1 to 65535")),
    }
}

/// Reads an onion address of version 3, or the file that holds one.
pub(super) fn onion_host(text: &str) -> Result<String, String> {
    let is_file = || !is_onion(text) && Path::new(text).is_file();
    let host = if text.contains('/') || is_file() {
        std::fs::read_to_string(text).map_err(|error| format!("{text}: {error}"))?
    } else {
        text.to_owned()
    };
    let host = host.trim().to_ascii_lowercase();
    match is_onion_address(&host) {
        true => Ok(host),
        false => Err(no_onion_address(text)),
    }
}

/// Returns whether a name in lower case is an onion address of version 3, without its checksum.
fn is_onion_address(host: &str) -> bool {
    let name = host.strip_suffix(".onion").unwrap_or_default();
    let is_base32 = |b: u8| b.is_ascii_lowercase() || matches!(b, b'2'..=b'7');
    name.len() == 56 && name.bytes().all(is_base32)
}

fn no_onion_address(text: &str) -> String {
    format!("{text:?} is no onion address: 56 letters and digits before .onion")
}

/// The gateway of a Tor user.
pub(super) enum Reached {
    /// The gateways that sites announce for themselves.
    Sites,
    /// The gateway of a shared URL.
    Url(ShareUrl),
    /// A gateway for all requests.
    Endpoint(Endpoint),
    /// The gateway of an onion service, for its own requests.
    Site(Endpoint),
}

/// Reads the gateway of a Tor user.
pub(super) fn tor_gateway(text: &str) -> Result<Reached, String> {
    if text == "sites" {
        return Ok(Reached::Sites);
    }
    if text.starts_with("tandem://") {
        let url: Result<ShareUrl, _> = text.parse();
        return url.map(Reached::Url).map_err(|error| error.to_string());
    }
    let parse = |endpoint: &str| {
        let endpoint = Usage::Gateway.parse(endpoint);
        endpoint.map_err(|error| error.to_string())
    };
    if text == "exit" {
        return parse("h2+tcp://192.0.2.80:9980?exit=auto").map(Reached::Endpoint);
    }
    if text.contains("://") {
        return parse(text).map(Reached::Endpoint);
    }
    let (host, port) = split_authority(text, Some(9980))?;
    let Some(service) = onion_service(&host) else {
        return Err(format!(
            "{text:?} is neither an onion address, \"sites\" nor \"exit\""
        ));
    };
    if !is_onion_address(&service) {
        return Err(no_onion_address(text));
    }
    parse(&format!("h2+tcp://{host}:{port}")).map(Reached::Site)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_checked() {
        for (text, good) in [
            ("gw.example", true),
            ("2001:db8::1", true),
            ("gw.example:443", false),
            ("[::1]", false),
            ("0.0.0.0", false),
            ("::", false),
            ("a b", false),
            ("abc.onion", false),
        ] {
            assert_eq!(host(text).is_ok(), good, "{text}");
        }
        for (text, remedy) in [
            ("http://gw.example/", "without a scheme and a port"),
            ("[2001:db8::5]", "without brackets, as 2001:db8::5"),
            ("gw.example:443", "without a port"),
        ] {
            let error = host(text).expect_err(text);
            assert!(error.contains(remedy), "{error}");
        }
        assert!(port("0").is_err() && port("65536").is_err() && port("1").is_ok());
        assert!(absolute(Path::new("/nonexistent/cert.pem")).is_err());
        assert!(onion_host("short.onion").is_err());
        assert!(onion_host("/nonexistent/hostname").is_err());
        assert!(address("0.0.0.0").is_err() && address("203.0.113.5").is_ok());
        assert!(address("gw.example").is_err());
        assert!(tor_gateway("gw.example").is_err());
        assert!(tor_gateway("http://gw.example:1").is_err());
        assert!(tor_gateway("foo.onion").is_err());
        let onion = format!("www.{}.onion:9981", "A".repeat(56));
        assert!(matches!(tor_gateway(&onion), Ok(Reached::Site(_))));
    }
}
