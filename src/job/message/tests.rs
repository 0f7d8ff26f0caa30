//! The queue and its faults, with jobs and places as their objects store them: only the objects themselves are doubles.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use futures_util::FutureExt;
use futures_util::future::ready;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::doubles::Queues;
use crate::guardrails::Role;
use crate::job::record::{Order, Seed};
use crate::job::state::Event;
use crate::job::stored::Stored;
use crate::tenant::permissions::Requirement;
use crate::tenant::places::{Most, Pace, Place, Places, Wanted};

const PACE: Pace = Pace { soon: 60_000, later: 300_000, seldom: 600_000 };

/// A tenant with its jobs.
struct World {
    now: Cell<i64>,
    most: u32,
    places: RefCell<Places>,
    /// The tenant's list.
    list: RefCell<BTreeMap<String, Job>>,
    /// The jobs' own objects.
    jobs: RefCell<BTreeMap<String, Stored>>,
    poisoned: RefCell<BTreeSet<String>>,
    /// Every attempt that began, in order.
    begun: RefCell<Vec<(String, u32)>>,
}

impl World {
    fn new(most: u32) -> Self {
        let (places, list, jobs) = (RefCell::default(), RefCell::default(), RefCell::default());
        let (now, poisoned, begun) = (Cell::new(0), RefCell::default(), RefCell::default());
        Self { now, most, places, list, jobs, poisoned, begun }
    }

    fn most(&self) -> Most<'static> {
        Most { of_tenant: self.most, of_key: &|_| u32::MAX }
    }

    /// A call becomes a job.
    fn admit(&self, job_id: &str) {
        let order = Order {
            tenant: "t".into(),
            permissions: None,
            requirement: Requirement::of("exec", Role::Operator),
            recorded: json!({}),
            arguments_signature: None,
            holds_key: false,
        };
        let job = json!({
            "jobId": job_id, "tool": "exec", "state": "queued", "version": 0, "keyId": "k",
            "createdAt": self.now.get(), "updatedAt": self.now.get(),
        });
        let mut job: Job = serde_json::from_value(job).unwrap();
        let wanted = Wanted { job_id: job_id.into(), key_id: "k".into(), attempt: 1, version: 1 };
        job.waits_for_place = !self.places.borrow_mut().ask(&wanted, &self.most(), self.now.get(), PACE);
        self.list.borrow_mut().insert(job_id.into(), job.clone());
        let stored = Stored::new(&Seed { job, order, arguments: "{}".into() });
        self.jobs.borrow_mut().insert(job_id.into(), stored);
    }

    fn running(&self) -> usize {
        self.jobs.borrow().values().filter(|stored| stored.job.state == State::Running).count()
    }

    /// The alarm of a job's object, where it is due.
    fn alarm(&self, job_id: &str) {
        if self.poisoned.borrow().contains(job_id) {
            return;
        }
        let (now, mut jobs) = (self.now.get(), self.jobs.borrow_mut());
        let stored = jobs.get_mut(job_id).unwrap();
        if stored.job.state != State::Queued || stored.alarm().is_none_or(|at| at > now) {
            return;
        }
        if stored.due().iter().any(|(due, at)| *due == crate::job::stored::Due::Begin && *at > now) {
            return;
        }
        if !stored.has_place(now) {
            let is_placed = self.places.borrow_mut().ask(&stored.wanted(), &self.most(), now, PACE);
            if !is_placed {
                return stored.waits(7, 40_000, now);
            }
            stored.placed(now);
        }
        stored.begin(now).unwrap();
        self.begun.borrow_mut().push((job_id.into(), stored.job.attempts));
    }

    /// What runs ends, or is refused and made again.
    fn end(&self, job_id: &str, event: Event) {
        let (now, mut jobs) = (self.now.get(), self.jobs.borrow_mut());
        let stored = jobs.get_mut(job_id).unwrap();
        if stored.job.state == State::Running && !self.poisoned.borrow().contains(job_id) {
            stored.end(event, None, now).unwrap();
        }
    }

    /// A job's object tells the list.
    fn report(&self, job_id: &str) {
        if self.poisoned.borrow().contains(job_id) {
            return;
        }
        let (mut list, stored) = (self.list.borrow_mut(), self.jobs.borrow().get(job_id).unwrap().clone());
        let listed = list.get_mut(job_id).unwrap();
        if listed.version < stored.job.version {
            *listed = stored.job.clone();
            let told = stored.wanted();
            self.places.borrow_mut().told(&told, stored.job.state, self.now.get(), PACE);
        }
    }

    /// What the tenant's object does at the end of its turns: the places that are to be looked at.
    fn hand_out(&self) -> Vec<Place> {
        let (mut places, now) = (self.places.borrow_mut(), self.now.get());
        places.fill(&self.most(), now);
        places.due(now, PACE)
    }

    fn message(&self, place: &Place) -> Message {
        Message { tenant: "t".into(), job_id: place.by.job_id.clone(), attempt: place.by.attempt }
    }

    /// Everything that happens by itself, until nothing happens any more.
    fn settle(&self) {
        for _ in 0..2_000 {
            let ids: Vec<String> = self.jobs.borrow().keys().cloned().collect();
            for place in self.hand_out() {
                // Every message is lost but those that become dead letters.
                let message = self.message(&place);
                if self.poisoned.borrow().contains(&message.job_id) {
                    dead(self, &message).now_or_never().unwrap();
                }
            }
            for id in &ids {
                self.alarm(id);
                self.report(id);
                assert!(self.running() <= self.most as usize);
                self.end(id, Event::Succeed);
                self.report(id);
            }
            if self.list.borrow().values().all(|job| job.state.is_over()) {
                return;
            }
            self.now.set(self.now.get() + 10_000);
        }
        panic!("not all jobs are over: {:?}", self.list.borrow());
    }
}

