//! The queue of jobs: what sends to it, and the consumer of it and of its dead letter queue. What becomes of a message is decided in
//! `job/message.rs`.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, join_all};
use serde::Serialize;
use serde::de::DeserializeOwned;
use worker::{Context, Env, MessageBatch, MessageExt, QueueRetryOptionsBuilder, RawMessage, event};

use super::fetch::FetchError;
use super::internal::{JOB_BINDING, Question, TENANT_BINDING, namespace};
use crate::error::{Error, Result};
use crate::fetch_error::Repeat;
use crate::job::actor::object_name;
use crate::job::message::{Message, Objects, Queue, Verdict, dead, delivered, pause};
use crate::tenant::sweep;

/// Binding of the queue; without it jobs that wait are asked by the tenant's object.
const QUEUE_BINDING: &str = "JOB_QUEUE";

/// How the name of the dead letter queue ends.
const DEAD: &str = "-dead";

/// Until an object that a message is about answers.
const OBJECT_DEADLINE: Duration = Duration::from_secs(10);

/// The queue, where one is bound.
pub struct JobQueue(worker::Queue);

impl JobQueue {
    pub fn of(env: &Env) -> Option<Self> {
        env.queue(QUEUE_BINDING).ok().map(Self)
    }
}

impl Queue for JobQueue {
    fn send<'a>(&'a self, message: &'a Message) -> LocalBoxFuture<'a, Result<()>> {
        async move {
            let sent = self.0.send(message).await;
            sent.map_err(|error| {
                worker::console_warn!("the queue of jobs took no message: {error}");
                Error::internal(error)
            })
        }
        .boxed_local()
    }
}

/// The objects that messages are about.
pub struct QueueObjects {
    pub env: Env,
}

impl QueueObjects {
    async fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        binding: &str,
        name: &str,
        path: &str,
        body: &Q,
    ) -> Result<A> {
        let objects = &namespace(&self.env, binding)?;
        let lost = |error: FetchError| Error::internal(error);
        // A second time changes nothing.
        let (deadline, repeat, trace) = (OBJECT_DEADLINE, Repeat::Harmless, Vec::new());
        Question { objects, name, path, deadline, repeat, lost, trace }.ask(body, |_| ()).await
    }
}

impl Objects for QueueObjects {
    fn begin<'a>(&'a self, message: &'a Message) -> LocalBoxFuture<'a, Result<bool>> {
        async move {
            let name = object_name(&message.tenant, &message.job_id);
            self.ask(JOB_BINDING, &name, "/begin", &message.attempt).await
        }
        .boxed_local()
    }

    fn give_up<'a>(&'a self, message: &'a Message) -> LocalBoxFuture<'a, Result<()>> {
        async move { self.ask(TENANT_BINDING, &message.tenant, "/jobs/giveUp", message).await }.boxed_local()
    }
}

/// It never fails: the platform would deliver the whole batch again.
#[event(queue)]
async fn queue(batch: MessageBatch<Message>, env: Env, _context: Context) -> worker::Result<()> {
    let is_dead = batch.queue().ends_with(DEAD);
    let objects = QueueObjects { env };
    join_all(batch.raw_iter().map(|raw| consume(&objects, raw, is_dead))).await;
    Ok(())
}

async fn consume(objects: &QueueObjects, raw: RawMessage, is_dead: bool) {
    let text = js_sys::JSON::stringify(&raw.body()).ok().and_then(|text| text.as_string()).unwrap_or_default();
    let message: Message = match serde_json::from_str(&text) {
        Ok(message) => message,
        Err(error) => {
            // Another delivery would be the same.
            worker::console_error!("a message of the queue of jobs is not readable: {error}");
            return raw.ack();
        }
    };
    let verdict = if is_dead { dead(objects, &message).await } else { delivered(objects, &message).await };
    match verdict {
        Verdict::Done => raw.ack(),
        Verdict::Again => {
            let now = i64::try_from(worker::Date::now().as_millis()).unwrap_or(i64::MAX);
            let sent = i64::try_from(raw.timestamp().as_millis()).unwrap_or(now);
            let delay = pause(now - sent, sweep::millis_between(&objects.env) / 12);
            worker::console_warn!("the job {} could not be told to begin; again in {delay} s", message.job_id);
            raw.retry_with_options(&QueueRetryOptionsBuilder::new().with_delay_seconds(delay).build());
        }
    }
}
