//! The configuration that a client's HTTP listeners offer to browsers, `/proxy.pac`. A listener
//! answers only requests addressed to itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use super::{is_typed_in, of_method, page};
use crate::exchange::{Exchange, Reply};
use crate::transport::tls::trusted_by::lists_firefox;

/// The listeners that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxies {
    /// The TLS listener, over which a browser multiplexes its requests.
    pub https: Option<SocketAddr>,
    /// The listener for HTTP/1.1 without TLS.
    pub http: Option<SocketAddr>,
    /// The directory of the authority that certifies the TLS listener.
    pub authority: Option<PathBuf>,
}

/// The page for a user who opens the address of the listener.
const START: &str = "This is the listener of a Tandem client, a proxy for browsers.\n\n\
     The address for the automatic proxy configuration of a browser is /proxy.pac here.\n\
     The command `tandem open -c client.toml` opens the dashboard.\n";

/// Answers a request to the listener itself.
pub fn answer(exchange: &Exchange, proxies: &Proxies) -> Reply {
    let request = &exchange.request;
    let reply = if request.path == "/proxy.pac" && is_typed_in(request) {
        let agent = request.fields.get("user-agent").unwrap_or_default();
        let script = script(proxies, is_firefox(agent));
        page(200, "application/x-ns-proxy-autoconfig", script)
    } else if request.path == "/" && is_typed_in(request) {
        page(200, "text/plain", START.into())
    } else {
        page(404, "text/plain", "Nothing is here.\n".into())
    };
    of_method(&request.method, reply)
}

/// Returns true for the `User-Agent` of Firefox and its relatives.
fn is_firefox(agent: &[u8]) -> bool {
    let name = b" Gecko/";
    agent.windows(name.len()).any(|part| part == name)
}

/// Returns the address for the browsers of this machine. A listener for all addresses answers a
/// request for the script only if it names this machine, so the browser is here.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Returns the script, which sends everything to the client. Chromium uses the second listener if
/// it does not trust the certificate of the first. Firefox shows an error instead, so the TLS
/// listener is left out unless `tandem trust` has changed a profile of Firefox. The script names no
/// direct connection.
fn script(proxies: &Proxies, is_firefox: bool) -> String {
    let is_trusted = || proxies.authority.as_deref().is_some_and(lists_firefox);
    let is_usable = !is_firefox || proxies.http.is_none() || is_trusted();
    let https = proxies.https.filter(|_| is_usable);
    let https = https.map(|address| format!("HTTPS {}", reachable(address)));
    let http = proxies.http;
    let http = http.map(|address| format!("PROXY {}", reachable(address)));
    let all: Vec<_> = https.into_iter().chain(http).collect();
    let all = all.join("; ");
    format!("function FindProxyForURL(url, host) {{ return \"{all}\"; }}\n")
}

#[cfg(test)]
mod tests {
    use tandem_http::{Method, RequestHead, Scheme};

    use super::*;
    use crate::exchange::Part;
    use crate::transport::tls::trusted_by::record_file;

    const BOTH: &str = "HTTPS 127.0.0.1:8119; PROXY 127.0.0.1:8118";

    fn proxies(https: &str, http: &str) -> Proxies {
        let address = |text: &str| text.parse().ok();
        Proxies {
            https: address(https),
            http: address(http),
            authority: None,
        }
    }

    #[track_caller]
    fn assert_list(proxies: &Proxies, is_firefox: bool, list: &str) {
        let script = script(proxies, is_firefox);
        assert!(script.contains(&format!("return \"{list}\";")), "{script}");
        assert!(!script.contains("DIRECT"));
    }

    #[test]
    fn script_prefers_the_tls_listener() {
        let (https, http) = ("127.0.0.1:8119", "127.0.0.1:8118");
        assert_list(&proxies(https, http), false, BOTH);
        assert_list(&proxies("", http), false, "PROXY 127.0.0.1:8118");
        for is_firefox in [false, true] {
            assert_list(&proxies(https, ""), is_firefox, "HTTPS 127.0.0.1:8119");
        }
    }

    /// No browser can connect to the address 0.0.0.0 of a proxy.
    #[test]
    fn listener_of_all_addresses_is_named_as_this_machine() {
        assert_list(&proxies("0.0.0.0:8119", "0.0.0.0:8118"), false, BOTH);
        let expected = "HTTPS [::1]:8119; PROXY 192.0.2.1:8118";
        assert_list(&proxies("[::]:8119", "192.0.2.1:8118"), false, expected);
    }

    #[tokio::test]
    async fn page_of_the_listener_is_for_its_user_only() {
        let proxies = proxies("", "127.0.0.1:8118");
        let mut request = RequestHead::get(Scheme::Http, "127.0.0.1:8118", "/proxy.pac");
        request.method = Method::Head;
        let mut reply = answer(&Exchange::internal(request), &proxies);
        let head = reply.part().await;
        assert!(matches!(head, Some(Ok(Part::Head(head))) if head.status == 200));
        assert!(reply.part().await.is_none(), "HEAD has no body");
        for (path, site, expected) in [
            ("/", None, 200),
            ("/", Some("none"), 200),
            ("/", Some("cross-site"), 404),
            ("/x", Some("none"), 404),
        ] {
            let mut request = RequestHead::get(Scheme::Http, "127.0.0.1:8118", path);
            if let Some(site) = site {
                request.fields.push("sec-fetch-site", site);
            }
            let mut reply = answer(&Exchange::internal(request), &proxies);
            let (mut status, mut body) = (0, Vec::new());
            while let Some(Ok(part)) = reply.part().await {
                match part {
                    Part::Head(head) => status = head.status,
                    Part::Data(data) => body.extend_from_slice(&data),
                    _ => {}
                }
            }
            assert_eq!(status, expected, "{path} {site:?}");
            let text = String::from_utf8(body).expect("text");
            let names_it = text.contains("tandem open") && text.contains("/proxy.pac");
            assert_eq!(names_it, expected == 200, "{text}");
        }
    }

    #[test]
    fn script_names_tls_listener_to_a_trusting_firefox() {
        let directory = std::env::temp_dir().join(format!("tandem-pac-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let mut proxies = proxies("127.0.0.1:8119", "127.0.0.1:8118");
        assert_list(&proxies, true, "PROXY 127.0.0.1:8118");
        proxies.authority = Some(directory.clone());
        assert_list(&proxies, true, "PROXY 127.0.0.1:8118");
        std::fs::write(record_file(&directory), "firefox /profile\n").expect("written");
        assert_list(&proxies, true, BOTH);
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn firefox_is_known_by_its_engine() {
        let firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:153.0) Gecko/20100101 Firefox/153.0";
        let chrome = "Mozilla/5.0 (X11) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0";
        assert!(is_firefox(firefox.as_bytes()));
        assert!(!is_firefox(chrome.as_bytes()) && !is_firefox(b""));
    }
}
