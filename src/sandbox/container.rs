//! The Container transport: a sandbox as the Cloudflare Container of its own object.
//!
//! The object starts the container with a random token, which the daemon inside takes out of its environment, and speaks to the
//! daemon through the container's port. The token is stored beside the record, since the container outlives the object's memory
//! and even the Worker's process; no answer and no log line holds it. A container that is found running without a known token,
//! or that does not take the one that is known, is replaced.
//!
//! Nothing that a container held survives it: its files are gone with it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use sandbox_api::{BOOT_ID_HEADER, ControlError, ControlErrorCode, Health, HostStart, Metrics, ResourcesReleased};
use wasm_bindgen_futures::JsFuture;

use super::actor::Inner;
use super::container_errors::{ended_early, exited, reached_nobody, refused_start, shortage};
use super::container_runtime::Runtime;
use super::life::lost;
use super::transport::{BOOT_DEADLINE, Boot, Control, SendError, refusal};
use crate::error::{Error, ErrorCode, Result};
use crate::platform::{Platform, within};
use crate::workers::fetch::{self, Destination, FetchError, Outgoing, describe};

/// The daemon in every image. It is named at each start, so that an image needs nothing but the file: its CMD does not matter.
const PROGRAM: [&str; 2] = ["/usr/local/bin/sandboxd", "serve"];

/// Port of the daemon.
const CONTROL_PORT: u16 = 3000;

/// Origin of requests to the daemon; only the port decides where they go.
const CONTROL_ORIGIN: &str = "http://sandbox.internal";

/// Until one question about readiness is answered; most of them fail at once.
const PROBE_DEADLINE: Duration = Duration::from_secs(3);

/// Between two questions about readiness.
const PROBE_PAUSE: Duration = Duration::from_millis(40);

/// How long the platform may have no container to give before that is believed.
const ALLOTMENT_DEADLINE: Duration = Duration::from_secs(8);

/// Until a container that runs and is not wanted is gone.
const REPLACE_DEADLINE: Duration = Duration::from_secs(8);

/// Between SIGTERM to the daemon and the end of its container.
const STOP_GRACE: Duration = Duration::from_secs(4);

const TERM: i32 = 15;

/// Of its end, for asking what will be released.
const LAST_METRICS_DEADLINE: Duration = Duration::from_secs(1);

/// How long a container outlives the last activity of its object. It is longer than the longest stream; that an idle sandbox sleeps
/// is decided by the object, and this ends only what its object has forgotten.
const INACTIVITY_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// How old that timeout may be before a request renews it.
const INACTIVITY_RENEWAL: Duration = Duration::from_secs(30 * 60);

/// Largest answer that is not passed on.
const LARGEST_ANSWER: usize = 64 * 1024;

/// The secret of one start. Its `Debug` form shows nothing.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token(…)")
    }
}

/// The container of one object.
pub struct Container {
    runtime: Runtime,
    inner: Rc<Inner>,
    token: Option<Token>,
}

impl Container {
    /// `None` where the class of the object has no container.
    pub fn of(inner: &Rc<Inner>, token: Option<Token>) -> Option<Self> {
        Runtime::of(&inner.state).map(|runtime| Self { runtime, inner: inner.clone(), token })
    }

    /// Starts the container, or finds the daemon in it running.
    pub async fn start(&self, start: &HostStart) -> Result<Boot> {
        if self.runtime.running() {
            match self.health(&self.token, PROBE_DEADLINE).await {
                Ok(health) => return Ok(self.watched(health)),
                Err(_) => self.replace().await?,
            }
        }
        let token = Token(hexadecimal(&[self.inner.platform.random(), self.inner.platform.random()]));
        self.inner.keep_token(&token)?;
        let mut env = BTreeMap::from([("SANDBOXD_TOKEN", token.0.clone()), ("SANDBOX_ID", start.sandbox_id.clone())]);
        if !start.env.is_empty() {
            env.insert("SANDBOX_ENV_JSON", serde_json::to_string(&start.env).map_err(Error::internal)?);
        }
        let begun = self.runtime.begin(&PROGRAM, &env, start.internet);
        let ready = match begun {
            Ok(()) => self.ready(Some(token)).await,
            Err(error) => Err(refused_start(&describe(&error))),
        };
        match ready {
            Ok(health) => Ok(self.watched(health)),
            Err(error) => {
                self.abandon();
                Err(error)
            }
        }
    }

