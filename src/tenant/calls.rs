//! Calls in the tenant's storage: decided on, open, settled.

use std::time::Duration;

use serde::Deserialize;

use super::actor::{Inner, TextRow, whole};
use super::admission::{
    Admission, AdmissionRequest, Admitted, Counted, DecisionKind, Identified, Intent, Known, Manner, May, Outcome,
    Ruling, SandboxClaim, Settlement, Used, Windows, busy_jobs_configured, decide, gives_back, who,
};
use super::credential::{Credential, Principal};
use super::idempotency::Answer;
use super::listing::ListRequest;
use super::measure;
use super::metrics::{Metric, Sample};
use super::permissions::Permissions;
use super::token::ROOT_KEY_ID;
use super::usage::{Spent, Use};
use crate::error::{Error, ErrorCode, Result};
use crate::guardrails::RateClass;
use crate::webhook::address;
use crate::workers::backend::configured;
use crate::workers::internal::pause;

/// Sandboxes named to a caller that asked for one that is not there.
const MOST_NAMED: usize = 20;

/// Overdue calls that one turn closes.
const MOST_CLOSED: i64 = 500;

#[derive(Deserialize)]
struct OpenCallRow {
    tool: String,
    key_id: String,
    takes_operation: f64,
    holds_key: f64,
    is_attempt: f64,
}

#[derive(Deserialize)]
struct OverdueRow {
    call_id: String,
    asked_at: f64,
}

/// Looks for room among a key's calls at once before one more is refused, and the pause between two of them.
const LOOKS_FOR_ROOM: u32 = 40;
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Calls of a tenant that look at once; whoever comes beyond them is refused at once.
const MOST_LOOKING: u32 = 32;

impl Inner {
    /// The same once there is room among the key's calls at once, or there was none for two seconds. A call is settled a moment after its
    /// answer, and whoever asks for one after the other is not refused for that moment.
    pub(super) async fn admit_when_settled(&self, request: &AdmissionRequest) -> Result<Admission> {
        if self.is_full(request)? && self.looking.get() < MOST_LOOKING {
            self.looking.set(self.looking.get() + 1);
            for _ in 0..LOOKS_FOR_ROOM {
                pause(LOOK_PAUSE).await;
                if !self.is_full(request).unwrap_or(false) {
                    break;
                }
            }
            self.looking.set(self.looking.get().saturating_sub(1));
        }
        self.admit(request)
    }

    /// Whether the key has used its calls at once; one that may have none at all never gets room.
    fn is_full(&self, request: &AdmissionRequest) -> Result<bool> {
        let key_id = request.principal.key_id.as_str();
        if key_id == ROOT_KEY_ID {
            return Ok(false);
        }
        let open_calls = self.open_calls(key_id)?;
        if open_calls == 0 {
            return Ok(false);
        }
        let key = self.key(key_id)?;
        Ok(key.is_some_and(|key| (1..=open_calls).contains(&key.limits.concurrent_calls())))
    }

    /// What is wrong with the webhook of a call: whether private addresses are open is known here.
    fn check_webhook(&self, request: &AdmissionRequest) -> Result<()> {
        let Some(url) = &request.webhook_url else { return Ok(()) };
        address::check_header(url, self.reach())?;
        self.webhook_keys(&request.principal.tenant).map(drop)
    }

