//! The local authority of `tandem trust`. Browsers then accept the certificate of a client's TLS
//! listener on this machine, and the client's certificates for the hosts that the user lists.
//!
//! Critical name constraints (RFC 5280 section 4.2.1.10) limit the authority to 127.0.0.1, ::1,
//! localhost and the listed hosts, so that a thief of its key cannot open connections to other
//! hosts. A constraint for a name always permits the names below it too. The key is a file of mode
//! 0600. The keys of certificates exist in memory only: [`super::leaves`] makes those of listed
//! hosts.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PublicKeyData as _,
};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::TlsError;
use super::files::{Validity, certificates};
use crate::renewal::{Renewable, Renewals};

/// The common name of every local authority, before the digits of its key.
pub const NAME: &str = "Tandem local authority";

/// The names that every authority can certify.
pub const HOSTS: [&str; 3] = ["127.0.0.1", "::1", LOCALHOST];

const LOCALHOST: &str = "localhost";

/// The validity of an authority for this machine only.
const AUTHORITY_LIFE: Duration = Duration::from_secs(2 * 365 * 86_400);

/// The validity of an authority for listed hosts, with the time before its creation.
const OPENING_LIFE: Duration = Duration::from_secs(90 * 86_400);

/// The validity of the listener's certificate, which is replaced after half of it.
const LEAF_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// The time by which a certificate begins early, for clocks that are set back.
const BACK_DATED: Duration = Duration::from_secs(86_400);

/// Returns the path of the authority's certificate.
pub fn certificate_file(directory: &Path) -> PathBuf {
    directory.join("authority.pem")
}

/// Returns the path of the authority's key.
pub fn key_file(directory: &Path) -> PathBuf {
    directory.join("authority.key")
}

/// Returns the user's directory for the authority, by the XDG Base Directory Specification, or
/// `None` if the environment names no home.
pub fn default_directory() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .map(|data| data.join("tandem"))
}

/// The remedy for an authority that cannot be read.
const RENEW: &str = "run `tandem trust --remove`, and then `tandem trust` again";

fn failed(directory: &Path, problem: impl ToString) -> TlsError {
    TlsError::Authority {
        directory: directory.display().to_string(),
        problem: problem.to_string(),
    }
}

/// Creates an authority in `directory`, which can also certify the names of `opened` and all names
/// below them.
///
/// # Errors
/// Fails if the files cannot be written or exist already, or if a name cannot stand in a
/// certificate.
pub fn create(directory: &Path, opened: &[String], now: SystemTime) -> Result<(), TlsError> {
    let failed = |problem: &dyn ToString| failed(directory, problem.to_string());
    let key = KeyPair::generate().map_err(|error| failed(&error))?;
    let authority = parameters(&key, opened, now).map_err(|error| failed(&error))?;
    let certificate = authority
        .self_signed(&key)
        .map_err(|error| failed(&error))?;
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(directory).map_err(|error| failed(&error))?;
    let write = |path: PathBuf, mode: u32, text: String| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(mode);
        options
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| failed(&format!("{}: {error}", path.display())))
    };
    write(key_file(directory), 0o600, key.serialize_pem())?;
    write(certificate_file(directory), 0o644, certificate.pem())
}

/// Returns the content of the authority's certificate.
fn parameters(
    key: &KeyPair,
    opened: &[String],
    now: SystemTime,
) -> Result<CertificateParams, rcgen::Error> {
    let mut authority = CertificateParams::new(Vec::new())?;
    let identifier = authority.key_identifier(key);
    let digits = HEXLOWER.encode(&identifier[..identifier.len().min(4)]);
    // Every authority has its own name. Databases of certificates would confuse two of one name.
    let name = &mut authority.distinguished_name;
    name.remove(DnType::CommonName);
    name.push(DnType::CommonName, format!("{NAME} {digits}"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    authority.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let mut permitted_subtrees = vec![
        GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            32,
        )),
        GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(
            IpAddr::V6(Ipv6Addr::LOCALHOST),
            128,
        )),
        GeneralSubtree::DnsName(LOCALHOST.into()),
    ];
    permitted_subtrees.extend(opened.iter().cloned().map(GeneralSubtree::DnsName));
    authority.name_constraints = Some(NameConstraints {
        permitted_subtrees,
        excluded_subtrees: Vec::new(),
    });
    authority.not_before = (now - BACK_DATED).into();
    let end = if opened.is_empty() {
        now + AUTHORITY_LIFE
    } else {
        now + (OPENING_LIFE - BACK_DATED)
    };
    authority.not_after = end.into();
    Ok(authority)
}

