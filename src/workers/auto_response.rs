//! When the runtime last answered a ping by itself: a method of a Durable Object's state that the bindings lack.

use js_sys::Date;
use wasm_bindgen::{JsCast, JsValue};
use worker::{State, WebSocket};

#[wasm_bindgen::prelude::wasm_bindgen]
extern "C" {
    /// The state, as JavaScript has it.
    pub type AutoResponses;

    #[wasm_bindgen(method, catch, js_name = getWebSocketAutoResponseTimestamp)]
    fn last(this: &AutoResponses, socket: &web_sys::WebSocket) -> Result<JsValue, JsValue>;
}

impl AutoResponses {
    /// Those of the object with this state, and the state.
    pub fn of(state: State) -> (Self, State) {
        let state = state._inner();
        let this = AsRef::<JsValue>::as_ref(&state).clone().unchecked_into();
        (this, State::from(state))
    }

    /// In milliseconds since 1970; nothing where no ping came.
    pub fn last_at(&self, socket: &WebSocket) -> Option<i64> {
        let date = self.last(socket.as_ref()).ok()?.dyn_into::<Date>().ok()?;
        #[allow(clippy::cast_possible_truncation, reason = "a time in milliseconds is whole and below 2^53")]
        Some(date.get_time() as i64)
    }
}