    /// Ends what never became ready: it must not go on by itself. Nobody waits for that; the platform does it before a start that is
    /// asked for later.
    pub fn abandon(&self) {
        let ended = settled(self.runtime.destroy());
        self.inner.platform.background(async move { drop(ended.await) }.boxed_local());
    }

    /// Asks the daemon until it answers. An exit of the container ends the wait at once.
    async fn ready(&self, token: Option<Token>) -> Result<Health> {
        let exit = settled(self.runtime.monitor());
        let asked = self.ask_until_ready(token);
        let (exit, asked) = (std::pin::pin!(exit), std::pin::pin!(asked));
        match select(asked, exit).await {
            Either::Left((ready, _)) => ready,
            Either::Right((exit, _)) => Err(ended_early(exit.err().as_deref())),
        }
    }

    async fn ask_until_ready(&self, token: Option<Token>) -> Result<Health> {
        let platform = &self.inner.platform;
        let mut last = String::new();
        let mut short_of = None;
        let asked = within(platform, BOOT_DEADLINE, async {
            let begun = platform.now_millis();
            loop {
                last = match self.health(&token, PROBE_DEADLINE).await {
                    Ok(health) => return Ok(health),
                    Err(NotReady::Refused(error)) => return Err(error),
                    Err(NotReady::Unreachable(why)) => why,
                };
                short_of = shortage(&last);
                let waited = Duration::from_millis(u64::try_from(platform.now_millis() - begun).unwrap_or(0));
                if let Some(shortage) = short_of.filter(|short| !short.passing || waited >= ALLOTMENT_DEADLINE) {
                    return Err(shortage.error(&last));
                }
                platform.sleep(PROBE_PAUSE).await;
            }
        });
        match asked.await {
            Ok(ready) => ready,
            Err(_) => match short_of {
                Some(shortage) => Err(shortage.error(last)),
                None => {
                    let message = format!(
                        "nothing in the container answered on port {CONTROL_PORT} within {} s",
                        BOOT_DEADLINE.as_secs()
                    );
                    let error = Error::new(ErrorCode::SandboxUnavailable, message);
                    Err(error.detail("reason", "port_not_ready").detail("port", CONTROL_PORT).because(last))
                }
            },
        }
    }

    /// The boot that runs; `None` when none does that takes the token.
    pub async fn running(&self) -> Result<Option<Boot>> {
        if !self.runtime.running() || self.token.is_none() {
            return Ok(None);
        }
        match self.health(&self.token, PROBE_DEADLINE).await {
            Ok(health) => Ok(Some(self.watched(health))),
            Err(NotReady::Refused(_)) => Ok(None),
            Err(NotReady::Unreachable(why)) if reached_nobody(&why) => Ok(None),
            Err(NotReady::Unreachable(why)) => {
                let error = Error::new(ErrorCode::SandboxUnavailable, "the sandbox did not say whether it runs");
                Err(error.detail("reason", "sandbox_unresponsive").because(why))
            }
        }
    }

    /// Ends the container and everything in it.
    pub async fn destroy(&self, deadline: Duration) -> Result<ResourcesReleased> {
        let released = self.held().await;
        match within(&self.inner.platform, deadline, settled(self.runtime.destroy())).await {
            Ok(Ok(())) => Ok(released),
            Ok(Err(why)) => Err(not_ended(&why)),
            Err(_) => Err(not_ended(&format!("no end within {deadline:?}"))),
        }
    }

