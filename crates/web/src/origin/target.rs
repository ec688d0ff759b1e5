//! The parts of a request target: a resource, and parameters of the response.

use std::time::Duration;

use super::Shared;

/// Longest delay that can be asked for.
const MAX_DELAY: Duration = Duration::from_secs(600);

/// A request target, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) what: What,
    pub(super) delay: Duration,
    pub(super) status: Option<u16>,
    pub(super) framing: Option<Unsized>,
    /// Bytes of body after which the connection ends.
    pub(super) cut: Option<u64>,
}

/// The requested resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Resource(usize),
    Bytes(u64),
    Echo,
    Sink,
    /// The root, which leads to the page if the page has another path.
    Root,
    Unknown,
}

/// A framing that does not tell the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsized {
    Chunked,
    Close,
}

impl Target {
    /// A path of the page stands for itself, parameters or not; only where there is none are they
    /// taken out.
    pub(super) fn parse(path: &str, shared: &Shared) -> Self {
        let plain = |what| Self {
            what,
            delay: Duration::ZERO,
            status: None,
            framing: None,
            cut: None,
        };
        if let Some(index) = shared.site.find(path) {
            return plain(What::Resource(index));
        }
        let (base, query) = path.split_once('?').unwrap_or((path, ""));
        let mut target = plain(What::Unknown);
        let rest: Vec<&str> = query
            .split('&')
            .filter(|p| !p.is_empty() && !target.take(p))
            .collect();
        let path = if rest.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", rest.join("&"))
        };
        target.what = match shared.site.find(&path) {
            Some(index) => What::Resource(index),
            None => What::parse(base),
        };
        target
    }

    /// Takes a parameter of ours; false for any other.
    fn take(&mut self, parameter: &str) -> bool {
        match parameter.split_once('=') {
            Some(("delay", ms)) => match ms.parse() {
                Ok(ms) => self.delay = Duration::from_millis(ms).min(MAX_DELAY),
                Err(_) => return false,
            },
            Some(("status", code)) => match code.parse() {
                Ok(code @ 200..=599) => self.status = Some(code),
                _ => return false,
            },
            Some(("framing", "chunked")) => self.framing = Some(Unsized::Chunked),
            Some(("framing", "close")) => self.framing = Some(Unsized::Close),
            Some(("cut", bytes)) => match bytes.parse() {
                Ok(bytes) => self.cut = Some(bytes),
                Err(_) => return false,
            },
            _ => return false,
        }
        true
    }
}

impl What {
    fn parse(base: &str) -> Self {
        match base {
            "/echo" => Self::Echo,
            "/sink" => Self::Sink,
            "/" => Self::Root,
            _ => base
                .strip_prefix("/bytes/")
                .and_then(|number| number.parse().ok())
                .map_or(Self::Unknown, Self::Bytes),
        }
    }
}
