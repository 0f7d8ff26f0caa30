//! The outbox: messages to webhooks in the tenant's storage, and their way out.
//!
//! A message is written down in the turn of the change that it tells of, so that there is never one without the other. It is sent
//! beside everything else the object does: each receiver by itself and one message after the other, so that one that hangs holds neither
//! the alarm nor anybody else. What came of an attempt is stored after it: a message can arrive twice and never not at all. The alarm
//! goes off for what is due, also after this memory was lost in the middle of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use serde::Deserialize;

use super::actor::{Inner, TextRow, now, read, whole};
use super::alerts::AlertSettings;
use super::books::DAY_MILLIS;
use super::deliveries::{DeliveryListRequest, DeliveryListing, DeliveryRow, ROW, TENANT, Verdict, verdict};
use crate::error::{Error, Result};
use crate::tenant::signing::Signer;
use crate::webhook::event::{Event, Subject};
use crate::webhook::schedule::{ANSWER_DEADLINE, AWAY_AFTER, Attempt, patience, receiver_pause};
use crate::webhook::send::send;
use crate::webhook::signature::Keys;
use crate::workers::backend::{SIGNING_SECRET, configured};
use crate::workers::platform::random;

/// Receivers that are sent to at once beside the tenant's own: the platform opens six connections at once.
const MOST_AT_ONCE: usize = 4;

/// Messages that one receiver is sent by one event of the object, the rest by the next: the platform counts the requests of each, and
/// gives 50 at least.
const MOST_IN_A_ROW: u32 = 8;

/// Messages that wait for one receiver; more than these are given up, the oldest first.
const MOST_WAITING: i64 = 1_000;

/// How long, and how many at most, messages are listed after their end.
const KEPT_MILLIS: i64 = 7 * DAY_MILLIS;
const MOST_KEPT: i64 = 5_000;

/// Most messages in one part of the list.
const MOST_LISTED: u32 = 500;

/// Until the alarm looks after what is being sent, beside the time for an answer, and after the outbox could not be read. In milliseconds.
const GRACE: i64 = 5_000;

pub(super) const SCHEMA: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS webhook_messages (seq INTEGER PRIMARY KEY AUTOINCREMENT, message_id TEXT NOT NULL, kind TEXT NOT NULL, \
     subject TEXT NOT NULL, receiver TEXT NOT NULL, body TEXT NOT NULL, made_at INTEGER NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, \
     due_at INTEGER NOT NULL, ended_at INTEGER, is_delivered INTEGER NOT NULL DEFAULT 0, failure TEXT)",
    "CREATE INDEX IF NOT EXISTS webhook_messages_waiting ON webhook_messages (receiver, subject, seq) WHERE ended_at IS NULL",
    "CREATE INDEX IF NOT EXISTS webhook_messages_ended_at ON webhook_messages (ended_at) WHERE ended_at IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS webhook_messages_subject ON webhook_messages (subject, seq)",
    "CREATE TABLE IF NOT EXISTS webhook_receivers (receiver TEXT PRIMARY KEY, failures INTEGER NOT NULL, not_before INTEGER NOT NULL) \
     WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS job_webhooks (job_id TEXT PRIMARY KEY, url TEXT NOT NULL) WITHOUT ROWID",
];

/// Messages that wait for none before them of the same receiver and subject, and when their receiver may be sent to again.
const HEADS: &str = "FROM webhook_messages AS message LEFT JOIN webhook_receivers USING (receiver) \
    WHERE ended_at IS NULL AND NOT EXISTS (SELECT 1 FROM webhook_messages AS earlier WHERE earlier.ended_at IS NULL \
    AND earlier.receiver = message.receiver AND earlier.subject = message.subject AND earlier.seq < message.seq)";

/// Messages that no alert that is listed asks about.
const OF_NO_ALERT: &str = "subject NOT IN (SELECT 'alert/' || alert_id FROM alerts)";

/// What this memory knows of the outbox.
pub(super) struct OutboxClock {
    /// Whether there may be something to send that nobody sends.
    has_news: Cell<bool>,
    /// When something is due next, as far as it is known.
    pub(super) due_at: Cell<Option<i64>>,
    /// After a failure to read the outbox.
    not_before: Cell<i64>,
    /// Receivers that are being sent to.
    sending: RefCell<BTreeSet<String>>,
    /// Whether messages were added since it was last tidied.
    has_grown: Cell<bool>,
}

impl Default for OutboxClock {
    fn default() -> Self {
        // What the memory before this one left is found by looking.
        Self {
            has_news: Cell::new(true),
            due_at: Cell::default(),
            not_before: Cell::default(),
            sending: RefCell::default(),
            has_grown: Cell::new(true),
        }
    }
}

