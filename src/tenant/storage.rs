//! What a tenant keeps in R2: bytes and objects by kind, which is the first part of a name below the tenant's own.
//!
//! The list of the bucket is the truth. It is read now and then, in parts; in between, what is written is added at once. What else
//! keeps things for a tenant puts them below the same prefix and is counted with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::prices::{Prices, rounded};
use crate::platform::rfc3339;

/// Most kinds that are told apart.
const MOST_KINDS: usize = 20;

/// Stands for all kinds beyond these.
const OTHER_KIND: &str = "other";

/// What a tenant keeps in R2, as it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageTold {
    pub bytes: i64,
    pub objects: i64,
    /// By kind: `audit` is the exported audit.
    pub kinds: BTreeMap<String, Stored>,
    /// When the objects were last counted, RFC 3339, UTC; what was written since is added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_at: Option<String>,
    /// Estimated US dollars for keeping them a month.
    pub monthly_cost: f64,
}

/// Objects of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stored {
    pub bytes: i64,
    pub objects: i64,
}

type Kinds = BTreeMap<String, Stored>;

/// What is known of a tenant's storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Storage {
    pub kinds: Kinds,
    /// When the list was last read to its end.
    pub counted_at: Option<i64>,
    /// Whether anything was written since.
    is_changed: bool,
    counting: Option<Counting>,
}

/// A count under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Counting {
    cursor: String,
    kinds: Kinds,
}

impl Storage {
    pub fn total(&self) -> Stored {
        self.kinds.values().fold(Stored::default(), |sum, stored| Stored {
            bytes: sum.bytes + stored.bytes,
            objects: sum.objects + stored.objects,
        })
    }

    pub fn told(self, prices: &Prices) -> StorageTold {
        let Stored { bytes, objects } = self.total();
        let monthly_cost = rounded(prices.stored_cost(bytes));
        StorageTold { bytes, objects, kinds: self.kinds, counted_at: self.counted_at.map(rfc3339), monthly_cost }
    }

    /// The same with one object more.
    pub fn with(mut self, kind: &str, bytes: i64) -> Self {
        add(&mut self.kinds, kind, bytes);
        Self { is_changed: true, ..self }
    }

    /// When it is to be counted: some time after the last count, where anything changed, and at once to end a count.
    pub fn due(&self, round: i64) -> Option<i64> {
        if self.counting.is_some() {
            return Some(0);
        }
        self.is_changed.then(|| self.counted_at.unwrap_or(0) + round)
    }

    /// Where the count under way goes on.
    pub fn cursor(&self) -> Option<&str> {
        self.counting.as_ref().map(|counting| counting.cursor.as_str())
    }

    /// The same after a part of the list: names below the tenant's prefix, with their bytes, and where it goes on.
    pub fn counted<'a>(self, objects: impl Iterator<Item = (&'a str, i64)>, cursor: Option<String>, now: i64) -> Self {
        let mut kinds = self.counting.map(|counting| counting.kinds).unwrap_or_default();
        for (name, bytes) in objects {
            add(&mut kinds, name.split('/').next().unwrap_or_default(), bytes);
        }
        match cursor {
            Some(cursor) => Self { counting: Some(Counting { cursor, kinds }), ..self },
            None => Self { kinds, counted_at: Some(now), is_changed: false, counting: None },
        }
    }
}

fn add(kinds: &mut Kinds, kind: &str, bytes: i64) {
    let kind = if kinds.contains_key(kind) || kinds.len() < MOST_KINDS { kind } else { OTHER_KIND };
    let stored = kinds.entry(kind.to_owned()).or_default();
    *stored = Stored { bytes: stored.bytes + bytes, objects: stored.objects + 1 };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(storage: &Storage, kind: &str) -> Option<i64> {
        storage.kinds.get(kind).map(|stored| stored.bytes)
    }

    #[test]
    fn a_count_replaces_what_was_added_up_in_between() {
        let storage = Storage::default().with("audit", 5).with("audit", 7);
        assert_eq!((storage.total(), storage.due(100)), (Stored { bytes: 12, objects: 2 }, Some(100)));
        let part = [("audit/a", 5), ("audit/b", 7), ("backups/x/y", 100)];
        let half = storage.counted(part.into_iter(), Some("c".into()), 50);
        assert_eq!((half.cursor(), half.due(100), bytes(&half, "audit")), (Some("c"), Some(0), Some(12)));
        let whole = half.counted([("backups/z", 1), ("loose", 2)].into_iter(), None, 60);
        assert_eq!((whole.cursor(), whole.due(100), whole.counted_at), (None, None, Some(60)));
        assert_eq!(
            (bytes(&whole, "audit"), bytes(&whole, "backups"), bytes(&whole, "loose")),
            (Some(12), Some(101), Some(2))
        );
        assert_eq!(whole.with("audit", 1).due(100), Some(160));
    }

    #[test]
    fn kinds_are_bounded() {
        let names: Vec<String> = (0..50).map(|number| format!("k{number}/x")).collect();
        let storage = Storage::default().counted(names.iter().map(|name| (name.as_str(), 1)), None, 0);
        assert_eq!((storage.kinds.len(), bytes(&storage, "other")), (MOST_KINDS + 1, Some(30)));
        assert_eq!(storage.total().bytes, 50);
    }
}
