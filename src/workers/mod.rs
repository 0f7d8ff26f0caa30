//! The Workers runtime: entry points, ports of pure code, streams.

pub mod auto_response;
pub mod backend;
pub mod body;
pub mod bucket;
pub mod fetch;
pub mod internal;
pub mod jobs;
pub mod platform;
pub mod queue;
pub mod zones;

use std::rc::Rc;

use worker::{Context, Env, Request, Response, Result, event};

#[event(start)]
fn start() {
    console_error_panic_hook::set_once();
}

#[event(fetch)]
async fn fetch(request: Request, env: Env, context: Context) -> Result<Response> {
    crate::api::rest::serve(request, env, Rc::new(context)).await
}
