//! The certificates of gateways and clients: chains, large ones, required and optional ones.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tandem::runtime::Running;

use crate::certificates::Certificates;
use crate::harness::{block_on, endpoint, gateway_options};
use crate::provided::{get, listener, start_client, start_gateway, stop};
use crate::transports;

/// Replaces the gateway's certificate by one with a chain of `between` authorities, and with many
/// names. Returns the size of the chain in bytes.
fn replace_gateway(certificates: &Certificates, between: usize, names: usize) -> usize {
    let authority = || {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params, KeyPair::generate().unwrap())
    };
    let (root, root_key) = authority();
    let pem = root.self_signed(&root_key).unwrap().pem();
    std::fs::write(certificates.path("ca.pem"), pem).unwrap();
    let mut issuer = Issuer::new(root, root_key);
    let mut chain = Vec::new();
    for number in 0..between {
        let (mut params, key) = authority();
        let name = format!("intermediate {number}");
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        chain.insert(0, params.signed_by(&key, &issuer).unwrap());
        issuer = Issuer::new(params, key);
    }
    let key = KeyPair::generate().unwrap();
    let more = (0..names).map(|number| format!("name-{number}.gw.example"));
    let names: Vec<_> = ["127.0.0.1".to_owned()].into_iter().chain(more).collect();
    let own = CertificateParams::new(names).unwrap();
    chain.insert(0, own.signed_by(&key, &issuer).unwrap());
    let pem: String = chain.iter().map(rcgen::Certificate::pem).collect();
    std::fs::write(certificates.path("gateway.pem"), pem).unwrap();
    std::fs::write(certificates.path("gateway.key"), key.serialize_pem()).unwrap();
    chain.iter().map(|one| one.der().len()).sum()
}

#[test]
fn client_accepts_a_gateway_with_a_chain() {
    let certificates = Certificates::new("dtls-chain");
    replace_gateway(&certificates, 2, 0);
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let (client, http) = start_client(&certificates, address, |_| {});
    assert_eq!(get(http), (200, "ok".into()));
    stop([client, gateway]);
}

#[test]
fn client_takes_a_large_certificate() {
    let certificates = Certificates::new("dtls-large");
    let size = replace_gateway(&certificates, 0, 240);
    assert!((5_000..6_000).contains(&size), "{size} bytes");
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let (client, http) = start_client(&certificates, address, |_| {});
    assert_eq!(get(http), (200, "ok".into()));
    stop([client, gateway]);
}

#[test]
fn gateway_refuses_a_chain_without_room() {
    let certificates = Certificates::new("dtls-huge");
    let size = replace_gateway(&certificates, 0, 500);
    assert!(size > 10_000, "{size} bytes");
    let mut options = gateway_options();
    options.listen = vec![endpoint(&listener(&certificates, 0))];
    let config = options.typed_with(&transports()).unwrap();
    let error = block_on(Running::start(Arc::new(config))).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("dtls has room for 6144"), "{text}");
}

#[test]
fn client_names_the_remedy_for_an_authority() {
    let certificates = Certificates::new("dtls-authority");
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).unwrap().pem();
    for name in ["ca.pem", "gateway.pem"] {
        std::fs::write(certificates.path(name), &pem).unwrap();
    }
    std::fs::write(certificates.path("gateway.key"), key.serialize_pem()).unwrap();
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let (client, http) = start_client(&certificates, address, |_| {});
    let (status, text) = get(http);
    assert!(
        status >= 500 && text.contains("basicConstraints=critical,CA:FALSE"),
        "{text}"
    );
    stop([client, gateway]);
}
