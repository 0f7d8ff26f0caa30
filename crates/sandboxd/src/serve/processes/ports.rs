//! Whether something listens on a port of this sandbox's network, read from the kernel's own list. Nothing is connected to:
//! a server that takes one connection would lose it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// Most bytes read of a list. Sockets that listen come first in it.
const MOST_BYTES: u64 = 1 << 20;

/// The kernel's word for a socket that listens.
const LISTENS: &str = "0A";

/// Whether a TCP socket of any address listens on that port.
pub(super) fn listens(port: u16) -> bool {
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().any(|path| File::open(path).is_ok_and(|list| has(list, port)))
}

fn has(list: impl Read, port: u16) -> bool {
    let lines = BufReader::new(list.take(MOST_BYTES)).lines().skip(1);
    lines.map_while(Result::ok).map_while(|line| listening_port(&line)).any(|listening| listening == port)
}

/// The port of a line, as long as it is one of a socket that listens.
fn listening_port(line: &str) -> Option<u16> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, state) = (fields.next()?, fields.nth(1)?);
    let (_, port) = local.rsplit_once(':')?;
    (state == LISTENS).then(|| u16::from_str_radix(port, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_socket_is_found_and_a_closed_one_is_not() {
        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"] {
            let Ok(listener) = std::net::TcpListener::bind(address) else { continue };
            let port = listener.local_addr().expect("an address").port();
            assert!(listens(port), "{address}");
            drop(listener);
            assert!(!listens(port), "{address}");
        }
    }

    #[test]
    fn a_connection_is_not_a_listener() {
        let list = "  sl  local_address rem_address   st\n   0: 0100007F:1F90 00000000:0000 0A 0 0\n   \
            1: 0100007F:1F91 0100007F:1F90 01 0 0\n";
        assert!(has(list.as_bytes(), 8080));
        assert!(!has(list.as_bytes(), 8081));
    }
}
