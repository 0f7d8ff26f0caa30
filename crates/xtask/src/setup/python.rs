//! Python with its virtual environments, for the clients that are generated and run in tests.

use super::{Cost, Requirement, apt};
use crate::run;
use anyhow::{Result, bail};

pub(crate) struct Python;

impl Requirement for Python {
    fn name(&self) -> String {
        "python3 with venv".to_owned()
    }

    fn missing(&self) -> Result<Option<Cost>> {
        // Debian ships the module `venv` without what it needs to make one.
        let works = run::ask(run::command("python3").args(["-c", "import ensurepip, venv; print('yes')"]));
        if works.is_some() {
            return Ok(None);
        }
        Ok(Some(Cost::new("runs the generated clients; from the system's package manager", 30, 1)))
    }

    fn install(&self) -> Result<()> {
        if apt::available() {
            return apt::install(&["python3", "python3-venv"]);
        }
        bail!("install Python 3.11 or newer with its module `venv` and run this command again")
    }
}
