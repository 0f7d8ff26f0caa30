//! Which pages may speak MCP to this service.
//!
//! A browser names the page in `Origin`; other clients send none. A page of another site could reach a server on the
//! reader's own machine by a name that it controls (DNS rebinding), so that foreign ones are refused. Pages on the machine
//! itself, such as inspectors, are allowed, and those that `MCP_ALLOWED_ORIGINS` lists.

const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Whether a page of `origin` may ask the service whose own origin is `own`. `allowed` is a list separated by commas.
pub fn is_allowed(origin: &str, own: &str, allowed: Option<&str>) -> bool {
    let listed = allowed.into_iter().flat_map(|list| list.split(',')).map(str::trim);
    listed.chain([own]).any(|each| !each.is_empty() && each.eq_ignore_ascii_case(origin)) || is_local(origin)
}

fn is_local(origin: &str) -> bool {
    let Some(authority) = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) else {
        return false;
    };
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    LOCAL.iter().any(|local| host.eq_ignore_ascii_case(local))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_local_and_listed_pages_are_allowed_and_no_other() {
        let own = "https://ops.example.com";
        let list = Some("https://a.example, https://b.example");
        for origin in [
            own,
            "http://localhost:6274",
            "http://127.0.0.1",
            "http://[::1]:80",
            "https://a.example",
            "https://B.example",
        ] {
            assert!(is_allowed(origin, own, list), "{origin}");
        }
        for origin in [
            "https://evil.example",
            "null",
            "",
            "http://localhost.evil.example",
            "http://ops.example.com",
            "https://ops.example.com:8443",
            "http://localhost:80@evil.example",
            "http://evil.example:80/localhost",
        ] {
            assert!(!is_allowed(origin, own, list), "{origin}");
        }
    }
}