impl OutboxClock {
    /// Has the outbox looked at by the next [`send_due`].
    pub(super) fn look(&self) {
        self.has_news.set(true);
    }

    fn wants_look(&self, now: i64) -> bool {
        let is_due = self.due_at.get().is_some_and(|at| at <= now);
        (self.has_news.get() || is_due) && self.not_before.get() <= now
    }

    /// Whether somebody sends to it, or too many are sent to. The tenant's own never waits for those of jobs.
    fn is_busy(&self, receiver: &str) -> bool {
        let sending = self.sending.borrow();
        let of_jobs = sending.iter().filter(|other| other.as_str() != TENANT).count();
        sending.contains(receiver) || (receiver != TENANT && of_jobs >= MOST_AT_ONCE)
    }

    fn take(&self, receiver: &str) {
        self.sending.borrow_mut().insert(receiver.to_owned());
    }

    fn give_back(&self, receiver: &str) {
        self.sending.borrow_mut().remove(receiver);
    }
}

#[derive(Deserialize)]
struct DueRow {
    receiver: String,
    time: f64,
}

/// A message that is to be sent.
#[derive(Deserialize)]
struct Message {
    seq: f64,
    message_id: String,
    receiver: String,
    body: String,
    attempts: f64,
}

/// Begins to send what is due, wherever nobody does yet. What is sent goes on by itself.
pub(super) fn send_due(inner: &Rc<Inner>) {
    let now = now();
    if !inner.outbox.wants_look(now) {
        return;
    }
    inner.outbox.has_news.set(false);
    let due = inner.due_receivers().map(|due| due.into_iter().filter(|row| whole(row.time) <= now));
    match due {
        Ok(due) => due.for_each(|row| begin(inner, row.receiver)),
        Err(error) => fail(inner, &error),
    }
    inner.plan();
}

fn begin(inner: &Rc<Inner>, receiver: String) {
    if inner.outbox.is_busy(&receiver) {
        return;
    }
    inner.outbox.take(&receiver);
    let owner = inner.clone();
    inner.state.wait_until(async move {
        let sent = send_to(&owner, &receiver).await;
        owner.outbox.give_back(&receiver);
        match sent {
            Ok(()) => owner.outbox.look(),
            Err(error) => fail(&owner, &error),
        }
        // What is left, and whoever waited for this one's place, is sent to by the alarm.
        owner.plan();
        owner.ensure_alarm().await;
    });
}

/// The outbox could not be read or written: it is looked at again after a while, not at once and for ever.
fn fail(inner: &Rc<Inner>, error: &Error) {
    worker::console_error!("messages to webhooks were not sent: {:?}", error.cause.as_ref().unwrap_or(&error.message));
    inner.outbox.not_before.set(now() + GRACE);
    inner.outbox.look();
}

/// Sends one message after the other, until one is not taken.
async fn send_to(inner: &Rc<Inner>, receiver: &str) -> Result<()> {
    for _ in 0..MOST_IN_A_ROW {
        let Some(message) = inner.next_for(receiver, now())? else { break };
        let attempt = inner.attempt(&message).await?;
        if !inner.note(&message, attempt, now())? {
            break;
        }
    }
    Ok(())
}

impl Inner {
    /// Writes down what is to be told of an event, to each who wants to know.
    pub(super) fn tell(&self, event: &Event) -> Result<()> {
        let AlertSettings { webhook_url, webhook_events, .. } = self.settings()?;
        let of_tenant = webhook_url.filter(|_| webhook_events.contains(&event.kind));
        let of_job = match &event.subject {
            Subject::Job(job_id) => self.job_webhook(job_id)?.filter(|url| Some(url) != of_tenant.as_ref()),
            Subject::Sandbox(_) => None,
        };
        // The same for all: who gets it twice sees that it is one.
        let message_id = format!("evt_{}", hex::encode(random()));
        for receiver in of_tenant.map(|_| TENANT.to_owned()).into_iter().chain(of_job) {
            let (subject, body) = (event.subject.text(), event.message());
            self.post(&message_id, event.kind.as_str(), &subject, &receiver, &body, event.at)?;
        }
        Ok(())
    }

    /// Writes a message down, in the turn of what it tells.
    pub(super) fn post(
        &self,
        message_id: &str,
        kind: &str,
        subject: &str,
        receiver: &str,
        body: &str,
        at: i64,
    ) -> Result<()> {
        let statement = "INSERT INTO webhook_messages (message_id, kind, subject, receiver, body, made_at, due_at) \
            VALUES (?, ?, ?, ?, ?, ?, ?)";
        let texts = [message_id, kind, subject, receiver, body].map(Into::into);
        self.write(statement, texts.into_iter().chain([at.into(), now().into()]).collect())?;
        self.outbox.look();
        self.outbox.has_grown.set(true);
        Ok(())
    }

