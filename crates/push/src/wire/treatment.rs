//! The field that tells the client how the gateway treated a page.

/// The name of the field. It never leaves the pair of proxies.
pub const PUSH_FIELD: &str = "tandem-push";

/// The treatment of a page at the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// The resources that the page needs are pushed.
    Pushed,
    /// No resource is pushed, so that the benefit of push can be measured.
    HeldOut,
}

impl Treatment {
    /// Returns the value of the field.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pushed => "pushed",
            Self::HeldOut => "held-out",
        }
    }

    /// Reads the value of the field; `None` if it is not a treatment.
    pub fn parse(value: &[u8]) -> Option<Self> {
        [Self::Pushed, Self::HeldOut]
            .into_iter()
            .find(|treatment| treatment.as_str().as_bytes() == value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn treatment_is_read_as_written() {
        for treatment in [Treatment::Pushed, Treatment::HeldOut] {
            let value = treatment.as_str().as_bytes();
            assert_eq!(Treatment::parse(value), Some(treatment));
        }
        assert_eq!(Treatment::HeldOut.as_str(), "held-out");
        for bad in [&b"both"[..], b"", b"Pushed", b"pushed "] {
            assert_eq!(Treatment::parse(bad), None);
        }
    }
}
