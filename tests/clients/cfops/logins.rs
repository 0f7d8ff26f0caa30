//! Keys: where they come from, where they lie, and where they never are.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use test_support::{PATIENCE, Stack, eventually};

use super::{Home, run, start};

#[tokio::test]
async fn a_key_lies_where_only_its_owner_reads_it_and_is_told_to_nobody() {
    let (home, stack) = (Home::new(), Stack::shared());
    let told = home.run_with(&["login", stack.client().base()], format!("{}\n", stack.key).as_bytes());
    assert!(told.ok().contains("default") && !told.stdout().contains(&stack.key));
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(home.profiles()), mode(home.path("config/cfops"))), (0o600, 0o700));
    assert!(fs::read_to_string(home.profiles()).unwrap().contains(&stack.key));
    assert!(!fs::read_to_string(home.tool_list()).unwrap().contains(&stack.key));
    for words in
        [&["profile", "list"][..], &["--json", "profile", "list"], &["tools"], &["--help"], &["completions", "bash"]]
    {
        let ran = home.run(words);
        assert!(!ran.ok().contains(&stack.key) && !ran.stderr().contains(&stack.key), "{words:?}");
    }
}

#[tokio::test]
async fn the_key_is_in_no_argument_list_and_in_no_environment() {
    let (home, sandbox) = (Home::logged_in(), Stack::shared().sandbox().await);
    let command = "echo; until [ -e go ]; do sleep 0.1; done; env";
    let mut child = start(&mut home.command(&["exec", "-s", &sandbox.id, "--timeout", "300", command]));
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    for file in ["cmdline", "environ"] {
        let held = fs::read(format!("/proc/{}/{file}", child.id())).unwrap();
        let held = String::from_utf8_lossy(&held);
        assert!(!held.is_empty() && !held.contains(&Stack::shared().key), "{file}");
    }
    sandbox.sh("touch go").await;
    let ran = super::end(child);
    assert!(ran.code() == 0 && !ran.stdout().contains(&Stack::shared().key));
    // Nor is there a flag that would take it.
    assert!(home.run(&["login", "http://127.0.0.1:1", "--key", "x"]).failed(2).contains("--key"));
}