    /// Asks the daemon to end what runs, and ends the container; tells how many processes that were.
    pub async fn stop(&self, deadline: Duration) -> Result<u64> {
        let held = self.held().await;
        if self.runtime.running() {
            let exit = settled(self.runtime.monitor());
            if self.runtime.signal(TERM).is_ok() {
                // What does not obey in time is ended below.
                drop(within(&self.inner.platform, STOP_GRACE, exit).await);
            }
        }
        self.destroy(deadline).await?;
        Ok(held.processes)
    }

    /// Passes a request on to the daemon. A success is returned with its body unread.
    pub async fn control(&self, control: Control<'_>) -> Result<web_sys::Response, SendError> {
        let gone =
            |message: String| SendError::Refused(ControlError { code: ControlErrorCode::NotRunning, message }, None);
        let Some(token) = self.token.as_ref().filter(|_| self.runtime.running()) else {
            return Err(gone("the container does not run".to_owned()));
        };
        self.watch(control.boot_id);
        let mut headers = control.headers;
        headers.push((BOOT_ID_HEADER, control.boot_id.to_owned()));
        if control.body.as_ref().is_some_and(wasm_bindgen::JsValue::is_string) {
            headers.push(("content-type", "application/json".to_owned()));
        }
        let sent = self.send(control.method, control.path, headers, control.body, token, control.deadline).await;
        match sent {
            Ok(response) if (200..300).contains(&response.status()) => Ok(response),
            Ok(response) => Err(match refusal(&response).await {
                // A daemon that knows another token is not of the boot that is meant.
                SendError::Refused(refused, _) if refused.code == ControlErrorCode::Unauthenticated => {
                    gone(refused.message)
                }
                refused => refused,
            }),
            Err(FetchError::Failed(why)) if reached_nobody(&why) => Err(gone(why)),
            Err(error) => Err(SendError::Lost(error)),
        }
    }

    /// What ends with the container, as far as it says so in time.
    async fn held(&self) -> ResourcesReleased {
        let Some(token) = self.token.as_ref().filter(|_| self.runtime.running()) else {
            return ResourcesReleased::default();
        };
        let asked = async {
            let sent = self.send("GET", "/v1/metrics", Vec::new(), None, token, LAST_METRICS_DEADLINE).await.ok()?;
            let text = fetch::text(&sent, LARGEST_ANSWER, LAST_METRICS_DEADLINE).await.ok()?;
            serde_json::from_str::<Metrics>(&text).ok()
        };
        let processes = asked.await.map_or(0, |metrics| metrics.processes);
        ResourcesReleased { processes, ..ResourcesReleased::default() }
    }