    /// What messages are signed with; 503 where there is no secret to derive it from.
    pub(super) fn webhook_keys(&self, tenant: &str) -> Result<Keys> {
        Keys::of(&Signer::new(configured(&self.env, SIGNING_SECRET).as_deref()), tenant)
    }

    /// Keeps the webhook of a new job.
    pub(super) fn keep_job_webhook(&self, job_id: &str, url: &str) -> Result<()> {
        let statement = "INSERT OR REPLACE INTO job_webhooks (job_id, url) VALUES (?, ?)";
        self.write(statement, vec![job_id.into(), url.into()])
    }

    fn job_webhook(&self, job_id: &str) -> Result<Option<String>> {
        let statement = "SELECT url AS text FROM job_webhooks WHERE job_id = ?";
        let rows: Vec<TextRow> = self.rows(statement, vec![job_id.into()])?;
        Ok(rows.into_iter().next().map(|row| row.text))
    }

    pub(super) fn deliveries(&self, request: &DeliveryListRequest) -> Result<DeliveryListing> {
        let limit = request.limit.clamp(1, MOST_LISTED);
        let (statement, parameters) = request.statement(limit + 1);
        let rows: Vec<TextRow> = self.rows(&statement, super::actor::values(parameters))?;
        let wanted = usize::try_from(limit).map_err(Error::internal)?;
        let deliveries = rows.iter().take(wanted).map(|row| read(&row.text)).collect::<Result<_>>()?;
        Ok(DeliveryListing { deliveries, more: rows.len() > wanted })
    }

    /// The last message about a subject to the tenant's own webhook.
    pub(super) fn delivery_of(&self, subject: &str) -> Result<Option<DeliveryRow>> {
        let statement = format!(
            "SELECT {ROW} AS text FROM webhook_messages WHERE subject = ? AND receiver = ? ORDER BY seq DESC LIMIT 1"
        );
        let rows: Vec<TextRow> = self.rows(&statement, vec![subject.into(), TENANT.into()])?;
        rows.first().map(|row| read(&row.text)).transpose()
    }

    /// Whom something waits for, and from when on it may be sent.
    fn due_receivers(&self) -> Result<Vec<DueRow>> {
        let statement = format!(
            "SELECT receiver, MIN(MAX(due_at, coalesce(not_before, 0))) AS time {HEADS} GROUP BY receiver ORDER BY time"
        );
        self.rows(&statement, Vec::new())
    }

    /// When the alarm has to look after messages. What is being sent is looked after only if nothing came of it.
    pub(super) fn next_message(&self, now: i64) -> Result<Option<i64>> {
        let looked_after = now + millis(ANSWER_DEADLINE) + GRACE;
        let due = self.due_receivers()?.into_iter().map(|row| {
            let at = whole(row.time).max(now).max(self.outbox.not_before.get());
            if self.outbox.is_busy(&row.receiver) { at.max(looked_after) } else { at }
        });
        Ok(due.min())
    }

    /// Notes when something is due next.
    fn plan(&self) {
        let now = now();
        self.outbox.due_at.set(self.next_message(now).unwrap_or(Some(now + GRACE)));
    }

    /// What a receiver is sent next: what was tried least, then what was written down first.
    fn next_for(&self, receiver: &str, now: i64) -> Result<Option<Message>> {
        let statement = format!(
            "SELECT seq, message_id, receiver, body, attempts {HEADS} AND receiver = ?1 AND due_at <= ?2 \
             AND coalesce(not_before, 0) <= ?2 ORDER BY attempts, seq LIMIT 1"
        );
        let rows: Vec<Message> = self.rows(&statement, vec![receiver.into(), now.into()])?;
        Ok(rows.into_iter().next())
    }

    async fn attempt(&self, message: &Message) -> Result<Attempt> {
        let url =
            if message.receiver == TENANT { self.settings()?.webhook_url } else { Some(message.receiver.clone()) };
        Ok(match (url, self.webhook_keys(&self.name()?.unwrap_or_default())) {
            (Some(url), Ok(keys)) => send(&url, self.reach(), &keys, &message.message_id, now(), &message.body).await,
            (None, _) => Attempt::Failed(TAKEN_AWAY.to_owned()),
            (_, Err(error)) => Attempt::Failed(error.message),
        })
    }

