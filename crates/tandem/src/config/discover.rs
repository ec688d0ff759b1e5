//! The option `discover` of a client, which uses gateways that sites announce, and the option
//! `announce` of a gateway.

use super::{ClientConfig, ClientOptions, ConfigError};
use crate::back::origin::Mode;
use crate::config::client::Fallback;
use crate::endpoint::{Endpoint, SessionKind};
use crate::transport::registry::Protocol;

/// The way of requests for sites that announce a gateway, in words.
pub const OWN_GATEWAYS: &str = "the site's own gateway, once it has announced one";

impl ClientOptions {
    /// Returns whether the client uses gateways that sites announce. It does so by default where
    /// requests without a route go through the proxy without a gateway.
    pub(super) fn discovery(&self) -> Result<bool, ConfigError> {
        let bad = |problem: &str| Err(ConfigError::value("discover", problem));
        let goes_without = self.solo.is_some() || self.fallback == Some(Fallback::Via);
        let is_possible = self.via.is_some() && self.gateway.is_empty() && goes_without;
        match self.discover {
            None => Ok(is_possible),
            Some(true) if self.opens_on_this_machine() && !is_possible => Ok(false),
            Some(true) if self.via.is_none() => {
                bad("needs --via: an announced gateway is reached through the proxy only")
            }
            Some(true) if !self.gateway.is_empty() => bad(
                "and --gateway contradict each other, since that gateway serves all other hosts: \
                 name its hosts in --route",
            ),
            Some(true) if !is_possible => bad(
                "needs --solo or --fallback via: the first request of a site goes without a \
                 gateway",
            ),
            Some(discover) => Ok(discover),
        }
    }

    /// Returns whether the client uses gateways that sites announce in HTTPS that it opens itself.
    pub(super) fn discovers_opened(&self) -> bool {
        self.discover != Some(false) && self.opens_on_this_machine()
    }

    fn opens_on_this_machine(&self) -> bool {
        !self.open_https.is_empty()
    }
}

impl ClientConfig {
    /// Returns true if this client can use a way that a site announces: a byte stream through the
    /// proxy, without options.
    pub(crate) fn can_discover(&self, way: &Endpoint) -> bool {
        let Ok(provider) = self.transports.to_dial(way) else {
            return false;
        };
        self.discover
            && self.via.is_some()
            && provider.protocol() == Protocol::Tcp
            && way.options(&[]).is_ok()
            && provider.check_dial(way).is_ok()
            && provider.check_session(way).is_ok()
    }

    /// Returns true if this client can use a way that a site announces in opened HTTPS. Only TLS
    /// with a certificate for the site proves that the way belongs to it.
    pub(crate) fn can_discover_opened(&self, way: &Endpoint) -> bool {
        self.discover_opened
            && way.session == SessionKind::H2
            && way.transport == "tls"
            && way.options(&[]).is_ok()
    }
}

/// Returns whether a gateway announces itself: by default if it stands for one site, and admits all
/// visitors.
pub(super) fn announces(asked: Option<bool>, mode: &Mode, open: bool) -> Result<bool, ConfigError> {
    let is_possible = open && matches!(mode, Mode::Reverse { .. });
    if asked == Some(true) && !is_possible {
        let problem = "needs --mode reverse=URL and --open: visitors find a gateway of their site \
                       that admits them";
        return Err(ConfigError::value("announce", problem));
    }
    Ok(asked.unwrap_or(is_possible))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::client::SoloMode;
    use crate::config::client::tests::options;
    use crate::config::gateway::ModeOption;

    fn discovers(change: impl FnOnce(&mut ClientOptions)) -> Result<bool, String> {
        let mut options = ClientOptions {
            gateway: Vec::new(),
            solo: Some(SoloMode::Via),
            ..options("h2+tcp://gw.onion:9980", Some("socks5://127.0.0.1:9050"))
        };
        change(&mut options);
        let config = options.typed().map_err(|error| error.to_string())?;
        Ok(config.discover)
    }

    #[test]
    fn discovery_is_the_default_without_a_gateway() {
        assert_eq!(discovers(|_| {}), Ok(true));
        assert_eq!(
            discovers(|options| options.discover = Some(false)),
            Ok(false)
        );
        let route = "a.onion=h2+tcp://a.onion:9980";
        let routed = |options: &mut ClientOptions| {
            options.solo = None;
            options.route = vec![route.parse().expect("a route")];
        };
        assert_eq!(discovers(routed), Ok(false));
        let fallback = |options: &mut ClientOptions| {
            routed(options);
            options.fallback = Some(Fallback::Via);
        };
        assert_eq!(discovers(fallback), Ok(true));
        let direct = |options: &mut ClientOptions| {
            options.solo = Some(SoloMode::Direct);
            options.via = None;
        };
        assert_eq!(discovers(direct), Ok(false));
    }

    #[test]
    fn discovery_names_the_option_it_needs() {
        let refused = |change: fn(&mut ClientOptions)| {
            let error = discovers(|options| {
                options.discover = Some(true);
                change(options);
            });
            error.expect_err("an error")
        };
        let error = refused(|options| {
            options.solo = Some(SoloMode::Direct);
            options.via = None;
        });
        assert!(error.contains("needs --via"), "{error}");
        let gateway = |options: &mut ClientOptions| {
            options.solo = None;
            options.gateway = vec!["h2+tcp://gw.onion:1".parse().expect("a gateway")];
        };
        let error = refused(gateway);
        assert!(error.contains("contradict"), "{error}");
        let error = refused(|options| {
            options.solo = None;
            let route = "a.onion=h2+tcp://a.onion:9980";
            options.route = vec![route.parse().expect("a route")];
        });
        assert!(error.contains("needs --solo or --fallback via"), "{error}");
    }

    #[test]
    fn gateway_of_an_open_site_announces_itself() {
        let reverse: ModeOption = "reverse=http://127.0.0.1:80".parse().expect("a mode");
        let reverse = reverse.typed().expect("a mode");
        let announces = |asked, mode, open| announces(asked, mode, open).ok();
        assert_eq!(announces(None, &reverse, true), Some(true));
        assert_eq!(announces(Some(false), &reverse, true), Some(false));
        assert_eq!(announces(None, &reverse, false), Some(false));
        assert_eq!(announces(Some(true), &reverse, false), None);
        assert_eq!(announces(None, &Mode::Forward, true), Some(false));
        assert_eq!(announces(Some(true), &Mode::Forward, true), None);
    }

    #[test]
    fn way_over_udp_cannot_be_discovered() {
        let options = ClientOptions {
            gateway: Vec::new(),
            solo: Some(SoloMode::Via),
            ..options("h2+tcp://gw.onion:9980", Some("socks5://127.0.0.1:9050"))
        };
        let config = options.typed().expect("a configuration");
        let can = |way: &str| config.can_discover(&way.parse().expect("an endpoint"));
        assert!(can("h2+tcp://a.onion:9980") && can("h2+tls://a.onion:443"));
        assert!(!can("h3+tcp://a.onion:443") && !can("h3+quic://a.onion:443"));
        assert!(!can("h2+tls://a.onion:443?cert=a&key=b"));
    }
}
