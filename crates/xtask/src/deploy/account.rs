//! Whether somebody is logged in, and into which account.

use super::stop;
use super::wrangler::{Wrangler, refused};
use anyhow::Result;
use serde_json::Value;

/// The account that will be deployed to, as a person knows it.
pub(crate) fn check(wrangler: &Wrangler, chosen: Option<&str>) -> Result<String> {
    let answer = wrangler.ask(&["whoami", "--json"], "")?;
    let said: Value = serde_json::from_str(answer.stdout.trim()).unwrap_or(Value::Null);
    if said.get("loggedIn") == Some(&Value::Bool(false)) {
        return Err(stop(
            "wrangler is not logged in to Cloudflare",
            "run `node_modules/.bin/wrangler login`, or set CLOUDFLARE_API_TOKEN (docs/deploy.md says with which permissions)",
        ));
    }
    if !answer.ok {
        return Err(refused(
            "wrangler cannot tell who is logged in",
            &answer,
            "check the network and CLOUDFLARE_API_TOKEN (docs/deploy.md says with which permissions), and run this again",
        ));
    }
    let accounts: Vec<(String, String)> = said
        .get("accounts")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|account| {
            Some((account.get("id")?.as_str()?.to_owned(), account.get("name")?.as_str()?.to_owned()))
        })
        .collect();
    let list = accounts.iter().map(|(id, name)| format!("  | {id}  {name}")).collect::<Vec<_>>().join("\n");
    match (chosen, accounts.as_slice()) {
        (Some(chosen), _) => match accounts.iter().find(|(id, _)| id == chosen) {
            Some((id, name)) => Ok(format!("{name} ({id})")),
            None => Err(stop(
                &format!("whoever is logged in does not reach the account {chosen}; reachable are:\n{list}"),
                "set CLOUDFLARE_ACCOUNT_ID to one of them, or use a token of the other account",
            )),
        },
        (None, [(id, name)]) => Ok(format!("{name} ({id})")),
        (None, []) => Err(stop(
            "whoever is logged in reaches no account",
            "use a token with the permission Account Settings: Read of the account (docs/deploy.md)",
        )),
        (None, _) => Err(stop(
            &format!("whoever is logged in reaches several accounts:\n{list}"),
            "set CLOUDFLARE_ACCOUNT_ID to the one to deploy to",
        )),
    }
}
