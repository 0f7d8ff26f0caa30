//! Time zones, as the runtime knows them: `Intl` has the whole IANA database, and is kept up to date with the runtime.

use std::cell::RefCell;

use js_sys::{Object, Reflect};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::schedule::zone::{Zones, parse_offset};

/// Zones whose formats are kept.
const MOST_KEPT: usize = 16;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = Intl)]
    type DateTimeFormat;

    #[wasm_bindgen(catch, constructor, js_namespace = Intl)]
    fn new(locale: &str, options: &Object) -> Result<DateTimeFormat, JsValue>;

    #[wasm_bindgen(catch, method)]
    fn format(this: &DateTimeFormat, millis: f64) -> Result<String, JsValue>;
}

thread_local! {
    /// Formats by the names of their zones: making one takes longer than all that is asked of it.
    static FORMATS: RefCell<Vec<(String, DateTimeFormat)>> = const { RefCell::new(Vec::new()) };
}

/// The zones of `Intl`.
pub struct IntlZones;

impl Zones for IntlZones {
    fn offset_seconds(&self, zone: &str, at: i64) -> Option<i32> {
        FORMATS.with_borrow_mut(|formats| {
            if formats.iter().all(|(known, _)| known != zone) {
                let made = make(zone)?;
                formats.truncate(MOST_KEPT - 1);
                formats.insert(0, (zone.to_owned(), made));
            }
            let (_, format) = formats.iter().find(|(known, _)| known == zone)?;
            #[allow(clippy::cast_precision_loss, reason = "times of schedules are far below 2^53")]
            let told = format.format((at * 1000) as f64).ok()?;
            parse_offset(&told)
        })
    }
}

/// Nothing where there is no such zone.
fn make(zone: &str) -> Option<DateTimeFormat> {
    let options = Object::new();
    for (name, value) in [("timeZone", zone), ("timeZoneName", "longOffset")] {
        Reflect::set(&options, &JsValue::from_str(name), &JsValue::from_str(value)).ok()?;
    }
    DateTimeFormat::new("en-US", &options).ok()
}
