//! `tandem submit enrol` and `tandem submit tokens`.

use bytes::Bytes;
use tandem_http::{Fields, Method};
use tandem_submit::problem::Problem;
use tandem_tokens::challenge::TokenChallenge;
use tandem_tokens::directory::{self, Directory as IssuerDirectory};
use tandem_tokens::issuance::Unsigned;
use tandem_tokens::key::PublicKey;
use tandem_tokens::token::{REQUEST_TYPE, RESPONSE_TYPE};

use super::StateDirectory;
use super::consistency::{check_challenge, check_key};
use super::keys::{OwnKeys, is_authenticated};
use super::network::{Destination, Outgoing, Received, isolated, printable};
use super::state::{ClientFiles, Settings, UnlinkableSettings};
use crate::cli::{Failure, tell};
use crate::config::read_secret;
use crate::endpoint::Usage;
use crate::exchange::Isolation;
use crate::issuer::now;
use crate::middle::submit::SUBMISSIONS;
use crate::transport::registry::Transports;

/// The error for a gateway that answers without a challenge.
const NO_CHALLENGE: &str =
    "the gateway has no challenge for tokens: check its URL, and its --submit-issuers";

/// The number of tokens to get, unless the user gives one.
const TOKENS: usize = 10;

/// Arguments of `tandem submit enrol`.
#[derive(Debug, clap::Args)]
pub struct EnrolArgs {
    /// URL of the gateway that takes submissions: h2+tls://HOST:PORT?ip=ADDRESS, … HOST is the
    /// origin in the gateway's --submit-issuers
    #[arg(long, value_name = "URL")]
    gateway: String,
    /// URL of a Tandem gateway that relays encapsulated requests, so that the gateway of
    /// submissions does not see this address. Its rules must permit a tunnel to that gateway,
    /// unless --oblivious-key is given
    #[arg(long, value_name = "URL", requires = "issuer")]
    relay: Option<String>,
    /// File with the access token that the relay requires
    #[arg(long, value_name = "FILE", requires = "relay")]
    relay_token_file: Option<String>,
    /// Proxy on the way to all hosts: socks5://ADDRESS:PORT, or Tor's control port
    #[arg(long, value_name = "URL")]
    via: Option<String>,
    /// URL of the issuer, with the name in the gateway's --submit-issuers as its host; without
    /// it, the gateway knows the client (simple mode)
    #[arg(long, value_name = "URL", requires = "token_file")]
    issuer: Option<String>,
    /// File with the token of the account: at the issuer, or at the gateway in the simple mode
    #[arg(long, value_name = "FILE")]
    token_file: Option<String>,
    /// Number of tokens to get [default: 10, or fewer if the account has no more]
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// File with the gateway's key for encapsulated requests (application/ohttp-keys), as its
    /// operator publishes it. It is required if the gateway shows no certificate
    #[arg(long, value_name = "FILE", requires = "issuer")]
    oblivious_key: Option<String>,
    /// Accept a new key of the gateway for encapsulated requests in place of the kept one
    #[arg(long, requires = "issuer")]
    accept_new_key: bool,
    #[command(flatten)]
    directory: StateDirectory,
}

/// Arguments of `tandem submit tokens`.
#[derive(Debug, clap::Args)]
pub struct TokensArgs {
    /// Number of tokens to get [default: 10, or fewer if the account has no more]
    #[arg(value_name = "N")]
    tokens: Option<usize>,
    #[command(flatten)]
    directory: StateDirectory,
}

