//! Parsers for the circuits that Tor's control port reports (control-spec, `CIRC` events), and the
//! rules for relays in one circuit (path-spec section 2.2).

use std::net::{IpAddr, SocketAddr};

/// A circuit that this Tor client has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Circuit {
    /// Tor's number for the circuit, which is never reused.
    pub(crate) id: String,
    /// True once all hops are there and Tor waits for no better guard.
    pub(crate) built: bool,
    /// The fingerprints of the hops so far, 40 upper-case hexadecimal digits each.
    pub(crate) path: Vec<String>,
    /// The purpose of the circuit: `GENERAL`, `CONTROLLER`, ….
    pub(crate) purpose: String,
}

/// Parses the circuits in a reply to `GETINFO circuit-status`.
pub(crate) fn parse_circuits(status: &str) -> Vec<Circuit> {
    status.lines().filter_map(parse_circuit).collect()
}

fn parse_circuit(line: &str) -> Option<Circuit> {
    let mut words = line.split(' ');
    let (id, state) = (words.next()?, words.next()?);
    // Fields that users chose come last and may contain any text. Tor's own fields precede them.
    let purpose = line
        .split(' ')
        .find_map(|word| word.strip_prefix("PURPOSE="))?;
    let path = words
        .next()
        .filter(|word| word.starts_with('$'))
        .unwrap_or_default();
    let path = path
        .split(',')
        .filter(|hop| !hop.is_empty())
        .map(fingerprint)
        .collect::<Option<Vec<_>>>()?;
    let id =
        Some(id).filter(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric()))?;
    Some(Circuit {
        id: id.into(),
        built: state == "BUILT",
        path,
        purpose: purpose.into(),
    })
}

/// Parses the fingerprint of `$FINGERPRINT`, alone or before a name.
fn fingerprint(hop: &str) -> Option<String> {
    let digits = hop.strip_prefix('$')?.get(..40)?;
    let ends = matches!(hop.as_bytes().get(41), None | Some(b'~' | b'='));
    (ends && digits.bytes().all(|b| b.is_ascii_hexdigit())).then(|| digits.to_ascii_uppercase())
}

/// Returns the most advanced state of the streams on this circuit, from a reply to `GETINFO
/// stream-status`.
pub(crate) fn stream_on(status: &str, circuit: &str) -> Option<StreamState> {
    let on_it = status.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (state, own) = (words.next()?, words.next()?);
        (own == circuit).then_some(if state == "SUCCEEDED" {
            StreamState::Open
        } else {
            StreamState::Opening
        })
    });
    on_it.max()
}

/// The state of a stream on a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StreamState {
    /// The exit has not replied yet.
    Opening,
    /// The stream carries data.
    Open,
}

/// The facts that decide whether a relay may share a circuit with another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Relay {
    fingerprint: String,
    nickname: String,
    addresses: Vec<IpAddr>,
    /// The relays that it declares as its family: `$FINGERPRINT` or nicknames. A declaration counts
    /// only if both relays make it. Otherwise a relay could keep others off the circuits that end
    /// at it.
    family: Vec<String>,
    /// The keys of the families that have accepted it.
    keys: Vec<String>,
    /// True if it shows family certificates, which are not parsed here.
    sealed: bool,
}

/// Parses a relay's entry in the consensus (dir-spec section 3.4.1) and its microdescriptor or
/// descriptor.
pub(crate) fn parse_relay(fingerprint: &str, entry: &str, description: &str) -> Option<Relay> {
    let r: Vec<&str> = entry
        .lines()
        .find_map(|line| line.strip_prefix("r "))?
        .split(' ')
        .collect();
    // Nickname, identity, digest, date, time, address.
    let (nickname, address) = (r.first()?, r.get(5)?.parse::<IpAddr>().ok()?);
    let others = entry
        .lines()
        .filter_map(|line| line.strip_prefix("a ")?.parse().ok());
    let mut relay = Relay {
        fingerprint: fingerprint.into(),
        nickname: (*nickname).into(),
        addresses: std::iter::once(address)
            .chain(others.map(|address: SocketAddr| address.ip()))
            .collect(),
        ..Relay::default()
    };
    for line in description.lines() {
        let mut words = line
            .strip_prefix("opt ")
            .unwrap_or(line)
            .split(' ')
            .filter(|word| !word.is_empty());
        match words.next() {
            Some("family") => relay.family.extend(words.map(str::to_owned)),
            Some("family-ids") => relay.keys.extend(words.map(str::to_owned)),
            Some("family-cert") => relay.sealed = true,
            _ => {}
        }
    }
    (!description.is_empty()).then_some(relay)
}

impl Relay {
    fn names(&self, other: &Self) -> bool {
        self.family.iter().any(|member| match fingerprint(member) {
            Some(member) => member == other.fingerprint,
            None => member.eq_ignore_ascii_case(&other.nickname),
        })
    }