/// An authority that was read from its directory.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    opened: Vec<String>,
    validity: Validity,
}

impl Authority {
    /// Reads the authority in `directory`.
    ///
    /// # Errors
    /// Fails if the files are missing or malformed, if others can read the key, or if the key does
    /// not belong to the certificate.
    pub fn load(directory: &Path) -> Result<Self, TlsError> {
        let failed = |problem: &dyn ToString| failed(directory, problem.to_string());
        let (certificate, key) = (certificate_file(directory), key_file(directory));
        let text = std::fs::read_to_string(&key)
            .map_err(|error| failed(&format!("{}: {error}", key.display())))?;
        let mode = std::fs::metadata(&key)
            .map_err(|error| failed(&error))?
            .permissions()
            .mode();
        if mode & 0o077 != 0 {
            let key = key.display();
            let problem = format!("other users can read or change {key}: chmod 600 it");
            return Err(failed(&problem));
        }
        let failed = |problem: &dyn ToString| {
            let problem = problem.to_string();
            failed(&format!("{problem}; {RENEW}"))
        };
        let pair = KeyPair::from_pem(&text)
            .map_err(|error| failed(&format!("{}: {error}", key.display())))?;
        let chain =
            certificates(&certificate.display().to_string()).map_err(|error| failed(&error))?;
        let certificate = chain
            .into_iter()
            .next()
            .ok_or_else(|| failed(&"no certificate"))?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(&certificate).map_err(|error| failed(&error))?;
        if parsed.public_key().raw != pair.subject_public_key_info() {
            return Err(failed(&"the key does not belong to the certificate"));
        }
        let opened = opened(&parsed);
        let validity = Validity::of(&parsed);
        let issuer =
            Issuer::from_ca_cert_der(&certificate, pair).map_err(|error| failed(&error))?;
        Ok(Self {
            issuer,
            certificate,
            opened,
            validity,
        })
    }

    /// Returns the names that the authority can certify besides [`HOSTS`], sorted. They include
    /// the names below them.
    pub fn opened(&self) -> &[String] {
        &self.opened
    }

    /// Returns the period in which the authority is valid.
    pub const fn validity(&self) -> Validity {
        self.validity
    }

    /// Returns whether the name constraints permit `host`, which is in lower case.
    pub fn covers(&self, host: &str) -> bool {
        is_below(host, LOCALHOST) || self.opened.iter().any(|name| is_below(host, name))
    }

    /// Certifies `hosts` with a new key for `life` from `now`. The result is the chain that a
    /// listener presents.
    ///
    /// # Errors
    /// Fails if a host cannot stand in a certificate. A host outside the name constraints is
    /// certified all the same, and browsers refuse the certificate.
    pub fn certify(
        &self,
        hosts: &[&str],
        now: SystemTime,
        life: Duration,
    ) -> Result<(Vec<CertificateDer<'static>>, KeyPair), rcgen::Error> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut leaf = CertificateParams::new(hosts)?;
        let name = &mut leaf.distinguished_name;
        name.remove(DnType::CommonName);
        name.push(DnType::CommonName, "Tandem client");
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        leaf.not_before = (now - BACK_DATED).into();
        leaf.not_after = (now + life).into();
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &self.issuer)?;
        Ok((
            vec![certificate.der().clone(), self.certificate.clone()],
            key,
        ))
    }

    /// Certifies `hosts` like [`Authority::certify`]. An error is a text for the log.
    pub(super) fn issue(
        &self,
        hosts: &[&str],
        now: SystemTime,
        life: Duration,
    ) -> Result<Leaf, String> {
        let (chain, key) = self
            .certify(hosts, now, life)
            .map_err(|error| error.to_string())?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let certified = CertifiedKey::from_der(chain, key.into(), &default_provider())
            .map_err(|error| error.to_string())?;
        Ok(Leaf {
            issued: now,
            certified: Arc::new(certified),
        })
    }
}

