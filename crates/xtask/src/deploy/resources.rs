//! What the environment binds and the account must have before the Worker can be uploaded.

use super::stop;
use super::target::Target;
use super::wrangler::{Wrangler, refused};
use anyhow::Result;

/// One kind of thing that can be bound. Another kind is another row.
struct Kind {
    noun: &'static str,
    /// Where wrangler.toml lists it below an environment, and the field with its name.
    listed: &'static str,
    field: &'static str,
    /// wrangler's commands, which take the name last.
    ask: &'static [&'static str],
    create: &'static [&'static str],
}

const QUEUE_ASK: &[&str] = &["queues", "info"];
const QUEUE_CREATE: &[&str] = &["queues", "create"];

const KINDS: [Kind; 4] = [
    Kind {
        noun: "R2 bucket",
        listed: "r2_buckets",
        field: "bucket_name",
        ask: &["r2", "bucket", "info"],
        create: &["r2", "bucket", "create"],
    },
    Kind { noun: "queue", listed: "queues.producers", field: "queue", ask: QUEUE_ASK, create: QUEUE_CREATE },
    Kind { noun: "queue", listed: "queues.consumers", field: "queue", ask: QUEUE_ASK, create: QUEUE_CREATE },
    Kind {
        noun: "queue",
        listed: "queues.consumers",
        field: "dead_letter_queue",
        ask: QUEUE_ASK,
        create: QUEUE_CREATE,
    },
];

/// How wrangler says of each kind that there is none of this name.
const ABSENT: &str = "does not exist";

/// Something to create.
pub(crate) struct Missing {
    kind: &'static Kind,
    name: String,
}

impl Missing {
    pub(crate) fn describe(&self) -> String {
        format!("{} {}", self.kind.noun, self.name)
    }

    pub(crate) fn create(&self, wrangler: &Wrangler) -> Result<()> {
        let mut command = self.kind.create.to_vec();
        command.push(&self.name);
        let answer = wrangler.ask(&command, "")?;
        if answer.ok {
            return Ok(());
        }
        Err(refused(
            &format!("the {} could not be created", self.describe()),
            &answer,
            "if the token lacks the permission, add it (docs/deploy.md); then run this again: what exists is not made twice",
        ))
    }
}

/// What the environment binds, whether it exists or not.
pub(crate) fn declared(target: &Target) -> Vec<Missing> {
    let mut found: Vec<Missing> = Vec::new();
    for kind in &KINDS {
        for name in target.bound(kind.listed, kind.field) {
            if !found.iter().any(|one| one.kind.noun == kind.noun && one.name == name) {
                found.push(Missing { kind, name });
            }
        }
    }
    found
}

/// What of it the account lacks.
pub(crate) fn missing(wrangler: &Wrangler, target: &Target) -> Result<Vec<Missing>> {
    let mut absent = Vec::new();
    for one in declared(target) {
        let mut command = one.kind.ask.to_vec();
        command.push(&one.name);
        let answer = wrangler.ask(&command, "")?;
        if answer.ok {
            continue;
        }
        if !answer.text.contains(ABSENT) {
            return Err(stop(
                &format!("whether there is a {} is not known\n{}", one.describe(), answer.tail()),
                "check the network and the token's permissions (docs/deploy.md), and run this again",
            ));
        }
        absent.push(one);
    }
    Ok(absent)
}
