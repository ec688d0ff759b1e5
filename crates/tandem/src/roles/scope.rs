//! The rules that decide which origin responds to a request, as bytes that names depend on.
//!
//! Gateways of a fleet share responses only under the same rules: a shared response passes by those
//! of the receiver. The files of a cache serve the next process under the same rules only. The
//! bytes are therefore those of one version for good, and do not depend on names in the code:
//!
//! ```text
//!  scope  = "tandem scope 1" mode family texts(allowed networks) ports texts(CA file)
//!  mode   = 0 | 1 scheme target texts(host patterns) | 2 scheme target
//!  target = text(host) port        ports = number port*         text = number bytes
//!  texts  = number text*           number = 4 bytes             port = 2 bytes
//! ```
//!
//! Numbers and ports are big-endian.

use tandem_http::Scheme;

use crate::back::origin::Mode;
use crate::back::policy::{AddressFamily, Policy};
use crate::transport::Target;

/// The rules of a gateway.
pub(super) struct Scope<'a> {
    pub(super) mode: &'a Mode,
    pub(super) policy: &'a Policy,
    pub(super) origin_ca: Option<&'a str>,
}

impl Scope<'_> {
    /// Returns the bytes of the rules. Different rules have different bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = b"tandem scope 1".to_vec();
        match self.mode {
            Mode::Forward => out.push(0),
            Mode::Reverse {
                scheme,
                target,
                hosts,
            } => {
                out.push(1);
                push_target(&mut out, *scheme, target);
                push_texts(&mut out, hosts.iter().map(ToString::to_string));
            }
            Mode::Proxy { scheme, target } => {
                out.push(2);
                push_target(&mut out, *scheme, target);
            }
        }
        // The program whose options make the policy decides the texts of refusals only.
        let Policy {
            of: _,
            family,
            allow,
            ports,
        } = self.policy;
        out.push(match family {
            AddressFamily::Any => 0,
            AddressFamily::V4 => 4,
            AddressFamily::V6 => 6,
        });
        push_texts(&mut out, allow.iter().map(ToString::to_string));
        push_number(&mut out, ports.len());
        out.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        push_texts(&mut out, self.origin_ca.into_iter().map(str::to_owned));
        out
    }
}

fn push_target(out: &mut Vec<u8>, scheme: Scheme, target: &Target) {
    out.push(match scheme {
        Scheme::Http => 0,
        Scheme::Https => 1,
    });
    push_text(out, &target.host);
    out.extend(target.port.to_be_bytes());
}

fn push_texts(out: &mut Vec<u8>, texts: impl ExactSizeIterator<Item = String>) {
    push_number(out, texts.len());
    for text in texts {
        push_text(out, &text);
    }
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    push_number(out, text.len());
    out.extend(text.as_bytes());
}

fn push_number(out: &mut Vec<u8>, number: usize) {
    let number = u32::try_from(number).expect("options have less than 4 GiB");
    out.extend(number.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;

    use super::*;

    fn target(host: &str, port: u16) -> Target {
        Target::new(host.into(), port)
    }

    fn encode(mode: &Mode, policy: &Policy, origin_ca: Option<&str>) -> String {
        let scope = Scope {
            mode,
            policy,
            origin_ca,
        };
        HEXLOWER.encode(&scope.encode())
    }

    /// The vectors never change: files of a cache and gateways of other versions depend on them.
    #[test]
    fn scope_has_the_bytes_of_its_version() {
        const FORWARD: &str = "74616e64656d2073636f7065203100000000000000000002005001bb00000000";
        const REVERSE: &str = "74616e64656d2073636f7065203101010000000b6f726967696e2e7465737420\
         fb00000003000000012a00000006612e74657374000000082a2e622e74657374\
         04000000020000000f31302e302e302e302f383a383038300000000e5b666430\
         303a3a2f385d3a343433000000011f9000000001000000072f63612e70656d";
        const PROXY: &str = "74616e64656d2073636f7065203102000000000a70726f78792e746573740c38\
         06000000000000000000000000";
        assert_eq!(encode(&Mode::Forward, &Policy::default(), None), FORWARD);
        let reverse = Mode::Reverse {
            scheme: Scheme::Https,
            target: target("origin.test", 8443),
            hosts: ["*", "a.test", "*.b.test"]
                .map(|text| text.parse().expect("a pattern"))
                .to_vec(),
        };
        let policy = Policy {
            family: AddressFamily::V4,
            allow: ["10.0.0.0/8:8080", "[fd00::/8]:443"]
                .map(|text| text.parse().expect("a network"))
                .to_vec(),
            ports: vec![8080],
            ..Policy::default()
        };
        assert_eq!(encode(&reverse, &policy, Some("/ca.pem")), REVERSE);
        let proxy = Mode::Proxy {
            scheme: Scheme::Http,
            target: target("proxy.test", 3128),
        };
        let policy = Policy {
            family: AddressFamily::V6,
            ports: vec![],
            ..Policy::default()
        };
        assert_eq!(encode(&proxy, &policy, None), PROXY);
    }
}
