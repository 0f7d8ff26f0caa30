//! Bodies that stay in JavaScript unless their bytes have to be read.

use futures_util::StreamExt;
use futures_util::stream::LocalBoxStream;
use wasm_bindgen::JsValue;
use worker::ByteStream;

use crate::services::{Body, BodyError, RequestBody};
use crate::tools::write_file::Bytes;

/// The stream of a JavaScript `Request` or `Response`; `None` is an empty body.
pub struct JsBody(pub Option<web_sys::ReadableStream>);

impl Body for JsBody {
    fn chunks(self: Box<Self>) -> LocalBoxStream<'static, Result<Vec<u8>, BodyError>> {
        match self.0 {
            Some(stream) => {
                ByteStream::from(stream).map(|chunk| chunk.map_err(|error| BodyError(error.to_string()))).boxed_local()
            }
            None => futures_util::stream::empty().boxed_local(),
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

/// The body as JavaScript takes it: a stream, an array of bytes, or `None`.
pub fn to_js(body: Box<dyn Body>) -> Option<JsValue> {
    let any = body.into_any();
    match any.downcast::<JsBody>() {
        Ok(stream) => stream.0.map(JsValue::from),
        Err(any) => any.downcast::<Bytes>().ok().map(|bytes| js_sys::Uint8Array::from(bytes.0.as_slice()).into()),
    }
}

/// The same for the body of a request to the control API.
pub fn request_to_js(body: RequestBody) -> Option<JsValue> {
    match body {
        RequestBody::Empty => None,
        RequestBody::Json(text) => Some(JsValue::from(text)),
        RequestBody::Raw { body, length } => to_js(body).map(|body| sized(body, length)),
    }
}

#[wasm_bindgen::prelude::wasm_bindgen]
extern "C" {
    /// The runtime's stream that knows its length: requests with it carry `Content-Length`, and a body that ends early is
    /// an error on both sides instead of a shorter file.
    type FixedLengthStream;

    #[wasm_bindgen(constructor)]
    fn new(length: f64) -> FixedLengthStream;
}

/// A stream of a declared length; bytes in memory know theirs.
fn sized(body: JsValue, length: u64) -> JsValue {
    use wasm_bindgen::JsCast;
    let Ok(stream) = body.clone().dyn_into::<web_sys::ReadableStream>() else {
        return body;
    };
    // Lengths above 2^53 do not exist: no body is that long.
    #[allow(clippy::cast_precision_loss)]
    let fixed = FixedLengthStream::new(length as f64);
    let Ok(pair) = fixed.dyn_into::<web_sys::TransformStream>() else {
        return body;
    };
    // The pipe's failure reaches both ends by itself; its promise says nothing new.
    let piped = stream.pipe_to(&pair.writable());
    wasm_bindgen_futures::spawn_local(async move {
        let _ = wasm_bindgen_futures::JsFuture::from(piped).await;
    });
    pair.readable().into()
}
