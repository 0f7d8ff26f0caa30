//! Places and their line.

use proptest::prelude::*;

use super::*;

const PACE: Pace = Pace { soon: 10, later: 50, seldom: 100 };

fn wanted(job_id: &str, key_id: &str) -> Wanted {
    Wanted { job_id: job_id.into(), key_id: key_id.into(), attempt: 1, version: 1 }
}

fn of_tenant(of_tenant: u32) -> Most<'static> {
    Most { of_tenant, of_key: &|_| u32::MAX }
}

fn taken(places: &Places) -> Vec<&str> {
    places.taken.iter().map(|place| place.by.job_id.as_str()).collect()
}

fn line(places: &Places) -> Vec<&str> {
    places.line.iter().map(|wanted| wanted.job_id.as_str()).collect()
}

#[test]
fn who_comes_first_has_a_place_and_the_others_get_theirs_in_their_order() {
    let (mut places, most) = (Places::default(), of_tenant(2));
    let granted: Vec<bool> =
        ["a", "b", "c", "d"].map(|job| places.ask(&wanted(job, "k"), &most, 0, PACE)).into_iter().collect();
    assert_eq!(granted, [true, true, false, false]);
    // Asking again changes nothing, neither for who has one nor for the order of who has none.
    assert!(!places.ask(&wanted("d", "k"), &most, 1, PACE) && places.ask(&wanted("a", "k"), &most, 1, PACE));
    assert_eq!((taken(&places), line(&places)), (vec!["a", "b"], vec!["c", "d"]));
    places.told(&Wanted { version: 3, ..wanted("b", "k") }, State::Succeeded, 2, PACE);
    places.fill(&most, 2);
    assert_eq!((taken(&places), line(&places)), (vec!["a", "c"], vec!["d"]));
    // The one that was given a place is told at once, and only once.
    assert_eq!(places.due(2, PACE).iter().map(|place| place.by.job_id.as_str()).collect::<Vec<_>>(), ["c"]);
    assert!(places.due(3, PACE).is_empty());
    assert!(places.ask(&wanted("c", "k"), &most, 3, PACE));
}

#[test]
fn a_key_that_has_enough_lets_others_pass() {
    let mut places = Places::default();
    let most = Most { of_tenant: 3, of_key: &|key| if key == "busy" { 1 } else { u32::MAX } };
    assert!(places.ask(&wanted("a", "busy"), &most, 0, PACE));
    assert!(!places.ask(&wanted("b", "busy"), &most, 0, PACE));
    assert!(places.ask(&wanted("c", "other"), &most, 0, PACE));
    places.forget("a");
    places.fill(&most, 1);
    assert_eq!((taken(&places), line(&places)), (vec!["c", "b"], vec![]));
}

#[test]
fn what_runs_is_counted_although_nobody_gave_it_a_place() {
    let (mut places, most) = (Places::default(), of_tenant(1));
    for job in ["a", "b"] {
        places.told(&Wanted { version: 2, ..wanted(job, "k") }, State::Running, 0, PACE);
    }
    assert_eq!(places.taken.len(), 2);
    assert!(!places.ask(&wanted("c", "k"), &most, 0, PACE));
    places.told(&Wanted { version: 3, ..wanted("a", "k") }, State::Failed, 1, PACE);
    places.fill(&most, 1);
    assert_eq!((taken(&places), line(&places)), (vec!["b"], vec!["c"]), "a lowered limit holds");
}

#[test]
fn a_job_that_is_queued_again_leaves_its_place_unless_it_asked_since() {
    let (mut places, most) = (Places::default(), of_tenant(1));
    places.ask(&wanted("a", "k"), &most, 0, PACE);
    // What it was made with is told after it was given a place.
    places.told(&wanted("a", "k"), State::Queued, 1, PACE);
    assert_eq!(taken(&places), ["a"]);
    places.told(&Wanted { version: 2, ..wanted("a", "k") }, State::Running, 2, PACE);
    let again = Wanted { version: 3, ..wanted("a", "k") };
    let mut late = places.clone();
    places.told(&again, State::Queued, 3, PACE);
    assert!(places.taken.is_empty());
    // The report comes after the question.
    assert!(late.ask(&again, &most, 3, PACE));
    late.told(&again, State::Queued, 4, PACE);
    assert!(late.has("a", 1));
}

