//! The one alarm of a sandbox's object, and the rows of `timers` behind it. What is due when is decided in `timers.rs`.

use std::rc::Rc;
use std::time::Duration;

use super::actor::Inner;
use super::life::{self, DESTROY_DEADLINE};
use super::reconcile;
use super::sleep::sleep_if_idle;
use super::timers::{self, Kind, Timer};
use crate::error::{Error, Result};
use crate::platform::{Platform, within};

/// What one alarm works at most; what is not done by then is tried again.
const ALARM_DEADLINE: Duration = Duration::from_secs(25);

#[derive(serde::Deserialize)]
struct Row {
    timer: String,
}

/// Writes the timers that the record asks for, and sets or clears the alarm. A failure is logged: the next change or sweep
/// mends it.
pub async fn arm(inner: &Rc<Inner>) {
    if let Err(error) = rearm(inner).await {
        inner.complain("the alarm of a sandbox could not be set", &error);
    }
}

async fn rearm(inner: &Rc<Inner>) -> Result<()> {
    let now = inner.platform.now_millis();
    let wanted = match inner.load()? {
        Some(stored) => {
            let rows = rows(inner)?;
            let wanted = timers::merged(&timers::wanted(&stored.record, now), &rows);
            if wanted != rows {
                store(inner, &wanted)?;
            }
            wanted
        }
        None => Vec::new(),
    };
    let alarm = timers::alarm(&wanted);
    if inner.alarm.get() == Some(alarm) {
        return Ok(());
    }
    inner.alarm.set(Some(alarm));
    let storage = inner.state.storage();
    let set = match alarm {
        Some(due) => storage.set_alarm(Duration::from_millis(u64::try_from(due - now).unwrap_or(0))).await,
        None => storage.delete_alarm().await,
    };
    set.map_err(|error| {
        inner.alarm.set(None);
        Error::internal(error)
    })
}

fn rows(inner: &Inner) -> Result<Vec<Timer>> {
    let sql = inner.sql();
    sql.exec(
        "CREATE TABLE IF NOT EXISTS timers (kind TEXT PRIMARY KEY, due INTEGER NOT NULL, timer TEXT NOT NULL)",
        None,
    )
    .map_err(Error::internal)?;
    let rows = sql.exec("SELECT timer FROM timers ORDER BY rowid", None);
    let rows = rows.and_then(|cursor| cursor.to_array::<Row>()).map_err(Error::internal)?;
    rows.iter().map(|row| serde_json::from_str(&row.timer).map_err(Error::internal)).collect()
}

fn store(inner: &Inner, timers: &[Timer]) -> Result<()> {
    inner.sql().exec("DELETE FROM timers", None).map_err(Error::internal)?;
    timers.iter().try_for_each(|timer| write(inner, timer))
}

fn write(inner: &Inner, timer: &Timer) -> Result<()> {
    let text = serde_json::to_string(timer).map_err(Error::internal)?;
    let values = vec![kind(timer.kind).into(), timer.due.into(), text.into()];
    let statement = "INSERT OR REPLACE INTO timers (kind, due, timer) VALUES (?, ?, ?)";
    inner.sql().exec(statement, values).map(drop).map_err(Error::internal)
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Idle => "idle",
        Kind::Expiry => "expiry",
        Kind::Start => "start",
    }
}

/// What the alarm does: everything that is due, then the alarm again. It never fails, so the platform never repeats it.
pub async fn run(inner: &Rc<Inner>) {
    inner.alarm.set(None);
    match within(&inner.platform, ALARM_DEADLINE, work(inner)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => inner.complain("the alarm of a sandbox failed", &error),
        Err(_) => inner.complain("the alarm of a sandbox took too long", &Error::internal("its deadline")),
    }
    arm(inner).await;
}

async fn work(inner: &Rc<Inner>) -> Result<()> {
    if inner.load()?.is_none() {
        return Ok(());
    }
    let now = inner.platform.now_millis();
    for timer in rows(inner)?.into_iter().filter(|timer| timer.due <= now) {
        // Counted as failed before it is tried: work that never ends must not be begun again at once.
        write(inner, &timers::failed(timer, now))?;
        let done = match timer.kind {
            Kind::Idle => sleep_if_idle(inner, timer.attempt).await,
            Kind::Expiry => expire(inner).await,
            Kind::Start => reconcile::settle_start(inner).await,
        };
        match done {
            Ok(()) if inner.load()?.is_some() => {
                let values = vec![kind(timer.kind).into()];
                inner.sql().exec("DELETE FROM timers WHERE kind = ?", values).map_err(Error::internal)?;
            }
            Ok(()) => return Ok(()),
            Err(error) => inner.complain("a timer of a sandbox failed", &error),
        }
    }
    Ok(())
}

/// Destroys a sandbox whose time is over. An update that came first has moved that time.
async fn expire(inner: &Rc<Inner>) -> Result<()> {
    match inner.load()? {
        Some(stored) if stored.record.expired(inner.platform.now_millis()) => {
            life::destroy(inner, false, DESTROY_DEADLINE).await.map(drop)
        }
        _ => Ok(()),
    }
}