#[test]
fn a_key_that_the_service_does_not_take_is_not_stored() {
    let (home, base) = (Home::logged_in(), Stack::shared().client().base().to_owned());
    let before = fs::read(home.profiles()).unwrap();
    home.run_with(&["login", &base], b"cfo_default_wrong_wrong").failed(121);
    home.run_with(&["login", &base], b"").failed(2);
    home.run_with(&["login", &base], b"two words").failed(2);
    home.run_with(&["login", "http://127.0.0.1:1"], b"key").failed(123);
    home.run_with(&["login", "http://192.0.2.1"], b"key").failed(2);
    assert_eq!(fs::read(home.profiles()).unwrap(), before);
    fs::set_permissions(home.profiles(), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(home.run(&["list-sandboxes"]).failed(125).contains("chmod 600"), "a key that others can read is not used");
}

#[tokio::test]
async fn profiles_have_keys_commands_and_tenants_of_their_own() {
    let (home, stack) = (Home::logged_in(), Stack::shared());
    let key = home.json(&["create-key", "--name", "reader", "--permissions.role", "viewer"]);
    home.log_in("reader", stack.client().base(), key["key"].as_str().unwrap());
    let told = home.json(&["profile", "list"]);
    let current = |name: &str, is: bool| json!({ "name": name, "current": is, "url": stack.client().base() });
    assert_eq!(told["profiles"], json!([current("default", false), current("reader", true)]));
    let help = home.run(&["--help"]).ok();
    assert!(help.contains("list-sandboxes") && !help.contains("create-sandbox"), "{help}");
    assert!(home.run(&["--profile", "default", "--help"]).ok().contains("create-sandbox"));
    home.run(&["create-sandbox"]).failed(2);
    assert!(
        home.run(&["call", "createSandbox"]).failed(121).contains("forbidden"),
        "the service is asked, and says why"
    );
    assert!(home.run(&["exec", "true"]).failed(121).contains("forbidden"));
    home.run(&["profile", "use", "default"]).ok();
    home.run(&["list-keys"]).ok();
    home.run(&["profile", "use", "nobody"]).failed(121);
    home.run(&["logout", "--profile", "reader"]).ok();
    assert!(home.run(&["--profile", "reader", "list-sandboxes"]).failed(121).contains("cfops login"));
    assert!(!fs::read_to_string(home.profiles()).unwrap().contains(key["key"].as_str().unwrap()));
    home.run_with(&["login", stack.client().base(), "--profile", "other", "--tenant", "other"], stack.key.as_bytes())
        .ok();
    let made = home.json(&["--profile", "other", "create-sandbox"]);
    let ids = |profile: &str| home.json(&["--profile", profile, "list-sandboxes"])["sandboxes"].to_string();
    let id = made["sandboxId"].as_str().unwrap();
    assert!(ids("other").contains(id) && !ids("default").contains(id));
    home.run(&["--profile", "other", "destroy-sandbox", "-s", id]).ok();
}

#[test]
fn the_environment_is_a_profile_for_machines() {
    let (home, stack) = (Home::new(), Stack::shared());
    home.run(&["list-sandboxes"]).failed(121);
    let with = |variables: &[(&str, &str)]| {
        run(home.command(&["--json", "list-sandboxes"]).envs(variables.iter().copied()), b"")
    };
    let (base, key) = (stack.client().base().to_owned(), stack.key.as_str());
    let list: Value = serde_json::from_str(&with(&[("CFOPS_URL", &base), ("CFOPS_KEY", key)]).ok()).unwrap();
    assert!(list["sandboxes"].is_array());
    with(&[("CFOPS_KEY", key)]).failed(2);
    let list = with(&[("CFOPS_URL", &base), ("CFOPS_KEY", key), ("CFOPS_TENANT", "elsewhere")]).ok();
    assert_eq!(list, "{\"sandboxes\":[]}\n");
    assert!(!home.profiles().exists(), "nothing is stored");
}

/// Answers of a service that changed are seen without waiting for the list to age.
#[tokio::test]
async fn a_list_of_tools_that_is_old_or_lacks_a_command_is_fetched_again() {
    let home = Home::logged_in();
    let change = |age: u64, keep: &dyn Fn(&Value) -> bool| {
        let mut list: Value = serde_json::from_slice(&fs::read(home.tool_list()).unwrap()).unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        list["fetchedAt"] = json!(now - age);
        list["tools"].as_array_mut().unwrap().retain(|tool| keep(tool));
        fs::write(home.tool_list(), list.to_string()).unwrap();
    };
    let tools = || {
        let list: Value = serde_json::from_slice(&fs::read(home.tool_list()).unwrap()).unwrap();
        list["tools"].as_array().unwrap().len()
    };
    let all = tools();
    // A minute old, and without the command that is asked for.
    change(60, &|tool| tool["name"] != "listSandboxes");
    home.run(&["list-sandboxes"]).ok();
    assert_eq!(tools(), all);
    // A minute old, and good for the command that is asked for: nothing is asked.
    change(60, &|tool| tool["name"] == "listSandboxes");
    home.run(&["list-sandboxes"]).ok();
    assert_eq!(tools(), 1);
    // Old.
    change(2 * 60 * 60, &|tool| tool["name"] == "listSandboxes");
    home.run(&["list-sandboxes"]).ok();
    assert_eq!(tools(), all);
    // Of another key: whoever logged in anew must not be shown what the one before could do.
    let mut list: Value = serde_json::from_slice(&fs::read(home.tool_list()).unwrap()).unwrap();
    list["fingerprint"] = json!("0");
    list["tools"] = json!([]);
    fs::write(home.tool_list(), list.to_string()).unwrap();
    eventually("the list is whole", PATIENCE, || async {
        home.run(&["list-sandboxes"]).ok();
        (tools() == all).then_some(())
    })
    .await;
}
