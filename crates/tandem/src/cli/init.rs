//! `tandem init`: asks at most five questions, writes the files of both ends, prints the commands
//! to run, and tests the path where this machine can reach both ends.
//!
//! `questions` asks, `answers` and `proxy` read the answers, and `fit` refuses options that the
//! role does not use. `plan` makes the files of each role, `files` writes them, and `steps` prints
//! the commands.

mod answers;
mod files;
mod fit;
mod plan;
mod proxy;
mod questions;
mod steps;

use std::io::{BufRead, IsTerminal as _, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::ValueEnum as _;

use super::{ClientArgs, Failure, doctor, serve};
use crate::config::ClientOptions;
use crate::config::gateway::ModeOption;
use crate::config::share_url::{MAX_LENGTH, ShareUrl};
use crate::runtime::Running;
use crate::transport::registry::Transports;
use crate::transport::tls::identity;
use answers::{Reached, absolute, address, host, onion_host, port, tor_gateway};
use plan::{CLIENT, GATEWAY, OwnGatewayPlan, Plan};
use proxy::{ask_via, given_via, via};
use questions::{
    ADDRESS, IP, MARKED_PORT, MARKER, ONION, ORIGIN, PORT, Questions, ROLE, TOR_GATEWAY,
};
use steps::print_steps;
pub(super) use steps::quoted;

const EXAMPLES: &str = "Examples:
  tandem init
      Answer the questions
  tandem init own-gateway --address gw.example --ip 203.0.113.5
      Set up a gateway of your own and its client without questions
  tandem init onion-operator --onion /var/lib/tor/site/hostname
      Set up a gateway beside an onion service
  tandem init no-gateway
      Set up a client that needs neither a gateway nor Tor
  tandem init --from 'tandem://gw.example:443?ip=203.0.113.5&token=…'
      Set up a client with the URL of `tandem share`";

/// A set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SetUp {
    /// A gateway on a server of your own, and its client
    OwnGateway,
    /// A gateway beside your onion service
    OnionOperator,
    /// A client that reaches a gateway through Tor
    TorUser,
    /// A gateway at your Tor exit
    Exit,
    /// A client without a gateway and without Tor, for a slow link
    NoGateway,
}

/// Arguments of `tandem init`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct InitArgs {
    /// The set-up [default: ask]
    #[arg(value_enum, value_name = "ROLE", conflicts_with = "from")]
    role: Option<SetUp>,
    /// Set up a client with this tandem:// URL; - reads it from standard input
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// own-gateway: the name or address at which clients reach the gateway; exit: its address
    #[arg(long, value_name = "HOST")]
    address: Option<String>,
    /// own-gateway: the address of the name, so that clients look up no name
    #[arg(long, value_name = "IP")]
    ip: Option<String>,
    /// The gateway's port
    #[arg(long, value_name = "PORT")]
    port: Option<String>,
    /// own-gateway: PEM file of a certificate by a public authority [default: make one]
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// own-gateway: PEM file of its private key
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// onion-operator: the onion address, or Tor's file with it
    #[arg(long, value_name = "NAME")]
    onion: Option<String>,
    /// onion-operator: the URL of the web server
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// tor-user: "sites" for the gateways that sites announce, NAME.onion or its tandem:// URL for
    /// that of one site. For all sites: another URL, an endpoint, or "exit" for Tor exits
    #[arg(long, value_name = "GATEWAY")]
    gateway: Option<String>,
    /// The proxy of the client, such as Tor: socks5://ADDRESS:PORT or tor://ADDRESS:PORT. Without
    /// it, the clients of own-gateway and no-gateway connect directly
    #[arg(long, value_name = "URL")]
    via: Option<String>,
    /// Directory of the files
    #[arg(long, value_name = "DIR", default_value = "tandem")]
    to: PathBuf,
    /// Replace existing files
    #[arg(short, long)]
    yes: bool,
    /// Do not test the path
    #[arg(long)]
    no_test: bool,
}

