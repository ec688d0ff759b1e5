//! The option `compress`, which client and gateway have in common.

use serde::{Deserialize, Serialize};

/// The compression of bodies between the two proxies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum BodyCompression {
    /// Compress text that holds nothing personal, if both proxies can. Text that the origin sent
    /// with gzip reaches the browser without it
    #[default]
    Auto,
    /// The same for uncompressed text only, so that the browser gets each byte as the origin sent
    /// it
    Exact,
    /// Compress nothing
    Off,
}

impl BodyCompression {
    /// Returns the compression of a client. It is exact by default with `--via`: a tag that the
    /// gateway changed would come back in a request, and show the origin a proxy.
    pub fn of_client(asked: Option<Self>, has_via: bool) -> Self {
        asked.unwrap_or(if has_via { Self::Exact } else { Self::Auto })
    }

    /// Returns true if bodies are compressed.
    pub const fn is_on(self) -> bool {
        matches!(self, Self::Auto | Self::Exact)
    }

    /// Returns true if bodies may lose the coding of their origin.
    pub const fn permits_recoding(self) -> bool {
        matches!(self, Self::Auto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClientOptions;
    use crate::config::client::tests::options;

    #[test]
    fn compression_is_exact_by_default_with_via() {
        let (auto, proxy) = (BodyCompression::Auto, Some("socks5://127.0.0.1:9050"));
        for (via, asked, expected) in [
            (None, None, auto),
            (proxy, None, BodyCompression::Exact),
            (proxy, Some(auto), auto),
        ] {
            let options = ClientOptions {
                compress: asked,
                ..options("h2+tcp://127.0.0.1:1", via)
            };
            assert_eq!(options.typed().unwrap().compress, expected);
        }
    }
}
