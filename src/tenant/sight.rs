//! The tenant's lists as a key sees them: a key that works with the sandboxes of certain labels is told of no others, and of jobs about
//! others only where it asked for them.

use std::rc::Rc;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, ready};

use super::admission::{Admission, AdmissionRequest, Identified, ListRequest, Listing, Settlement};
use super::alerts::{AlertReport, AlertRequest};
use super::archive::Export;
use super::audit::Head;
use super::credential::{Credential, Principal};
use super::deliveries::{DeliveryListRequest, DeliveryListing};
use super::inquiry::{AuditRequest, Entries, Verified, VerifyRequest};
use super::jobs::{JobListRequest, JobListing, JobSettings, SeenBy};
use super::keys::{KeyRequest, Keys};
use super::marks::{CancelRequest, Marked, Wanted, WantedRequest};
use super::metrics::{MetricsRequest, Report};
use super::permissions::Permissions;
use super::secrets::{SecretRequest, Secrets};
use super::usage::{UsageReport, UsageRequest};
use crate::error::{Error, ErrorCode, Result};
use crate::schedule::record::{ScheduleReport, ScheduleRequest};
use crate::services::{Books, Tenant};

/// `tenant` as the key with these permissions sees it.
pub fn in_sight(tenant: Rc<dyn Tenant>, permissions: &Permissions, principal: &Principal) -> Rc<dyn Tenant> {
    if permissions.sandbox_labels.is_empty() {
        return tenant;
    }
    Rc::new(Sight { tenant, permissions: permissions.clone(), principal: principal.clone() })
}

struct Sight {
    tenant: Rc<dyn Tenant>,
    permissions: Permissions,
    principal: Principal,
}

/// The books, and messages to webhooks, tell of every sandbox of the tenant.
fn out_of_sight<T: 'static>() -> LocalBoxFuture<'static, Result<T>> {
    let message = "the books tell of all sandboxes; a key that sees those of certain labels only cannot read them";
    ready(Err(Error::new(ErrorCode::Forbidden, message))).boxed_local()
}

/// What is set for the tenant is set for sandboxes that the key does not see.
fn out_of_reach<T: 'static>() -> LocalBoxFuture<'static, Result<T>> {
    let message = "this is set for all sandboxes; a key that sees those of certain labels only cannot set it";
    ready(Err(Error::new(ErrorCode::Forbidden, message))).boxed_local()
}

impl Tenant for Sight {
    fn list_sandboxes(&self, mut request: ListRequest) -> LocalBoxFuture<'_, Result<Listing>> {
        // Who asks for labels that contradict its own sees nothing.
        match self.permissions.labelled(request.filters.labels) {
            Ok(labels) => {
                request.filters.labels = labels;
                self.tenant.list_sandboxes(request)
            }
            Err(_) => ready(Ok(Listing::default())).boxed_local(),
        }
    }

    fn admit(&self, request: AdmissionRequest) -> LocalBoxFuture<'_, Result<Admission>> {
        self.tenant.admit(request)
    }

    fn identify(&self, principal: Principal) -> LocalBoxFuture<'_, Result<Identified>> {
        self.tenant.identify(principal)
    }

    fn keys(&self, request: KeyRequest) -> LocalBoxFuture<'_, Result<Keys>> {
        self.tenant.keys(request)
    }

    fn secrets(&self, request: SecretRequest) -> LocalBoxFuture<'_, Result<Secrets>> {
        self.tenant.secrets(request)
    }

    fn settle(&self, settlement: Settlement) -> LocalBoxFuture<'_, Result<()>> {
        self.tenant.settle(settlement)
    }

    fn cancel(&self, request: CancelRequest) -> LocalBoxFuture<'_, Result<Marked>> {
        self.tenant.cancel(request)
    }

    fn wanted(&self, request: WantedRequest) -> LocalBoxFuture<'_, Result<Wanted>> {
        self.tenant.wanted(request)
    }

    fn list_jobs(&self, request: JobListRequest) -> LocalBoxFuture<'_, Result<JobListing>> {
        let labels = self.permissions.sandbox_labels.clone();
        let token_id = match &self.principal.credential {
            Credential::Token { token_id, .. } => Some(token_id.clone()),
            _ => None,
        };
        let seen_by = Some(SeenBy { key_id: self.principal.key_id.clone(), token_id, labels });
        self.tenant.list_jobs(JobListRequest { seen_by, ..request })
    }

    fn set_jobs(&self, _: JobSettings) -> LocalBoxFuture<'_, Result<JobSettings>> {
        out_of_reach()
    }

    fn metrics(&self, request: MetricsRequest) -> LocalBoxFuture<'_, Result<Report>> {
        self.tenant.metrics(request)
    }

    fn alerts(&self, request: AlertRequest) -> LocalBoxFuture<'_, Result<AlertReport>> {
        match request {
            AlertRequest::List { .. } => self.tenant.alerts(request),
            AlertRequest::SetBudget { .. } | AlertRequest::SetSettings(_) => out_of_reach(),
        }
    }

    fn deliveries(&self, _: DeliveryListRequest) -> LocalBoxFuture<'_, Result<DeliveryListing>> {
        out_of_sight()
    }

    /// Its own; a token that sees less than its key is told of none.
    fn schedules(&self, request: ScheduleRequest) -> LocalBoxFuture<'_, Result<ScheduleReport>> {
        let is_token = match &self.principal.credential {
            Credential::Token { .. } => true,
            Credential::Job { token_id, .. } => token_id.is_some(),
            Credential::Root | Credential::Key { .. } => false,
        };
        let seen_by = if is_token { String::new() } else { self.principal.key_id.clone() };
        self.tenant.schedules(ScheduleRequest { seen_by: Some(seen_by), ..request })
    }

    fn usage(&self, request: UsageRequest) -> LocalBoxFuture<'_, Result<UsageReport>> {
        self.tenant.usage(request)
    }
}

impl Books for Sight {
    fn audit(&self, _: AuditRequest) -> LocalBoxFuture<'_, Result<Entries>> {
        out_of_sight()
    }

    fn verify_audit(&self, _: VerifyRequest) -> LocalBoxFuture<'_, Result<Verified>> {
        out_of_sight()
    }

    fn first_export(&self) -> LocalBoxFuture<'_, Result<Option<Export>>> {
        out_of_sight()
    }

    fn audit_heads(&self, _: Vec<i64>) -> LocalBoxFuture<'_, Result<Vec<Head>>> {
        out_of_sight()
    }
}
