//! What `cfops` does.

pub(crate) mod call;
pub(crate) mod cp;
pub(crate) mod decide;
pub(crate) mod exec;
pub(crate) mod jobs;
pub(crate) mod secrets;
pub(crate) mod top;

pub(crate) mod login;
pub(crate) mod profiles;
pub(crate) mod tools;

pub(crate) mod completions;
