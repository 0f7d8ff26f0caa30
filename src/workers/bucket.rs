//! The R2 bucket: what of it this product uses. The runtime's own bindings panic on what they do not expect.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, LocalBoxFuture, select};
use js_sys::{Array, Object, Promise, Reflect};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use worker::{Delay, Env};

use super::fetch::describe;
use crate::error::{Error, Result};
use crate::tenant::archive::{Archive, Export, place, prefix};

/// Name of the binding. Without it nothing is kept in R2.
pub const BUCKET_BINDING: &str = "BUCKET";

/// Until R2 answers one request.
const BUCKET_DEADLINE: Duration = Duration::from_secs(10);

/// Largest object that is read.
const LARGEST_OBJECT: f64 = 16.0 * 1024.0 * 1024.0;

#[wasm_bindgen]
extern "C" {
    type R2Bucket;

    #[wasm_bindgen(method, catch)]
    fn put(this: &R2Bucket, key: &str, value: &str) -> std::result::Result<Promise, JsValue>;

    #[wasm_bindgen(method, catch)]
    fn get(this: &R2Bucket, key: &str) -> std::result::Result<Promise, JsValue>;

    #[wasm_bindgen(method, catch)]
    fn list(this: &R2Bucket, options: &JsValue) -> std::result::Result<Promise, JsValue>;

    type R2ObjectBody;

    #[wasm_bindgen(method, catch)]
    fn text(this: &R2ObjectBody) -> std::result::Result<Promise, JsValue>;
}

/// The bucket.
pub struct Bucket(JsValue);

/// Objects of one part of a list.
pub struct Part {
    /// Name and bytes of each.
    pub objects: Vec<(String, i64)>,
    /// Where the next part begins.
    pub cursor: Option<String>,
}

impl Bucket {
    /// The bucket, where one is bound.
    pub fn of(env: &Env) -> Option<Self> {
        env.bucket(BUCKET_BINDING).ok().map(|bucket| Self(bucket.into()))
    }

    fn raw(&self) -> &R2Bucket {
        self.0.unchecked_ref()
    }

    /// Stores a text under a name, in the place of what is there.
    pub async fn put(&self, key: &str, text: &str) -> Result<()> {
        answer(self.raw().put(key, text)).await.map(drop)
    }

    /// The text under a name; nothing where there is none.
    pub async fn get(&self, key: &str) -> Result<Option<String>> {
        let object = answer(self.raw().get(key)).await?;
        if object.is_null() || object.is_undefined() {
            return Ok(None);
        }
        if number(&object, "size").is_none_or(|size| size > LARGEST_OBJECT) {
            return Err(Error::internal(format!("the object {key} in R2 is larger than is read")));
        }
        let text = answer(object.unchecked_ref::<R2ObjectBody>().text()).await?;
        text.as_string().map(Some).ok_or_else(|| Error::internal("R2 answered a body that is no text"))
    }

    /// Objects whose names begin with `prefix`, after a name or from a cursor on.
    pub async fn list(&self, prefix: &str, after: Option<&str>, cursor: Option<&str>) -> Result<Part> {
        let options = Object::new();
        for (name, value) in [("prefix", Some(prefix)), ("startAfter", after), ("cursor", cursor)] {
            if let Some(value) = value {
                Reflect::set(&options, &name.into(), &value.into()).map_err(failed)?;
            }
        }
        let part = answer(self.raw().list(&options)).await?;
        let objects = field(&part, "objects").map(|objects| Array::from(&objects)).unwrap_or_default();
        let objects = objects.iter().filter_map(|object| {
            // Sizes are whole and far below 2^53.
            #[allow(clippy::cast_possible_truncation)]
            let bytes = number(&object, "size")? as i64;
            Some((field(&object, "key")?.as_string()?, bytes))
        });
        let is_whole = !field(&part, "truncated").is_some_and(|truncated| truncated.is_truthy());
        let cursor = field(&part, "cursor").and_then(|cursor| cursor.as_string()).filter(|_| !is_whole);
        Ok(Part { objects: objects.collect(), cursor })
    }
}

fn field(value: &JsValue, name: &str) -> Option<JsValue> {
    Reflect::get(value, &name.into()).ok().filter(|value| !value.is_undefined() && !value.is_null())
}

fn number(value: &JsValue, name: &str) -> Option<f64> {
    field(value, name).and_then(|value| value.as_f64())
}

fn failed(error: JsValue) -> Error {
    let error = Error::internal(format!("R2: {}", describe(&error)));
    Error { retryable: true, ..error }
}

async fn answer(promise: std::result::Result<Promise, JsValue>) -> Result<JsValue> {
    let promise = wasm_bindgen_futures::JsFuture::from(promise.map_err(failed)?);
    match select(promise, Delay::from(BUCKET_DEADLINE)).await {
        Either::Left((value, _)) => value.map_err(failed),
        Either::Right(((), _)) => Err(Error::internal(format!("R2 did not answer within {BUCKET_DEADLINE:?}"))),
    }
}

/// Parts of a list, of a thousand names each, that one question reads: more than there can be exports among the records that one
/// answer looks at, however few each of them holds.
const MOST_PARTS: usize = 40;

/// The exports of one tenant's audit.
pub struct BucketArchive {
    pub bucket: Bucket,
    pub tenant: String,
}

impl Archive for BucketArchive {
    fn list(&self, after: i64, to: i64) -> LocalBoxFuture<'_, Result<(Vec<Export>, bool)>> {
        async move {
            let (after, prefix) = (place(&self.tenant, after), prefix(&self.tenant));
            let (mut exports, mut cursor) = (Vec::new(), None);
            for _ in 0..MOST_PARTS {
                // The cursor goes on from where the part before ended.
                let after = Some(after.as_str()).filter(|_| cursor.is_none());
                let part = self.bucket.list(&prefix, after, cursor.as_deref()).await?;
                exports.extend(part.objects.iter().filter_map(|(key, _)| Export::parse(&self.tenant, key)));
                cursor = part.cursor;
                if cursor.is_none() || exports.last().is_some_and(|export: &Export| export.first > to) {
                    break;
                }
            }
            Ok((exports, cursor.is_some()))
        }
        .boxed_local()
    }

    fn read<'a>(&'a self, export: &'a Export) -> LocalBoxFuture<'a, Result<Option<String>>> {
        async move { self.bucket.get(&export.key(&self.tenant)).await }.boxed_local()
    }
}