impl Objects for World {
    fn begin<'a>(&'a self, message: &'a Message) -> LocalBoxFuture<'a, Result<bool>> {
        let answer = match self.jobs.borrow_mut().get_mut(&message.job_id) {
            _ if self.poisoned.borrow().contains(&message.job_id) => Err(Error::internal("not readable")),
            Some(stored) => {
                stored.told_to_begin(message.attempt);
                Ok(true)
            }
            None => Ok(false),
        };
        ready(answer).boxed_local()
    }

    fn give_up<'a>(&'a self, message: &'a Message) -> LocalBoxFuture<'a, Result<()>> {
        let mut list = self.list.borrow_mut();
        if self.places.borrow().has(&message.job_id, message.attempt)
            && let Some(job) = list.get_mut(&message.job_id).filter(|job| !job.state.is_over())
        {
            *job = given_up(job.clone(), self.now.get());
            self.places.borrow_mut().forget(&message.job_id);
        }
        ready(Ok(())).boxed_local()
    }
}

fn now<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().unwrap()
}

fn message(job_id: &str, attempt: u32) -> Message {
    Message { tenant: "t".into(), job_id: job_id.into(), attempt }
}

/// One job that runs, and one that has been given its place since, but does not know it.
fn with_a_place_that_became_free() -> (World, Message) {
    let world = World::new(1);
    world.admit("a");
    world.admit("b");
    world.alarm("a");
    world.report("a");
    world.alarm("b");
    assert_eq!(*world.begun.borrow(), [("a".into(), 1)]);
    assert!(world.list.borrow()["b"].waits_for_place);
    world.end("a", Event::Succeed);
    world.report("a");
    let due = world.hand_out();
    assert_eq!(due.len(), 1);
    let message = world.message(&due[0]);
    assert_eq!(message, self::message("b", 1));
    world.alarm("b");
    assert_eq!(world.begun.borrow().len(), 1, "it has not heard of its place yet");
    (world, message)
}