pub(super) async fn enrol(args: &EnrolArgs, transports: &Transports) -> Result<(), Failure> {
    let absolute = |file: &Option<String>| {
        let path = file.as_ref().map(std::path::absolute).transpose()?;
        Ok::<_, Failure>(path.map(|path| path.display().to_string()))
    };
    let mut settings = Settings {
        gateway: args.gateway.clone(),
        relay: args.relay.clone(),
        relay_token_file: absolute(&args.relay_token_file)?,
        via: args.via.clone(),
        token_file: absolute(&args.token_file)?,
        unlinkable: None,
    };
    // A wrong URL or file is found before anything is written.
    Destination::to_gateway(&settings, transports)?;
    if let Some(file) = &settings.token_file {
        read_secret("token-file", file)?;
    }
    let state = args.directory.open()?;
    if let Some(issuer) = &args.issuer {
        check_parties(&settings, issuer, transports)?;
        let keys = OwnKeys {
            file: args.oblivious_key.as_deref(),
            kept: state.kept_settings()?,
            is_new_accepted: args.accept_new_key,
        };
        keys.check_way(&settings, transports)?;
        let way = Destination::to_gateway(&settings, transports)?;
        challenge(&way, &settings, issuer).await?;
        let (keys, source) = keys.get(&settings, transports).await?;
        settings.unlinkable = Some(UnlinkableSettings {
            issuer: issuer.clone(),
            oblivious_keys: UnlinkableSettings::encode_keys(&keys),
            key_source: Some(source),
        });
    }
    state.write_settings(&settings)?;
    let directory = state.path().display();
    tell(format_args!(
        "settings of {} written to {directory}",
        settings.gateway
    ));
    match settings.unlinkable {
        Some(_) => fetch(&state, &settings, args.tokens, transports).await,
        None => Ok(()),
    }
}

/// Checks that the issuer shows its identity, and that the gateway learns none of this client.
pub(super) fn check_parties(
    settings: &Settings,
    issuer: &str,
    transports: &Transports,
) -> Result<(), Failure> {
    let gateway = Usage::Gateway.parse(&settings.gateway)?;
    if gateway.identity_files()?.is_some() {
        return Err(
            "the certificate in --gateway would show this client to the gateway: leave \
                    out cert= and key= there if you give --issuer"
                .into(),
        );
    }
    let endpoint = Usage::Gateway.parse(issuer)?;
    match is_authenticated(&endpoint, settings.via.as_deref(), transports)? {
        true => Ok(()),
        false => Err(
            "the issuer shows no certificate, so that others on the way would get the \
                      token of the account: give --issuer a URL with TLS"
                .into(),
        ),
    }
}

pub(super) async fn tokens(args: &TokensArgs, transports: &Transports) -> Result<(), Failure> {
    let state = args.directory.open_enrolled()?;
    let settings = state.settings()?;
    fetch(&state, &settings, args.tokens, transports).await
}

/// Gets tokens for the present challenge of the gateway. Without a number, the account may have
/// fewer than the usual one.
async fn fetch(
    state: &ClientFiles,
    settings: &Settings,
    count: Option<usize>,
    transports: &Transports,
) -> Result<(), Failure> {
    let Some(unlinkable) = &settings.unlinkable else {
        return Err("the simple mode needs no tokens: enrol with --issuer".into());
    };
    let gateway = Destination::to_gateway(settings, transports)?;
    let (challenge, key) = challenge(&gateway, settings, &unlinkable.issuer).await?;
    let issuer = Destination::to(&unlinkable.issuer, settings.via.as_deref(), transports)?;
    // The session of this request never carries the account.
    let published = get(&issuer, directory::PATH, isolated()?).await?;
    check_key(&IssuerDirectory::read(&published.body)?, &key, now())?;
    let token_file = settings.token_file.as_deref().unwrap_or_default();
    let account = read_secret("token-file", token_file)?;
    let digest = challenge.digest();
    for number in 0..count.unwrap_or(TOKENS) {
        let (request, unsigned) = Unsigned::new(&key, digest)?;
        let mut fields = Fields::new();
        fields.push("authorization", format!("Bearer {account}"));
        fields.push("content-type", REQUEST_TYPE);
        let request = Outgoing {
            method: Method::Post,
            path: crate::middle::issuer::TOKEN_REQUEST,
            fields,
            body: request.write().into(),
        };
        let response = issuer.send(request, Isolation::none(), None).await?;
        let kind = response.text("content-type").unwrap_or_default();
        if response.status != 200 || kind != RESPONSE_TYPE {
            let problem = response.problem().and_then(|document| document.problem());
            if count.is_none() && number > 0 && problem == Some(Problem::NoTokensLeft) {
                break;
            }
            let refusal = response.refusal();
            return Err(format!("the issuer refuses token {}: {refusal}", number + 1).into());
        }
        state.add_token(&unsigned.sign(&response.body)?)?;
    }
    tell(format_args!("{} tokens are ready", state.count_tokens()?));
    Ok(())
}

