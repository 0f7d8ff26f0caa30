//! Who may speak to this server: one bearer token, compared in constant time.

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use sandbox_api::ControlErrorCode;
use subtle::ConstantTimeEq;

use super::Problem;

/// The secret that every request must bring. Its `Debug` form shows nothing.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// A token must be visible ASCII, since it travels in a header.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim_end_matches(['\n', '\r']);
        if text.len() < 16 {
            return Err("the token is shorter than 16 characters".into());
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the token has characters that are not visible ASCII".into());
        }
        Ok(Self(text.to_owned()))
    }

    /// 256 random bits in hexadecimal.
    pub(crate) fn random() -> std::io::Result<Self> {
        Ok(Self(super::random_hex(32)?))
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Refuses a request without this token.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let (scheme, token) = given.split_at(given.len().min("Bearer ".len()));
        let matches = scheme.eq_ignore_ascii_case(b"Bearer ") & bool::from(token.ct_eq(self.0.as_bytes()));
        if matches {
            Ok(())
        } else {
            Err(Problem::new(ControlErrorCode::Unauthenticated, "Authorization: a valid bearer token is needed"))
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn verdict(header: Option<&'static str>) -> bool {
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
        }
        Token::parse("0123456789abcdef").expect("a good token").check(&headers).is_ok()
    }

    #[test]
    fn only_the_exact_token_passes() {
        assert!(verdict(Some("Bearer 0123456789abcdef")));
        assert!(verdict(Some("bearer 0123456789abcdef")));
        for wrong in ["", "Bearer", "Bearer ", "Bearer 0123456789abcdeF", "Bearer 0123456789abcdef0", "Basic x"] {
            assert!(!verdict(Some(wrong)), "{wrong}");
        }
        assert!(!verdict(None));
    }

    #[test]
    fn a_token_never_shows_in_debug_output() {
        let token = Token::parse("0123456789abcdef").expect("a good token");
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn an_unusable_token_is_refused() {
        assert!(Token::parse("").is_err());
        assert!(Token::parse("short").is_err());
        assert!(Token::parse("0123456789abcdef with spaces").is_err());
    }
}
