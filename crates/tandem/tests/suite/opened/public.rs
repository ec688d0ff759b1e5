//! A web of one host for one test: a public authority, and the certificates of `localhost` that it
//! has signed, with all their faults. The client's own authority is beside them.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, GeneralSubtree, IsCa, Issuer, KeyPair,
    NameConstraints,
};
use tandem::transport::tls::authority;

const DAY: Duration = Duration::from_secs(86_400);

/// The faults of an origin's certificate.
pub(crate) const FAULTS: [&str; 6] = [
    "expired",
    "not yet valid",
    "wrong host",
    "self-signed",
    "unknown root",
    "name constraints",
];

/// The files of a test.
pub(crate) struct Public {
    directory: PathBuf,
}

impl Public {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("tandem-opened-{name}-{}", std::process::id());
        let this = Self {
            directory: std::env::temp_dir().join(name),
        };
        let local = this.authority();
        authority::create(&local, &["site.test".to_owned()], SystemTime::now()).unwrap();
        let (root, root_issuer) = this.issuer("public root", None);
        this.write("root.pem", &root.pem());
        this.certify("good", &root_issuer, leaf("localhost"), None);
        let mut expired = leaf("localhost");
        expired.not_before = (SystemTime::now() - 60 * DAY).into();
        expired.not_after = (SystemTime::now() - 30 * DAY).into();
        this.certify("expired", &root_issuer, expired, None);
        let mut later = leaf("localhost");
        later.not_before = (SystemTime::now() + 30 * DAY).into();
        later.not_after = (SystemTime::now() + 60 * DAY).into();
        this.certify("not yet valid", &root_issuer, later, None);
        this.certify("wrong host", &root_issuer, leaf("other.test"), None);
        let key = KeyPair::generate().unwrap();
        let alone = leaf("localhost").self_signed(&key).unwrap();
        this.write("self-signed.pem", &alone.pem());
        this.write("self-signed.key", &key.serialize_pem());
        let (_, stranger) = this.issuer("unknown root", None);
        this.certify("unknown root", &stranger, leaf("localhost"), None);
        let (between, constrained) = this.issuer("constrained", Some(&root_issuer));
        let leaf = leaf("localhost");
        this.certify("name constraints", &constrained, leaf, Some(&between));
        this
    }

    /// Replaces the client's authority by one that has expired.
    pub(crate) fn expire_authority(&self) {
        let local = self.authority();
        std::fs::remove_dir_all(&local).unwrap();
        let begun = SystemTime::now() - 91 * DAY;
        authority::create(&local, &["site.test".to_owned()], begun).unwrap();
    }

    /// Returns the directory of the client's authority.
    pub(crate) fn authority(&self) -> PathBuf {
        self.directory.join("local")
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Returns the options of an endpoint with a certificate.
    pub(crate) fn identity(&self, name: &str) -> String {
        let file = |kind: &str| self.path(&format!("{name}.{kind}"));
        format!("cert={}&key={}", file("pem"), file("key"))
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.join(name), text).unwrap();
    }

    /// Creates an authority. One that another has signed is constrained to another host.
    fn issuer(
        &self,
        name: &str,
        by: Option<&Issuer<'static, KeyPair>>,
    ) -> (Certificate, Issuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let common = rcgen::DnType::CommonName;
        params.distinguished_name.push(common, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = match by {
            None => params.self_signed(&key).unwrap(),
            Some(by) => {
                params.name_constraints = Some(NameConstraints {
                    permitted_subtrees: vec![GeneralSubtree::DnsName("other.test".into())],
                    excluded_subtrees: Vec::new(),
                });
                params.signed_by(&key, by).unwrap()
            }
        };
        (certificate, Issuer::new(params, key))
    }

    fn certify(
        &self,
        name: &str,
        by: &Issuer<'static, KeyPair>,
        params: CertificateParams,
        between: Option<&Certificate>,
    ) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, by).unwrap();
        let chain = certificate.pem() + &between.map(Certificate::pem).unwrap_or_default();
        self.write(&format!("{name}.pem"), &chain);
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }
}

fn leaf(host: &str) -> CertificateParams {
    CertificateParams::new(vec![host.to_owned()]).unwrap()
}

impl Drop for Public {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
