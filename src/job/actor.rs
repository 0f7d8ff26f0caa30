//! The Durable Object of one job: it waits for an approval, carries the call out, and keeps what it answered.
//!
//! It is an object because a job must outlive whoever asked for it, and must begin once. It stores the job, its arguments and its
//! answer. It answers `POST` on:
//!
//! - `/create`: [`Told`]; again it changes nothing.
//! - `/describe`: [`Told`]; 404 when there is no such job.
//! - `/wait`: [`Told`] once it is over, or after so many milliseconds.
//! - `/decide`: [`Told`]; 409 when it is too late.
//! - `/cancel`: [`Told`]; 409 when it is over, or cannot be ended.
//! - `/retry`: [`Told`]; 409 where another attempt would not be honest.
//! - `/log`: [`JobLog`], after a wait where there is nothing new.
//! - `/begin`: whether there is a job, whose attempt of this number begins if it is still to begin.
//! - `/wake`: `null`, said to a pipeline by a step that does not wait for an approval any more.
//! - `/known`: whether there is a job, asked by the tenant's sweep.
//!
//! Its alarm does what is due (`stored.rs`): it ends what nobody approved, carries out, tells the tenant's list, and forgets. While a
//! job waits, nothing of it is in memory.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use worker::{DurableObject, Env, Request, Response, State as ObjectState, durable_object};

use super::record::{Again, Cancellation, Decision, JobLog, LogQuestion, Seed, Told};
use super::state::State;
use super::stored::Stored;
use super::{clock, follower, look, pipeline, place, run};
use crate::error::{Error, Result};
use crate::platform::Platform;
use crate::workers::internal::answer;
use crate::workers::platform::{Lifetime, WorkersPlatform};

/// Between two looks at how a job stands, or at what it wrote.
const LOOK: Duration = Duration::from_millis(100);

/// Name of the object of a job.
pub fn object_name(tenant: &str, job_id: &str) -> String {
    format!("{tenant}/{job_id}")
}

#[durable_object(alarm)]
pub struct JobActor {
    inner: Rc<Inner>,
}

/// What the steps of the object share.
pub struct Inner {
    pub(super) state: Rc<ObjectState>,
    pub(super) env: Env,
    pub(super) platform: WorkersPlatform,
    /// Whether an attempt is under way in this memory.
    pub(super) is_attempting: Cell<bool>,
    /// Whether that attempt is to end.
    pub(super) is_unwanted: Cell<bool>,
}

impl DurableObject for JobActor {
    fn new(state: ObjectState, env: Env) -> Self {
        let state = Rc::new(state);
        let platform = WorkersPlatform(Lifetime::Object(state.clone()));
        Self {
            inner: Rc::new(Inner {
                state,
                env,
                platform,
                is_attempting: Cell::new(false),
                is_unwanted: Cell::new(false),
            }),
        }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        let inner = &self.inner;
        match request.path().as_str() {
            "/create" => match read(&mut request).await {
                Ok(seed) => answer(create(inner, &seed).await),
                Err(error) => answer::<Told>(Err(error)),
            },
            "/describe" => answer(inner.existing().and_then(|stored| inner.told(stored))),
            "/wait" => match read(&mut request).await {
                Ok(millis) => answer(wait(inner, millis).await),
                Err(error) => answer::<Told>(Err(error)),
            },
            "/decide" => match read(&mut request).await {
                Ok(decision) => answer(decide(inner, decision).await),
                Err(error) => answer::<Told>(Err(error)),
            },
            "/cancel" => match read(&mut request).await {
                Ok(wish) => answer(cancel(inner, wish).await),
                Err(error) => answer::<Told>(Err(error)),
            },
            "/retry" => match read(&mut request).await {
                Ok(again) => answer(retry(inner, &again).await),
                Err(error) => answer::<Told>(Err(error)),
            },
            "/log" => match read(&mut request).await {
                Ok(question) => answer(log(inner, question).await),
                Err(error) => answer::<JobLog>(Err(error)),
            },
            "/begin" => match read(&mut request).await {
                Ok(attempt) => answer(place::begin(inner, attempt).await),
                Err(error) => answer::<bool>(Err(error)),
            },
            "/wake" => answer(wake(inner).await),
            "/known" => answer(known(inner).await),
            _ => Response::error("no such route", 404),
        }
    }

