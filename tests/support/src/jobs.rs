//! Jobs, as tests ask for them and wait for them.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;

use crate::{Answer, Client, eventually};

impl Client {
    /// A call whose caller does not wait.
    pub async fn deferred(&self, tool: &str, arguments: &Value) -> Answer {
        let request = self.request(Method::POST, &format!("/v1/tools/{tool}")).header("prefer", "respond-async");
        self.send(request.json(arguments)).await
    }

    /// A job once it is over. The service may be away meanwhile.
    ///
    /// # Panics
    /// When it is not over within five minutes.
    pub async fn ended(&self, job: &str) -> Value {
        let is_over = || async {
            let answer = self.try_send(self.request(Method::GET, &format!("/v1/jobs/{job}/status"))).await?;
            (answer.status == 200 && answer.json()["endedAt"].is_string()).then(|| answer.json())
        };
        eventually("the job is over", Duration::from_secs(300), is_over).await
    }
}

impl Answer {
    /// Id of the job that a call became.
    ///
    /// # Panics
    /// When it became none, or when `Location` names another.
    #[track_caller]
    pub fn job_id(&self) -> String {
        assert_eq!(self.status, 202, "{}", self.text());
        let id = self.json()["jobId"].as_str().unwrap_or_else(|| panic!("{}", self.text())).to_owned();
        assert_eq!(self.header("location"), Some(format!("/v1/jobs/{id}").as_str()));
        id
    }
}