/// Returns whether `host` is `name` or ends in a dot and `name`.
fn is_below(host: &str, name: &str) -> bool {
    host.strip_suffix(name)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Reads the names that an authority can certify besides [`HOSTS`].
fn opened(authority: &X509Certificate<'_>) -> Vec<String> {
    let constraints = authority.name_constraints().ok().flatten();
    let permitted = constraints.and_then(|it| it.value.permitted_subtrees.as_ref());
    let mut names: Vec<_> = permitted
        .into_iter()
        .flatten()
        .filter_map(|subtree| match &subtree.base {
            GeneralName::DNSName(name) if *name != LOCALHOST => Some((*name).to_owned()),
            _ => None,
        })
        .collect();
    names.sort();
    names
}

/// Returns the validity of the authority in `directory`.
///
/// # Errors
/// Fails if the certificate cannot be read.
pub fn validity(directory: &Path) -> Result<Validity, TlsError> {
    Validity::of_file(&certificate_file(directory).display().to_string())
}

/// A certificate with its key, in the form that rustls uses.
pub(super) struct Leaf {
    /// The time from which it is valid, without the time before.
    pub(super) issued: SystemTime,
    pub(super) certified: Arc<CertifiedKey>,
}

/// Watches the files of the authority in `directory`. The function `build` makes the value of each
/// authority that was read.
pub(super) fn watched<T: Send + Sync + 'static>(
    directory: &Path,
    renewals: &Renewals,
    build: impl Fn(&Path, Authority) -> Result<T, TlsError> + Send + Sync + 'static,
) -> Result<Arc<Renewable<T>>, TlsError> {
    let name = format!("the local authority in {}", directory.display());
    let files = vec![certificate_file(directory), key_file(directory)];
    let directory = directory.to_owned();
    let load = move || build(&directory, Authority::load(&directory)?);
    Ok(renewals.watch(Renewable::new(name, files, load)?))
}

/// The certificate of a listener on this machine, which is replaced while the program runs.
pub(super) struct LocalIdentity(Arc<Renewable<Local>>);

/// An authority with the certificate that it issued last.
struct Local {
    authority: Authority,
    leaf: Mutex<Leaf>,
}

impl LocalIdentity {
    /// Reads the authority in `directory` and watches its files.
    pub(super) fn watch(directory: &Path, renewals: &Renewals) -> Result<Self, TlsError> {
        let local = watched(directory, renewals, |directory, authority| {
            let leaf = authority
                .issue(&HOSTS, SystemTime::now(), LEAF_LIFE)
                .map_err(|problem| failed(directory, problem))?;
            Ok(Local {
                authority,
                leaf: Mutex::new(leaf),
            })
        });
        Ok(Self(local?))
    }
}

/// Returns true if the certificate is so old, or so far from the clock, that a new one is due.
fn is_stale(leaf: &Leaf, now: SystemTime) -> bool {
    now.duration_since(leaf.issued).map_or_else(
        |back| back.duration() > BACK_DATED / 2,
        |age| age > LEAF_LIFE / 2,
    )
}

impl Local {
    fn certificate(&self, now: SystemTime) -> Arc<CertifiedKey> {
        // The certificate is replaced in one step, so a panic elsewhere leaves it whole.
        let mut leaf = self.leaf.lock().unwrap_or_else(PoisonError::into_inner);
        if is_stale(&leaf, now) {
            match self.authority.issue(&HOSTS, now, LEAF_LIFE) {
                Ok(new) => *leaf = new,
                Err(problem) => {
                    tracing::warn!("the listener keeps its old certificate: {problem}");
                }
            }
        }
        Arc::clone(&leaf.certified)
    }
}

impl std::fmt::Debug for LocalIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LocalIdentity")
    }
}

impl ResolvesServerCert for LocalIdentity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.get().certificate(SystemTime::now()))
    }
}

