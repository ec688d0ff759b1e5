//! Listeners for both families of addresses on a machine that has only one.
//!
//! `0.0.0.0` is IPv4 only, and `[::]` is IPv6 only. A configuration that names both at one port is
//! for any machine, so it also serves on one whose kernel has no IPv6.

use crate::endpoint::Endpoint;

/// Returns the listeners that this machine can have. It leaves out `[::]` if the kernel has no IPv6
/// and `0.0.0.0` serves the same port.
pub(super) fn present(listen: Vec<Endpoint>) -> Vec<Endpoint> {
    let has_pair = listen
        .iter()
        .any(|it| is_any_v6(it) && has_other(it, &listen));
    if has_pair && !has_ipv6() {
        return without_ipv6(&listen);
    }
    listen
}

fn without_ipv6(listen: &[Endpoint]) -> Vec<Endpoint> {
    let stays = |it: &&Endpoint| !(is_any_v6(it) && has_other(it, listen));
    listen.iter().filter(stays).cloned().collect()
}

/// Returns true if the listener serves all addresses of IPv6.
fn is_any_v6(endpoint: &Endpoint) -> bool {
    let ip = endpoint.ip();
    ip.is_some_and(|ip| ip.is_ipv6() && ip.is_unspecified())
}

/// Returns true if a listener for all addresses of IPv4 has the same session, transport and port.
fn has_other(endpoint: &Endpoint, listen: &[Endpoint]) -> bool {
    listen.iter().any(|other| {
        let ip = other.ip();
        ip.is_some_and(|ip| ip.is_ipv4() && ip.is_unspecified())
            && other.session == endpoint.session
            && other.transport == endpoint.transport
            && other.port == endpoint.port
    })
}

/// Returns whether the kernel has IPv6. Other errors than its absence count as presence, so that
/// the listener reports them.
fn has_ipv6() -> bool {
    let trial = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None);
    let absent = [libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT];
    trial.err().is_none_or(|error| {
        let code = error.raw_os_error();
        code.is_none_or(|code| !absent.contains(&code))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listeners(list: &[&str]) -> Vec<Endpoint> {
        let parse = |text: &&str| text.parse().expect("an endpoint");
        list.iter().map(parse).collect()
    }

    #[test]
    fn machine_without_ipv6_serves_over_ipv4() {
        let both = ["h2+tls://0.0.0.0:443", "h2+tls://[::]:443"];
        assert_eq!(without_ipv6(&listeners(&both)), listeners(&both[..1]));
        // Without the other one, the start must fail rather than serve fewer addresses.
        for needed in [
            ["h2+tls://0.0.0.0:443", "h2+tls://[::]:444"],
            ["h2+tls://0.0.0.0:443", "h3+quic://[::]:443"],
            ["h2+tls://203.0.113.5:443", "h2+tls://[::]:443"],
            ["h2+tls://0.0.0.0:443", "h2+tls://[2001:db8::5]:443"],
        ] {
            let needed = listeners(&needed);
            assert_eq!(without_ipv6(&needed), needed);
        }
    }

    #[test]
    fn listeners_of_one_family_stay() {
        let all = listeners(&["h2+tls://[::]:443", "h2+tcp://127.0.0.1:9980"]);
        assert_eq!(present(all.clone()), all);
    }
}
