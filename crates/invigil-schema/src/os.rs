//! The session logs of other agent runtimes: JSON, tagged `kind`, of which some carry a category of their own.
//!
//! Nothing here is an event of Invigil's: a foreign `run_started` is not ours. What is read is converted at the border,
//! and what is not known is kept word for word.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Category;

/// The three parts of a runtime that the categories come down to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Primitive {
    /// Decisions on what may be done.
    Syscall,
    /// Who does what when: agents, signals, budgets.
    Sched,
    /// Context and memory.
    Mm,
}

impl Primitive {
    /// The name in a log.
    pub fn as_str(self) -> &'static str {
        match self {
            Primitive::Syscall => "syscall",
            Primitive::Sched => "sched",
            Primitive::Mm => "mm",
        }
    }
}

impl Category {
    /// The name in a log.
    pub fn as_str(self) -> &'static str {
        match self {
            Category::Syscall => "syscall",
            Category::Sched => "sched",
            Category::Mm => "mm",
            Category::Proc => "proc",
            Category::Ipc => "ipc",
        }
    }

    /// The part of a runtime that it belongs to.
    pub fn primitive(self) -> Primitive {
        match self {
            Category::Syscall => Primitive::Syscall,
            Category::Sched | Category::Proc | Category::Ipc => Primitive::Sched,
            Category::Mm => Primitive::Mm,
        }
    }
}

/// The table of kinds: `Kind = "name in the log", Category, whether it must carry its category;`
macro_rules! session_kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $category:ident, $must:literal;)+) => {
        /// A kind of event that the views understand.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum SessionKind {
            $($(#[$doc])* $kind,)+
        }

        impl SessionKind {
            /// All of them, in the order of the table.
            pub const ALL: &[SessionKind] = &[$(SessionKind::$kind),+];

            /// The name in a log.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(SessionKind::$kind => $name,)+
                }
            }

            /// The one category of the kind.
            pub fn category(self) -> Category {
                match self {
                    $(SessionKind::$kind => Category::$category,)+
                }
            }

            /// Whether every event of the kind must carry its category.
            pub fn must_carry_category(self) -> bool {
                match self {
                    $(SessionKind::$kind => $must,)+
                }
            }

            /// The kind of this name.
            pub fn of(name: &str) -> Option<SessionKind> {
                match name {
                    $($name => Some(SessionKind::$kind),)+
                    _ => None,
                }
            }
        }
    };
}

session_kinds! {
    /// The context was made smaller.
    Compressed = "compressed", Mm, true;
    /// Memory went out.
    PageOut = "page_out", Mm, true;
    /// Memory came in.
    PageIn = "page_in", Mm, true;
    /// What the agent may use is different.
    CapabilityChanged = "capability_changed", Syscall, true;
    /// The agent begins with a fresh context.
    ContextRenewed = "context_renewed", Mm, true;
    /// The agent waits.
    Suspended = "suspended", Sched, true;
    /// The agent goes on.
    Resumed = "resumed", Sched, true;
    /// A tool needs an approval.
    ToolGated = "tool_gated", Syscall, true;
    /// What became of a signal.
    SignalDisposed = "signal_disposed", Ipc, true;
    /// A budget was exceeded.
    BudgetExceeded = "budget_exceeded", Sched, true;
    /// A state to which one can return.
    CheckpointTaken = "checkpoint_taken", Sched, true;
    /// The return.
    Rollbacked = "rollbacked", Sched, true;
    /// An agent is in another state.
    AgentProcessChanged = "agent_process_changed", Proc, true;
    /// A phase is over.
    MilestoneAdvanced = "milestone_advanced", Sched, true;
    /// A phase is not over yet.
    MilestoneBlocked = "milestone_blocked", Sched, true;
    /// What speaks for the end of a phase.
    MilestoneEvidence = "milestone_evidence", Sched, true;
    /// A memory was written.
    MemoryWritten = "memory_written", Mm, false;
    /// A memory was asked for.
    MemoryQueried = "memory_queried", Mm, false;
    /// A memory was refused.
    MemoryValidationFailed = "memory_validation_failed", Mm, false;
    /// Memories came back.
    MemoryRetrievalResult = "memory_retrieval_result", Mm, false;
    /// A model has answered.
    LlmCompleted = "llm_completed", Sched, false;
    /// Tools are asked for.
    ToolRequested = "tool_requested", Sched, false;
    /// Tools have answered.
    ToolCompleted = "tool_completed", Sched, false;
    /// The session begins.
    RunStarted = "run_started", Proc, false;
    /// The session is over.
    RunTerminal = "run_terminal", Proc, false;
}

