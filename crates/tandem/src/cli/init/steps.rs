//! The commands that `tandem init` prints for the user.

use std::io::Write;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::plan::{CLIENT, GATEWAY, Plan, SOCKS_PORT};
use crate::cli::Failure;

/// Prints the steps that are left for the user.
pub(super) fn print_steps(
    out: &mut impl Write,
    plan: &Plan,
    directory: &Path,
) -> Result<(), Failure> {
    let (gateway, client) = (directory.join(GATEWAY), directory.join(CLIENT));
    for step in &plan.steps {
        writeln!(out, "\n{step}")?;
    }
    if plan.has_gateway {
        writeln!(
            out,
            "\nStart the gateway (if it is another machine, copy the directory there):\n  \
             cd {} && tandem gateway -c gateway.toml",
            quoted(&gateway)
        )?;
    }
    let client = quoted(&client);
    writeln!(
        out,
        "\nStart the client beside the browser:\n  cd {client} && tandem client -c client.toml"
    )?;
    if plan.has_gateway {
        writeln!(
            out,
            "\nThis command prints a URL for other machines (tandem init --from 'URL'):\n  \
             cd {client} && tandem share -c client.toml"
        )?;
    }
    if plan.has_dashboard {
        writeln!(
            out,
            "\nOpen the client's dashboard:\n  cd {client} && tandem open -c client.toml"
        )?;
    }
    match plan.socks {
        None => writeln!(
            out,
            "\nSet the browser's automatic proxy configuration to http://127.0.0.1:8118/proxy.pac"
        )?,
        Some(port) => write!(out, "{}", tor_browsers(port))?,
    }
    Ok(())
}

/// Returns the settings of browsers behind Tor. The automatic configuration names the HTTP
/// listener, where browsers send no isolation keys, so that all sites would share a circuit.
fn tor_browsers(port: u16) -> String {
    let mut text = if port == SOCKS_PORT {
        "\nStart Tor Browser without its own Tor. It uses socks5://127.0.0.1:9150, with a key for \
         each site:\n  TOR_PROVIDER=none ./start-tor-browser\n"
            .to_owned()
    } else {
        format!(
            "\nStart Tor Browser, open about:config, and set network.proxy.socks_port to {port}, \
             after each\nstart. It sends a key for each site to socks5://127.0.0.1:{port}.\n"
        )
    };
    text.push_str(&format!(
        "\nAny other browser sends no keys, so that all its sites share a circuit. Firefox: \
         Settings, Network\nSettings, Manual proxy, SOCKS host 127.0.0.1, port {port}, SOCKS v5, \
         Proxy DNS when using SOCKS v5.\n"
    ));
    text
}

/// Quotes a path for a POSIX shell, where needed.
pub(in crate::cli) fn quoted(path: &Path) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-+".contains(&b);
    let Some(text) = path.to_str() else {
        // No terminal shows these bytes. POSIX has printf for them, and no quotes with escapes.
        let escaped = path
            .as_os_str()
            .as_bytes()
            .iter()
            .map(|&b| match is_plain(b) {
                true => char::from(b).to_string(),
                false => format!("\\0{b:03o}"),
            });
        return format!("\"$(printf %b '{}')\"", escaped.collect::<String>());
    };
    if text.bytes().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_path_is_one_word_of_a_shell() {
        assert_eq!(quoted(Path::new("/srv/tandem")), "/srv/tandem");
        assert_eq!(quoted(Path::new("/a b/c'd")), r"'/a b/c'\''d'");
    }

    #[test]
    fn quoted_path_is_the_same_path_for_a_shell() {
        for path in [
            &b"/srv/n\xff"[..],
            b"/a b'\\\"$x\xe4",
            b"/a b'c\"d",
            "/ä".as_bytes(),
        ] {
            let quoted = quoted(Path::new(std::ffi::OsStr::from_bytes(path)));
            let script = format!("printf %s {quoted}");
            let output = std::process::Command::new("sh")
                .args(["-c", &script])
                .output();
            assert_eq!(output.expect("a shell").stdout, path, "{quoted}");
        }
    }
}