    /// Decides on a call, and writes what the decision says, in one turn.
    pub(super) fn admit(&self, request: &AdmissionRequest) -> Result<Admission> {
        let checked = || self.check_webhook(request).and_then(|()| self.check_secrets(request));
        let verdict = if request.verdict.is_none() { checked().err() } else { None };
        let refused = verdict.map(|verdict| AdmissionRequest { verdict: Some(verdict), ..request.clone() });
        let request = refused.as_ref().unwrap_or(request);
        // 1. What is known.
        let key_id = request.principal.key_id.as_str();
        let is_limited = key_id != ROOT_KEY_ID;
        let key = if is_limited { self.key(key_id)? } else { None };
        let listed = request.claim.sandbox_id().map(|id| self.listed(id)).transpose()?.flatten();
        let makes = listed.is_none() && matches!(request.claim, SandboxClaim::Create { .. });
        let mut used = match &key {
            Some(_) => self.used(key_id, makes)?,
            None => Used::default(),
        };
        let wanted = request.idempotency.as_ref();
        let holder = request.principal.holder();
        let first = wanted.map(|wanted| self.first(&holder, &wanted.key)).transpose()?.flatten();
        // A question whose answer was lost comes again: it is decided as it was, and changes nothing any more.
        let is_attempt = request.manner == Manner::Attempt;
        let is_again = self.is_known(&request.call_id, is_attempt)?;
        let again = if is_again && !is_attempt { self.job(&request.call_id)? } else { None };
        if is_again {
            used.take_back(request.rate_class);
        }
        let first = first.filter(|first| first.call_id != request.call_id);
        let payer = listed.as_ref().map_or(key_id, |listed| listed.owner.as_str());
        let runs = request.claim.has_run(listed.as_ref());
        let budget = if runs { self.budget(payer, request.at)? } else { None };
        let busy_jobs = if request.manner == Manner::Deferred { self.busy_jobs()? } else { 0 };
        let (key, first) = (key.as_ref(), first.as_ref());
        let most_busy_jobs = busy_jobs_configured(configured(&self.env, "BUSY_JOBS").as_deref());
        let known = Known { key, used, budget, first, listed: listed.as_ref(), busy_jobs, most_busy_jobs };
        // 2. The decision.
        let decision = decide(request, &known);
        // 3. What it changes.
        // A call that is asked about again with its arguments is counted then.
        let is_counted = !is_again && !matches!(decision.kind, DecisionKind::Inspect(_));
        if let Some(windows) = decision.windows.as_ref().filter(|_| is_counted) {
            self.store_windows(key_id, windows)?;
        }
        if let Some(job) = again {
            return Ok(Admission { standing: decision.standing, ruling: Ruling::Deferred(Box::new(job)) });
        }
        let ruling = match decision.kind {
            DecisionKind::Admit { permissions, limits, .. } if is_again => {
                let secrets = self.secrets_for(request)?;
                Ruling::Admitted(Admitted { listed, permissions, limits, secrets })
            }
            DecisionKind::Admit { permissions, limits, list } => {
                let secrets = self.secrets_for(request)?;
                if let Some(list) = list {
                    self.add_listed(&list, &request.principal.tenant)?;
                    measure::add(
                        self,
                        &Sample::new(Metric::Created, &request.requirement.tool, None, None, request.at),
                    );
                }
                self.know_name(&request.principal.tenant)?;
                if is_attempt {
                    self.note_attempt(request)?;
                } else {
                    self.append(request.at, &request.call_id, "intent", &Intent::from(request))?;
                }
                self.open(request)?;
                self.keep_mark(request, false)?;
                if let Some(wanted) = wanted {
                    self.hold(&holder, wanted, &request.call_id, request.at, request.deadline_at)?;
                }
                Ruling::Admitted(Admitted { listed, permissions, limits, secrets })
            }
            DecisionKind::Replay => {
                let call_id = first.map(|first| first.call_id.clone()).unwrap_or_default();
                self.close(request, Outcome::Replayed)?;
                self.count_call(request, None);
                Ruling::Replayed(self.kept(&call_id)?)
            }
            DecisionKind::Job => {
                let job = first.map(|first| self.job(&first.call_id)).transpose()?.flatten();
                Ruling::Job(Box::new(job.ok_or_else(|| Error::internal("the job of an idempotency key is gone"))?))
            }
            DecisionKind::Inspect(rules) => return Ok(Admission { standing: None, ruling: Ruling::Inspect(rules) }),
            DecisionKind::Defer(approval) => {
                self.know_name(&request.principal.tenant)?;
                // Who asks for what has to be approved is answered at once.
                if approval.is_none() {
                    self.keep_mark(request, true)?;
                }
                Ruling::Deferred(Box::new(self.defer(request, approval, listed.as_ref())?))
            }
            DecisionKind::Refuse { error, .. } if is_attempt => Ruling::Refused(error),
            DecisionKind::Refuse { error, recorded } => {
                if recorded {
                    self.close(request, Outcome::Refused(error.code))?;
                }
                self.count_call(request, Some(error.code));
                Ruling::Refused(self.naming_what_is_there(error, request, key.map(|key| &key.permissions))?)
            }
        };
        Ok(Admission { standing: decision.standing, ruling })
    }

    /// Writes down a call that does not act.
    fn close(&self, request: &AdmissionRequest, outcome: Outcome) -> Result<()> {
        // What is recorded is exported under that name, also where nothing was ever admitted.
        self.know_name(&request.principal.tenant)?;
        self.append(request.at, &request.call_id, "intent", &Intent::from(request))?;
        let closed = Settlement::without_act(request, outcome);
        self.append(request.at, &request.call_id, "outcome", &closed)
    }

    /// Counts a call that does not act. A stranger's is counted for no key.
    fn count_call(&self, request: &AdmissionRequest, error: Option<ErrorCode>) {
        let tool = request.requirement.tool.as_str();
        measure::add(self, &Sample::call(tool, error, 0, request.at));
        if error != Some(ErrorCode::Unauthenticated) {
            let key_id = request.principal.key_id.as_str();
            self.count_use(&Use::call(request.at, key_id, tool, error, Spent::default()));
        }
    }

    /// Adds the sandboxes that are there to the refusal of one that is not.
    fn naming_what_is_there(
        &self,
        error: Error,
        request: &AdmissionRequest,
        permissions: Option<&Permissions>,
    ) -> Result<Error> {
        if error.code != ErrorCode::NotFound || !request.claim.is_of_a_listed_one() {
            return Ok(error);
        }
        let mut list = ListRequest { limit: u32::try_from(MOST_NAMED).unwrap_or(1), ..Default::default() };
        if let Some(permissions) = permissions {
            list.filters.labels = permissions.sandbox_labels.clone();
        }
        if let Credential::Token { permissions, .. } = &request.principal.credential {
            list.filters.labels.extend(permissions.sandbox_labels.clone());
        }
        let names = self.list(&list)?.sandboxes.into_iter().map(|listed| listed.sandbox_id.as_str().to_owned());
        Ok(error.detail("availableSandboxes", names.collect::<Vec<_>>()))
    }

