//! The queue of jobs under test: its faults, messages that nobody would send, and jobs whose objects cannot be read.

use std::path::Path;
use std::process::Command;

use reqwest::Method;
use serde_json::Value;

use crate::{
    client::Client,
    locate::{node, project_root},
};

/// How the queue of jobs behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueKind {
    /// As the platform's does.
    #[default]
    Real,
    /// None is bound.
    Absent,
    /// It throws when it is given a message.
    Throws,
    /// It takes messages and delivers none.
    Loses,
}

impl QueueKind {
    pub(crate) fn word(self) -> Option<String> {
        match self {
            Self::Real => None,
            Self::Absent => Some("absent".to_owned()),
            Self::Throws => Some("throws".to_owned()),
            Self::Loses => Some("loses".to_owned()),
        }
    }
}

impl Client {
    /// Puts messages into the queue of jobs, in one batch and in this order.
    ///
    /// # Panics
    /// When the queue does not take them.
    pub async fn enqueue(&self, messages: &[Value]) {
        let text = Value::from(messages.to_vec()).to_string();
        let answer = self.send(self.request(Method::POST, "/").header("x-test-queue", text)).await;
        assert_eq!(answer.status, 204, "{}", answer.text());
    }
}

/// Overwrites what the object of a job has stored of it, while no workerd runs.
///
/// # Panics
/// When no object has that job.
pub fn damage_job(storage: &Path, job_id: &str) {
    let mut command = Command::new(node());
    command.arg("--experimental-sqlite").arg(project_root().join("tests/support/damage-job.mjs"));
    let output = command.arg(storage).arg(job_id).output().expect("node starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
}
