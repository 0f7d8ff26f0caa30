//! `cfops tools`: what this key may call, asked anew.

use crate::arguments::kebab;
use crate::catalog::Catalog;
use crate::client::Client;
use crate::failure::Result;
use crate::output::Output;
use crate::profile::Chosen;
use clap::Command;
use serde_json::json;

pub(crate) fn command() -> Command {
    Command::new("tools").about("List the tools that this key may call; each is a command")
}

pub(crate) fn run(client: &Client, chosen: &Chosen, output: Output) -> Result<u8> {
    if output.is_json() {
        return output.value(&client.get_json("/v1/tools")?).map(|()| 0);
    }
    let catalog = Catalog::fetch(client, chosen)?;
    let rows: Vec<_> = catalog
        .tools
        .iter()
        .map(|tool| json!({ "name": kebab(&tool.name), "tool": tool.name, "title": tool.annotations.title, "role": tool.guardrails.role }))
        .collect();
    output.value(&json!({ "tools": rows })).map(|()| 0)
}
