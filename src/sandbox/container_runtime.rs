//! The platform's container API, `ctx.container`, as it is in JavaScript.
//!
//! Bindings of our own: those of the `worker` crate hand over the environment as a `Map`, which the runtime takes for an empty
//! object, and lack the inactivity timeout.

use std::collections::BTreeMap;

use js_sys::{Object, Promise, Reflect};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use worker::State as ObjectState;

#[wasm_bindgen]
extern "C" {
    /// `ctx.container` of a Durable Object whose class has a container.
    #[derive(Clone)]
    pub type Runtime;

    /// Whether it was started and has not been seen to exit. It says nothing about readiness, and stays true for a moment after
    /// a start that fails.
    #[wasm_bindgen(method, getter)]
    pub fn running(this: &Runtime) -> bool;

    /// Begins a start and returns at once. Throws while it runs.
    #[wasm_bindgen(method, catch)]
    pub fn start(this: &Runtime, options: &Object) -> Result<(), JsValue>;

    /// Settles once the container has exited: rejected unless its exit code is 0.
    #[wasm_bindgen(method, catch)]
    pub fn monitor(this: &Runtime) -> Result<Promise, JsValue>;

    /// Ends and removes it. A container that does not run is no error.
    #[wasm_bindgen(method, catch)]
    pub fn destroy(this: &Runtime) -> Result<Promise, JsValue>;

    #[wasm_bindgen(method, catch)]
    pub fn signal(this: &Runtime, number: i32) -> Result<(), JsValue>;

    /// How long the container outlives the last activity of its object.
    #[wasm_bindgen(method, catch, js_name = setInactivityTimeout)]
    pub fn set_inactivity_timeout(this: &Runtime, milliseconds: f64) -> Result<Promise, JsValue>;

    #[wasm_bindgen(method, catch, js_name = getTcpPort)]
    pub fn get_tcp_port(this: &Runtime, port: u16) -> Result<Port, JsValue>;

    /// Something that takes requests inside the container.
    pub type Port;

    #[wasm_bindgen(method, catch)]
    pub fn fetch(this: &Port, request: &web_sys::Request) -> Result<Promise, JsValue>;
}

impl Runtime {
    /// The container of this object; `None` where its class has none.
    pub fn of(state: &ObjectState) -> Option<Self> {
        state.container().map(|container| AsRef::<JsValue>::as_ref(&container).clone().unchecked_into())
    }

    /// Begins a start of this program with this environment. What an image names as its ENTRYPOINT may be put before the program.
    pub fn begin(&self, program: &[&str], env: &BTreeMap<&str, String>, enable_internet: bool) -> Result<(), JsValue> {
        let variables = Object::new();
        for (name, value) in env {
            Reflect::set(&variables, &JsValue::from(*name), &JsValue::from(value.as_str()))?;
        }
        let options = Object::new();
        let program: js_sys::Array = program.iter().map(|word| JsValue::from(*word)).collect();
        Reflect::set(&options, &JsValue::from("entrypoint"), &program)?;
        Reflect::set(&options, &JsValue::from("env"), &variables)?;
        Reflect::set(&options, &JsValue::from("enableInternet"), &JsValue::from(enable_internet))?;
        self.start(&options)
    }
}
