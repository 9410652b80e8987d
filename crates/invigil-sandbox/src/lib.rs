//! Launches a command, watches its whole process tree from outside, and asks a gate before things happen.
//!
//! The way in is [`launch`]. What it does, and why in this way, is in `docs/observer.md`. This crate reports facts and
//! asks; it knows no policy and keeps no journal. All unsafe code of Invigil is here, most of it in `sys`.

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("invigil-sandbox watches processes on Linux, on x86-64 and aarch64");

mod acts;
mod api;
mod birth;
mod calls;
mod census;
mod cgroup;
mod confine;
mod contract;
mod exact;
mod exec;
mod files;
mod filter;
mod handle;
mod launch;
mod limits;
mod message;
mod names;
mod net;
mod nursery;
mod observer;
mod paths;
pub mod probe;
mod protect;
mod sys;
mod table;
mod together;
mod traps;
mod waker;
mod walk;
mod watchdog;

pub use api::{
    Action, AllowAll, Answer, Decision, Exec, Gate, Killed, LaunchError, LaunchSpec, Line, Moment,
    Outcome, Reads, Request, Sink, SinkError, Stdio,
};
pub use confine::{Confinement, Network};
pub use handle::{Handle, descriptor_of, launch};
pub use limits::Limits;
pub use nursery::{Nursery, nurse};
pub use waker::{keep_from_being_stopped, leave_child_signals};