/// An event of another runtime, as far as the views need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// The agent waits.
    Suspended {
        /// When.
        turn: u64,
        /// Why.
        reason: String,
        /// For what.
        pending_calls: Vec<String>,
    },
    /// The agent goes on.
    Resumed {
        /// When.
        turn: u64,
        /// What was approved.
        approved: Vec<String>,
        /// What was not.
        denied: Vec<String>,
    },
    /// A tool needs an approval.
    ToolGated {
        /// When.
        turn: u64,
        /// The call.
        call_id: String,
        /// The tool.
        tool: String,
        /// Why.
        reason: String,
    },
    /// An agent is in another state.
    AgentProcessChanged(Box<AgentProcessChanged>),
    /// What became of a signal.
    SignalDisposed {
        /// When.
        turn: u64,
        /// Which one.
        signal_id: String,
        /// What became of it.
        disposition: String,
        /// How many wait.
        queue_depth: u64,
    },
    /// A budget was exceeded.
    BudgetExceeded {
        /// When.
        turn: u64,
        /// Which one.
        budget: String,
    },
    /// Of a known kind whose data no view needs.
    Plain(SessionKind),
    /// Of a kind that is not known, or with data that cannot be read.
    Unknown {
        /// Its name.
        kind: String,
    },
}

/// An agent is in another state.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AgentProcessChanged {
    /// When.
    pub turn: u64,
    /// Which one.
    pub agent_id: String,
    /// Who started it.
    pub parent_session_id: String,
    /// What it is for.
    #[serde(default)]
    pub role: String,
    /// How it is kept from others.
    #[serde(default)]
    pub isolation: String,
    /// What it knows of its parent's context.
    #[serde(default)]
    pub context_inheritance: String,
    /// What it is now.
    pub state: String,
    /// What it may use.
    #[serde(default)]
    pub permitted_capability_ids: Vec<String>,
    /// How it ended.
    #[serde(default)]
    pub result_termination: Option<String>,
}

/// One line, or one element, of a session log.
#[derive(Debug, Clone)]
pub struct SessionRecord {
    /// What it says.
    pub event: SessionEvent,
    /// The category that it carries, whatever that says.
    pub category: Option<String>,
    /// The primitive that it carries, likewise.
    pub primitive: Option<String>,
    /// All of it, word for word.
    pub text: Box<RawValue>,
}

#[derive(Deserialize)]
struct Tags {
    kind: String,
    #[serde(default)]
    category: Option<String>,
    #[serde(default)]
    primitive: Option<String>,
}

impl SessionRecord {
    /// Reads one event. Only what has no `kind` at all is refused; what cannot be understood is kept.
    pub fn parse(text: &str) -> serde_json::Result<SessionRecord> {
        SessionRecord::of(serde_json::from_str(text)?)
    }

    /// Reads an event that stands within something else, such as an array.
    pub fn of(text: Box<RawValue>) -> serde_json::Result<SessionRecord> {
        let tags: Tags = serde_json::from_str(text.get())?;
        Ok(SessionRecord {
            event: event(&tags.kind, text.get()),
            category: tags.category,
            primitive: tags.primitive,
            text,
        })
    }

    /// Its kind, if that is known.
    pub fn kind(&self) -> Option<SessionKind> {
        Some(match &self.event {
            SessionEvent::Suspended { .. } => SessionKind::Suspended,
            SessionEvent::Resumed { .. } => SessionKind::Resumed,
            SessionEvent::ToolGated { .. } => SessionKind::ToolGated,
            SessionEvent::AgentProcessChanged(_) => SessionKind::AgentProcessChanged,
            SessionEvent::SignalDisposed { .. } => SessionKind::SignalDisposed,
            SessionEvent::BudgetExceeded { .. } => SessionKind::BudgetExceeded,
            SessionEvent::Plain(kind) => *kind,
            SessionEvent::Unknown { kind } => return SessionKind::of(kind),
        })
    }
}

