//! Numbers about the daemon, in the form that Prometheus reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that others look at.
#[derive(Debug, Default)]
pub(crate) struct Number(AtomicU64);

impl Number {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn less(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! metrics {
    ($($name:ident: $kind:literal, $help:literal;)+) => {
        /// All numbers that there are.
        #[derive(Debug, Default)]
        pub(crate) struct Metrics {
            $(pub(crate) $name: Number,)+
        }

        impl Metrics {
            /// The page.
            pub(crate) fn page(&self) -> String {
                let mut page = String::new();
                $({
                    let (name, help, kind) = (concat!("invigil_", stringify!($name)), $help, $kind);
                    let value = self.$name.get();
                    page += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
                })+
                page
            }
        }
    };
}

metrics! {
    connections: "gauge", "Connections that are open.";
    connections_total: "counter", "Connections that were taken.";
    connections_refused_total: "counter", "Connections that were refused: too many, a foreign page, another user.";
    requests_total: "counter", "Requests of clients.";
    errors_total: "counter", "Requests that were answered with an error.";
    runs_open: "gauge", "Runs that are open.";
    runs_total: "counter", "Runs that were begun.";
    proposals_total: "counter", "Proposals that were taken.";
    actions_total: "counter", "Actions that came to an end.";
    actions_rejected_total: "counter", "Actions that were not let through.";
    callbacks_total: "counter", "Calls of tools of clients.";
    late_answers_total: "counter", "Answers that nobody waited for.";
    turns_total: "counter", "Turns that are durable.";
    syncs_total: "counter", "Times that a journal was made durable.";
    subscriptions: "gauge", "Subscriptions that are open.";
    questions_open: "gauge", "Questions that wait for a person.";
    tasks_under_way: "gauge", "Tasks that somebody works on.";
    tasks_total: "counter", "Tasks that were begun.";
}
