//! The prompt for a key on a real terminal.

use std::process::Command;
use std::time::Duration;

use test_support::{Stack, cfops, random_name, scratch_folder};

use super::{Home, approvals};
use crate::tools::run;

const LIMIT: Duration = Duration::from_secs(300);

/// Python's standard library has terminals; what is typed, and what must be shown, is in the script.
fn typed(scene: &str, home: &Home, variables: &[(&str, &str)]) -> String {
    let stack = Stack::shared();
    let mut script = Command::new("python3");
    script.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python/prompt.py")).arg(scene);
    script.env("CFOPS", cfops()).env("TEST_URL", stack.client().base()).env("TEST_KEY", &stack.key);
    script.env("XDG_CONFIG_HOME", home.path("config")).env("XDG_CACHE_HOME", home.path("cache"));
    script.envs(variables.iter().copied());
    run(&mut script, LIMIT, &scratch_folder("prompt").join("prompt.log"))
}

#[test]
fn a_key_that_is_typed_is_not_shown_and_an_interrupted_prompt_shows_again_what_is_typed() {
    let home = Home::new();
    let told = typed("login", &home, &[]);
    assert_eq!(told, "logged in without showing the key; interrupted by 2, and the terminal shows what is typed\n");
    assert!(std::fs::read_to_string(home.profiles()).unwrap().contains(&Stack::shared().key));
}

#[tokio::test]
async fn an_approval_is_asked_for_at_the_terminal() {
    let (home, sandbox) = (approvals::agent(), Stack::shared().sandbox().await);
    let mark = random_name("asked");
    let job = approvals::waiting(&home, &sandbox, &mark);
    let told = typed("approve", &home, &[("TEST_JOB", job["jobId"].as_str().unwrap()), ("TEST_MARK", &mark)]);
    assert_eq!(told, "shown and asked twice; no did nothing, yes approved\n");
}
