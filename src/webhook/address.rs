//! Where a webhook may go: to `https` at a public host, and never to a private address, unless the operator allows it.
//!
//! The runtime reads an address by the URL standard, which takes `0x7f.1`, `127.1` or `１２７.0.0.1` for loopback. So nothing is
//! interpreted here: an address is taken only if it stands in its plain form, and everything else is refused. A name that resolves to a
//! private address cannot be seen from here; Cloudflare's network does not lead there.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::error::{Error, ErrorCode, Result};

/// Longest URL that is taken.
pub const LONGEST_URL: usize = 2048;

/// Ends of names that lead into somebody's own network.
const PRIVATE_NAMES: [&str; 14] = [
    "localhost",
    "localdomain",
    "local",
    "internal",
    "intranet",
    "lan",
    "home",
    "home.arpa",
    "corp",
    "private",
    "svc",
    "test",
    "invalid",
    "onion",
];

/// Whether a webhook may reach the operator's own network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Public,
    /// Private addresses and `http` as well.
    Anywhere,
}

impl Reach {
    /// Variable of the Worker that opens private addresses, with the value `allow`.
    pub const VARIABLE: &'static str = "WEBHOOK_PRIVATE_ADDRESSES";

    pub fn configured(value: Option<&str>) -> Self {
        if value.is_some_and(|value| value.trim() == "allow") { Self::Anywhere } else { Self::Public }
    }
}

/// 400 that names the field at `pointer` unless a webhook may go to `url`.
pub fn check(url: &str, reach: Reach, pointer: &str) -> Result<()> {
    refusal(url, reach).map_or(Ok(()), |why| Err(Error::invalid(pointer, why)))
}

/// 400 that names the header of a call's own webhook unless one may go to `url`.
pub fn check_header(url: &str, reach: Reach) -> Result<()> {
    refusal(url, reach).map_or(Ok(()), |why| {
        let error = Error::new(ErrorCode::InvalidArguments, format!("the header Webhook-Url {why}"));
        Err(error.detail("header", "webhook-url"))
    })
}

/// Why a webhook may not go to `url`.
pub fn refusal(url: &str, reach: Reach) -> Option<&'static str> {
    if url.len() > LONGEST_URL {
        return Some("is longer than 2048 characters");
    }
    if !url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') {
        return Some("has characters that a URL holds only percent-encoded");
    }
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    match (scheme.to_ascii_lowercase().as_str(), reach) {
        ("https", _) | ("http", Reach::Anywhere) => {}
        _ => return Some("does not begin with https://"),
    }
    if url.contains('#') {
        return Some("has a fragment, which is never sent");
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') {
        return Some("holds a user or a password; receivers verify the signature instead");
    }
    let Some(host) = host(authority) else {
        return Some(
            "has no host in its plain form, such as hooks.example.com, 192.0.2.1 or [2001:db8::1], with or without a port",
        );
    };
    (reach == Reach::Public && is_private(&host)).then_some("leads to a private or reserved address")
}

enum Host {
    Name(String),
    Ipv4(Ipv4Addr),
    Ipv6(Ipv6Addr),
}

/// The host before an optional port.
fn host(authority: &str) -> Option<Host> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest.split_once(']')?;
            let port = if after.is_empty() { None } else { Some(after.strip_prefix(':')?) };
            (Host::Ipv6(inside.parse().ok()?), port)
        }
        None => {
            let (name, port) = authority.split_once(':').map_or((authority, None), |(name, port)| (name, Some(port)));
            (named(name)?, port)
        }
    };
    port.is_none_or(is_port).then_some(host)
}

fn is_port(port: &str) -> bool {
    port.starts_with(|first: char| matches!(first, '1'..='9')) && port.parse::<u16>().is_ok()
}

fn named(name: &str) -> Option<Host> {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    if name.len() > 253 || !name.split('.').all(is_label) {
        return None;
    }
    // What ends in a number is an address to the URL standard, in whatever form.
    let last = name.rsplit('.').next().unwrap_or_default();
    if last.starts_with(|first: char| first.is_ascii_digit()) {
        return name.parse().ok().map(Host::Ipv4);
    }
    Some(Host::Name(name))
}

fn is_private(host: &Host) -> bool {
    match host {
        Host::Name(name) => {
            let ends = |end: &str| name == end || name.strip_suffix(end).is_some_and(|front| front.ends_with('.'));
            !name.contains('.') || PRIVATE_NAMES.iter().any(|end| ends(end))
        }
        Host::Ipv4(address) => !is_public_ipv4(*address),
        Host::Ipv6(address) => !is_public_ipv6(*address),
    }
}

