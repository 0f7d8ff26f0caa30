//! The size of the Worker against its budget, which is kept in `wasm-size-budget.json` at the root.
//!
//! The platform's limits are far above it: the budget exists so that growth is a decision in a commit. The compressed size
//! is what an upload and a cold start pay for.

use crate::{terminal, workspace};
use anyhow::{Context, Result, bail};
use flate2::{Compression, write::GzEncoder};
use std::fs;
use std::io::Write;
use std::path::Path;

const BUDGET: &str = "wasm-size-budget.json";

#[derive(Debug, PartialEq)]
struct Size {
    raw: u64,
    gzip: u64,
}

pub(crate) fn check(wasm: &Path) -> Result<()> {
    let bytes = fs::read(wasm).with_context(|| format!("cannot read {}", wasm.display()))?;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&bytes)?;
    let size = Size { raw: bytes.len() as u64, gzip: encoder.finish()?.len() as u64 };
    let budget = parse(&workspace::read(BUDGET)?)?;
    let kilobytes = |count: u64| count.div_ceil(1000);
    terminal::note(&format!(
        "WebAssembly: {} kB, gzipped {} kB (budget {} and {} kB)",
        kilobytes(size.raw),
        kilobytes(size.gzip),
        kilobytes(budget.raw),
        kilobytes(budget.gzip)
    ));
    if exceeds(&size, &budget) {
        bail!(
            "the Worker is larger than {BUDGET} allows: make it smaller, or raise the budget in the commit that needs it"
        );
    }
    Ok(())
}

fn exceeds(size: &Size, budget: &Size) -> bool {
    size.raw > budget.raw || size.gzip > budget.gzip
}

fn parse(text: &str) -> Result<Size> {
    let value: serde_json::Value = serde_json::from_str(text).with_context(|| format!("{BUDGET} is not JSON"))?;
    let field = |name: &str| {
        value
            .get(name)
            .and_then(serde_json::Value::as_u64)
            .with_context(|| format!("{BUDGET}: {name} must be a number of bytes"))
    };
    Ok(Size { raw: field("rawBytes")?, gzip: field("gzipBytes")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_size_alone_can_exceed_the_budget() {
        let budget = Size { raw: 10, gzip: 5 };
        assert!(!exceeds(&Size { raw: 10, gzip: 5 }, &budget));
        assert!(exceeds(&Size { raw: 11, gzip: 1 }, &budget));
        assert!(exceeds(&Size { raw: 1, gzip: 6 }, &budget));
    }

    #[test]
    fn a_budget_without_a_field_is_refused_by_name() {
        assert_eq!(parse("{\"rawBytes\": 2, \"gzipBytes\": 1}").unwrap(), Size { raw: 2, gzip: 1 });
        assert!(parse("{\"rawBytes\": 2}").unwrap_err().to_string().contains("gzipBytes"));
    }
}