    /// Writes down what came of an attempt; whether the next may follow.
    fn note(&self, message: &Message, attempt: Attempt, now: i64) -> Result<bool> {
        let attempts = u32::try_from(whole(message.attempts)).unwrap_or(u32::MAX).saturating_add(1);
        let (seq, tried) = (whole(message.seq), i64::from(attempts));
        // One that was given up meanwhile stays so, unless it was taken.
        match verdict(attempt, attempts, now) {
            Verdict::Delivered => {
                let statement =
                    "UPDATE webhook_messages SET attempts = ?, ended_at = ?, is_delivered = 1 WHERE seq = ?";
                self.write(statement, vec![tried.into(), now.into(), seq.into()])?;
                self.receiver_is_there(&message.receiver, now)?;
                return Ok(true);
            }
            Verdict::Again { due_at, failure } => {
                let statement = "UPDATE webhook_messages SET attempts = ?, due_at = ?, failure = ? \
                    WHERE seq = ? AND ended_at IS NULL";
                self.write(statement, vec![tried.into(), due_at.into(), failure.into(), seq.into()])?;
            }
            Verdict::GivenUp { failure } => {
                let statement = "UPDATE webhook_messages SET attempts = ?, ended_at = ?, failure = ? \
                    WHERE seq = ? AND ended_at IS NULL";
                self.write(statement, vec![tried.into(), now.into(), failure.into(), seq.into()])?;
            }
        }
        self.receiver_failed(&message.receiver, now)?;
        Ok(false)
    }

    fn failures(&self, receiver: &str) -> Result<u32> {
        self.number("SELECT failures AS number FROM webhook_receivers WHERE receiver = ?", vec![receiver.into()])
    }

    fn receiver_is_there(&self, receiver: &str, now: i64) -> Result<()> {
        let failures = self.failures(receiver)?;
        if failures >= AWAY_AFTER {
            self.send_at_once(receiver, now)?;
        }
        if failures > 0 {
            self.write("DELETE FROM webhook_receivers WHERE receiver = ?", vec![receiver.into()])?;
        }
        Ok(())
    }

    fn send_at_once(&self, receiver: &str, now: i64) -> Result<()> {
        let statement =
            "UPDATE webhook_messages SET due_at = ?1 WHERE receiver = ?2 AND ended_at IS NULL AND due_at > ?1";
        self.write(statement, vec![now.into(), receiver.into()])
    }

    fn receiver_failed(&self, receiver: &str, now: i64) -> Result<()> {
        let failures = self.failures(receiver)?.saturating_add(1);
        let not_before = now + millis(receiver_pause(failures));
        let statement = "INSERT OR REPLACE INTO webhook_receivers (receiver, failures, not_before) VALUES (?, ?, ?)";
        self.write(statement, vec![receiver.into(), i64::from(failures).into(), not_before.into()])?;
        let statement = "UPDATE webhook_messages SET ended_at = ?, failure = coalesce(failure, ?) \
            WHERE receiver = ? AND ended_at IS NULL AND made_at < ?";
        let why = "it waited for too long while its receiver took nothing";
        let oldest = now - millis(patience());
        self.write(statement, vec![now.into(), why.into(), receiver.into(), oldest.into()])
    }

    /// The tenant's webhook is another from now on: what waits goes there, and where there is none any more, nowhere.
    pub(super) fn redirect_messages(&self, has_webhook: bool, now: i64) -> Result<()> {
        self.write("DELETE FROM webhook_receivers WHERE receiver = ?", vec![TENANT.into()])?;
        self.outbox.look();
        if has_webhook {
            return self.send_at_once(TENANT, now);
        }
        let statement = "UPDATE webhook_messages SET ended_at = ?, failure = ? WHERE receiver = ? AND ended_at IS NULL";
        self.write(statement, vec![now.into(), TAKEN_AWAY.into(), TENANT.into()])
    }

    /// Forgets messages some time after their end, those of alerts with the alerts, and gives up what is too much.
    pub(super) fn tidy_outbox(&self, now: i64) -> Result<()> {
        let statement = format!("DELETE FROM webhook_messages WHERE ended_at < ? AND {OF_NO_ALERT}");
        self.write(&statement, vec![(now - KEPT_MILLIS).into()])?;
        if !self.outbox.has_grown.replace(false) {
            return Ok(());
        }
        let statement = "UPDATE webhook_messages SET ended_at = ?, failure = ? WHERE seq IN (SELECT seq FROM \
            (SELECT seq, row_number() OVER (PARTITION BY receiver ORDER BY seq DESC) AS place FROM webhook_messages \
            WHERE ended_at IS NULL) WHERE place > ?)";
        let why = format!("more than {MOST_WAITING} messages waited for its receiver");
        self.write(statement, vec![now.into(), why.into(), MOST_WAITING.into()])?;
        let statement = format!(
            "DELETE FROM webhook_messages WHERE ended_at IS NOT NULL AND {OF_NO_ALERT} AND seq <= \
            (SELECT seq FROM webhook_messages WHERE ended_at IS NOT NULL ORDER BY seq DESC LIMIT 1 OFFSET ?)"
        );
        self.write(&statement, vec![MOST_KEPT.into()])
    }
}

const TAKEN_AWAY: &str = "the webhook was taken away";

fn millis(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
