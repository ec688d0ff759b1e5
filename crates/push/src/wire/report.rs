//! The reports in the body of a companion: five bytes each, a code and the hash of a URL.
//!
//! Five bytes with the hash of cookies may precede the outcome of a push. They belong to the
//! request that takes the push. A gateway that does not know their code skips them.

/// The outcome of a push at the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The response was complete when the browser asked for it.
    Used,
    /// The browser asked while the response was still arriving.
    Late,
    /// The browser did not ask in time.
    Wasted,
    /// The client refused the push, or could not use it.
    Cancelled,
    /// The browser validated its own copy, and the head of the push sufficed as the response.
    Validated,
}

/// The fates in the order of their codes on the wire.
const FATES: [Fate; 5] = [
    Fate::Used,
    Fate::Late,
    Fate::Wasted,
    Fate::Cancelled,
    Fate::Validated,
];

/// The code of [`Report::Holds`].
const HOLDS: u8 = 16;

/// The code before an outcome: the number is the cookie hash of the request that takes the push.
const COOKIES: u8 = 17;

/// The length of a report in bytes.
const REPORT_LEN: usize = 5;

/// A report. The number is the [`url_hash`](super::url_hash) of the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The outcome of a push.
    Became(Fate, u32),
    /// The outcome of a push that a request takes, although its cookies are not known to be those
    /// of the promise.
    Claimed {
        /// The outcome.
        fate: Fate,
        /// The hash of the URL.
        url: u32,
        /// The hash of the request's cookies ([`RequestHashes::cookie`](super::RequestHashes)).
        cookies: u32,
    },
    /// The browser has a response from an earlier session, and can still use it.
    Holds(u32),
}

impl Report {
    /// Appends the report to the body of a companion.
    pub fn encode(self, out: &mut Vec<u8>) {
        let (code, url) = match self {
            Self::Became(fate, url) => (fate as u8, url),
            Self::Claimed { fate, url, cookies } => {
                out.push(COOKIES);
                out.extend_from_slice(&cookies.to_be_bytes());
                (fate as u8, url)
            }
            Self::Holds(url) => (HOLDS, url),
        };
        out.push(code);
        out.extend_from_slice(&url.to_be_bytes());
    }

    /// Reads one report; `None` if its code is unknown. `cookies` is the number that came before
    /// it, if any.
    fn decode(code: u8, url: u32, cookies: Option<u32>) -> Option<Self> {
        if code == HOLDS {
            return Some(Self::Holds(url));
        }
        let fate = *FATES.get(usize::from(code))?;
        Some(match cookies {
            Some(cookies) => Self::Claimed { fate, url, cookies },
            None => Self::Became(fate, url),
        })
    }
}

/// Reads reports from a body that arrives in pieces of any length.
#[derive(Debug, Default)]
pub struct ReportReader {
    partial: Vec<u8>,
    /// The hash of cookies that the next outcome concerns.
    cookies: Option<u32>,
}

impl ReportReader {
    /// Takes the next bytes of the body, and passes each report that is complete to `each`. A
    /// report with an unknown code is skipped.
    pub fn read(&mut self, bytes: &[u8], mut each: impl FnMut(Report)) {
        self.partial.extend_from_slice(bytes);
        let (reports, _) = self.partial.as_chunks::<REPORT_LEN>();
        for [code, number @ ..] in reports {
            let number = u32::from_be_bytes(*number);
            if *code == COOKIES {
                self.cookies = Some(number);
            } else if let Some(report) = Report::decode(*code, number, self.cookies.take()) {
                each(report);
            }
        }
        let complete = reports.len() * REPORT_LEN;
        self.partial.drain(..complete);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_codes_are_fixed() {
        let mut body = Vec::new();
        for fate in FATES {
            Report::Became(fate, 0x0102_0304).encode(&mut body);
        }
        Report::Holds(5).encode(&mut body);
        let claimed = Report::Claimed {
            fate: Fate::Late,
            url: 6,
            cookies: 7,
        };
        claimed.encode(&mut body);
        let codes: Vec<u8> = body.chunks(REPORT_LEN).map(|report| report[0]).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 16, 17, 1]);
        assert_eq!(body[1..5], [1, 2, 3, 4]);
        assert_eq!(body[30..], [17, 0, 0, 0, 7, 1, 0, 0, 0, 6]);
    }

    #[test]
    fn cookies_belong_to_the_next_outcome_alone() {
        let mut body = vec![17, 0, 0, 0, 7];
        Report::Holds(1).encode(&mut body);
        Report::Became(Fate::Used, 2).encode(&mut body);
        let mut read = Vec::new();
        ReportReader::default().read(&body, |report| read.push(report));
        assert_eq!(read, [Report::Holds(1), Report::Became(Fate::Used, 2)]);
    }

    #[test]
    fn report_with_unknown_code_is_skipped() {
        let mut read = Vec::new();
        let body = [5, 0, 0, 0, 1, 15, 0, 0, 0, 1, 18, 0, 0, 0, 1, 3, 0, 0, 0, 9];
        ReportReader::default().read(&body, |report| read.push(report));
        assert_eq!(read, [Report::Became(Fate::Cancelled, 9)]);
    }

    proptest::proptest! {
        #[test]
        fn reader_joins_pieces_of_any_length(
            reports in proptest::collection::vec((0usize..7, proptest::num::u32::ANY), 0..20),
            cut in 1usize..9,
        ) {
            let reports: Vec<Report> = reports
                .into_iter()
                .map(|(fate, url)| match FATES.get(fate) {
                    Some(fate) => Report::Became(*fate, url),
                    None if fate == FATES.len() => Report::Holds(url),
                    None => Report::Claimed { fate: Fate::Late, url, cookies: !url },
                })
                .collect();
            let mut body = Vec::new();
            for report in &reports {
                report.encode(&mut body);
            }
            let (mut reader, mut read) = (ReportReader::default(), Vec::new());
            for piece in body.chunks(cut) {
                reader.read(piece, |report| read.push(report));
            }
            proptest::prop_assert_eq!(read, reports);
        }

        #[test]
        fn reader_keeps_less_than_one_report(bytes: Vec<u8>) {
            let mut reader = ReportReader::default();
            reader.read(&bytes, |_| {});
            proptest::prop_assert!(reader.partial.len() < REPORT_LEN);
        }
    }
}