    async fn health(&self, token: &Option<Token>, deadline: Duration) -> Result<Health, NotReady> {
        let token = token.as_ref().ok_or_else(|| NotReady::Unreachable("its token is not known".to_owned()))?;
        let sent = self.send("GET", "/v1/health", Vec::new(), None, token, deadline).await;
        let response = sent.map_err(|error| NotReady::Unreachable(error.to_string()))?;
        if response.status() == 401 {
            let message = format!("what answers on port {CONTROL_PORT} does not take the token of this start");
            let error = Error::new(ErrorCode::SandboxUnavailable, message).detail("reason", "not_sandboxd");
            return Err(NotReady::Refused(error));
        }
        let text = fetch::text(&response, LARGEST_ANSWER, deadline).await;
        let text = text.map_err(|error| NotReady::Unreachable(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| {
            NotReady::Unreachable(format!("port {CONTROL_PORT} answered {}: {error}", response.status()))
        })
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        mut headers: Vec<(&str, String)>,
        body: Option<wasm_bindgen::JsValue>,
        token: &Token,
        deadline: Duration,
    ) -> Result<web_sys::Response, FetchError> {
        headers.push(("authorization", format!("Bearer {}", token.0)));
        let port = self.runtime.get_tcp_port(CONTROL_PORT).map_err(|error| FetchError::Failed(describe(&error)))?;
        let url = format!("{CONTROL_ORIGIN}{path}");
        fetch::send(Destination::Port(port), Outgoing { method, url, headers, body, deadline }).await
    }

    /// Ends a container that runs and is not the one that is wanted.
    async fn replace(&self) -> Result<()> {
        match within(&self.inner.platform, REPLACE_DEADLINE, settled(self.runtime.destroy())).await {
            // How the old one ended does not matter once it does not run.
            Ok(_) if !self.runtime.running() => Ok(()),
            Ok(ended) => Err(not_ended(&ended.err().unwrap_or_else(|| "it runs on".to_owned()))),
            Err(_) => Err(not_ended(&format!("no end within {REPLACE_DEADLINE:?}"))),
        }
    }

    fn watched(&self, health: Health) -> Boot {
        self.watch(&health.boot_id);
        Boot { boot_id: health.boot_id, api_version: health.api_version }
    }

    /// Notes the exit of this boot when it comes, and keeps the container alive meanwhile. Does nothing when that is under way.
    fn watch(&self, boot_id: &str) {
        self.stay();
        if self.inner.watched.borrow().as_deref() == Some(boot_id) {
            return;
        }
        let Ok(monitor) = self.runtime.monitor() else { return };
        self.inner.watched.borrow_mut().replace(boot_id.to_owned());
        let (inner, boot_id) = (self.inner.clone(), boot_id.to_owned());
        let watch = async move {
            let exit = JsFuture::from(monitor).await;
            if inner.watched.borrow().as_deref() == Some(boot_id.as_str()) {
                inner.watched.borrow_mut().take();
            }
            let exit = exit.err().map(|error| describe(&error));
            let is_exit = exit.as_deref().is_none_or(exited);
            let line = serde_json::json!({
                "level": if is_exit { "info" } else { "error" },
                "message": if is_exit { "a container exited" } else { "the platform lost sight of a container" },
                "bootId": boot_id,
                "exit": exit.as_deref().unwrap_or("exit code 0"),
            });
            inner.platform.log(&line);
            // No record is no loss: the sandbox was destroyed.
            drop(lost(&inner, &boot_id).await);
        };
        self.inner.platform.background(watch.boxed_local());
    }

    /// Renews the inactivity timeout when it is old.
    fn stay(&self) {
        let now = self.inner.platform.now_millis();
        let age = now.saturating_sub(self.inner.stays_since.get());
        if age < i64::try_from(INACTIVITY_RENEWAL.as_millis()).unwrap_or(i64::MAX) {
            return;
        }
        self.inner.stays_since.set(now);
        let asked = settled(self.runtime.set_inactivity_timeout(INACTIVITY_TIMEOUT.as_secs_f64() * 1000.0));
        self.inner.platform.background(async move { drop(asked.await) }.boxed_local());
    }
}

/// Why a question about readiness has no good answer.
enum NotReady {
    /// It will not get better.
    Refused(Error),
    Unreachable(String),
}

/// A refusal in the caller's words.
pub fn refused(refusal: ControlError) -> Error {
    Error::from(refusal)
}

fn not_ended(why: &str) -> Error {
    let error = Error::new(ErrorCode::SandboxUnavailable, "the container could not be ended");
    error.detail("reason", "container_not_ended").because(why)
}

/// Waits for a promise of the platform; what it gives is of no interest.
async fn settled(promise: Result<js_sys::Promise, wasm_bindgen::JsValue>) -> Result<(), String> {
    let promise = promise.map_err(|error| describe(&error))?;
    JsFuture::from(promise).await.map(|_| ()).map_err(|error| describe(&error))
}

fn hexadecimal(parts: &[[u8; 16]]) -> String {
    parts.iter().flatten().map(|byte| format!("{byte:02x}")).collect()
}
