//! The way into one journal: those who come while it syncs wait in line, and are synced together.
//!
//! The first to come takes a blocking thread, which gives turns their indexes, appends everything that waits, makes it
//! durable once, publishes it and answers all; then it takes those who came meanwhile. Nobody is answered before.

use std::sync::{Arc, Mutex};

use invigil_engine::redact::Redactor;
use invigil_journal::{Journal, Ticket};
use invigil_schema::{ClientRunEnded, Event, Origin, Turn};
use tokio::sync::oneshot;

use crate::metrics::Metrics;
use crate::rpc::RpcError;
use crate::session::lock;

/// What belongs together: all of it is taken, or nothing.
pub(crate) enum Batch {
    /// Turns, to be given their indexes.
    Turns(Origin, Vec<Turn>),
    /// The end; the number of turns is filled in.
    End(ClientRunEnded),
}

/// Why something is not in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordError {
    /// Nothing follows the end of a run.
    Over,
    /// So many turns are too many.
    Full(u64),
    /// The journal said no.
    Journal(String),
}

impl From<RecordError> for RpcError {
    fn from(error: RecordError) -> RpcError {
        match error {
            RecordError::Over => RpcError::not_now("the run is over"),
            RecordError::Full(limit) => RpcError::limit(
                "turns_per_run",
                format!("a run has at most {limit} turns: complete it and start another"),
            ),
            RecordError::Journal(why) => RpcError::unrecorded(why),
        }
    }
}

/// What became durable.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Standing {
    /// How many turns there are.
    pub(crate) turns: u64,
    /// How many records, of any kind, are durable.
    pub(crate) records: u64,
    /// The end, if it has come.
    pub(crate) ended: Option<ClientRunEnded>,
}

/// The index of the first turn of a batch, once it is durable.
type Reply = oneshot::Sender<Result<u64, RecordError>>;

pub(crate) struct Line {
    state: Mutex<State>,
    redactor: Redactor,
    most: u64,
    metrics: Arc<Metrics>,
    publish: Box<dyn Fn(Standing) + Send + Sync>,
}

struct State {
    journal: Option<Arc<Journal>>,
    waiting: Vec<(Batch, Reply)>,
    busy: bool,
    turns: u64,
    ended: Option<ClientRunEnded>,
    failure: Option<String>,
}

impl Line {
    /// In front of a journal with so many turns.
    pub(crate) fn new(
        journal: Journal,
        redactor: Redactor,
        most: u64,
        metrics: Arc<Metrics>,
        publish: Box<dyn Fn(Standing) + Send + Sync>,
    ) -> Arc<Line> {
        Arc::new(Line {
            state: Mutex::new(State {
                journal: Some(Arc::new(journal)),
                waiting: Vec::new(),
                busy: false,
                turns: 0,
                ended: None,
                failure: None,
            }),
            redactor,
            most,
            metrics,
            publish,
        })
    }

    /// Gets in line. The answer comes when it is durable.
    pub(crate) fn record(
        self: &Arc<Self>,
        batch: Batch,
    ) -> oneshot::Receiver<Result<u64, RecordError>> {
        let (reply, receiver) = oneshot::channel();
        let mut state = lock(&self.state);
        state.waiting.push((batch, reply));
        if !state.busy {
            state.busy = true;
            let line = Arc::clone(self);
            tokio::task::spawn_blocking(move || line.work());
        }
        receiver
    }

    /// Writes one record to the page cache: it survives every process, and is on the medium with the next batch.
    pub(crate) fn note(&self, origin: Origin, event: &Event) -> Result<(), RecordError> {
        let journal = lock(&self.state).journal.clone();
        let journal = journal.ok_or(RecordError::Over)?;
        let noted = journal
            .append(origin, &self.redactor.event(event))
            .and_then(|ticket| ticket.written());
        noted.map_err(|error| RecordError::Journal(error.to_string()))
    }

