//! The forms in which a secret is written by what handles it: a header of HTTP, a URL, JSON, a dump.

use base64::Engine;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// The value itself; in base64, also in the middle of something longer; in hexadecimal; percent-encoded; as a string of JSON.
pub(crate) fn forms(secret: &str) -> impl Iterator<Item = Vec<u8>> {
    let bytes = secret.as_bytes();
    let in_longer = [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD].into_iter().flat_map(move |alphabet| {
        // Three bytes are four letters, so that there are three ways to stand in something longer.
        (0..3).map(move |before| inner_base64(alphabet, before, bytes))
    });
    let hex = |letters: &[u8; 16]| bytes.iter().flat_map(|byte| digits(*byte, letters)).collect::<Vec<u8>>();
    let json = serde_json::Value::from(secret).to_string().into_bytes();
    let json = json.get(1..json.len().saturating_sub(1)).unwrap_or_default().to_vec();
    let whole = [bytes.to_vec(), STANDARD.encode(bytes).into_bytes(), hex(LOWER), hex(UPPER), percent(bytes), json];
    whole.into_iter().chain(in_longer)
}

const LOWER: &[u8; 16] = b"0123456789abcdef";
const UPPER: &[u8; 16] = b"0123456789ABCDEF";

fn digits(byte: u8, letters: &[u8; 16]) -> [u8; 2] {
    let letter = |digit: u8| letters.get(usize::from(digit)).copied().unwrap_or_default();
    [letter(byte >> 4), letter(byte & 15)]
}

/// The letters that `bytes` alone decide, behind `before` other bytes.
fn inner_base64(alphabet: &GeneralPurpose, before: usize, bytes: &[u8]) -> Vec<u8> {
    let padded = [&[0; 2][..before.min(2)], bytes].concat();
    let letters = alphabet.encode(&padded).into_bytes();
    let (start, end) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
    letters.get(start..end).unwrap_or_default().to_vec()
}

fn percent(bytes: &[u8]) -> Vec<u8> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    let encoded = |byte: &u8| match *byte {
        plain if is_plain(plain) => vec![plain],
        byte => [&b"%"[..], &digits(byte, UPPER)].concat(),
    };
    bytes.iter().flat_map(encoded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::{MASK, Redactor};

    const SECRET: &str = "p\"ss/w\u{f6}rd+1 2";

    #[test]
    fn whoever_writes_a_secret_in_a_usual_form_is_masked() {
        let redactor = Redactor::new([SECRET]);
        for (form, masked) in [
            (SECRET.to_owned(), MASK.to_owned()),
            (STANDARD.encode(SECRET), MASK.to_owned()),
            ("702273732f77c3b672642b312032".to_owned(), MASK.to_owned()),
            ("702273732F77C3B672642B312032".to_owned(), MASK.to_owned()),
            ("p%22ss%2Fw%C3%B6rd%2B1%202".to_owned(), MASK.to_owned()),
            (serde_json::to_string(SECRET).unwrap(), format!("\"{MASK}\"")),
        ] {
            assert_eq!(redactor.text(&form), masked, "{form}");
        }
    }

    proptest! {
        #[test]
        fn base64_of_something_longer_tells_none_of_it(before in "[a-z:]{0,7}", after in "[a-z\n]{0,7}", safe: bool) {
            let alphabet = if safe { &URL_SAFE_NO_PAD } else { &STANDARD_NO_PAD };
            let masked = Redactor::new([SECRET]).text(&alphabet.encode(format!("{before}{SECRET}{after}")));
            prop_assert!(masked.contains(MASK), "{}", masked);
            // Two letters at each side belong to a byte of the secret and one beside it.
            let most = (before.len() + after.len()).div_ceil(3) * 4 + 8 + MASK.len();
            prop_assert!(masked.len() <= most, "{}", masked);
        }
    }
}
