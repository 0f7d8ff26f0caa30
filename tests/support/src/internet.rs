//! A stand-in for the internet: an address of documentation that this machine answers as if it were another one.
//!
//! It is routed to this machine and is an address of none of its interfaces, so a sandbox host takes it for one out there.
//! Servers that listen on every address answer there too. Laying the route takes root, or `sudo` without a password.

use std::{
    fs::File,
    io::Read,
    net::Ipv4Addr,
    process::{Command, Stdio},
};

/// One address, which goes when this is dropped.
pub struct Internet {
    /// Where sandboxes with internet find the servers of this machine that listen on every address.
    pub address: Ipv4Addr,
}

impl Internet {
    /// Takes an address that no other test has.
    pub fn connect() -> Self {
        for _ in 0..50 {
            let mut number = [0];
            File::open("/dev/urandom").and_then(|mut it| it.read_exact(&mut number)).expect("the system gives chance");
            let address = Ipv4Addr::new(203, 0, 113, number[0]);
            if route("add", address) {
                return Self { address };
            }
        }
        panic!(
            "no address of 203.0.113.0/24 could be routed here: these tests need iproute2, and root or passwordless sudo"
        );
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        route("del", self.address);
    }
}

fn route(verb: &str, address: Ipv4Addr) -> bool {
    let words = ["ip", "route", verb, "local", &format!("{address}/32"), "dev", "lo"];
    [&words[..], &[&["sudo", "-n"], &words[..]].concat()].iter().any(|words| {
        let status = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    })
}