#[test]
fn who_is_not_heard_of_is_looked_at_again_and_more_seldom_once_it_runs() {
    let (mut places, most) = (Places::default(), of_tenant(2));
    places.ask(&wanted("a", "k"), &most, 0, PACE);
    places.told(&Wanted { version: 2, ..wanted("b", "k") }, State::Running, 0, PACE);
    assert_eq!(places.next_look(), Some(10));
    assert_eq!((places.due(9, PACE).len(), places.due(10, PACE).len(), places.due(11, PACE).len()), (0, 1, 0));
    assert_eq!(places.due(100, PACE).len(), 2);
}

#[test]
fn only_what_changed_is_written() {
    let (mut before, most) = (Places::default(), of_tenant(1));
    for job in ["a", "b", "c"] {
        before.ask(&wanted(job, "k"), &most, 0, PACE);
    }
    let mut after = before.clone();
    assert!(before.changes(&after).is_empty());
    after.forget("a");
    after.fill(&most, 5);
    after.ask(&Wanted { attempt: 2, ..wanted("c", "k") }, &most, 6, PACE);
    after.ask(&wanted("d", "k"), &most, 7, PACE);
    let changes = before.changes(&after);
    let took = Place { by: wanted("b", "k"), has_begun: false, look_at: 5, failures: 0 };
    let renewed = Change::Renewed(Wanted { attempt: 2, ..wanted("c", "k") });
    let joined = Change::Joined(wanted("d", "k"));
    let (freed, left) = (Change::Freed("a".into()), Change::Left("b".into()));
    assert_eq!(changes, [freed, left, Change::Took(took), renewed, joined]);
}

proptest! {
    /// Whatever is told in whatever order: no more than may are given places, and none is lost.
    #[test]
    fn nothing_is_lost_and_nothing_too_much(steps in prop::collection::vec((0_u8..6, 0_u8..9), 0..200), limit in 1_u32..4) {
        let most = Most { of_tenant: limit, of_key: &|key| if key == "k0" { 1 } else { u32::MAX } };
        let mut places = Places::default();
        let mut versions = [1_u32; 9];
        for (now, (step, job)) in (0_i64..).zip(steps) {
            let mut by = wanted(&job.to_string(), &format!("k{}", job % 2));
            let version = &mut versions[usize::from(job)];
            by.version = *version;
            let before = places.clone();
            match step {
                0 | 1 => { places.ask(&by, &most, now, PACE); }
                2 if before.has(&by.job_id, 1) => {
                    *version += 1;
                    places.told(&Wanted { version: *version, ..by.clone() }, State::Running, now, PACE);
                }
                3 if before.has(&by.job_id, 1) => {
                    *version += 1;
                    places.told(&Wanted { version: *version, ..by.clone() }, State::Queued, now, PACE);
                }
                4 => places.forget(&by.job_id),
                _ => {}
            }
            places.fill(&most, now);
            prop_assert!(places.taken.len() <= usize::try_from(limit).unwrap());
            let of_k0 = places.taken.iter().filter(|place| place.by.key_id == "k0").count();
            prop_assert!(of_k0 <= 1);
            // Nobody stands twice, and nobody waits who could have a place.
            let mut all: Vec<_> = taken(&places).into_iter().chain(line(&places)).collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len(), count);
            let could = places.line.iter().any(|wanted| wanted.key_id == "k1" || of_k0 == 0);
            prop_assert!(!could || places.taken.len() == usize::try_from(limit).unwrap());
            // What is written is the difference.
            let mut written = before.clone();
            for change in before.changes(&places) {
                match change {
                    Change::Freed(job) => written.taken.retain(|place| place.by.job_id != job),
                    Change::Left(job) => written.line.retain(|wanted| wanted.job_id != job),
                    Change::Took(place) => {
                        written.taken.retain(|other| other.by.job_id != place.by.job_id);
                        written.taken.push(place);
                    }
                    Change::Joined(wanted) => written.line.push(wanted),
                    Change::Renewed(wanted) => {
                        let other = written.line.iter_mut().find(|other| other.job_id == wanted.job_id);
                        *other.unwrap() = wanted;
                    }
                }
            }
            prop_assert_eq!(&written.line, &places.line);
            let sorted = |places: &Places| {
                let mut jobs: Vec<Place> = places.taken.clone();
                jobs.sort_by(|one, other| one.by.job_id.cmp(&other.by.job_id));
                jobs
            };
            prop_assert_eq!(sorted(&written), sorted(&places));
        }
    }
}
