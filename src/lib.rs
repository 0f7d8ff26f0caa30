//! cloudflare-ops: a guardrailed control plane for code sandboxes and for a Cloudflare account.

#[cfg(target_arch = "wasm32")]
mod events {
    use worker::{Context, DurableObject, Env, Request, Response, Result, State, durable_object, event};

    #[event(fetch)]
    async fn fetch(_request: Request, _env: Env, _context: Context) -> Result<Response> {
        Response::ok("{\"ok\":true,\"status\":\"ok\"}")
    }

    #[durable_object(fetch)]
    pub struct TenantActor {}
    impl DurableObject for TenantActor {
        fn new(_state: State, _env: Env) -> Self {
            Self {}
        }
        async fn fetch(&self, _request: Request) -> Result<Response> {
            Response::empty()
        }
    }

    #[durable_object(fetch)]
    pub struct SandboxActor {}
    impl DurableObject for SandboxActor {
        fn new(_state: State, _env: Env) -> Self {
            Self {}
        }
        async fn fetch(&self, _request: Request) -> Result<Response> {
            Response::empty()
        }
    }
}
