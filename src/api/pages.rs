//! Pages that need no key: the description of the API and the viewer that renders it.
//!
//! They are files in `openapi/`, uploaded with the Worker as static assets, so that they cost it neither memory nor start. The
//! viewer is swagger-ui, served from here: it loads nothing from elsewhere, and a key that is typed into it stays in the page.

/// One file, and how it is served.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// Where it is served.
    pub path: &'static str,
    /// The file below `openapi/`.
    pub asset: &'static str,
    /// Its content type.
    pub kind: &'static str,
    /// Its content security policy, where it is a page that runs code.
    pub policy: Option<&'static str>,
}

/// The viewer runs its own two scripts, sets styles, and calls this service alone.
const VIEWER_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Every page.
pub const ALL: &[Page] = &[
    file("/openapi.json", "openapi.json", "application/json"),
    file("/openapi.yaml", "openapi.yaml", "application/yaml"),
    Page { path: "/docs", asset: "docs/index.html", kind: "text/html; charset=utf-8", policy: Some(VIEWER_POLICY) },
    file("/docs/start.js", "docs/start.js", "text/javascript; charset=utf-8"),
    file("/docs/swagger-ui.css", "docs/swagger-ui.css", "text/css; charset=utf-8"),
    file("/docs/swagger-ui-bundle.js", "docs/swagger-ui-bundle.js", "text/javascript; charset=utf-8"),
];

const fn file(path: &'static str, asset: &'static str, kind: &'static str) -> Page {
    Page { path, asset, kind, policy: None }
}
