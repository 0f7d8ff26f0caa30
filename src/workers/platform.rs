//! Time, chance, background work and the log of the Workers runtime.

use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use worker::{Context, Date, Delay, State, console_error, console_log, console_warn};

use crate::platform::Platform;

/// A turn of the event loop, in which an answer leaves that is ready.
const ANSWER_FIRST: Duration = Duration::from_millis(1);

/// What keeps work alive after the answer: a request's context, or an object.
pub enum Lifetime {
    Request(Rc<Context>),
    Object(Rc<State>),
}

/// The platform of one request or object.
pub struct WorkersPlatform(pub Lifetime);

impl Platform for WorkersPlatform {
    fn now_millis(&self) -> i64 {
        i64::try_from(Date::now().as_millis()).unwrap_or(i64::MAX)
    }

    fn random(&self) -> [u8; 16] {
        random()
    }

    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        Delay::from(duration).boxed_local()
    }

    fn background(&self, work: LocalBoxFuture<'static, ()>) {
        match &self.0 {
            Lifetime::Request(context) => context.wait_until(async {
                // One thread does both, and the answer comes first.
                Delay::from(ANSWER_FIRST).await;
                work.await;
            }),
            Lifetime::Object(state) => state.wait_until(work),
        }
    }

    fn log(&self, line: &serde_json::Value) {
        match line.get("level").and_then(serde_json::Value::as_str) {
            Some("error") => console_error!("{line}"),
            Some("warn") => console_warn!("{line}"),
            _ => console_log!("{line}"),
        }
    }
}

/// 122 random bits of the runtime's own generator, spread over 16 bytes by its UUID and the digest of another.
pub fn random() -> [u8; 16] {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(format!("{}{}", uuid(), uuid()));
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(digest).for_each(|(byte, random)| *byte = random);
    bytes
}

/// A random UUID of the runtime.
pub fn uuid() -> String {
    #[wasm_bindgen::prelude::wasm_bindgen]
    extern "C" {
        #[wasm_bindgen(js_namespace = crypto, js_name = randomUUID)]
        fn random_uuid() -> String;
    }
    random_uuid()
}