#[cfg(test)]
mod tests {
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{CertificateError, RootCertStore};

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = format!("tandem-authority-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Verifies a certificate for `host` as a TLS client that trusts the authority.
    fn verify(directory: &Path, host: &str) -> Result<(), rustls::Error> {
        let authority = Authority::load(directory).expect("an authority");
        let (chain, _) = authority
            .certify(&[host], SystemTime::now(), LEAF_LIFE)
            .expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots
            .add(authority.certificate.clone())
            .expect("a trusted root");
        let verifier = WebPkiServerVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::new(default_provider()),
        )
        .build()
        .expect("a verifier");
        let name = ServerName::try_from(host.to_owned()).expect("a name");
        verifier
            .verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now())
            .map(drop)
    }

    #[test]
    fn authority_certifies_this_machine_only() {
        let directory = Directory::new("hosts");
        create(&directory.0, &[], SystemTime::now()).expect("an authority");
        for host in HOSTS {
            assert_eq!(verify(&directory.0, host), Ok(()), "{host}");
        }
        for host in [
            "site.test",
            "127.0.0.2",
            "192.0.2.1",
            "::2",
            "localhost.test",
        ] {
            let refused = verify(&directory.0, host);
            assert!(
                matches!(
                    refused,
                    Err(rustls::Error::InvalidCertificate(CertificateError::Other(
                        _
                    )))
                ),
                "{host}: {refused:?}"
            );
        }
    }

    #[test]
    fn authority_certifies_opened_names() {
        let directory = Directory::new("opened");
        let now = SystemTime::now();
        let opened = ["a.test", "b.test"].map(str::to_owned);
        create(&directory.0, &opened, now).expect("an authority");
        let authority = Authority::load(&directory.0).expect("an authority");
        assert_eq!(authority.opened(), opened);
        for host in ["a.test", "www.b.test", "localhost"] {
            assert_eq!(verify(&directory.0, host), Ok(()), "{host}");
            assert!(authority.covers(host), "{host}");
        }
        for host in ["c.test", "xa.test", "test", "a.test.c.test"] {
            assert!(verify(&directory.0, host).is_err(), "{host}");
            assert!(!authority.covers(host), "{host}");
        }
        let Validity { from, until } = authority.validity();
        assert!(until - from <= 90 * 86_400, "{from} to {until}");
    }

    #[test]
    fn authority_has_critical_constraints() {
        let directory = Directory::new("critical");
        create(&directory.0, &[], SystemTime::now()).expect("an authority");
        let authority = Authority::load(&directory.0).expect("an authority");
        let (_, parsed) =
            x509_parser::parse_x509_certificate(&authority.certificate).expect("a certificate");
        let names = parsed.name_constraints().expect("one").expect("present");
        assert!(names.critical);
        let permitted = names.value.permitted_subtrees.as_ref().expect("some");
        assert_eq!(permitted.len(), HOSTS.len());
        let basic = parsed.basic_constraints().expect("one").expect("present");
        assert!(basic.critical && basic.value.ca);
        assert_eq!(basic.value.path_len_constraint, Some(0));
    }

    #[test]
    fn authority_key_is_private() {
        let directory = Directory::new("mode");
        create(&directory.0, &[], SystemTime::now()).expect("an authority");
        let key = key_file(&directory.0);
        let mode =
            |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&key), mode(&directory.0)), (0o600, 0o700));
        assert!(
            create(&directory.0, &[], SystemTime::now()).is_err(),
            "the files exist"
        );
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).expect("set");
        let refused = Authority::load(&directory.0).err().map(|e| e.to_string());
        assert!(refused.is_some_and(|words| words.contains("chmod 600")));
    }

    #[test]
    fn authority_refuses_another_key() {
        let directory = Directory::new("pair");
        create(&directory.0, &[], SystemTime::now()).expect("an authority");
        let other = KeyPair::generate().expect("a key").serialize_pem();
        std::fs::write(key_file(&directory.0), other).expect("written");
        let refused = Authority::load(&directory.0).err().map(|e| e.to_string());
        assert!(refused.is_some_and(|words| words.contains("does not belong")));
    }

    #[test]
    fn listener_replaces_its_certificate() {
        let directory = Directory::new("renewal");
        create(&directory.0, &[], SystemTime::now()).expect("an authority");
        let authority = Authority::load(&directory.0).expect("an authority");
        let now = SystemTime::now();
        let local = Local {
            leaf: Mutex::new(
                authority
                    .issue(&HOSTS, now, LEAF_LIFE)
                    .expect("a certificate"),
            ),
            authority,
        };
        let at = |time| local.certificate(time).cert[0].clone();
        let first = at(now);
        assert_eq!(at(now + LEAF_LIFE / 2 - BACK_DATED), first);
        let later = now + LEAF_LIFE / 2 + Duration::from_secs(1);
        let second = at(later);
        assert_ne!(second, first);
        assert_eq!(at(later), second);
        assert_ne!(at(now - BACK_DATED), second, "the clock was set back");
    }
}
