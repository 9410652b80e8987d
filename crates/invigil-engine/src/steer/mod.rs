//! Steering a run from outside: orders, suspensions, signals, checkpoints. See `docs/steering.md`.
//!
//! The helm is the supervisor's side: it looks for orders in the store, records each before it obeys, and records what came
//! of it. Nobody else steers, and no process of a run can write the store.

mod checkpoint;
mod children;
mod client;
mod disk;
mod ended;
mod folder;
mod fuse;
mod helm;
mod inbox;
mod milestones;
mod request;
mod usage;

pub(crate) use checkpoint::directory_at;
pub use checkpoint::{CheckpointError, Checkpoints};
pub use children::{Ancestry, ChildNews, ChildSpec, Offspring};
pub use client::{Given, SteerError, give};
pub use ended::ended;
pub use fuse::Fuse;
pub(crate) use helm::{Helm, Setup};
pub use milestones::{Milestones, MilestonesError};
pub use request::ask_for_run;
