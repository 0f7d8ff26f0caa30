//! A key among the subprotocols, for who cannot set headers: `new WebSocket(url, ["bearer", key])`.

/// The subprotocol that the next one is the key of; the only one that is ever answered.
pub const BEARER: &str = "bearer";

/// The key of `Sec-WebSocket-Protocol: bearer, <key>`.
pub fn bearer(offered: &str) -> Option<&str> {
    let mut offered = offered.split(',').map(str::trim);
    offered.find(|name| *name == BEARER)?;
    offered.next().filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_behind_the_word() {
        assert_eq!(bearer("bearer, abc"), Some("abc"));
        assert_eq!(bearer("bearer,abc"), Some("abc"));
        assert_eq!(bearer("chat, bearer, abc, more"), Some("abc"));
        for none in ["", "bearer", "bearer,", "bearer, ", "abc, bearer", "Bearer, abc"] {
            assert_eq!(bearer(none), None, "{none}");
        }
    }
}