    fn is_kin_of(&self, other: &Self) -> bool {
        let declared = self.names(other) && other.names(self);
        let by_key = self.keys.iter().any(|key| other.keys.contains(key));
        let unknown = self.sealed && (other.sealed || !other.keys.is_empty())
            || other.sealed && !self.keys.is_empty();
        declared || by_key || unknown
    }

    fn is_near(&self, other: &Self) -> bool {
        let near = |a: &IpAddr, b: &IpAddr| match (a, b) {
            (IpAddr::V4(a), IpAddr::V4(b)) => a.octets()[..2] == b.octets()[..2],
            (IpAddr::V6(a), IpAddr::V6(b)) => a.octets()[..4] == b.octets()[..4],
            _ => false,
        };
        self.addresses
            .iter()
            .any(|a| other.addresses.iter().any(|b| near(a, b)))
    }
}

/// Returns true if these relays may form a circuit. They must differ, belong to different families
/// and, if `distinct_subnets`, be in different networks.
pub(crate) fn may_share(relays: &[Relay], distinct_subnets: bool) -> bool {
    relays.iter().enumerate().all(|(index, a)| {
        relays[..index].iter().all(|b| {
            a.fingerprint != b.fingerprint && !a.is_kin_of(b) && !(distinct_subnets && a.is_near(b))
        })
    })
}

/// The settings that affect building circuits, as arguments of `GETCONF`.
pub(crate) const SETTINGS: &str = "EnforceDistinctSubnets NodeFamily UseBridges __LeaveStreamsUnattached __DisablePredictedCircuits";

