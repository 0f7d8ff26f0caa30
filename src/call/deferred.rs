//! Calls that became jobs: made, found again, waited for.

use std::time::Duration;

use super::answer::Measured;
use super::{Answered, Reply, millis};
use crate::error::{ErrorCode, Result};
use crate::job::record::{Job, Seed};
use crate::job::state::State;
use crate::platform::Platform;
use crate::services::Jobs;
use crate::tenant::idempotency::Answer;
use crate::tools::job_info::JobInfo;

/// Longest part of a wait for a job that is asked for at once.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Makes a new job known to its object.
pub(super) async fn new_job(jobs: &dyn Jobs, seed: Seed) -> Result<JobInfo> {
    let told = jobs.create(&seed).await;
    told.map(JobInfo::of).map_err(|error| error.detail("jobId", seed.job.job_id))
}

/// The job that a call is already; one that is on its way to its object as the tenant lists it.
pub(super) async fn known_job(jobs: &dyn Jobs, job: Job) -> Result<JobInfo> {
    match jobs.describe(&job.job_id).await {
        Err(error) if error.code == ErrorCode::NotFound => Ok(JobInfo::from(job)),
        told => told.map(JobInfo::of),
    }
}

/// Waits for a job as long as its caller does; where it is over by then, the answer is that of the call.
pub(super) async fn waited<A: Measured>(
    jobs: &dyn Jobs,
    platform: &dyn Platform,
    patience: Option<Duration>,
    answered: Answered<Reply<A>>,
) -> Answered<Reply<A>> {
    let Answered { result: Ok(Reply::Job(mut job)), standing, is_replayed, has_begun } = answered else {
        return answered;
    };
    // Who is told events is not kept waiting without any.
    let until = platform.now_millis().saturating_add(millis(patience.unwrap_or_default()));
    let result = loop {
        let left = Duration::from_millis(u64::try_from(until - platform.now_millis()).unwrap_or(0));
        if left.is_zero() || job.state == State::AwaitingApproval {
            break Ok(Reply::Job(job));
        }
        match jobs.wait(&job.job_id, left.min(LONGEST_WAIT)).await {
            Ok(told) if told.job.state.is_over() => match (told.job.error.clone(), told.output.clone()) {
                (Some(error), _) => break Err(error.with_details(told.details)),
                (None, Some(output)) => break A::replayed(Answer::Output(output)).map(Reply::Output),
                // It was too long to be kept.
                (None, None) => break Ok(Reply::Job(Box::new(JobInfo::of(told)))),
            },
            Ok(told) => *job = JobInfo::of(told),
            // The job goes on, whether its object answers or not.
            Err(_) => break Ok(Reply::Job(job)),
        }
    };
    Answered { result, standing, is_replayed, has_begun }
}
