//! Counts the packets of a program by their destination, with rules of `iptables` for its group.
//!
//! A connection begins with a SYN, so that the rules see each connection that the program opens.
//! Its other packets on loopback answer connections to its listeners.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::Command;

use serde::Serialize;
use tandem_net::emulator::sys::{self, ChildSetup};
use tandem_net::netns::Netns;

use crate::tornet::{TornetError, find_program, keys};

/// The group of the counted program, which no other program has.
pub(super) const GROUP: u32 = 64_123;

/// The rules, from the first. The last one counts everything else.
const RULES: [&str; 3] = [
    "-d 127.0.0.1 -p tcp --dport",
    "-s 127.0.0.1 -d 127.0.0.1 -p tcp ! --syn",
    "",
];

/// Packets that left a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Packets {
    /// To the SOCKS port of `tor`.
    pub to_socks: u64,
    /// To programs that connected to its listeners.
    pub to_programs: u64,
    /// To anything else.
    pub elsewhere: u64,
}

/// The rules in a network, removed with this value.
pub(super) struct Fence<'a> {
    network: &'a Netns,
    port: String,
    programs: [PathBuf; 2],
}

impl<'a> Fence<'a> {
    /// Adds the rules for a program that may connect to `port` only.
    pub(super) fn new(network: &'a Netns, port: &str) -> Result<Self, TornetError> {
        const INSTALL: &str = "install it with: apt-get install iptables";
        let program = |name| find_program(name, INSTALL);
        let fence = Self {
            network,
            port: port.to_owned(),
            programs: [program("iptables")?, program("ip6tables")?],
        };
        fence.remove();
        for rule in fence.rules() {
            fence.run(0, "-A", &rule)?;
        }
        fence.run(1, "-A", "")?;
        Ok(fence)
    }

    fn rules(&self) -> [String; 3] {
        let [socks, ..] = RULES;
        let mut rules = RULES.map(str::to_owned);
        rules[0] = format!("{socks} {}", self.port);
        rules
    }

    /// Runs one of the programs in the network.
    fn run(&self, program: usize, action: &str, rule: &str) -> Result<String, TornetError> {
        let owner = format!("{rule} -m owner --gid-owner {GROUP} -j ACCEPT");
        let mut arguments = vec!["-w", action, "OUTPUT"];
        match action {
            "-L" => arguments.extend(["-v", "-x", "-n"]),
            _ => arguments.extend(owner.split_whitespace()),
        }
        self.output(program, &arguments)
    }

    fn output(
        &self,
        program: usize,
        arguments: &[impl AsRef<OsStr>],
    ) -> Result<String, TornetError> {
        let mut command = Command::new(&self.programs[program]);
        let setup = ChildSetup {
            network: Some(self.network.as_fd()),
            ..ChildSetup::default()
        };
        sys::prepare(command.args(arguments), setup);
        let output = keys::run(&mut command, b"")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the counts so far.
    pub(super) fn packets(&self) -> Result<Packets, TornetError> {
        let (v4, v6) = (self.run(0, "-L", "")?, self.run(1, "-L", "")?);
        let of_rules = [counts(&v4), counts(&v6)].concat();
        match of_rules[..] {
            [to_socks, to_programs, other, over_v6] => Ok(Packets {
                to_socks,
                to_programs,
                elsewhere: other + over_v6,
            }),
            _ => Err(TornetError::State(format!("the rules are gone: {v4}{v6}"))),
        }
    }

    /// Removes the rules, as far as they exist.
    fn remove(&self) {
        for rule in self.rules() {
            let _ = self.run(0, "-D", &rule);
        }
        let _ = self.run(1, "-D", "");
    }
}

impl Drop for Fence<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns the packets of each of our rules in the output of `iptables -L -v -x -n`.
fn counts(list: &str) -> Vec<u64> {
    let owner = format!("owner GID match {GROUP}");
    let own = list.lines().filter(|line| line.contains(&owner));
    own.filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_group() {
        let list = "Chain OUTPUT (policy ACCEPT 12 packets, 800 bytes)\n\
             \x20   pkts      bytes target     prot opt in     out     source   destination\n\
             \x20      5      300 ACCEPT     6    --  *      *       0.0.0.0/0            127.0.0.1            owner GID match 64123 tcp dpt:9050\n\
             \x20      9      300 ACCEPT     0    --  *      *       0.0.0.0/0            0.0.0.0/0            owner GID match 1\n\
             \x20      7      300 ACCEPT     0    --  *      *       0.0.0.0/0            0.0.0.0/0            owner GID match 64123\n";
        assert_eq!(counts(list), [5, 7]);
    }
}