pub(super) fn run(args: &InitArgs, transports: &Transports) -> Result<(), Failure> {
    let stdin = std::io::stdin();
    let mut questions = Questions {
        asks: stdin.is_terminal() && args.from.as_deref() != Some("-"),
        input: stdin.lock(),
        output: std::io::stdout(),
    };
    let plan = plan_of(args, &mut questions)?;
    let directory = std::path::absolute(&args.to)?;
    let existing = files::existing(&directory, &plan.files);
    if !existing.is_empty() && !args.yes {
        let names: Vec<_> = existing
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let names = names.join(", ");
        if !questions.asks {
            return Err(format!("{names}: exists; add --yes to replace, or --to DIR").into());
        }
        let question = format!("Replace {names}? Copies of old files elsewhere become useless.");
        if !questions.confirm(&question)? {
            return Err("nothing was written".into());
        }
    }
    let is_tested = may_test(args, &mut questions, &plan)?;
    let written = files::write(&directory, &plan.files)?;
    let mut out = questions.output;
    writeln!(out, "Written:")?;
    for path in written {
        writeln!(out, "  {}", path.display())?;
    }
    print_steps(&mut out, &plan, &directory)?;
    test(&mut out, is_tested, &plan, &directory, transports)
}

/// Asks the questions of the set-up.
fn plan_of<I: BufRead, O: Write>(
    args: &InitArgs,
    questions: &mut Questions<I, O>,
) -> Result<Plan, Failure> {
    if let Some(from) = &args.from {
        fit::check(args, None)?;
        let url = match from.as_str() {
            "-" => {
                let mut line = String::new();
                let mut limited = std::io::Read::take(&mut questions.input, MAX_LENGTH as u64 + 2);
                limited.read_line(&mut line)?;
                line.trim().parse::<ShareUrl>()?
            }
            text => text.trim().parse()?,
        };
        let via = via(args, questions, &url)?;
        return plan::shared(&url, via.as_ref());
    }
    let role = match args.role {
        Some(role) => role,
        None => questions.ask(&ROLE, None, |text| {
            let number = text.parse::<usize>().ok();
            let numbered = number.and_then(|it| SetUp::value_variants().get(it.checked_sub(1)?));
            let named = || SetUp::from_str(text, true).ok();
            numbered.copied().or_else(named).ok_or_else(|| {
                format!("{text:?} is no set-up: give a number from 1 to 5, or a name")
            })
        })?,
    };
    fit::check(args, Some(role))?;
    match role {
        SetUp::OwnGateway => own_gateway(args, questions),
        SetUp::OnionOperator => {
            let host = questions.ask(&ONION, args.onion.as_deref(), onion_host)?;
            let origin = questions.ask(&ORIGIN, args.origin.as_deref(), |text| {
                let mode: ModeOption = format!("reverse={text}").parse()?;
                match mode {
                    ModeOption::Reverse(url) => Ok(url),
                    _ => Err(format!("{text:?} is no origin")),
                }
            })?;
            let port = questions.ask(&MARKED_PORT, args.port.as_deref(), port)?;
            let via = given_via(args, questions, false)?;
            Ok(plan::onion(&host, &origin, port, via))
        }
        SetUp::TorUser => {
            let gateway = questions.ask(&TOR_GATEWAY, args.gateway.as_deref(), tor_gateway)?;
            match gateway {
                Reached::Sites => {
                    let via = ask_via(args, questions, None)?;
                    Ok(plan::sites(&via))
                }
                Reached::Url(url) => {
                    let via = ask_via(args, questions, Some(&url.endpoint()?))?;
                    plan::shared(&url, Some(&via))
                }
                Reached::Endpoint(endpoint) => {
                    let via = ask_via(args, questions, Some(&endpoint))?;
                    Ok(plan::forward(&endpoint, &via))
                }
                Reached::Site(endpoint) => {
                    let via = ask_via(args, questions, Some(&endpoint))?;
                    Ok(plan::site(&endpoint, &via))
                }
            }
        }
        SetUp::Exit => {
            let address = questions.ask(&MARKER, args.address.as_deref(), |text| {
                let ip: Option<Ipv4Addr> = text.parse().ok();
                ip.filter(|ip| ip.octets()[..3] == [192, 0, 2])
                    .ok_or_else(|| format!("{text:?} is no address of 192.0.2.0/24"))
            })?;
            let port = questions.ask(&MARKED_PORT, args.port.as_deref(), port)?;
            let via = given_via(args, questions, true)?;
            Ok(plan::exit(address, port, via))
        }
        SetUp::NoGateway => Ok(match given_via(args, questions, false)? {
            Some(via) => plan::proxied(&via),
            None => plan::direct(),
        }),
    }
}

