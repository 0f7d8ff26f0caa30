//! What is masked for its shape alone, whosever it is.

use crate::MASK;

/// The text with everything masked that has the shape of a key or a token of this service, whosever it is.
pub fn without_credentials(text: &str) -> String {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let mut masked = String::new();
    let mut rest = text;
    while let Some(at) = ["cfo_", "eyJ"].into_iter().filter_map(|beginning| rest.find(beginning)).min() {
        let (before, from) = rest.split_at(at);
        let length = from.bytes().take_while(is_part).count();
        let (word, after) = from.split_at(length);
        let is_key = word.starts_with("cfo_") && word.len() >= 64;
        let is_token = word.starts_with("eyJ") && word.matches('.').count() >= 2;
        masked.push_str(before);
        masked.push_str(if is_key || is_token { MASK } else { word });
        rest = after;
    }
    masked + rest
}

/// The text with the credentials of every URL in it masked: what stands between `://` and the last `@` before its path.
pub fn without_userinfo(text: &str) -> String {
    let mut masked = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        masked.push_str(before);
        masked.push_str("://");
        let ends = |letter: char| letter.is_whitespace() || "/?#\"'`<>\\".contains(letter);
        let authority = after.split(ends).next().unwrap_or_default();
        rest = match authority.rfind('@').and_then(|at| after.get(at..)) {
            Some(host) => {
                masked.push_str(MASK);
                host
            }
            None => after,
        };
    }
    masked + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_keep_everything_but_their_credentials() {
        for (text, masked) in [
            ("git clone https://u:p@host/a && b", "git clone https://[redacted]@host/a && b"),
            ("https://tok@en@host:1/x http://a@b", "https://[redacted]@host:1/x http://[redacted]@b"),
            ("https://host/a@b ssh://git@host", "https://host/a@b ssh://[redacted]@host"),
            ("a@b :// é://", "a@b :// é://"),
        ] {
            assert_eq!(without_userinfo(text), masked);
        }
    }

    #[test]
    fn keys_and_tokens_of_this_service_are_masked_whosever_they_are() {
        let key = format!("cfo_default_{}_{}", "0".repeat(32), "a".repeat(64));
        let text = format!("curl -H 'Bearer {key}' é {key}x; eyJhbGciOi.eyJpc3Mi.c2lnbmF0dXJl, cfo_short eyJust");
        let expected = format!("curl -H 'Bearer {MASK}' é {MASK}; {MASK}, cfo_short eyJust");
        assert_eq!(without_credentials(&text), expected);
    }
}
