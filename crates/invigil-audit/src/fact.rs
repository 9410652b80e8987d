//! What a view is given: one record of a journal, and the rule for who may vouch for what.

use invigil_schema::{Envelope, Event, Origin, Stamp};

/// One record of a journal, in the order of the journal.
#[derive(Debug, Clone, Copy)]
pub struct Fact<'a> {
    /// Position in the journal.
    pub seq: u64,
    /// When it was recorded.
    pub stamp: Stamp,
    /// Who vouches.
    pub origin: Origin,
    /// What happened.
    pub event: &'a Event,
}

impl<'a> Fact<'a> {
    /// Puts a fact together from an envelope and the event inside it.
    pub fn of(envelope: &Envelope<'_>, event: &'a Event) -> Self {
        Fact {
            seq: envelope.seq,
            stamp: Stamp {
                time: envelope.time,
                mono: envelope.mono,
            },
            origin: envelope.origin,
            event,
        }
    }

    /// The event, if whoever vouches for it is in the position to. A process that an agent reports of itself is not
    /// one that was seen; views must not take it for one.
    pub fn vouched(&self) -> Option<&'a Event> {
        let outside = matches!(self.origin, Origin::Kernel | Origin::Runtime);
        let fits = match self.event {
            Event::ProcessForked(_)
            | Event::ProcessExec(_)
            | Event::ExecFailed(_)
            | Event::ProcessExited(_)
            | Event::ProcessStopped(_)
            | Event::ProcessContinued(_)
            | Event::FileOp(_)
            | Event::NetOp(_) => self.origin == Origin::Kernel,
            Event::ObserverStarted(_)
            | Event::ObserverFinished(_)
            | Event::ObserverNote(_)
            | Event::AccessDenied(_)
            | Event::FileFinal(_)
            | Event::ResourceSample(_) => outside,
            Event::JournalOpened(_)
            | Event::JournalRecovered(_)
            | Event::RunStarted(_)
            | Event::RunForked(_)
            | Event::RunFinished(_)
            | Event::RunFailed(_)
            | Event::PolicyLoaded(_)
            | Event::PolicyEnforced(_)
            | Event::JobStarted(_)
            | Event::JobKept(_)
            | Event::JobCompleted(_)
            | Event::JobFailed(_)
            | Event::JobDenied(_)
            | Event::JobTimedOut(_)
            | Event::JobCancelled(_)
            | Event::JobRefused(_)
            | Event::CheckStarted(_)
            | Event::CheckCompleted(_)
            | Event::TaskStarted(_)
            | Event::TaskChanged(_)
            | Event::TaskRan(_)
            | Event::TaskProposed(_)
            | Event::TaskEnded(_)
            | Event::OrderEnded(_)
            | Event::OrderRefused(_)
            | Event::RunSuspended(_)
            | Event::RunResumed(_)
            | Event::SignalDisposed(_)
            | Event::BudgetExceeded(_)
            | Event::CheckpointTaken(_)
            | Event::RollbackStarted(_)
            | Event::Rollbacked(_)
            | Event::MilestonesSet(_)
            | Event::MilestoneEvidence(_)
            | Event::MilestoneAdvanced(_)
            | Event::MilestoneBlocked(_)
            | Event::MilestonesMissed(_)
            | Event::RepeatFuse(_)
            | Event::ChildRunStarted(_)
            | Event::ChildRunRefused(_)
            | Event::ChildRunEnded(_) => self.origin == Origin::Runtime,
            Event::OrderTaken(_) => self.origin == Origin::User,
            // A contract is proposed by Invigil and confirmed by a person; only a person answers.
            Event::TaskContract(contract) => match contract.confirmed {
                true => self.origin == Origin::User,
                false => self.origin == Origin::Runtime,
            },
            Event::TaskAnswered(_) => self.origin == Origin::User,
            Event::SessionChanged(_) => matches!(self.origin, Origin::Runtime | Origin::User),
            Event::SdkEvent(_) => self.origin == Origin::Sdk,
            Event::SdkRejected(_) => matches!(self.origin, Origin::Sdk | Origin::Runtime),
            Event::PolicyDecision(_) | Event::PolicyFlagged(_) => {
                !matches!(self.origin, Origin::Kernel | Origin::Sdk)
            }
            Event::ApprovalRequested(_) | Event::ApprovalRefused(_) => {
                self.origin == Origin::Runtime
            }
            // A person decides, or nobody does; neither can speak for the other.
            Event::ApprovalAnswered(answered) => match answered.by.is_person() {
                true => self.origin == Origin::User,
                false => self.origin == Origin::Runtime,
            },
            Event::ClientRunStarted(_)
            | Event::ClientRunEnded(_)
            | Event::ActionStarted(_)
            | Event::ToolAsked(_) => self.origin == Origin::Runtime,
            Event::Turn(_) => matches!(self.origin, Origin::Runtime | Origin::Client),
            Event::ToolAnswered(answered) => match answered.by.is_person() {
                true => self.origin == Origin::User,
                false => self.origin == Origin::Runtime,
            },
            Event::Unknown { .. } => false,
        };
        fits.then_some(self.event)
    }
}

/// A fold over the facts of one run.
pub trait View {
    /// The finished form.
    type Document;

    /// Takes in the next fact.
    fn take(&mut self, fact: &Fact<'_>);

    /// What the facts so far amount to. It can be asked for at any time: after the last fact it is the result, after
    /// `run_started` alone it is the skeleton of a run of which nothing has been seen yet.
    fn document(&self) -> Self::Document;
}