fn own_gateway<I: BufRead, O: Write>(
    args: &InitArgs,
    questions: &mut Questions<I, O>,
) -> Result<Plan, Failure> {
    let host = questions.ask(&ADDRESS, args.address.as_deref(), host)?;
    let ip = if let Ok(ip) = host.parse::<IpAddr>() {
        match args.ip.as_deref() {
            Some(other) if address(other.trim())? != ip => {
                let problem = format!("--ip {other} contradicts --address {host}");
                return Err(format!("{problem}, which is an address already: leave it out").into());
            }
            _ => None,
        }
    } else {
        questions.ask(&IP, args.ip.as_deref(), |text| match text {
            "" => Ok(None),
            text => address(text).map(Some),
        })?
    };
    let port = questions.ask(&PORT, args.port.as_deref(), port)?;
    let identity = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => {
            let (cert, key) = (absolute(cert)?, absolute(key)?);
            identity::check(&cert, &key, &host, SystemTime::now())
                .map_err(|problem| format!("--cert and --key: {problem}"))?;
            Some([cert, key])
        }
        _ => None,
    };
    let own = OwnGatewayPlan {
        host,
        ip,
        port,
        identity,
        via: given_via(args, questions, false)?,
    };
    own.plan(SystemTime::now())
}

/// Tells that the client of a shared URL connects without Tor. Returns whether the test may do so.
fn may_test<I: BufRead, O: Write>(
    args: &InitArgs,
    questions: &mut Questions<I, O>,
    plan: &Plan,
) -> Result<bool, Failure> {
    let Some(direct) = plan.direct.as_ref().filter(|_| !args.no_test) else {
        return Ok(!args.no_test);
    };
    let text = format!("This client connects to {direct} directly, without Tor (see --via).");
    if questions.asks {
        return questions.confirm(&format!("{text} Test the path now?"));
    }
    writeln!(questions.output, "{text}")?;
    Ok(true)
}

/// Tests the path. The gateway of this machine runs for the time of the test.
fn test(
    out: &mut impl Write,
    is_tested: bool,
    plan: &Plan,
    directory: &Path,
    transports: &Transports,
) -> Result<(), Failure> {
    let is_here = plan
        .address
        .is_some_and(|ip| TcpListener::bind((ip, 0)).is_ok());
    if !is_tested || (plan.has_gateway && !is_here) {
        let client = quoted(&directory.join(CLIENT));
        writeln!(
            out,
            "\nTest the path when both ends run:\n  \
             cd {client} && tandem doctor client -c client.toml"
        )?;
        return Ok(());
    }
    writeln!(out, "\nTest of the path:")?;
    let local = tokio::task::LocalSet::new();
    let runtime = super::runtime()?;
    let faults = local.block_on(&runtime, async {
        let running = if plan.has_gateway {
            Some(start_gateway(&directory.join(GATEWAY), transports).await?)
        } else {
            None
        };
        std::env::set_current_dir(directory.join(CLIENT))?;
        let client = doctor::ClientDoctorArgs {
            site: None,
            client: ClientArgs {
                config: Some("client.toml".into()),
                options: ClientOptions::default(),
            },
        };
        let findings = doctor::client(&client, transports).await;
        if let Some(running) = running {
            running.drain(Duration::ZERO).await;
        }
        Ok::<_, Failure>(doctor::print(&findings?))
    });
    match faults {
        // Only the user can name a site that the test may contact.
        Ok(0) if plan.is_for_sites => {
            let (result, site) = match plan.socks {
                Some(_) => ("Tor answers.", "NAME.onion"),
                None => ("The client can run here.", "NAME"),
            };
            writeln!(
                out,
                "{result} This command tests the path to a site:\n  \
                 cd {} && tandem doctor client -c client.toml --site {site}",
                quoted(&directory.join(CLIENT))
            )?;
        }
        Ok(0) => writeln!(out, "The path works.")?,
        Ok(_) => writeln!(
            out,
            "The files are written, and each fault names its remedy."
        )?,
        Err(error) => {
            let problem = "the files are written, but the test could not run";
            return Err(format!("{problem}: {error}").into());
        }
    }
    Ok(())
}