/// The members of the kinds that views look into.
#[derive(Deserialize)]
struct Members {
    turn: u64,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    pending_calls: Vec<String>,
    #[serde(default)]
    approved: Vec<String>,
    #[serde(default)]
    denied: Vec<String>,
    #[serde(default)]
    call_id: Option<String>,
    #[serde(default)]
    tool: Option<String>,
    #[serde(default)]
    signal_id: Option<String>,
    #[serde(default)]
    disposition: Option<String>,
    #[serde(default)]
    queue_depth: Option<u64>,
    #[serde(default)]
    budget: Option<String>,
}

fn event(name: &str, text: &str) -> SessionEvent {
    let known = SessionKind::of(name).and_then(|kind| understood(kind, text));
    known.unwrap_or_else(|| SessionEvent::Unknown {
        kind: name.to_owned(),
    })
}

fn understood(kind: SessionKind, text: &str) -> Option<SessionEvent> {
    let members = || serde_json::from_str::<Members>(text).ok();
    Some(match kind {
        SessionKind::Suspended => {
            let data = members()?;
            SessionEvent::Suspended {
                turn: data.turn,
                reason: data.reason?,
                pending_calls: data.pending_calls,
            }
        }
        SessionKind::Resumed => {
            let data = members()?;
            SessionEvent::Resumed {
                turn: data.turn,
                approved: data.approved,
                denied: data.denied,
            }
        }
        SessionKind::ToolGated => {
            let data = members()?;
            SessionEvent::ToolGated {
                turn: data.turn,
                call_id: data.call_id?,
                tool: data.tool?,
                reason: data.reason?,
            }
        }
        SessionKind::AgentProcessChanged => {
            SessionEvent::AgentProcessChanged(serde_json::from_str(text).ok()?)
        }
        SessionKind::SignalDisposed => {
            let data = members()?;
            SessionEvent::SignalDisposed {
                turn: data.turn,
                signal_id: data.signal_id?,
                disposition: data.disposition?,
                queue_depth: data.queue_depth?,
            }
        }
        SessionKind::BudgetExceeded => {
            let data = members()?;
            SessionEvent::BudgetExceeded {
                turn: data.turn,
                budget: data.budget?,
            }
        }
        other => SessionEvent::Plain(other),
    })
}

/// Whether every event of a session log that must carry a category carries one.
pub fn session_log_has_required_categories<'a>(
    log: impl IntoIterator<Item = &'a SessionRecord>,
) -> bool {
    let must = |record: &SessionRecord| record.kind().is_some_and(SessionKind::must_carry_category);
    log.into_iter()
        .all(|record| !must(record) || record.category.is_some())
}

/// What is wrong with the category of an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CategoryFlaw {
    /// It must carry one.
    #[error("{} carries no category; it is of {}", kind.as_str(), kind.category().as_str())]
    Missing {
        /// Its kind.
        kind: SessionKind,
    },
    /// It carries another one.
    #[error("{} carries the category {found:?}; it is of {}", kind.as_str(), kind.category().as_str())]
    Wrong {
        /// Its kind.
        kind: SessionKind,
        /// What it carries.
        found: String,
    },
    /// Its category comes down to another primitive.
    #[error("{} carries the primitive {found:?}; it is of {}", kind.as_str(), kind.category().primitive().as_str())]
    WrongPrimitive {
        /// Its kind.
        kind: SessionKind,
        /// What it carries.
        found: String,
    },
}

