//! The table of calls that give the same wherever a sandbox runs, here in a container.

use serde_json::{Value, json};
use test_support::{ContainerStack, ENVIRONMENT, run_all};

#[tokio::test]
async fn the_calls_of_the_table_give_what_they_give_everywhere() {
    let environment: Value = serde_json::from_str(ENVIRONMENT).unwrap();
    let sandbox = ContainerStack::shared().sandbox_with(json!({"env": environment})).await;
    run_all(&sandbox).await;
}