    async fn alarm(&self) -> worker::Result<Response> {
        match clock::run(&self.inner).await {
            Ok(()) => Response::empty(),
            Err(error) => Err(worker::Error::RustError(error.message)),
        }
    }
}

async fn read<T: DeserializeOwned>(request: &mut Request) -> Result<T> {
    request.json().await.map_err(Error::internal)
}

async fn create(inner: &Rc<Inner>, seed: &Seed) -> Result<Told> {
    let stored = match inner.load()? {
        Some(stored) => stored,
        None => inner.begin_with(seed)?,
    };
    clock::arm(inner).await;
    inner.told(stored)
}

async fn wait(inner: &Rc<Inner>, millis: i64) -> Result<Told> {
    let until = inner.platform.now_millis().saturating_add(millis);
    loop {
        let stored = inner.existing()?;
        if stored.job.state.is_over() || inner.platform.now_millis() >= until {
            return inner.told(stored);
        }
        inner.platform.sleep(LOOK).await;
    }
}

async fn decide(inner: &Rc<Inner>, decision: Decision) -> Result<Told> {
    let mut stored = inner.existing()?;
    stored.decide(decision)?;
    inner.save(&stored)?;
    // What was decided happens, whatever becomes of the report.
    clock::arm(inner).await;
    // The list and the books have it before the answer leaves, where they can be reached.
    run::report(inner).await?;
    inner.told(inner.existing()?)
}

async fn cancel(inner: &Rc<Inner>, wish: Cancellation) -> Result<Told> {
    let mut stored = inner.existing()?;
    let is_process = look::is_process(&stored)?;
    stored.cancel(wish.clone(), is_process || stored.is_pipeline())?;
    inner.save(&stored)?;
    clock::arm(inner).await;
    match stored.job.state {
        State::Running if stored.is_pipeline() => pipeline::end(inner, wish).await?,
        State::Running => follower::end(inner).await?,
        _ => {}
    }
    run::report(inner).await?;
    inner.told(inner.existing()?)
}

async fn retry(inner: &Rc<Inner>, again: &Again) -> Result<Told> {
    let mut stored = inner.existing()?;
    let before = stored.clone();
    stored.retry(again)?;
    if before != stored {
        inner.begin_steps_again(&before, again.from_failed)?;
        inner.save(&stored)?;
        inner.forget_answer()?;
    }
    clock::arm(inner).await;
    run::report(inner).await?;
    inner.told(inner.existing()?)
}

async fn log(inner: &Rc<Inner>, question: LogQuestion) -> Result<JobLog> {
    let until = inner.platform.now_millis() + question.wait;
    loop {
        let log = inner.log(&question)?;
        let is_news = question.known.is_some_and(|known| known != log.state);
        if !log.chunks.is_empty() || log.ended || is_news || inner.platform.now_millis() >= until {
            return Ok(log);
        }
        inner.platform.sleep(LOOK).await;
    }
}

async fn wake(inner: &Rc<Inner>) -> Result<()> {
    let mut stored = inner.existing()?;
    if stored.wake(inner.platform.now_millis()) {
        inner.save(&stored)?;
        clock::arm(inner).await;
    }
    Ok(())
}

async fn known(inner: &Rc<Inner>) -> Result<bool> {
    if inner.load()?.is_none() {
        return Ok(false);
    }
    clock::arm(inner).await;
    run::report(inner).await?;
    Ok(true)
}

impl Inner {
    pub(super) fn told(&self, stored: Stored) -> Result<Told> {
        let is_over = stored.job.state.is_over();
        let output = if is_over { self.output()? } else { None };
        let details = if is_over { self.details()? } else { None };
        let steps = self.steps_told(&stored)?;
        Ok(Told { job: stored.job, order: stored.order, output, details, steps })
    }

    /// Logs what nobody is told.
    pub(super) fn complain(&self, message: &str, error: &Error) {
        let job_id = self.load().ok().flatten().map(|stored| stored.job.job_id);
        let line = serde_json::json!({
            "level": "error",
            "message": message,
            "jobId": job_id,
            "error": error.message,
            "source": error.cause,
        });
        self.platform.log(&line);
    }
}
