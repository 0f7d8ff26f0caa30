//! The control API as a document.

pub(crate) fn yaml() -> Result<String, String> {
    Err("later".into())
}