/// Returns true if the relays of a circuit must be in different networks. Returns `None` if no
/// circuit should be built, because the user disabled predicted circuits, attaches streams, or has
/// configured families or bridges that this module cannot check.
pub(crate) fn distinct_subnets<'a>(settings: impl Iterator<Item = &'a str>) -> Option<bool> {
    let mut distinct = None;
    for setting in settings {
        match setting.split_once('=').unwrap_or((setting, "")) {
            ("EnforceDistinctSubnets", value) => distinct = Some(value != "0"),
            (_, "" | "0") => {}
            _ => return None,
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    const B: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB";
    const C: &str = "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC";

    #[test]
    fn circuits_parse_from_status() {
        let status = format!(
            "5 BUILT ${A}~one,${B}=two,${C} BUILD_FLAGS=NEED_CAPACITY PURPOSE=GENERAL TIME_CREATED=x \
             SOCKS_USERNAME=\"x PURPOSE=CONTROLLER\"\n\
             6 LAUNCHED PURPOSE=CONTROLLER TIME_CREATED=x\n\
             7 EXTENDED ${A}~one PURPOSE=GENERAL\n8 GUARD_WAIT ${A} PURPOSE=GENERAL\n\
             9 BUILT $12~short PURPOSE=GENERAL\n10 BUILT\nx;y BUILT PURPOSE=GENERAL\n\n"
        );
        let circuits = parse_circuits(&status);
        let brief: Vec<_> = circuits
            .iter()
            .map(|c| (c.id.as_str(), c.built, c.path.len(), c.purpose.as_str()))
            .collect();
        let expected = [
            ("5", true, 3, "GENERAL"),
            ("6", false, 0, "CONTROLLER"),
            ("7", false, 1, "GENERAL"),
            ("8", false, 1, "GENERAL"),
        ];
        assert_eq!(brief, expected);
        assert_eq!(circuits[0].path, [A, B, C]);
    }

    #[test]
    fn streams_are_found_on_their_circuit() {
        let status = "1 NEW 0 a:1\n2 SENTCONNECT 12 b:1\n3 SUCCEEDED 1 c:1\n4 SUCCEEDED 12 b:1\n5 SENTCONNECT 12 b:1\n6 SENTCONNECT 13 b:1";
        assert_eq!(stream_on(status, "12"), Some(StreamState::Open));
        assert_eq!(stream_on(status, "13"), Some(StreamState::Opening));
        assert_eq!(stream_on(status, "2"), None);
    }

    fn relay(fingerprint: &str, entry: &str, description: &str) -> Relay {
        let entry = entry.replacen(
            "r ",
            &format!("r n{} id digest 2026-01-01 00:00:00 ", &fingerprint[..1]),
            1,
        );
        parse_relay(fingerprint, &entry, &format!("onion-key\n{description}")).expect("complete")
    }

    #[test]
    fn distinct_relays_may_share_a_circuit() {
        let path = |description: &str| {
            [
                relay(A, "r 1.1.1.1 9001 0\na [2001:db8::1]:9001", description),
                relay(B, "r 1.2.1.1 9001 0\na [2001:db9::1]:9001", ""),
                relay(C, "r 1.3.1.1 9001 0", ""),
            ]
        };
        assert!(may_share(&path(""), true));
        assert!(
            may_share(&path(&format!("family ${B} ${C} nB")), true),
            "a declaration of one side"
        );
        let mut same = path("");
        same[2] = same[0].clone();
        assert!(!may_share(&same, false), "guard and exit are one relay");
    }

    #[test]
    fn circuit_rules_keep_networks_apart_on_request() {
        for (a, b, near) in [
            ("r 1.1.1.1 9001 0", "r 1.1.255.255 9001 0", true),
            ("r 1.1.1.1 9001 0", "r 1.2.1.1 9001 0", false),
            (
                "r 1.1.1.1 9001 0\na [2001:db8:1::1]:1",
                "r 1.2.1.1 9001 0\na [2001:db8:2::1]:1",
                true,
            ),
            (
                "r 1.1.1.1 9001 0\na [2001:db8::1]:1",
                "r 1.2.1.1 9001 0\na [2001:db9::1]:1",
                false,
            ),
        ] {
            let path = [relay(A, a, ""), relay(B, b, "")];
            assert_eq!(may_share(&path, true), !near, "{a} {b}");
            assert!(may_share(&path, false));
        }
    }

    #[test]
    fn circuit_rules_keep_families_apart() {
        let kin = |a: &str, b: &str| {
            let path = [
                relay(A, "r 1.1.1.1 1 0", a),
                relay(B, "r 2.1.1.1 1 0", b),
                relay(C, "r 3.1.1.1 1 0", ""),
            ];
            !may_share(&path, true)
        };
        assert!(kin(
            &format!("family ${B}"),
            &format!("family ${C} ${A}=nA")
        ));
        assert!(
            kin("opt family nX nb", "family NA"),
            "nicknames, whatever their case"
        );
        assert!(!kin(&format!("family ${C}"), &format!("family ${A}")));
        assert!(kin(
            "family-ids ed25519:x ed25519:y",
            "family-ids ed25519:y"
        ));
        assert!(!kin("family-ids ed25519:x", "family-ids ed25519:y"));
        assert!(
            kin("family-cert", "family-cert"),
            "which families is not known"
        );
        assert!(
            kin("family-cert", "family-ids ed25519:y")
                && kin("family-ids ed25519:y", "family-cert")
        );
        assert!(
            !kin("family-cert", ""),
            "a relay without families has none in common"
        );
    }

    #[test]
    fn relay_without_enough_facts_is_none() {
        let entry = "r one id digest 2026-01-01 00:00:00 1.1.1.1 1 0\ns Running";
        assert!(parse_relay(A, entry, "onion-key\n").is_some());
        for (entry, description) in [
            (entry, ""),
            ("", "onion-key\n"),
            ("r one id digest 2026-01-01 00:00:00", "onion-key\n"),
        ] {
            assert_eq!(parse_relay(A, entry, description), None);
        }
    }

    #[test]
    fn settings_forbid_circuits() {
        let ask = |changed: &str| {
            let usual = [
                "EnforceDistinctSubnets=1",
                "NodeFamily",
                "UseBridges=0",
                "__LeaveStreamsUnattached=0",
            ];
            let name = changed.split('=').next();
            distinct_subnets(
                usual
                    .into_iter()
                    .filter(|line| line.split('=').next() != name)
                    .chain([changed]),
            )
        };
        assert_eq!(ask("__DisablePredictedCircuits=0"), Some(true));
        assert_eq!(ask("EnforceDistinctSubnets=0"), Some(false));
        assert_eq!(ask("NodeFamily="), Some(true));
        for changed in [
            "NodeFamily=$A,$B",
            "UseBridges=1",
            "__LeaveStreamsUnattached=1",
            "__DisablePredictedCircuits=1",
        ] {
            assert_eq!(ask(changed), None, "{changed}");
        }
        assert_eq!(
            distinct_subnets(["Unrecognized configuration key"].into_iter()),
            None
        );
    }

    proptest::proptest! {
        #[test]
        fn circuit_parsers_accept_any_text(
            status in "([0-9]{1,3} (BUILT|X) ([$][A-F0-9]{38,42}[~,a]?){0,4} (PURPOSE=[A-Z]{0,3})? ?\\PC{0,9}\n){0,6}",
            entry in "((r|a|s) [0-9A-Za-z.:\\[\\] -]{0,60}\n){0,4}",
            description in "((opt )?(family|family-ids|family-cert)( [$A-F0-9~é]{0,45}){0,3}\n){0,4}",
        ) {
            parse_circuits(&status);
            stream_on(&status, "1");
            let relay = parse_relay(A, &entry, &description).unwrap_or_default();
            may_share(&[relay.clone(), relay], true);
            distinct_subnets(status.lines());
        }
    }
}
