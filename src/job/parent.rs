//! The pipeline that a step belongs to is told when the step does not wait for an approval any more. A pipeline that is not reached looks by
//! itself, though not soon.

use std::rc::Rc;
use std::time::Duration;

use super::actor::{Inner, object_name};
use super::record::StepOf;
use crate::error::{Error, Result};
use crate::fetch_error::Repeat;
use crate::workers::fetch::FetchError;
use crate::workers::internal::{JOB_BINDING, Question, namespace};

/// Until the pipeline's object has taken it.
const WAKE_DEADLINE: Duration = Duration::from_secs(5);

/// Has the pipeline go on.
pub(super) async fn wake(inner: Rc<Inner>, tenant: String, of: StepOf) {
    if let Err(error) = ask(&inner, &tenant, &of).await {
        inner.complain("the pipeline of a step was not told that it can go on", &error);
    }
}

async fn ask(inner: &Inner, tenant: &str, of: &StepOf) -> Result<()> {
    let objects = &namespace(&inner.env, JOB_BINDING)?;
    let name = &object_name(tenant, &of.job_id);
    let lost = |error: FetchError| Error::internal(error);
    let (path, deadline, repeat, trace) = ("/wake", WAKE_DEADLINE, Repeat::Harmless, Vec::new());
    Question { objects, name, path, deadline, repeat, lost, trace }.ask(&(), |_| ()).await
}
