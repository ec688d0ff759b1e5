//! Tests of the packages' descriptions: the manifest of the Debian packages, and the units.

use std::path::{Path, PathBuf};

use crate::process::run;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the table of the Debian packages.
fn manifest() -> toml::Table {
    let text = std::fs::read_to_string(root().join("crates/cli/Cargo.toml")).unwrap();
    let manifest: toml::Table = text.parse().unwrap();
    let package = manifest["package"]["metadata"]["deb"].as_table();
    package.unwrap().clone()
}

/// Returns the files that a package takes from the sources, with their directories in the system.
fn assets(package: &toml::Value) -> Vec<(String, String)> {
    let assets = package["assets"].as_array().unwrap();
    let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
    assets
        .iter()
        .map(|asset| (text(&asset[0]), text(&asset[1])))
        .collect()
}

#[test]
fn packages_name_files_that_exist() {
    let manifest = manifest();
    let mut packages = vec![toml::Value::Table(manifest.clone())];
    packages.extend(manifest["variants"].as_table().unwrap().values().cloned());
    assert_eq!(packages.len(), 5);
    for package in &packages {
        for (source, _) in assets(package) {
            let is_built = source.starts_with("target/") || source.contains("/generated/");
            let path = root().join("crates/cli").join(&source);
            assert!(is_built || path.is_file(), "{source}");
        }
        let files = package.get("conf-files").and_then(|it| it.as_array());
        for file in files.into_iter().flatten() {
            let file = file.as_str().unwrap().trim_start_matches('/');
            let name = file.rsplit('/').next().unwrap();
            let places = assets(package);
            let mut sources = places.iter().filter(|(_, to)| file.starts_with(to));
            assert!(sources.any(|(source, _)| source.ends_with(name)), "{file}");
        }
    }
}

#[test]
fn packages_start_no_service() {
    for (role, package) in manifest()["variants"].as_table().unwrap() {
        let units = &package["systemd-units"];
        assert_eq!(units["enable"].as_bool(), Some(false), "{role}");
        assert_eq!(units["start"].as_bool(), Some(false), "{role}");
        let name = units["unit-name"].as_str().unwrap();
        let unit = format!("packaging/systemd/{name}.service");
        assert!(root().join(unit).is_file(), "{role}");
    }
}

#[test]
fn units_run_commands_that_exist() {
    for (unit, lines) in [
        ("tandem-client.service", 2),
        ("tandem-gateway.service", 2),
        ("tandem-relay.service", 2),
        ("tandem-issuer.service", 2),
        ("user/tandem-client.service", 2),
    ] {
        let text = std::fs::read_to_string(root().join("packaging/systemd").join(unit)).unwrap();
        let commands: Vec<Vec<_>> = text
            .lines()
            .filter_map(|line| line.strip_prefix("ExecStart"))
            .filter_map(|line| line.split_once("=/usr/bin/tandem "))
            .map(|(_, arguments)| arguments.split(' ').collect())
            .collect();
        assert_eq!(commands.len(), lines, "{unit}");
        for mut arguments in commands {
            // The command reads the file first, so an absent file shows that the arguments are
            // valid.
            *arguments.last_mut().unwrap() = "/nonexistent/tandem.toml";
            let (ok, _, error) = run(&arguments);
            assert!(!ok && error.contains("/nonexistent/tandem.toml"), "{error}");
            assert!(!error.contains("Usage:"), "{unit}: {error}");
        }
        assert!(text.contains("ConditionPathExists="), "{unit}");
    }
}