/// What is wrong with the category of one event, if something is. Of kinds that are not known nothing can be said.
pub fn category_flaw(record: &SessionRecord) -> Option<CategoryFlaw> {
    let kind = record.kind()?;
    let (right, primitive) = (kind.category(), kind.category().primitive());
    match (&record.category, &record.primitive) {
        (None, _) if kind.must_carry_category() => Some(CategoryFlaw::Missing { kind }),
        (Some(found), _) if found != right.as_str() => Some(CategoryFlaw::Wrong {
            kind,
            found: found.clone(),
        }),
        (_, Some(found)) if found != primitive.as_str() => Some(CategoryFlaw::WrongPrimitive {
            kind,
            found: found.clone(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str) -> SessionRecord {
        SessionRecord::parse(text).unwrap()
    }

    /// An event of every kind, as little as may be in it.
    fn each(extra: impl Fn(SessionKind) -> String) -> Vec<SessionRecord> {
        let kinds = SessionKind::ALL.iter();
        let text = |kind: &SessionKind| {
            let (name, extra) = (kind.as_str(), extra(*kind));
            format!(
                r#"{{"kind":"{name}","turn":1,"reason":"r","call_id":"c","tool":"t","signal_id":"s","disposition":"d",
                "queue_depth":1,"budget":"b","agent_id":"a","parent_session_id":"p","state":"running"{extra}}}"#
            )
        };
        kinds.map(|kind| record(&text(kind))).collect()
    }

    #[test]
    fn every_kind_is_read_as_itself() {
        for (kind, record) in SessionKind::ALL.iter().zip(each(|_| String::new())) {
            assert_eq!(SessionKind::of(kind.as_str()), Some(*kind));
            assert_eq!(record.kind(), Some(*kind));
            assert!(
                !matches!(record.event, SessionEvent::Unknown { .. }),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn the_sixteen_kinds_must_carry_a_category() {
        let required = SessionKind::ALL.iter();
        let required: Vec<&str> = required
            .filter(|kind| kind.must_carry_category())
            .map(|kind| kind.as_str())
            .collect();
        assert_eq!(
            required,
            [
                "compressed",
                "page_out",
                "page_in",
                "capability_changed",
                "context_renewed",
                "suspended",
                "resumed",
                "tool_gated",
                "signal_disposed",
                "budget_exceeded",
                "checkpoint_taken",
                "rollbacked",
                "agent_process_changed",
                "milestone_advanced",
                "milestone_blocked",
                "milestone_evidence",
            ]
        );
        let right = |kind: SessionKind| format!(r#","category":"{}""#, kind.category().as_str());
        assert!(session_log_has_required_categories(&each(right)));
        for without in SessionKind::ALL {
            let but = |kind: SessionKind| match kind == *without {
                true => String::new(),
                false => right(kind),
            };
            let log = each(but);
            let whole = session_log_has_required_categories(&log);
            assert_eq!(whole, !without.must_carry_category(), "{without:?}");
            let flaws: Vec<CategoryFlaw> = log.iter().filter_map(category_flaw).collect();
            let missing = CategoryFlaw::Missing { kind: *without };
            assert_eq!(flaws, if whole { vec![] } else { vec![missing] });
        }
        assert!(session_log_has_required_categories([]));
    }

    #[test]
    fn a_wrong_category_is_named() {
        let kind = SessionKind::PageOut;
        let wrong = record(r#"{"kind":"page_out","category":"proc"}"#);
        assert!(session_log_has_required_categories([&wrong]));
        let found = "proc".to_owned();
        assert_eq!(
            category_flaw(&wrong),
            Some(CategoryFlaw::Wrong { kind, found })
        );
        let wrong = record(r#"{"kind":"page_out","category":"mm","primitive":"sched"}"#);
        let found = "sched".to_owned();
        assert_eq!(
            category_flaw(&wrong),
            Some(CategoryFlaw::WrongPrimitive { kind, found })
        );
        let right = record(r#"{"kind":"page_out","category":"mm","primitive":"mm"}"#);
        assert_eq!(category_flaw(&right), None);
    }

    #[test]
    fn what_is_not_known_is_kept_word_for_word() {
        let text = r#"{ "kind":"dreamt", "b": 1.50,  "a":[ 1,2 ], "category":"odd" }"#;
        let unknown = record(text);
        assert_eq!(
            unknown.event,
            SessionEvent::Unknown {
                kind: "dreamt".into()
            }
        );
        assert_eq!((unknown.text.get(), unknown.kind()), (text, None));
        assert_eq!(category_flaw(&unknown), None);
        // Of a known kind, and not to be read.
        let odd = record(r#"{"kind":"suspended","turn":"later"}"#);
        assert_eq!(
            odd.event,
            SessionEvent::Unknown {
                kind: "suspended".into()
            }
        );
        assert!(!session_log_has_required_categories([&odd]));
        assert!(SessionRecord::parse(r#"{"turn":1}"#).is_err());
        assert!(SessionRecord::parse("[").is_err());
    }
}
