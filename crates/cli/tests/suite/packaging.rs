//! Tests of the packages' descriptions: the manifest of the Debian packages, the units, and the
//! file of the container.

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

/// Returns the instructions of the file of the gateway's container: each with its arguments.
fn container() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join("packaging/Containerfile")).unwrap();
    let text = text.replace("\\\n", " ");
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    let split = |line: &str| {
        let (instruction, arguments) = line.split_once(' ').unwrap();
        (instruction.to_owned(), arguments.trim().to_owned())
    };
    lines.map(split).collect()
}

#[test]
fn container_copies_files_that_exist() {
    let built = "/src/target/release/tandem";
    let mut copies = 0;
    for (_, arguments) in container().iter().filter(|(it, _)| it == "COPY") {
        copies += 1;
        let mut files: Vec<_> = arguments.split_whitespace().collect();
        let target = files.pop().unwrap();
        if files[0] == "--from=build" {
            assert_eq!((files[1], target), (built, "/usr/bin/tandem"));
            continue;
        }
        for file in files {
            assert!(root().join(file).exists(), "{file}");
        }
    }
    assert_eq!(copies, 3);
}

#[test]
fn container_runs_the_gateway_as_its_unit_does() {
    let container = container();
    let last = |instruction: &str| {
        let found = container.iter().rev().find(|(it, _)| it == instruction);
        found.map(|(_, arguments)| arguments.as_str()).unwrap()
    };
    let words = |instruction: &str| -> Vec<String> {
        let list: toml::Table = format!("list = {}", last(instruction)).parse().unwrap();
        let list = list["list"].as_array().unwrap();
        list.iter()
            .map(|word| word.as_str().unwrap().to_owned())
            .collect()
    };
    let unit = root().join("packaging/systemd/tandem-gateway.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let of_unit = |key: &str| {
        unit.lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap()
    };
    let command = [words("ENTRYPOINT"), words("CMD")].concat().join(" ");
    assert_eq!(command, of_unit("ExecStart="));
    assert_eq!(last("WORKDIR"), of_unit("WorkingDirectory="));
    // A user without rights needs a port from 1024 on. SIGTERM lets exchanges end.
    assert_eq!(
        (last("USER"), last("STOPSIGNAL")),
        ("65532:65532", "SIGTERM")
    );
    assert!(last("EXPOSE").parse::<u16>().is_ok_and(|port| port >= 1024));
    let arguments: Vec<_> = command.split(' ').skip(1).collect();
    let mut arguments = arguments.clone();
    *arguments.last_mut().unwrap() = "/nonexistent/gateway.toml";
    let (ok, _, error) = run(&arguments);
    assert!(
        !ok && error.contains("/nonexistent/gateway.toml"),
        "{error}"
    );
}

#[test]
fn container_is_built_as_a_release_is() {
    let container = container();
    let all = |instruction: &'static str| {
        let found = container.iter().filter(move |(it, _)| it == instruction);
        found.map(|(_, arguments)| arguments.as_str())
    };
    let release = std::fs::read_to_string(root().join("packaging/release.sh")).unwrap();
    let features = release
        .lines()
        .find_map(|line| line.strip_prefix("features="))
        .unwrap();
    let build = format!("cargo build --release --locked -p tandem-cli --features {features} ");
    assert!(
        all("RUN").any(|command| command.starts_with(&build)),
        "{build}"
    );
    // Both images are of one release of Debian, and the compiler is new enough.
    let images: Vec<_> = all("ARG").filter_map(|it| it.split_once('=')).collect();
    let [(_, compiler), (_, system)] = images[..] else {
        panic!("{images:?}");
    };
    let (version, debian) = compiler
        .trim_start_matches("rust:")
        .split_once('-')
        .unwrap();
    assert!(
        system.starts_with(&format!("debian:{debian}")),
        "{images:?}"
    );
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let needed = manifest["workspace"]["package"]["rust-version"]
        .as_str()
        .unwrap();
    let number =
        |text: &str| -> Vec<u32> { text.split('.').map(|it| it.parse().unwrap()).collect() };
    assert!(
        number(version) >= number(needed)[..2].to_vec(),
        "{version} and {needed}"
    );
}