    /// Whether a call is open or a job already. The first attempt of a job has its id.
    fn is_known(&self, call_id: &str, is_attempt: bool) -> Result<bool> {
        let jobs = if is_attempt { "" } else { " UNION ALL SELECT job_id FROM jobs WHERE job_id = ?1" };
        let statement = format!("SELECT call_id AS text FROM open_calls WHERE call_id = ?1{jobs}");
        Ok(!self.rows::<TextRow>(&statement, vec![call_id.into()])?.is_empty())
    }

    fn open(&self, request: &AdmissionRequest) -> Result<()> {
        let takes_operation = request.rate_class == RateClass::SandboxOperation;
        let values = vec![
            request.call_id.as_str().into(),
            request.requirement.tool.as_str().into(),
            request.principal.key_id.as_str().into(),
            i64::from(takes_operation).into(),
            i64::from(request.idempotency.is_some()).into(),
            i64::from(request.manner == Manner::Attempt).into(),
            request.at.into(),
            request.deadline_at.into(),
        ];
        let statement = "INSERT OR REPLACE INTO open_calls \
            (call_id, tool, key_id, takes_operation, holds_key, is_attempt, asked_at, deadline_at) \
            VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
        self.write(statement, values)
    }

    /// What a caller may do; counted, since it is asked as often as a caller likes.
    pub(super) fn identify(&self, principal: &Principal, now: i64) -> Result<Identified> {
        let Counted { permissions, standing, .. } = self.counted(principal, now)?;
        Ok(Identified { standing, may: permissions.map_or_else(May::Refused, May::Have) })
    }

    /// Who asks something beside calls, counted as one.
    pub(super) fn counted(&self, principal: &Principal, now: i64) -> Result<Counted> {
        let key_id = principal.key_id.as_str();
        let key = if key_id == ROOT_KEY_ID { None } else { self.key(key_id)? };
        let windows = if key.is_some() { self.windows(key_id)? } else { Windows::default() };
        let counted = who(principal, key.as_ref(), windows, now, true)?;
        if let Some(windows) = &counted.windows {
            self.store_windows(key_id, windows)?;
        }
        Ok(counted)
    }

    /// Writes down how a call ended; a second time changes nothing.
    pub(super) fn settle(&self, settlement: &Settlement) -> Result<()> {
        let call_id = settlement.call_id.as_str();
        let statement = "SELECT tool, key_id, takes_operation, holds_key, is_attempt FROM open_calls WHERE call_id = ?";
        let open: Vec<OpenCallRow> = self.rows(statement, vec![call_id.into()])?;
        let Some(open) = open.first() else {
            return Ok(());
        };
        let error = match settlement.outcome {
            Outcome::Succeeded | Outcome::Replayed => None,
            Outcome::Failed(code) | Outcome::Refused(code) => Some(code),
        };
        // An attempt that never began is none.
        if !matches!(settlement.outcome, Outcome::Refused(_)) {
            self.count_use(&Use::call(settlement.at, &open.key_id, &open.tool, error, settlement.spent));
        }
        // The outcome of a job is told by its object.
        if open.is_attempt == 0.0 {
            let record = Settlement { answer: None, spent: Spent::default(), ..settlement.clone() };
            self.append(settlement.at, call_id, "outcome", &record)?;
            measure::add(self, &Sample::call(&open.tool, error, settlement.duration_ms, settlement.at));
        }
        if open.holds_key != 0.0 {
            self.keep(call_id, settlement.answer.as_ref(), settlement.at)?;
        }
        if open.takes_operation != 0.0 && gives_back(settlement.outcome) && open.key_id != ROOT_KEY_ID {
            self.give_back_operation(&open.key_id)?;
        }
        self.forget_mark(call_id)?;
        self.write("DELETE FROM open_calls WHERE call_id = ?", vec![call_id.into()])
    }

    /// Closes calls that nobody settled by their deadline.
    pub(super) fn close_overdue(&self, now: i64) -> Result<()> {
        let statement = "SELECT call_id, asked_at FROM open_calls WHERE deadline_at < ? LIMIT ?";
        let overdue: Vec<OverdueRow> = self.rows(statement, vec![now.into(), MOST_CLOSED.into()])?;
        for call in overdue {
            let closed = Settlement::never_settled(call.call_id, whole(call.asked_at), now);
            let message = "the call did not tell how it ended by its deadline; it may have acted";
            let answer = Some(Answer::Error(Error::new(ErrorCode::OutcomeUnknown, message)));
            self.settle(&Settlement { answer, ..closed })?;
        }
        Ok(())
    }
}