#[test]
fn a_message_makes_a_job_begin_however_often_and_late_it_comes() {
    let (world, message) = with_a_place_that_became_free();
    for _ in 0..3 {
        assert_eq!(now(delivered(&world, &message)), Verdict::Done);
    }
    for _ in 0..3 {
        world.alarm("b");
        assert_eq!(now(delivered(&world, &message)), Verdict::Done);
    }
    world.end("b", Event::Fail);
    world.report("b");
    now(delivered(&world, &message));
    world.alarm("b");
    assert_eq!(*world.begun.borrow(), [("a".into(), 1), ("b".into(), 1)]);
    assert_eq!(*world.places.borrow(), Places::default());
}

#[test]
fn a_message_of_another_attempt_or_of_a_job_without_a_place_begins_nothing() {
    let world = World::new(1);
    ["a", "b", "c"].iter().for_each(|job| world.admit(job));
    world.alarm("a");
    for message in [message("b", 2), message("b", 0), message("c", 1), message("b", 1)] {
        assert_eq!(now(delivered(&world, &message)), Verdict::Done);
        world.alarm("b");
        world.alarm("c");
    }
    assert_eq!(*world.begun.borrow(), [("a".into(), 1)]);
    assert_eq!(world.places.borrow().line.iter().map(|wanted| wanted.job_id.as_str()).collect::<Vec<_>>(), ["b", "c"]);
    // A dead letter of an attempt that has no place is no end of the job.
    world.poisoned.borrow_mut().insert("c".into());
    assert_eq!(now(dead(&world, &message("c", 1))), Verdict::Done);
    assert_eq!(world.list.borrow()["c"].state, State::Queued);
}

#[test]
fn a_queue_that_throws_or_is_not_there_costs_nothing() {
    for queue in [None, Some(&Queues::Throws as &dyn Queue)] {
        let (world, message) = with_a_place_that_became_free();
        assert_eq!(now(send(queue, &world, &message)), Way::Object);
        world.alarm("b");
        assert_eq!(world.begun.borrow().len(), 2);
    }
    let (world, message) = with_a_place_that_became_free();
    assert_eq!(now(send(Some(&Queues::Loses), &world, &message)), Way::Queue);
    world.settle();
    assert_eq!(world.begun.borrow().len(), 2, "it asks by itself");
    world.poisoned.borrow_mut().insert("b".into());
    assert!(matches!(now(send(Some(&Queues::Throws), &world, &message)), Way::Neither(_)));
}

#[test]
fn what_cannot_be_read_ends_as_a_dead_letter_and_leaves_its_place() {
    let (world, message) = with_a_place_that_became_free();
    world.poisoned.borrow_mut().insert("b".into());
    assert_eq!(now(delivered(&world, &message)), Verdict::Again);
    assert_eq!(now(dead(&world, &message)), Verdict::Done);
    let job = world.list.borrow()["b"].clone();
    assert_eq!((job.state, job.attempts, job.version, is_given_up(&job)), (State::Failed, 0, 1, true));
    assert_eq!(*world.places.borrow(), Places::default());
    // A second dead letter, and an object that can be read again, change nothing.
    now(dead(&world, &message));
    assert_eq!(world.list.borrow()["b"], job);
    world.poisoned.borrow_mut().clear();
    assert_eq!(now(dead(&world, &message)), Verdict::Done);
    assert_eq!(world.list.borrow()["b"], job);
    // Of one that ran nobody knows what it did.
    let (world, message) = with_a_place_that_became_free();
    now(delivered(&world, &message));
    world.alarm("b");
    world.report("b");
    world.poisoned.borrow_mut().insert("b".into());
    now(dead(&world, &message));
    let job = world.list.borrow()["b"].clone();
    assert_eq!((job.state, job.error.map(|error| error.code)), (State::Interrupted, Some(ErrorCode::OutcomeUnknown)));
}

#[test]
fn a_job_that_nobody_knows_yet_is_asked_for_again() {
    let world = World::new(1);
    assert_eq!(now(delivered(&world, &message("on-its-way", 1))), Verdict::Again);
    assert_eq!(now(dead(&world, &message("gone", 1))), Verdict::Done);
}

