//! Proposals: read and checked as a whole (`plan`), carried out side by side (`execute`), each action gated (`gate`),
//! done (`act`) and made into a turn (`turn`).

mod act;
mod execute;
mod gate;
mod memory;
mod plan;
mod policies;
mod rate;
mod reference;
mod tool;
mod turn;
mod wire;

pub(crate) use execute::submit;
pub(crate) use memory::Memory;
pub(crate) use policies::{Policies, PolicyParams};
pub(crate) use tool::{Tool, ToolInfo};
pub(crate) use turn::check_reported;
pub(crate) use wire::{Proposal, Submitted};