/// By the registry of special-purpose addresses, RFC 6890.
fn is_public_ipv4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let reserved = matches!(
        (a, b, c),
        (0 | 10 | 127, _, _)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (192, 168, _)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
            | (224.., _, _)
    );
    !reserved
}

/// Only what is given out to networks (2000::/3), without the ranges in it that carry other addresses or none.
fn is_public_ipv6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let is_unicast = (0x2000..0x4000).contains(&first);
    // 2001::/23 (Teredo, ORCHID and others), documentation, 6to4.
    let is_special = (first == 0x2001 && (second < 0x200 || second == 0xdb8))
        || first == 0x2002
        || (first == 0x3fff && second < 0x1000);
    is_unicast && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_hosts_are_taken() {
        for url in [
            "https://hooks.example.com",
            "https://hooks.example.com/",
            "HTTPS://Hooks.Example.COM:8443/a/b?c=d",
            "https://hooks.example.com./x",
            "https://8.8.8.8/x",
            "https://[2606:4700::1111]:443/x",
            "https://xn--bcher-kva.example/x?u=https%3A%2F%2F127.0.0.1",
            "https://a_b.example.com?x",
        ] {
            assert_eq!(refusal(url, Reach::Public), None, "{url}");
        }
    }

    #[test]
    fn private_addresses_are_refused_in_every_form() {
        for host in [
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f.0.0.1",
            "0x7f000001",
            "0177.0.0.1",
            "127.0.0.1.",
            "0",
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::ffff:8.8.8.8]",
            "[fc00::1]",
            "[fd12::1]",
            "[fe80::1]",
            "[ff02::1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "[2001::1]",
            "[2001:db8::1]",
            "localhost",
            "LOCALHOST",
            "localhost.",
            "a.localhost",
            "printer.local",
            "db.internal",
            "x.home.arpa",
            "router.lan",
            "metadata",
            "localhost.localdomain",
            "kubernetes.default.svc",
            "router.home",
            "x.corp",
            "x.private",
            "x.test",
            "x.invalid",
            "x.onion",
            "１２７.0.0.1",
            "127。0。0。1",
            "%31%32%37.0.0.1",
            "127.0.0.1%00.example.com",
            "1.2.3",
            "1.2.3.4.5",
        ] {
            for url in [format!("https://{host}/x"), format!("https://{host}:8443"), format!("https://{host}?x")] {
                assert!(refusal(&url, Reach::Public).is_some(), "{url}");
            }
        }
    }

    #[test]
    fn what_is_no_plain_url_is_refused_everywhere() {
        for url in [
            "",
            "https://",
            "https:///x",
            "hooks.example.com",
            "ftp://hooks.example.com",
            "javascript:alert(1)",
            "https:hooks.example.com",
            "https:/\\127.0.0.1",
            "https://example.com\\@127.0.0.1/",
            "https://user@example.com",
            "https://u:p@example.com",
            "https://example.com:0/",
            "https://example.com:99999/",
            "https://example.com:8x/",
            "https://example.com:+80/",
            "https://example.com:080/",
            "https://example.com:/",
            "https://exa mple.com",
            "https://example.com/\n",
            "https://example.com/ü",
            "https://example.com/#a",
            "https://a..b/",
            "https://[::1",
            "https://[::1]x/",
            "https://.example.com",
        ] {
            for reach in [Reach::Public, Reach::Anywhere] {
                assert!(refusal(url, reach).is_some(), "{url}");
            }
        }
        assert!(refusal(&format!("https://example.com/{}", "x".repeat(LONGEST_URL)), Reach::Anywhere).is_some());
    }

    #[test]
    fn the_operator_can_open_private_addresses_and_http() {
        assert_eq!(Reach::configured(Some(" allow ")), Reach::Anywhere);
        for other in [None, Some(""), Some("1"), Some("true")] {
            assert_eq!(Reach::configured(other), Reach::Public);
        }
        for url in ["http://127.0.0.1:9000/x", "https://localhost/x", "http://[::1]/"] {
            assert_eq!(refusal(url, Reach::Anywhere), None, "{url}");
        }
        assert!(refusal("http://hooks.example.com/", Reach::Public).is_some());
    }
}