/// Returns the challenge of the gateway for the issuer with this URL, and the issuer's key in it.
async fn challenge(
    gateway: &Destination,
    settings: &Settings,
    issuer: &str,
) -> Result<(TokenChallenge, PublicKey), Failure> {
    let request = Outgoing {
        method: Method::Post,
        path: SUBMISSIONS,
        fields: Fields::new(),
        body: Bytes::new(),
    };
    let response = gateway.send(request, isolated()?, None).await?;
    let values = response.fields.get_all("www-authenticate");
    let read = |value: &[u8]| {
        let value = std::str::from_utf8(value).ok()?;
        let (challenge, key) = TokenChallenge::from_www_authenticate(value).ok()?;
        Some((challenge, PublicKey::from_spki(&key).ok()?))
    };
    let mut found: Vec<_> = values.filter_map(read).collect();
    let (issuer, origin) = (host(issuer)?, host(&settings.gateway)?);
    // A gateway has a challenge for each of its issuers.
    found.sort_by_key(|(challenge, _)| challenge.issuer_name != issuer);
    let first = found.into_iter().next();
    let (challenge, key) = first.ok_or_else(|| no_challenge(settings, &response))?;
    check_challenge(&challenge, &issuer, &origin)?;
    Ok((challenge, key))
}

/// Returns the error for a response without a challenge. The relay may have made it.
fn no_challenge(settings: &Settings, response: &Received) -> String {
    let Some(relay) = settings.relay.as_deref() else {
        return match response.status {
            407 => "the gateway wants an access token, as one that takes no submissions does: \
                    check --gateway"
                .to_owned(),
            _ => NO_CHALLENGE.to_owned(),
        };
    };
    let relay = host(relay).unwrap_or_default();
    let status = response.status;
    match status {
        407 if settings.relay_token_file.is_some() => format!(
            "the relay {relay} does not accept the access token (status 407): compare the first \
             line of --relay-token-file with that of the relay's --auth token-file=FILE"
        ),
        407 => format!(
            "the relay {relay} wants an access token (status 407): ask its operator, and give it \
             by --relay-token-file FILE"
        ),
        // A relay tells so of its way to the gateway (RFC 9209).
        403 | 421 | 500.. if response.fields.get("proxy-status").is_some() => {
            let reason = response.text("proxy-status").unwrap_or_default();
            format!(
                "the relay {relay} has not reached the gateway (status {status}: {}): check \
                 --gateway, and the rules and the network of the relay",
                printable(&reason)
            )
        }
        _ => NO_CHALLENGE.to_owned(),
    }
}

/// Returns the host of a URL.
fn host(url: &str) -> Result<String, Failure> {
    Ok(Usage::Gateway.parse(url)?.host)
}

pub(super) async fn get(
    way: &Destination,
    path: &str,
    isolation: Isolation,
) -> Result<Received, Failure> {
    let request = Outgoing {
        method: Method::Get,
        path,
        fields: Fields::new(),
        body: Bytes::new(),
    };
    let response = way.send(request, isolation, None).await?;
    match response.status {
        200 => Ok(response),
        _ => Err(format!("{path}: {}", response.refusal()).into()),
    }
}