#[test]
fn pauses_between_deliveries_grow_with_the_age_of_the_message() {
    let mut age = 0;
    let pauses: Vec<u32> = (0..7)
        .map(|_| {
            let seconds = pause(age, 5_000);
            age += i64::from(seconds) * 1000;
            seconds
        })
        .collect();
    assert_eq!(pauses, [5, 5, 10, 20, 40, 80, 120]);
    assert_eq!((pause(-5_000, 5_000), pause(0, 83)), (5, 0));
}

#[test]
fn a_message_is_what_it_says() {
    let text = r#"{"tenant":"t","jobId":"j","attempt":1}"#;
    assert_eq!(serde_json::to_string(&message("j", 1)).unwrap(), text);
    assert!(serde_json::from_str::<Message>(r#"{"tenant":"t","jobId":"j","attempt":1,"more":2}"#).is_err());
    assert!(serde_json::from_str::<Message>(r#"{"tenant":"t","jobId":"j","attempt":-1}"#).is_err());
}

proptest! {
    /// Messages come twice, at once, late, in another order or never; reports come late; objects are lost. No attempt begins twice, no
    /// more run at once than may, and every job comes to an end.
    #[test]
    fn whatever_happens_to_messages_jobs_begin_once_and_end(
        steps in prop::collection::vec((0_u8..12, any::<u8>()), 0..150),
        most in 1_u32..4,
    ) {
        let world = World::new(most);
        let mut wire: Vec<Message> = Vec::new();
        let ids: Vec<String> = (0..8).map(|number| format!("j{number}")).collect();
        let mut made = 0;
        for (step, choice) in steps {
            let choice = usize::from(choice);
            let id = &ids[choice % made.max(1)];
            match step {
                0 if made < ids.len() => {
                    world.admit(&ids[made]);
                    made += 1;
                }
                _ if made == 0 => {}
                1 | 2 => world.alarm(id),
                3 => world.end(id, Event::Succeed),
                4 => world.end(id, Event::Lose),
                5 | 6 => world.report(id),
                7 => wire.extend(world.hand_out().iter().map(|place| world.message(place))),
                8 if !wire.is_empty() => {
                    // It stays where it is, and so comes again.
                    let message = wire[choice % wire.len()].clone();
                    now(delivered(&world, &message));
                }
                9 if !wire.is_empty() => {
                    let message = wire.swap_remove(choice % wire.len());
                    if now(delivered(&world, &message)) == Verdict::Again {
                        now(dead(&world, &message));
                    }
                }
                10 => world.now.set(world.now.get() + i64::try_from(choice).unwrap() * 1_000),
                11 if choice % 8 == 0 => { world.poisoned.borrow_mut().insert(id.clone()); }
                _ => {}
            }
            let healthy = |stored: &&Stored| {
                stored.job.state == State::Running && !world.poisoned.borrow().contains(&stored.job.job_id)
            };
            let running = world.jobs.borrow().values().filter(healthy).count();
            prop_assert!(running <= usize::try_from(most).unwrap());
        }
        let poisoned = world.poisoned.borrow().clone();
        // What runs in an object that cannot be read is seen by nobody but its place.
        for id in &poisoned {
            if let Some(stored) = world.jobs.borrow_mut().get_mut(id) {
                let _ = stored.end(Event::Lose, None, world.now.get());
            }
        }
        world.settle();
        prop_assert!(world.places.borrow().taken.is_empty() && world.places.borrow().line.is_empty());
        let mut begun = world.begun.borrow().clone();
        let count = begun.len();
        begun.sort();
        begun.dedup();
        prop_assert_eq!(begun.len(), count);
        for job in world.list.borrow().values() {
            let is_fine = !poisoned.contains(&job.job_id);
            prop_assert!(!is_fine || matches!(job.state, State::Succeeded | State::Interrupted), "{:?}", job);
        }
    }
}
