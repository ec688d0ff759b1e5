//! Firefox's preferences: the proxy, the addresses of names, and no traffic of its own.

use serde_json::{Value, json};

use super::super::{BrowserError, Settings};

/// Firefox asks for nothing by itself and does not change the scheme of a URL. Requests to loopback
/// addresses go to the proxy too.
const FIXED: [(&str, bool); 18] = [
    ("app.normandy.enabled", false),
    ("app.update.auto", false),
    ("browser.chrome.site_icons", false),
    ("browser.newtabpage.enabled", false),
    ("browser.region.update.enabled", false),
    ("browser.safebrowsing.downloads.remote.enabled", false),
    ("browser.safebrowsing.malware.enabled", false),
    ("browser.safebrowsing.phishing.enabled", false),
    ("browser.shell.checkDefaultBrowser", false),
    ("datareporting.policy.dataSubmissionEnabled", false),
    ("dom.push.connection.enabled", false),
    ("dom.security.https_first", false),
    ("extensions.update.enabled", false),
    ("network.captive-portal-service.enabled", false),
    ("network.connectivity-service.enabled", false),
    ("network.http.http3.enable", false),
    ("network.proxy.allow_hijacking_localhost", true),
    ("network.proxy.failover_direct", false),
];

/// Returns the text of the file `user.js`.
pub(super) fn of(settings: &Settings) -> Result<String, BrowserError> {
    let mut all: Vec<(&str, Value)> = FIXED.map(|(name, is_on)| (name, is_on.into())).into();
    // Names are resolved by the system, and lists come from nowhere.
    all.push(("network.trr.mode", 5.into()));
    all.push(("services.settings.server", "data:,".into()));
    all.extend(proxy(settings.proxy.as_deref())?);
    all.extend(address(&settings.resolve)?.map(|to| ("network.dns.forceResolve", to.into())));
    let lines = all.iter();
    let lines = lines.map(|(name, value)| format!("user_pref({}, {value});\n", json!(name)));
    Ok(lines.collect())
}

fn proxy(proxy: Option<&str>) -> Result<Vec<(&'static str, Value)>, BrowserError> {
    let Some(proxy) = proxy else {
        return Ok(vec![("network.proxy.type", 0.into())]);
    };
    let unknown = || BrowserError::Setting(format!("{proxy:?} is no proxy of Firefox"));
    let (scheme, authority) = proxy.split_once("://").ok_or_else(unknown)?;
    let (host, port) = authority.rsplit_once(':').ok_or_else(unknown)?;
    let port: u16 = port.parse().map_err(|_| unknown())?;
    Ok(match scheme {
        "http" => vec![
            ("network.proxy.type", 1.into()),
            ("network.proxy.http", host.into()),
            ("network.proxy.http_port", port.into()),
            ("network.proxy.ssl", host.into()),
            ("network.proxy.ssl_port", port.into()),
        ],
        "socks5" => vec![
            ("network.proxy.type", 1.into()),
            ("network.proxy.socks", host.into()),
            ("network.proxy.socks_port", port.into()),
            ("network.proxy.socks_remote_dns", true.into()),
        ],
        // Only a script can name a proxy over TLS.
        "https" => {
            let script = format!("function FindProxyForURL() {{ return 'HTTPS {authority}' }}");
            vec![
                ("network.proxy.type", 2.into()),
                (
                    "network.proxy.autoconfig_url",
                    format!("data:,{script}").into(),
                ),
            ]
        }
        _ => return Err(unknown()),
    })
}

/// Returns the one address that all names have.
fn address(resolve: &[(String, String)]) -> Result<Option<&str>, BrowserError> {
    let Some((_, first)) = resolve.first() else {
        return Ok(None);
    };
    let is_address = first.parse::<std::net::IpAddr>().is_ok();
    if !is_address || resolve.iter().any(|(_, to)| to != first) {
        let problem = "Firefox resolves all names to one address, without a port";
        return Err(BrowserError::Setting(problem.into()));
    }
    Ok(Some(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(proxy: Option<&str>, resolve: &[(&str, &str)]) -> Result<String, String> {
        let resolve = resolve.iter();
        let settings = Settings {
            proxy: proxy.map(str::to_owned),
            resolve: resolve
                .map(|(name, to)| ((*name).to_owned(), (*to).to_owned()))
                .collect(),
            ..Settings::default()
        };
        of(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn proxies_of_each_kind() {
        for (proxy, line) in [
            (None, "user_pref(\"network.proxy.type\", 0);"),
            (
                Some("http://127.0.0.1:81"),
                "user_pref(\"network.proxy.ssl_port\", 81);",
            ),
            (
                Some("socks5://127.0.0.1:81"),
                "user_pref(\"network.proxy.socks\", \"127.0.0.1\");",
            ),
            (
                Some("https://127.0.0.1:81"),
                "return 'HTTPS 127.0.0.1:81' }",
            ),
        ] {
            let text = text(proxy, &[]).expect("a proxy");
            assert!(text.contains(line), "{text}");
        }
        for proxy in ["127.0.0.1:81", "ftp://127.0.0.1:81", "http://127.0.0.1"] {
            assert!(text(Some(proxy), &[]).is_err(), "{proxy}");
        }
    }

    #[test]
    fn names_have_one_address() {
        let one = [("a.test", "10.0.0.1"), ("*.b.test", "10.0.0.1")];
        let text_of_one = text(None, &one).expect("one address");
        assert!(text_of_one.contains("forceResolve\", \"10.0.0.1\""));
        for other in ["10.0.0.2", "10.0.0.1:81"] {
            let several = [one[0], ("b.test", other)];
            assert!(text(None, &several).is_err(), "{other}");
        }
        assert!(text(None, &[("a.test", "10.0.0.1:81")]).is_err());
    }
}
