//! A name server for the test domain: every name in it is the web host.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;

use super::layout::{DOMAIN, site_address, site_number};
use tandem_net::netns::Netns;

const HEADER: usize = 12;
const TYPE_A: u16 = 1;
const NXDOMAIN: u8 = 3;
const FORMAT_ERROR: u8 = 1;

/// Starts a server on 127.0.0.1:53 of a namespace; it lives as long as this process.
pub fn serve(netns: &Netns, web: Ipv4Addr) -> io::Result<()> {
    let socket = netns.run(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 53)))?;
    thread::Builder::new().name("dns".into()).spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            if let Some(answer) = answer(&buffer[..len], web) {
                let _ = socket.send_to(&answer, from);
            }
        }
    })?;
    Ok(())
}

/// Returns the response to a query (RFC 1035 section 4), or `None` if the packet is no query.
fn answer(query: &[u8], web: Ipv4Addr) -> Option<Vec<u8>> {
    const RESPONSE: u8 = 0x80;
    const AUTHORITATIVE: u8 = 0x04;
    const RECURSION_DESIRED: u8 = 0x01;
    let header = query.get(..HEADER)?;
    if header[2] & RESPONSE != 0 {
        return None;
    }
    let question = question(&query[HEADER..]);
    let known = question
        .as_ref()
        .is_some_and(|q| q.name.rsplit('.').next() == Some(DOMAIN));
    let code = match &question {
        None => FORMAT_ERROR,
        Some(_) if known => 0,
        Some(_) => NXDOMAIN,
    };
    let has_answer = known && question.as_ref().is_some_and(|q| q.kind == TYPE_A);
    let mut out = header[..2].to_vec();
    out.extend([
        RESPONSE | AUTHORITATIVE | header[2] & RECURSION_DESIRED,
        code,
    ]);
    out.extend([
        0,
        u8::from(question.is_some()),
        0,
        u8::from(has_answer),
        0,
        0,
        0,
        0,
    ]);
    out.extend_from_slice(question.as_ref().map_or(&[][..], |q| q.bytes));
    if has_answer {
        // A pointer to the question's name, type A, class IN, a minute to live, four octets.
        out.extend([0xc0, HEADER as u8, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        let site = question.as_ref().map_or(1, |q| site_number(&q.name));
        out.extend(site_address(web, site).octets());
    }
    Some(out)
}

struct Question<'a> {
    name: String,
    kind: u16,
    bytes: &'a [u8],
}

/// The first question; names in it are not compressed.
fn question(body: &[u8]) -> Option<Question<'_>> {
    let mut labels = Vec::new();
    let mut at = 0;
    loop {
        let len = usize::from(*body.get(at)?);
        at += 1;
        if len == 0 {
            break;
        }
        let label = body.get(at..at + len).filter(|_| len < 64)?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += len;
    }
    let kind = body.get(at..at + 2)?;
    let bytes = body.get(..at + 4)?;
    Some(Question {
        name: labels.join("."),
        kind: u16::from_be_bytes([kind[0], kind[1]]),
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: Ipv4Addr = Ipv4Addr::new(198, 18, 50, 1);

    fn query(name: &str, kind: u8) -> Vec<u8> {
        let mut out = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            out.push(label.len() as u8);
            out.extend_from_slice(label.as_bytes());
        }
        out.extend([0, 0, kind, 0, 1]);
        out
    }

    #[test]
    fn names_of_the_domain_lead_to_the_web_host() {
        let response = answer(&query("Site1.TEST", 1), WEB).expect("a query");
        assert_eq!(response[..8], [0xab, 0xcd, 0x85, 0, 0, 1, 0, 1]);
        assert_eq!(response[response.len() - 4..], WEB.octets());
        let second = answer(&query("site2.test", 1), WEB).expect("a query");
        assert_eq!(second[second.len() - 4..], [198, 18, 50, 2]);
        let other_type = answer(&query("site1.test", 28), WEB).expect("a query");
        assert_eq!(other_type[3..8], [0, 0, 1, 0, 0], "no error, no answer");
    }

    #[test]
    fn other_names_do_not_exist_and_nonsense_is_no_query() {
        assert_eq!(
            answer(&query("example.com", 1), WEB).expect("a query")[3],
            NXDOMAIN
        );
        let whole = query("site1.test", 1);
        for len in 0..HEADER {
            assert_eq!(answer(&whole[..len], WEB), None);
        }
        for len in HEADER..whole.len() {
            assert_eq!(
                answer(&whole[..len], WEB).expect("has a header")[3],
                FORMAT_ERROR,
                "{len}"
            );
        }
        let response = answer(&whole, WEB).expect("a query");
        assert_eq!(answer(&response, WEB), None, "never answers an answer");
    }
}
