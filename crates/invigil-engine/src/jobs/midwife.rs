//! Workers for those who carry out many jobs: where they are born, and a thread that makes the next while one works.
//!
//! They are born in a process that has loaded the program once and makes a copy of itself for each.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use invigil_sandbox::Nursery;

use super::work::{Recipe, Worker};

/// More calls than these at once are not heard: whoever finds no worker makes one.
const CALLS: usize = 64;

/// Makes workers ahead of demand, on a thread of its own.
pub(super) struct Midwife(SyncSender<Weak<Recipe>>);

impl Midwife {
    /// None if there is no thread to be had. Then every job makes its own worker, and begins a little later.
    pub(super) fn new() -> Option<Midwife> {
        let (calls, called) = mpsc::sync_channel::<Weak<Recipe>>(CALLS);
        let body = move || {
            for recipe in called {
                if let Some(recipe) = recipe.upgrade() {
                    recipe.make_spare();
                }
            }
        };
        let thread = thread::Builder::new().name("midwife".into()).spawn(body);
        thread.ok().map(|_| Midwife(calls))
    }

    /// One more of these will be wanted soon.
    pub(super) fn call(&self, recipe: &Arc<Recipe>) {
        drop(self.0.try_send(Arc::downgrade(recipe)));
    }
}

/// One that is gone is not replaced sooner: whoever ends it again and again has nothing of it.
const PAUSE: Duration = Duration::from_secs(1);

type Env = BTreeMap<OsString, OsString>;

/// The nursery of an executor. Without one every worker loads the program itself.
pub(super) struct Nurseries {
    worker: Worker,
    /// For one worker, or for as many as are wanted.
    lasting: bool,
    last: Mutex<Option<Started>>,
}

struct Started {
    nursery: Option<Arc<Nursery>>,
    env: Env,
    when: Instant,
}

impl Nurseries {
    /// Starts one. `env` is what workers are likely to get.
    pub(super) fn new(worker: Worker, env: &Env, lasting: bool) -> Nurseries {
        let nurseries = Nurseries {
            worker,
            lasting,
            last: Mutex::new(None),
        };
        nurseries.with(env);
        nurseries
    }

    /// The one whose workers have this environment. It is started if it is not there.
    pub(super) fn with(&self, env: &Env) -> Option<Arc<Nursery>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(started) = &*last {
            let there = started.nursery.as_ref().filter(|n| !n.is_gone());
            match there {
                Some(nursery) if started.env == *env => return Some(Arc::clone(nursery)),
                _ if !self.lasting || started.when.elapsed() < PAUSE => return None,
                _ => {}
            }
        }
        let nursery = Nursery::start(&self.worker.program, &self.worker.arguments, env);
        let nursery = nursery.ok().map(Arc::new);
        *last = Some(Started {
            nursery: nursery.clone(),
            env: env.clone(),
            when: Instant::now(),
        });
        nursery
    }

    /// A worker is there. A nursery for one has done its work, and ends while that one works.
    pub(super) fn served(&self) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let nursery = last.as_ref().and_then(|started| started.nursery.as_ref());
        if let Some(nursery) = nursery.filter(|_| !self.lasting) {
            nursery.retire();
        }
    }
}
