//! The port on the jobs' objects.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use worker::Env;

use super::fetch::FetchError;
use super::internal::{JOB_BINDING, Question, namespace};
use super::platform::random;
use crate::error::{Error, ErrorCode, Result};
use crate::fetch_error::Repeat;
use crate::job::actor::object_name;
use crate::job::record::{Again, Cancellation, Decision, JobLog, LogQuestion, Seed, Told};
use crate::services::Jobs;
use crate::trace::Trace;

/// Until a job's object answers.
const JOB_DEADLINE: Duration = Duration::from_secs(10);

pub struct JobObjects {
    pub env: Env,
    pub tenant: String,
    pub trace: Trace,
}

/// No answer from the job's object: what was asked may have been done.
fn unknown(error: FetchError) -> Error {
    Error::new(ErrorCode::OutcomeUnknown, "the job's object did not answer; what was asked may have been done")
        .because(error)
}

impl JobObjects {
    async fn ask<Q: Serialize, A: DeserializeOwned>(&self, job_id: &str, path: &str, question: &Q) -> Result<A> {
        let objects = &namespace(&self.env, JOB_BINDING)?;
        let name = &object_name(&self.tenant, job_id);
        let trace = self.trace.child(random()).headers();
        // Each of the questions changes nothing the second time.
        let (deadline, repeat, lost) = (JOB_DEADLINE, Repeat::Harmless, unknown);
        Question { objects, name, path, deadline, repeat, lost, trace }.ask(question, |_| ()).await
    }
}

impl Jobs for JobObjects {
    fn create<'a>(&'a self, seed: &'a Seed) -> LocalBoxFuture<'a, Result<Told>> {
        async move { self.ask(&seed.job.job_id, "/create", seed).await }.boxed_local()
    }

    fn describe<'a>(&'a self, job_id: &'a str) -> LocalBoxFuture<'a, Result<Told>> {
        async move { self.ask(job_id, "/describe", &()).await }.boxed_local()
    }

    fn wait<'a>(&'a self, job_id: &'a str, time: Duration) -> LocalBoxFuture<'a, Result<Told>> {
        let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        async move { self.ask(job_id, "/wait", &millis).await }.boxed_local()
    }

    fn decide<'a>(&'a self, job_id: &'a str, decision: &'a Decision) -> LocalBoxFuture<'a, Result<Told>> {
        async move { self.ask(job_id, "/decide", decision).await }.boxed_local()
    }

    fn retry<'a>(&'a self, job_id: &'a str, again: &'a Again) -> LocalBoxFuture<'a, Result<Told>> {
        async move { self.ask(job_id, "/retry", again).await }.boxed_local()
    }

    fn log<'a>(&'a self, job_id: &'a str, question: &'a LogQuestion) -> LocalBoxFuture<'a, Result<JobLog>> {
        async move { self.ask(job_id, "/log", question).await }.boxed_local()
    }

    fn cancel<'a>(&'a self, job_id: &'a str, wish: &'a Cancellation) -> LocalBoxFuture<'a, Result<Told>> {
        async move { self.ask(job_id, "/cancel", wish).await }.boxed_local()
    }
}