    /// Takes all who wait, again and again, until nobody does.
    fn work(&self) {
        loop {
            let (journal, waiting, standing) = {
                let mut state = lock(&self.state);
                if state.waiting.is_empty() {
                    state.busy = false;
                    return;
                }
                let waiting = std::mem::take(&mut state.waiting);
                let known = (state.turns, state.ended.clone(), state.failure.clone());
                (state.journal.clone(), waiting, known)
            };
            let (turns, ended, failure) = standing;
            let Some(journal) = journal else {
                let error = failure.map_or(RecordError::Over, RecordError::Journal);
                for (_, reply) in waiting {
                    drop(reply.send(Err(error.clone())));
                }
                continue;
            };
            self.round(&journal, waiting, turns, ended);
        }
    }

    /// One round: append all, sync once, publish, answer.
    fn round(
        &self,
        journal: &Journal,
        waiting: Vec<(Batch, Reply)>,
        mut turns: u64,
        mut ended: Option<ClientRunEnded>,
    ) {
        let before = turns;
        let mut last: Option<Ticket> = None;
        let mut answers = Vec::with_capacity(waiting.len());
        for (batch, reply) in waiting {
            let appended = match &ended {
                Some(_) => Err(RecordError::Over),
                None => self.append(journal, batch, &mut turns, &mut ended),
            };
            let answer = appended.map(|(first, ticket)| {
                last = Some(ticket);
                first
            });
            answers.push((answer, reply));
        }
        let durable = last.map_or(Ok(0), |ticket| {
            self.metrics.syncs_total.add(1);
            ticket.durable().map(|()| ticket.seq() + 1)
        });
        match durable {
            Ok(records) => {
                self.metrics.turns_total.add(turns - before);
                self.settle(turns, records, ended);
                for (answer, reply) in answers {
                    drop(reply.send(answer));
                }
            }
            Err(error) => {
                let why = error.to_string();
                tracing::error!(%error, "a journal takes no more");
                let mut state = lock(&self.state);
                (state.journal, state.failure) = (None, Some(why.clone()));
                drop(state);
                for (answer, reply) in answers {
                    let answer = answer.and(Err(RecordError::Journal(why.clone())));
                    drop(reply.send(answer));
                }
            }
        }
    }

    fn append(
        &self,
        journal: &Journal,
        batch: Batch,
        turns: &mut u64,
        ended: &mut Option<ClientRunEnded>,
    ) -> Result<(u64, Ticket), RecordError> {
        let first = *turns;
        let (origin, events, end) = match batch {
            Batch::Turns(origin, list) => {
                if first + list.len() as u64 > self.most {
                    return Err(RecordError::Full(self.most));
                }
                let stamp = |(n, turn): (u64, Turn)| Turn {
                    index: first + n,
                    ..turn
                };
                let events = (0..).zip(list).map(stamp).map(Event::from);
                (origin, events.collect::<Vec<_>>(), None)
            }
            Batch::End(end) => {
                let end = ClientRunEnded {
                    turns: first,
                    ..end
                };
                (Origin::Runtime, vec![end.clone().into()], Some(end))
            }
        };
        let hidden: Vec<_> = events
            .iter()
            .map(|event| self.redactor.event(event))
            .collect();
        let appended = journal.append_all(hidden.iter().map(|event| (origin, event.as_ref())));
        let ticket = appended.map_err(|error| RecordError::Journal(error.to_string()))?;
        match end {
            Some(end) => *ended = Some(end),
            None => *turns += events.len() as u64,
        }
        Ok((first, ticket))
    }

    /// What is durable is known to all before anybody is answered.
    fn settle(&self, turns: u64, records: u64, ended: Option<ClientRunEnded>) {
        let mut state = lock(&self.state);
        state.turns = turns;
        state.ended = ended.clone();
        let over = ended.is_some().then(|| state.journal.take()).flatten();
        drop(state);
        if records > 0 {
            (self.publish)(Standing {
                turns,
                records,
                ended,
            });
        }
        // The last to hold it closes it.
        drop(over);
    }
}
