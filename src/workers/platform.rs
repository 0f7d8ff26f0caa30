//! Time, chance, background work and the log of the Workers runtime.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, join_all};
use worker::{Context, Date, Delay, State, console_error, console_log, console_warn};

use super::zones::IntlZones;
use crate::platform::Platform;
use crate::schedule::zone::Zones;

/// A turn of the event loop, in which an answer leaves that is ready.
const ANSWER_FIRST: Duration = Duration::from_millis(1);

/// What keeps work alive after the answer: a request's context, or an object.
pub enum Lifetime {
    /// And the work that waits for the answer to leave.
    Request(Rc<Context>, Rc<RefCell<Vec<LocalBoxFuture<'static, ()>>>>),
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

    fn zones(&self) -> &dyn Zones {
        &IntlZones
    }

    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        Delay::from(duration).boxed_local()
    }

    fn background(&self, work: LocalBoxFuture<'static, ()>) {
        match &self.0 {
            Lifetime::Request(context, waiting) => {
                waiting.borrow_mut().push(work);
                if waiting.borrow().len() > 1 {
                    return;
                }
                let waiting = waiting.clone();
                context.wait_until(async move {
                    // One thread does both, and the answer comes first.
                    Delay::from(ANSWER_FIRST).await;
                    join_all(waiting.take()).await;
                });
            }
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

/// Random bytes of the runtime's own generator.
pub fn random() -> [u8; 16] {
    #[wasm_bindgen::prelude::wasm_bindgen]
    extern "C" {
        #[wasm_bindgen(js_namespace = crypto, js_name = getRandomValues)]
        fn get_random_values(bytes: &mut [u8]);
    }
    let mut bytes = [0; 16];
    get_random_values(&mut bytes);
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