/// Starts the gateway of the written files. Its relative paths start at the working directory.
async fn start_gateway(directory: &Path, transports: &Transports) -> Result<Running, Failure> {
    std::env::set_current_dir(directory)?;
    let file = serve::read(Some(Path::new("gateway.toml")))?;
    let options = file.gateway.unwrap_or_default();
    let config = options.typed_with(transports)?;
    Ok(Running::start(Arc::new(config)).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(input: &str) -> (Result<Plan, String>, usize) {
        let mut questions = Questions {
            input: input.as_bytes(),
            output: Vec::new(),
            asks: true,
        };
        let plan = plan_of(&arguments(&[]), &mut questions).map_err(|error| error.to_string());
        let output = String::from_utf8(questions.output).expect("text");
        (plan, output.matches(": ").count())
    }

    /// Returns the plan of flags alone.
    pub(super) fn planned(given: &[&str]) -> Result<Plan, String> {
        let mut questions = Questions {
            input: &b""[..],
            output: Vec::new(),
            asks: false,
        };
        plan_of(&arguments(given), &mut questions).map_err(|error| error.to_string())
    }

    /// Returns the text of a file of a plan.
    pub(super) fn text_of<'a>(plan: &'a Plan, path: &str) -> &'a str {
        let file = plan.files.iter().find(|file| file.path == path);
        &file.expect("a file").text
    }

    fn arguments(given: &[&str]) -> InitArgs {
        use clap::{Args as _, FromArgMatches as _};
        let command = InitArgs::augment_args(clap::Command::new("init"));
        let matches = command.get_matches_from([&["init"], given].concat());
        InitArgs::from_arg_matches(&matches).expect("arguments")
    }

    #[test]
    fn every_role_asks_at_most_five_questions() {
        let onion = format!("{}.onion", "a".repeat(56));
        for (input, files) in [
            ("own-gateway\ngw.example\n203.0.113.5\n\n".to_owned(), 7),
            ("own-gateway\n127.0.0.1\n8443\n".to_owned(), 7),
            (format!("onion-operator\n{onion}\n\n\n"), 2),
            (format!("tor-user\n{onion}\n\n"), 1),
            ("tor-user\nexit\n\n".to_owned(), 1),
            ("tor-user\n\n\n".to_owned(), 1),
            ("exit\n\n\n".to_owned(), 2),
            ("no-gateway\n".to_owned(), 1),
        ] {
            let (plan, asked) = answered(&input);
            let plan = plan.unwrap_or_else(|error| panic!("{input:?}: {error}"));
            assert_eq!(plan.files.len(), files, "{input:?}");
            assert!(asked <= 6, "{input:?}: {asked}");
        }
    }

    #[test]
    fn role_may_be_a_number_of_the_list() {
        let (plan, _) = answered("0\n6\nx\n5\n");
        assert!(
            plan.expect("a plan").files[0]
                .text
                .contains("solo = \"direct\"")
        );
        for (at, role) in SetUp::value_variants().iter().enumerate() {
            let line = format!("\n  {} {} ", at + 1, fit::name(*role));
            assert!(ROLE.text.contains(&line), "{line}");
        }
    }

    #[test]
    fn wrong_certificate_is_refused_before_writing() {
        let folder = crate::secret::token().expect("random numbers");
        let folder = std::env::temp_dir().join(format!("tandem-init-{folder}"));
        std::fs::create_dir(&folder).expect("a new directory");
        let made = crate::transport::tls::self_signed::self_signed("gw.example", SystemTime::now());
        let made = made.expect("a certificate");
        let [cert, key] = [("cert", made.certificate), ("key", made.key)].map(|(name, text)| {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("a writable directory");
            path.display().to_string()
        });
        let plan = |host: &str, key: &str| {
            let given = [
                "own-gateway",
                "--address",
                host,
                "--cert",
                &cert,
                "--key",
                key,
            ];
            planned(&given)
        };
        assert!(plan("gw.example", &key).is_ok());
        let name = plan("other.example", &key).err().expect("another name");
        assert!(
            name.starts_with("--cert and --key: ") && name.contains("is not for"),
            "{name}"
        );
        assert!(plan("gw.example", &cert).is_err(), "no key");
        std::fs::remove_dir_all(folder).expect("the directory of the test");
    }

    #[test]
    fn tor_user_never_gets_a_direct_client() {
        let onion = format!("{}.onion", "a".repeat(56));
        for gateway in [
            "tandem://gw.example:443?ip=203.0.113.5",
            "tandem://203.0.113.5:443",
            "h2+tls://gw.example:443?ip=203.0.113.5",
            "exit",
            "sites",
            &onion,
        ] {
            let (plan, _) = answered(&format!("tor-user\n{gateway}\n\n"));
            let text = &plan.expect("a plan").files[0].text;
            assert!(text.contains("\nvia = "), "{gateway}: {text}");
        }
    }

    #[test]
    fn direct_test_of_a_shared_url_is_confirmed() {
        let url = "tandem://gw.example:443?ip=203.0.113.5";
        for (given, input, expected) in [
            (&["--from", url][..], "n\n", false),
            (&["--from", url], "y\n", true),
            (&["--from", url, "--no-test"], "", false),
            (
                &["--from", url, "--via", "socks5://127.0.0.1:9050"],
                "",
                true,
            ),
        ] {
            let mut questions = Questions {
                input: input.as_bytes(),
                output: Vec::new(),
                asks: true,
            };
            let args = arguments(given);
            let plan = plan_of(&args, &mut questions).expect("a plan");
            let is_tested = may_test(&args, &mut questions, &plan);
            assert_eq!(is_tested.expect("an answer"), expected, "{given:?}");
            let output = String::from_utf8(questions.output).expect("text");
            assert_eq!(output.contains("gw.example:443"), !input.is_empty());
        }
    }

    #[test]
    fn flags_answer_every_question() {
        let onion = format!("{}.onion", "a".repeat(56));
        let short = "h2+tcp://gw.example:9980";
        for (given, part) in [
            (
                vec!["own-gateway", "--address", "gw.example"],
                "resolve=system",
            ),
            (vec!["onion-operator", "--onion", &onion], "9980"),
            (
                vec!["tor-user", "--gateway", "exit"],
                "tor://127.0.0.1:9051",
            ),
            (
                vec!["tor-user", "--gateway", short],
                "socks5://127.0.0.1:9050",
            ),
            (vec!["tor-user"], "solo = \"via\""),
            (vec!["exit"], "exit=auto"),
            (vec!["no-gateway"], "solo = \"direct\""),
            (vec!["--from", "tandem://a.onion:1?transport=tcp"], "9050"),
            (vec!["--from", "tandem://a.example:1"], "9050"),
            (
                vec!["--from", "tandem://a.example:1?ip=203.0.113.5&via=tor"],
                "9050",
            ),
            (
                vec!["--from", "tandem://a.example:1?resolve=system"],
                "a.example",
            ),
        ] {
            let plan = planned(&given).expect("a plan");
            let text = text_of(&plan, "client/client.toml");
            assert!(text.contains(part), "{given:?}: {text}");
        }
    }
}
